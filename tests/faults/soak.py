"""An unbounded job for hours under faults: ``python -m tests.faults.soak --seconds 3600 --rate 20000``.

It must lose nothing and double nothing, and nothing that it holds may grow: memory, threads, descriptors, topics, groups,
nodes of ZooKeeper, bytes in Kafka's log directories. The last line is one JSON object; the exit code is 1 if the run is not as
promised.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sardonyx.client.job_handle import JobHandle
from sardonyx.core.graph import graph_of
from sardonyx.zookeeper.errors import ZooKeeperAway
from tests.faults.cluster import Cluster, Seat, now
from tests.faults.figures import spread
from tests.faults.scene import NotNow, Scene
from tests.faults.shapes import PARTITIONS
from tests.faults.soak_flow import SoakFlow, reached
from tests.faults.soak_judge import JUDGED, MORE, Sample, Verdict, disk_bound, figures, judge, standing, unsure
from tests.faults.soak_plot import plot
from tests.faults.soak_records import BACKLOG, LINKS
from tests.faults.soak_watch import Watch
from tests.faults.striking import Striking
from tests.faults.verbs import FAMILIES, KINDS
from tests.waiting import until

FAULTS_OF = ("sigkill", "sigstop", "leader", "session", "rebalance", "zookeeper", "kafka")
"""The families whose faults strike."""
EVERY = 60.0
"""Seconds between the beginnings of two faults, by default; of a run of less than six minutes, a sixth."""
STILL = 180.0
"""Seconds without a record that comes out, after which the run is red; and within which the queues' first offsets must move."""
VIRTUAL = 4
"""Virtual peers of each daemon: so that with one gone there are as many as the job's tasks take."""


@dataclass
class Options:
    """What is asked for."""

    seed: int
    seconds: float = 3600.0
    rate: float = 20_000.0
    every: float = EVERY
    peers: int = 3
    coordinators: int = 2
    spark: int = 1
    servers: int = 1
    families: tuple[str, ...] = FAULTS_OF
    out: Path = Path("bench/results/soak")


class Soak(Striking):
    """One run.

    Args:
        options: what is asked for.
        folder: for logs and data.
    """

    def __init__(self, options: Options, folder: Path) -> None:
        super().__init__(options.seed)
        self._options = options
        self._folder = folder
        self._families: list[str] = []
        self._kinds: dict[str, list[str]] = {}
        self.faults: list[dict[str, Any]] = []

    def run(self) -> dict[str, Any]:
        """Play it; gives what the last line says."""
        options = self._options
        with Cluster(
            self._folder,
            peers=options.peers,
            coordinators=options.coordinators,
            virtual=VIRTUAL,
            spark=options.spark,
            servers=options.servers,
            proxied=False,
            spare=True,
            log="info",
            coordinator={"snapshot_every": 20},
        ) as cluster:
            flow = SoakFlow(cluster.services.kafka, options.rate, BACKLOG, self._folder)
            scene = Scene(cluster, [flow])  # type: ignore[list-item]
            handle = cluster.client.submit(str(flow.spec))
            spared = [_name(seat) for seat in (cluster.peers[0], cluster.coordinators[0])]
            graph = graph_of(handle.spec(), cluster.settings.deployment, handle.id)
            links = [link.topic for link in graph.links if link.kind == "internal"]
            assert len(links) == LINKS
            watch = Watch(
                cluster,
                links,
                lambda: (flow.given, flow.seen, len(self.faults)),
                max(2.0, options.seconds / 360),
            )
            helpers = [self._beside(work, self, scene, flow) for work in (_feed, _mend)]
            for helper in helpers:
                helper.start()
            try:
                until(lambda: flow.seen, what="the first records", timeout=120)
                self._tell(f"{handle.id} is going")
                watch.start()
                self._strike_until(scene, flow, handle, now() + options.seconds)
                self._strike_on(scene, flow, handle, watch, figures(*spared))
                watch.end()
                self._end(scene, flow, handle)
            except Exception as error:  # noqa: BLE001 - whatever it was, the run is red
                self._wrong(f"{type(error).__name__}: {error}")
            scene.finishing.set()
            scene.ended.set()
            for thread in helpers:
                thread.join()
            if watch.is_alive():
                watch.end()
            flow.close()
        if not self.trouble:
            left = {_name(seat) for seat in (cluster.peers[0], cluster.coordinators[0])}
            if left != set(spared):
                self._wrong(f"a daemon that no fault was to end has ended: {', '.join(set(spared) - left)}")
        return self._result(flow, watch.samples, figures(*spared))

    # Faults

    def _strike_until(self, scene: Scene, flow: SoakFlow, handle: JobHandle, end: float) -> None:
        every = min(self._options.every, self._options.seconds / 6)
        due = now() + every / 2
        while now() < end and not self.trouble:
            _hold_until(min(due, end), scene.ended)
            if now() >= end:
                return
            while not self._strike(scene, flow) and now() < end:
                _hold_until(min(now() + 0.2, end), scene.ended)  # no kind may strike just now
            with contextlib.suppress(ZooKeeperAway):  # just now
                status = handle.status(live=False).status
                assert status == "running", f"{handle.id} is {status}"
            due = max(due + every, now())

    def _strike_on(self, scene: Scene, flow: SoakFlow, handle: JobHandle, watch: Watch, wanted: list[Any]) -> None:
        """Go on, for as long again at most, while a figure swings too much to tell whether it grows."""
        for _ in range(MORE):
            open_ones = unsure(list(watch.samples), wanted)
            if not open_ones or self.trouble:
                return
            self._tell(f"going on: it cannot be told yet whether these grow: {', '.join(open_ones)}")
            self._strike_until(scene, flow, handle, now() + self._options.seconds / MORE)

    def _strike(self, scene: Scene, flow: SoakFlow) -> bool:
        """The next fault; then wait until of every source a record fed after it has come out. False: it did not strike."""
        kind = self._next()
        began = now()
        try:
            whom = KINDS[kind].verb(scene, random.Random(self._rng.random()))
        except NotNow as reason:
            self._tell(f"{kind}: did not strike: {reason}")
            self._kinds[KINDS[kind].family].append(kind)
            return False
        marks, ended = flow.ends, now()
        until(
            lambda: flow.sight.beyond(marks) == PARTITIONS or self.trouble, what=f"records after {kind}", timeout=STILL
        )
        again = round(now() - ended, 2)
        self.faults.append({"kind": kind, "whom": whom, "seconds": round(ended - began, 2), "recover_s": again})
        self._tell(f"fault {len(self.faults)}: {kind}: {whom} ({ended - began:.1f} s), all going again after {again} s")
        return True

    def _next(self) -> str:
        """Families in turn, in an order of chance; of each family, each kind once before any comes twice."""
        if not self._families:
            self._families = self._rng.sample(self._options.families, len(self._options.families))
        family = self._families.pop(0)
        if not self._kinds.get(family):
            kinds = [
                name
                for name, kind in KINDS.items()
                if (kind.family, kind.phase) == (family, "run") and kind.servers <= self._options.servers
            ]
            self._kinds[family] = self._rng.sample(kinds, len(kinds))
        return self._kinds[family].pop(0)

    # The end

    def _end(self, scene: Scene, flow: SoakFlow, handle: JobHandle) -> None:
        """Stop the job while records come in; compare; let another go on from there to the end of what went in; compare."""
        self._stop(scene, handle)
        scene.finishing.set()
        with scene.feeding:
            flow.arrived()
        ends = reached(handle.positions())
        self._tell(f"{handle.id} is stopped at {ends} of {flow.ends}")
        self._compare(flow, ends)
        if (found := flow.input_ends()) != flow.ends:
            self._wrong(f"the input ends at {found}, and the feed gave {flow.ends}")
        rest = scene.cluster.client.submit(str(flow.spec), resume=handle.id)
        until(lambda: flow.seen >= flow.given, what="all records, from the job that goes on", timeout=600)
        self._stop(scene, rest)
        self._compare(flow, flow.ends)
        if differs := flow.tally.differs(flow.sight.tally):
            self._wrong(f"counts or digests differ of {len(differs)} keys: {', '.join(differs[:5])}")

    def _stop(self, scene: Scene, handle: JobHandle) -> None:
        """As a user does."""
        command = [sys.executable, "-m", "sardonyx", "job", "stop", handle.id, "--timeout", "10 min"]
        env = {**os.environ, **scene.cluster.settings.environment()}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"job stop ended with {done.returncode}: {done.stdout}{done.stderr}"

    def _compare(self, flow: SoakFlow, ends: list[int]) -> None:
        until(flow.up_to_date, what="the reader to have read all", timeout=120)
        sight = flow.sight
        lost, beyond = sight.lost(ends), sight.beyond(ends)
        self._tell(
            f"{sum(ends)} records in, {sight.count} out: {lost} lost, {sight.doubled} doubled, {sight.strange} strange"
        )
        if lost or beyond or sight.doubled or sight.strange or sight.count != sum(ends):
            self._wrong(
                f"{sum(ends)} records went in and {sight.count} came out: {lost} lost, {sight.doubled} doubled,"
                f" {sight.strange} strange, and {beyond} sources went past their ends"
            )

    # The report

    def _result(self, flow: SoakFlow, samples: list[Sample], wanted: list[Any]) -> dict[str, Any]:
        options, sight = self._options, flow.sight
        verdicts = judge(samples, wanted) if samples else []
        length = samples[-1]["at"] if samples else 0.0
        long = length >= JUDGED
        rate = (samples[-1]["in"] - samples[0]["in"]) / length if length else 0.0
        bound = disk_bound(samples, options.servers)
        most = max((sample["disk"] for sample in samples), default=0.0)
        still = standing(samples, min(STILL, 0.6 * length))
        wrong = [f"{each.name} {each.says}" for each in verdicts if each.says != "flat"] if long else []
        wrong += [f"{figure.name} is not judged" for figure in wanted if long and _unjudged(figure, verdicts, options)]
        if sum("low" in sample for sample in samples) <= len(samples) / 2:
            wrong.append("the queues' first offsets were seldom known")
        if most > bound:
            wrong.append(f"Kafka's log directories took {most:.0f} MiB; the bound is {bound:.0f}")
        wrong += [f"{len(still)} times a queue's first offset stood still: {still[0]}"] if still else []
        return {
            "records_in": flow.given,
            "records_out": sight.count,
            "doubled": sight.doubled,
            "strange": sight.strange,
            "wrong": [*flow.failed, *sight.wrong, *wrong],
            "trouble": self.trouble,
            "seed": options.seed,
            "seconds": length,
            "rate_asked": options.rate,
            "rate": round(rate),
            "held_s": round(flow.held, 1),
            "faults": dict(sorted(Counter(fault["kind"] for fault in self.faults).items())),
            "recover_s": spread([fault["recover_s"] for fault in self.faults]),
            "disk_mib": {"most": round(most), "bound": round(bound)},
            "slopes": [_told(each) for each in verdicts],
            "slopes_count": long,
            "struck": self.faults,
            "samples": samples,
        }


def _told(verdict: Verdict) -> dict[str, Any]:
    about = verdict.trend
    return {
        "name": verdict.name,
        "mean": round(about.mean, 1),
        "per_hour": round(about.slope, 2),
        "error": round(about.error, 2),
        "limit": round(verdict.limit, 2),
        "says": verdict.says,
    }


def _unjudged(figure: Any, verdicts: list[Verdict], options: Options) -> bool:
    """A figure that could not be judged is no good sign, unless there is no Spark of which it could be one."""
    of_spark = "JVM" in figure.name or "workers" in figure.name
    return figure.name not in {each.name for each in verdicts} and (options.spark > 0 or not of_spark)


def _feed(soak: Soak, scene: Scene, flow: SoakFlow) -> None:
    before = now()
    while not scene.finishing.wait(0.05):
        with scene.feeding:
            at = now()
            flow.step(at - before)
            before = at
        if flow.failed:
            raise AssertionError(flow.failed[0])


def _mend(soak: Soak, scene: Scene, flow: SoakFlow) -> None:
    """Fill empty seats, and see that records keep coming out."""
    seen, since = 0, now()
    while not scene.ended.wait(1.0):
        scene.cluster.mend()
        if flow.seen > seen or scene.finishing.is_set() or scene.services.locked():
            seen, since = flow.seen, now()
        elif now() - since > STILL:
            soak._wrong(f"no record came out for {STILL:.0f} s")
            since = now()


def _hold_until(moment: float, ended: threading.Event) -> None:
    ended.wait(max(0.0, moment - now()))


def _name(seat: Seat) -> str:
    assert seat.process is not None
    return seat.process.name


def good(result: dict[str, Any]) -> bool:
    """Whether everything is as promised."""
    return not result["trouble"] and not result["wrong"] and result["records_in"] == result["records_out"]


def run(options: Options) -> dict[str, Any]:
    """One run; its logs stay if it is red."""
    folder = Path(tempfile.mkdtemp(prefix="sardonyx-soak-"))
    sys.stderr.write(f"seed {options.seed}: {options}\nlogs: {folder}\n")
    result = Soak(options, folder).run()
    result["good"] = good(result)
    if result["good"]:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        shutil.rmtree(folder / "services", ignore_errors=True)  # gigabytes, and of no use to a reader
    return result


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--seconds", type=float, default=Options.seconds)
    parser.add_argument("--rate", type=float, default=Options.rate, help="records a second; 0: as many as go through")
    parser.add_argument("--every", type=float, default=Options.every, help="seconds between two faults")
    parser.add_argument("--peers", type=int, default=Options.peers)
    parser.add_argument("--coordinators", type=int, default=Options.coordinators)
    parser.add_argument("--spark", type=int, default=Options.spark, help="how many of the peers run Spark")
    parser.add_argument("--cluster", type=int, default=1, help="servers of ZooKeeper, and of Kafka")
    parser.add_argument("--kinds", default=",".join(FAULTS_OF), help=f"some of {','.join(FAMILIES)}")
    parser.add_argument("--out", type=Path, default=Options.out, help="folder for soak.json and soak.png")
    given = parser.parse_args()
    families = tuple(given.kinds.split(","))
    if unknown := set(families) - set(FAMILIES):
        parser.error(f"--kinds: there is no {', '.join(sorted(unknown))}; some of {','.join(FAMILIES)}")
    options = Options(
        seed=given.seed,
        seconds=given.seconds,
        rate=given.rate,
        every=given.every,
        peers=given.peers,
        coordinators=given.coordinators,
        spark=given.spark,
        servers=given.cluster,
        families=families,
        out=given.out,
    )
    result = run(options)
    options.out.mkdir(parents=True, exist_ok=True)
    asked = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(options).items()}
    (options.out / "soak.json").write_text(json.dumps({"options": asked, **result}) + "\n")
    if result["samples"]:
        plot(result, options.out / "soak.png")
    told = {name: value for name, value in result.items() if name not in ("samples", "struck")}
    if not result["slopes_count"]:
        sys.stderr.write("the run is too short for a verdict on these:\n")
    for each in told.pop("slopes"):
        sys.stderr.write(
            f"{each['name']}: mean {each['mean']}, {each['per_hour']:+} +- {each['error']} an hour,"
            f" limit {each['limit']}: {each['says']}\n"
        )
    sys.stdout.write(json.dumps(told) + "\n")
    return 0 if result["good"] else 1


if __name__ == "__main__":
    sys.exit(main())


__all__ = ["Options", "Soak", "disk_bound", "good", "plot", "run"]
