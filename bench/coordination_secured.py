"""The coordinator on services with TLS and a login, beside the same without: `python bench/coordination_secured.py [--part few]`.

Two ZooKeepers and two brokers run at once. On one pair everybody may do anything in plain text. On the other all speak TLS and
log in by SASL (DIGEST-MD5 at ZooKeeper, SCRAM-SHA-512 at Kafka), and ACLs are checked. The runs take turns, and each ratio is
of a run on the secured pair to the two on the open one around it:

- ``busy``: events a second through the real loop, many requests at a time, as in the part ``loop`` of ``coordination.py``;
- ``few``: the time of an event with a few requests at a time, as in its part ``peers``;
- ``decision``: from the birth of a peer until the decision of a coordinator of its own process stands in ZooKeeper;
- ``links``: from the submission of a job until its topics stand and it runs, and from its kill until they are gone.

Writes ``secured.json``; the last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
from coordination import RESULTS, SEED, Sample, cpu_per_event, decided, load, run, until
from coordination_world import job_spec, swept, world
from machine import machine

from coordinator.daemon import SWITCH
from sardonyx.core import node_paths
from sardonyx.core.events import JobKilled, JobSubmitted
from sardonyx.core.notes import JobNote
from sardonyx.dev.services import embedded_services
from sardonyx.runtime.logging import configure_logging
from sardonyx.runtime.settings import Settings, load_settings
from sardonyx.zookeeper.session import ZooKeeperSession

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.services.secured import secured_services

PATIENCE = 60.0


class Pair(NamedTuple):
    """Settings of the two kinds of services."""

    plain: Settings
    secured: Settings

    def fresh(self) -> Pair:
        """The same services, other deployments."""
        return Pair(*(each.model_copy(update={"deployment": f"bench-{uuid.uuid4().hex[:8]}"}) for each in self))


@contextlib.contextmanager
def services() -> Iterator[Pair]:
    """Both kinds, each with one ZooKeeper and one broker."""
    with TemporaryDirectory() as folder, embedded_services() as plain, secured_services(Path(folder)) as secured:
        addresses = {"zookeeper.hosts": plain.zookeeper, "kafka.bootstrap_servers": plain.kafka}
        yield Pair(load_settings(**addresses), secured.settings())


def compared(runs: int, measure: Callable[[int], float]) -> dict[str, Any]:
    """Runs in turns. ``measure`` gets the place in the pair: 0 is plain."""
    plain, secured, ratios, loads = [measure(0)], [], [], []
    for _ in range(runs):
        secured.append(measure(1))
        plain.append(measure(0))
        ratios.append(2 * secured[-1] / (plain[-1] + plain[-2]))
        loads.append(load())
    return {
        "ratio": asdict(Sample.of(ratios)),
        "plain": asdict(Sample.of(plain)),
        "secured": asdict(Sample.of(secured)),
        "load": loads,
    }


def busy(pair: Pair, args: argparse.Namespace) -> dict[str, Any]:
    """Events a second, with thousands of requests in a round; and the processor time of an event."""
    return _loop(pair, args, args.peers, args.round, args.events, lambda events, seconds: events / seconds)


def few(pair: Pair, args: argparse.Namespace) -> dict[str, Any]:
    """Microseconds of an event, with a few requests in a round: nearly all of it is waiting for ZooKeeper."""
    events = args.events // 30
    return _loop(pair, args, args.few_peers, args.few, events, lambda events, seconds: seconds / events * 1e6)


def _loop(
    pair: Pair,
    args: argparse.Namespace,
    peers: int,
    requests: int,
    events: int,
    figure: Callable[[int, float], float],
) -> dict[str, Any]:
    with ExitStack() as stack:
        worlds = [stack.enter_context(world(each, peers, SEED)) for each in pair.fresh()]
        cpu: tuple[list[dict[str, float]], ...] = ([], [])
        for driven in worlds:
            run(driven, max(events // 5, 300), requests)  # warm up

        def measure(place: int) -> float:
            driven = worlds[place]
            driven.forget()
            run(driven, events, requests)
            cpu[place].append(cpu_per_event(driven))
            return figure(driven.events, sum(driven.seconds.values()))

        found = compared(args.runs, measure)
        found["cpu_us_per_event"] = {
            name: {key: round(statistics.median(each[key] for each in spent), 1) for key in spent[0]}
            for name, spent in zip(Pair._fields, cpu, strict=True)
        }
    return {**found, "peers": peers, "round": requests, "events": events}


@contextlib.contextmanager
def coordinators(pair: Pair) -> Iterator[list[ZooKeeperSession]]:
    """A coordinator of its own process on each, and a session with each ZooKeeper."""
    with ExitStack() as stack:
        sessions = []
        for settings in pair:
            stack.enter_context(swept(settings))
            zk = ZooKeeperSession.connect(settings)
            stack.callback(zk.close)
            command = [sys.executable, "-m", "sardonyx", "coordinator"]
            environment = {**os.environ, **settings.environment()}
            made = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(made.wait, PATIENCE)
            stack.callback(made.send_signal, signal.SIGTERM)
            until(lambda zk=zk: bool(zk.read(node_paths.EPOCH)), "a coordinator to lead")
            decided(zk)  # it has taken over
            sessions.append(zk)
        yield sessions


def decision(pair: Pair, args: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds: the median of a run of births, one after the other, and the 99th percentile of all runs."""
    took: tuple[list[float], ...] = ([], [])
    with coordinators(pair.fresh()) as sessions:

        def measure(place: int) -> float:
            found = [decided(sessions[place]) * 1e3 for _ in range(args.births)]
            took[place].extend(found)
            return statistics.median(found)

        for place in (0, 1):
            measure(place)
            took[place].clear()
        found = compared(args.runs, measure)
    p99 = [round(statistics.quantiles(each, n=100)[98], 2) for each in took]
    return {**found, "p99": dict(zip(Pair._fields, p99, strict=True)), "births": args.births}


def links(pair: Pair, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds until the topics of a job stand and it runs; and, after its kill, until they are gone."""
    gone: tuple[list[float], ...] = ([], [])
    with coordinators(pair.fresh()) as sessions:

        def measure(place: int) -> float:
            zk, job = sessions[place], f"links-{uuid.uuid4().hex[:8]}"
            began = time.perf_counter()
            zk.request(JobSubmitted(job=job, spec=job_spec("links")))
            _await(zk, job, "made")
            made = time.perf_counter()
            zk.request(JobKilled(job=job))
            _await(zk, job, "gone")
            gone[place].append(time.perf_counter() - made)
            return made - began

        for place in (0, 1):
            measure(place)
            gone[place].clear()
        found = compared(args.runs, measure)
    found["until_gone"] = {name: asdict(Sample.of(each)) for name, each in zip(Pair._fields, gone, strict=True)}
    spec = job_spec("links")
    return {**found, "tasks": len(spec.catalog), "partitions": spec.partitions}


def _await(zk: ZooKeeperSession, job: str, links: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        data = zk.read(node_paths.job_status(job))
        note = None if data is None else msgspec.json.decode(data, type=JobNote)
        if note is not None and note.links == links:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {PATIENCE:g} s for the links of {job} to be {links}: {note}")
        time.sleep(0.002)


PARTS = {"busy": busy, "few": few, "decision": decision, "links": links}


def main() -> None:
    """Measure the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--peers", type=int, default=10_000, help="of the part busy")
    parser.add_argument("--round", type=int, default=10_000, help="requests at a time there, at most")
    parser.add_argument("--events", type=int, default=60_000, help="of a run there; of the part few a thirtieth")
    parser.add_argument("--few-peers", type=int, default=1000)
    parser.add_argument("--few", type=int, default=6, help="requests at a time of the part few")
    parser.add_argument("--births", type=int, default=200, help="of a run of the part decision")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    sys.setswitchinterval(SWITCH)  # as the coordinator's process does
    found: dict[str, Any] = {"machine": machine()}
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, services() as pair:
        configure_logging(pair.plain, stream=nowhere)  # as in the daemon; what it says is written, and not looked at
        for part in args.part:
            found[part] = PARTS[part](pair, args)
            print(f"{part}: {json.dumps(found[part])}", flush=True)
    args.results.mkdir(parents=True, exist_ok=True)
    (args.results / "secured.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
