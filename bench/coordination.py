"""The coordinator at scale: `python bench/coordination.py [--part loop peers takeover shapes virtual]`.

- ``loop``: events a second through the real loop on a real ZooKeeper, beside raw creates of kazoo in transactions of 100;
- ``peers``: the cost of an event with 10 to 10,000 virtual peers, through the loop and through the deciding core alone, and
  what a peer takes of memory;
- ``takeover``: how long a new leader needs, by the length of the log; and from the SIGKILL of a leading coordinator to the
  first decision of the one that stood by;
- ``shapes``: clusters that stand, grow, come and go, with few and many jobs, over simulated time;
- ``virtual``: 500 virtual peers in five daemons, through the life of some jobs and their own.

Uses the ZooKeeper that is configured (environment, ``sardonyx.toml``), or else starts its own. Writes ``coordination.json``,
with the load of the machine beside each figure, and plots. The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
import tracemalloc
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import coordination_shapes
import coordination_virtual
import msgspec
from coordination_world import STEPS, Crowd, Links, Pure, World, leadership, pure_round, swept, world
from kazoo.client import KazooClient
from machine import machine

from coordinator.core.stored_state import encode_state
from coordinator.daemon import SWITCH, Coordinator
from coordinator.loop import snapshots
from coordinator.loop.election import Leadership
from coordinator.loop.leader import Leader
from coordinator.loop.log_writer import PendingEntry, append
from sardonyx.core import node_paths
from sardonyx.core.effects import Set
from sardonyx.core.notes import PulseNote
from sardonyx.runtime.logging import configure_logging
from sardonyx.runtime.settings import Settings, load_settings
from sardonyx.zookeeper.session import ZooKeeperSession

RESULTS = Path(__file__).parent / "results" / "coordination"
SEED = 4
DEATHS = 100
"""Events for each death, and so for each birth."""
RAW_BYTES, RAW_BATCH = 200, 100
"""Of one node, and nodes of one transaction, in the raw creates that the loop is held against."""


@dataclass(frozen=True)
class Sample:
    """The spread of one figure: the median of the runs, and their ends."""

    median: float
    least: float
    most: float
    runs: int

    @classmethod
    def of(cls, values: list[float]) -> Sample:
        """Of the figures of some runs."""
        return cls(*(round(found, 4) for found in (statistics.median(values), min(values), max(values))), len(values))


def load() -> float:
    """Processes that want a processor, over the last minute."""
    return round(os.getloadavg()[0], 2)


@contextlib.contextmanager
def zookeeper() -> Iterator[Settings]:
    """Settings with the configured ZooKeeper, or with one that runs meanwhile; a deployment of this run only."""
    settings = load_settings()
    if settings.zookeeper.hosts:
        yield fresh(settings)
        return
    from sardonyx.dev.services import embedded_services

    with embedded_services() as started:
        yield fresh(load_settings(zookeeper={"hosts": started.zookeeper}))


def fresh(settings: Settings, **coordinator: Any) -> Settings:
    """The same services, another deployment; other settings of the coordinator."""
    return load_settings(
        deployment=f"bench-{uuid.uuid4().hex[:8]}",
        zookeeper=settings.zookeeper.model_dump(exclude_defaults=True),
        coordinator=coordinator,
    )


def deaths(events: Callable[[], int]) -> Iterator[int]:
    """How many peers die in the next round, by how many events were taken so far: the same share, however small a round."""
    paid = events()
    while True:
        due = (events() - paid) // DEATHS
        paid += due * DEATHS
        yield due


# The loop beside raw creates


def loop(settings: Settings, args: argparse.Namespace) -> dict[str, Any]:
    """Runs of raw creates and of the loop in turns; the ratio is of each run of the loop to the raw ones around it."""
    raw, through, ratios, loads = [], [], [], []
    with world(fresh(settings), args.peers, SEED) as driven, raw_client(settings) as client:
        run(driven, args.events // 5, args.round)  # warm up
        raw.append(raw_creates(client, args.events))
        driven.forget()
        for _ in range(args.runs):
            before = driven.events, sum(driven.seconds.values())
            run(driven, args.events, args.round)
            through.append((driven.events - before[0]) / (sum(driven.seconds.values()) - before[1]))
            raw.append(raw_creates(client, args.events))
            ratios.append(2 * through[-1] / (raw[-1] + raw[-2]))
            loads.append(load())
            print(f"loop {through[-1]:,.0f}/s beside raw {raw[-1]:,.0f}/s: {ratios[-1]:.2f}", flush=True)
            print(f"  of the processor, an event: {cpu_per_event(driven)}", flush=True)
        total = driven.events
        return {
            "ratio": asdict(Sample.of(ratios)),
            "loop_per_s": asdict(Sample.of(through)),
            "raw_per_s": asdict(Sample.of(raw)),
            "us_per_event": {step: round(driven.seconds[step] / total * 1e6, 1) for step in STEPS},
            "cpu_us_per_event": cpu_per_event(driven),
            "mix": {kind: round(found / total, 4) for kind, found in driven.kinds.most_common()},
            "events": total,
            "peers": args.peers,
            "round": args.round,
            "load": loads,
        }


def cpu_per_event(driven: World) -> dict[str, float]:
    """Microseconds of processor time, by process; 0 for a ZooKeeper on another machine."""
    return {process: round(spent / driven.events * 1e6, 1) for process, spent in driven.cpu.items()}


def run(driven: World, events: int, requests: int) -> None:
    """Rounds of at most so many requests until so many more events are taken."""
    until, dying = driven.events + events, deaths(lambda: driven.events)
    while driven.events < until:
        driven.round(requests, next(dying))


@contextlib.contextmanager
def raw_client(settings: Settings) -> Iterator[KazooClient]:
    """Kazoo as it comes."""
    client = KazooClient(**settings.zookeeper.client())
    client.start()
    yield client
    client.stop()
    client.close()


def raw_creates(client: KazooClient, nodes: int) -> float:
    """Creates a second, of 200 bytes each, 100 to a transaction; they are removed afterwards."""
    root = f"/bench-{uuid.uuid4().hex}"
    client.create(root)
    names = [f"{root}/{n:010d}" for n in range(nodes)]
    began = time.perf_counter()
    for at in range(0, nodes, RAW_BATCH):
        transaction = client.transaction()
        for name in names[at : at + RAW_BATCH]:
            transaction.create(name, b"x" * RAW_BYTES)
        if any(isinstance(result, Exception) for result in transaction.commit()):
            raise RuntimeError("a raw create failed")
    seconds = time.perf_counter() - began
    for at in range(0, nodes, 1000):
        transaction = client.transaction()
        for name in names[at : at + 1000]:
            transaction.delete(name)
        transaction.commit()
    client.delete(root)
    return nodes / seconds


# By the number of peers


def peers(settings: Settings, args: argparse.Namespace) -> dict[str, Any]:
    """The same round, of as many requests, with more and more peers that stand beside those that speak."""
    found: dict[str, Any] = {
        "sizes": args.sizes,
        "round": args.few,
        "core_us": [],
        "loop_us": [],
        "cpu_us": [],
        "load": [],
    }
    for size in args.sizes:
        found["core_us"].append(asdict(Sample.of([core_cost(size, args) for _ in range(args.runs)])))
        with world(fresh(settings), size, SEED) as driven:
            run(driven, 300, args.few)
            costs, spent = [], []
            for _ in range(args.runs):
                driven.forget()
                run(driven, args.events // 30, args.few)
                costs.append(sum(driven.seconds.values()) / driven.events * 1e6)
                spent.append(sum(cpu_per_event(driven).values()))
        found["cpu_us"].append(asdict(Sample.of(spent)))
        found["loop_us"].append(asdict(Sample.of(costs)))
        found["load"].append(load())
        print(f"{size:>6} peers: {found['loop_us'][-1]['median']:.0f} us an event", flush=True)
    for kind in ("core_us", "loop_us", "cpu_us"):
        medians = [each["median"] for each in found[kind]]
        found[f"{kind.removesuffix('_us')}_largest_to_smallest"] = round(medians[-1] / medians[0], 2)
    return {**found, **memory(args.sizes[-1])}


def core_cost(size: int, args: argparse.Namespace) -> float:
    """Microseconds of a decision in the core alone."""
    pure, crowd = crowded(size)
    dying = deaths(lambda: pure.events)
    while pure.events < args.events:
        pure_round(pure, crowd, args.few, next(dying))
    return pure.seconds / pure.events * 1e6


def crowded(size: int) -> tuple[Pure, Crowd]:
    """A core with so many peers on running jobs."""
    pure, crowd = Pure(), Crowd(size, random.Random(SEED))  # noqa: S311 - repeatable, not secret
    pure.take([*crowd.born(size), *crowd.jobs(pure.state)])
    pure.events, pure.seconds = 0, 0.0
    return pure, crowd


def memory(size: int) -> dict[str, int]:
    """Bytes of a peer and of its share of the jobs, in the coordinator and in a snapshot."""
    tracemalloc.start()
    pure, _ = crowded(size)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {"bytes_per_peer": held // size, "snapshot_bytes_per_peer": len(encode_state(pure.state)) // size}


# Taking over


def takeover(settings: Settings, args: argparse.Namespace) -> dict[str, Any]:
    """By the length of the log, as long behind a snapshot as can be; and from SIGKILL to the first decision."""
    every = settings.coordinator.snapshot_every
    own = fresh(settings, keep_log=10 * args.lengths[-1])
    found: dict[str, Any] = {"lengths": args.lengths, "snapshot_every": every, "seconds": [], "load": []}
    with swept(own):
        filling = Filling(own, every)
        for length in args.lengths:
            began = time.perf_counter()
            filling.to(length)
            print(f"{length:,} entries after {time.perf_counter() - began:.1f} s more", flush=True)
            found["seconds"].append(asdict(Sample.of([taken_over(own, length) for _ in range(args.runs)])))
            found["load"].append(load())
            print(f"  taken over in {found['seconds'][-1]['median']:.3f} s", flush=True)
    waits = [killed(settings) for _ in range(args.runs)]
    found["session_timeout"] = SESSION
    found["kill_to_decision_s"] = asdict(Sample.of(waits))
    found["kill_load"] = load()
    print(f"from SIGKILL to the first decision {max(waits):.2f} s at most; the session lasts {SESSION:g} s", flush=True)
    return found


class Filling:
    """A log that grows by the real append, of events that the core decides, with snapshots as the loop takes them."""

    def __init__(self, settings: Settings, every: int) -> None:
        self._settings = settings
        self._every = every
        self._pure, self._crowd = Pure(), Crowd(100, random.Random(SEED))  # noqa: S311 - repeatable, not secret
        self._waiting = self._pure.take([*self._crowd.born(100), *self._crowd.jobs(self._pure.state)])

    def to(self, length: int) -> None:
        """So many entries at least; behind the last snapshot nearly as many as there can be."""
        with leadership(self._settings) as won:
            while self._pure.state.n < length - self._every:
                self._append(won, self._every)
                snapshots.write(won, self._pure.state.n, encode_state(self._pure.state))
            self._append(won, self._every - 100)
            won.commit([Set(node_paths.CHECKPOINT, str(self._pure.state.n).encode())])

    def _append(self, won: Leadership, entries: int) -> None:
        while len(self._waiting) < entries:
            self._waiting += pure_round(self._pure, self._crowd, 50, 1)
        append(won, self._waiting[0][0], [PendingEntry(event) for _, event in self._waiting])
        self._waiting = []


def taken_over(settings: Settings, length: int) -> float:
    """Seconds in which a new leader becomes what a log of at least that length says."""
    with leadership(settings) as won:
        leader = Leader(won, settings, Links(), wake=threading.Event())
        began = time.perf_counter()
        leader.take_over()
        seconds = time.perf_counter() - began
        leader.close()
        if leader.state.n < length - settings.coordinator.snapshot_every:
            raise RuntimeError(f"the log ends at {leader.state.n}")
        return seconds


SESSION = 4.0
"""Seconds that the sessions of the two coordinators last."""
_serial = count()


def killed(settings: Settings) -> float:
    """Seconds from the SIGKILL of a leading coordinator to the first decision of the one that stands by."""
    own = fresh(settings)
    environment = {
        **os.environ,
        "SARDONYX__DEPLOYMENT": own.deployment,
        "SARDONYX__ZOOKEEPER__HOSTS": str(own.zookeeper.hosts),
        "SARDONYX__ZOOKEEPER__SESSION_TIMEOUT": str(SESSION),
    }
    command = [sys.executable, __file__, "--coordinator"]
    with contextlib.ExitStack() as stack:
        zk = ZooKeeperSession.connect(own)
        stack.callback(zk.close)
        processes = []
        for standing in (1, 2):
            quiet = subprocess.DEVNULL
            processes.append(subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet))
            stack.callback(processes[-1].kill)
            until(lambda standing=standing: len(zk.children(node_paths.ELECTION)) == standing, "a coordinator to stand")
        decided(zk)  # the first one leads
        processes[0].send_signal(signal.SIGKILL)
        return decided(zk)


def decided(zk: ZooKeeperSession) -> float:
    """Seconds from a birth to the decision about it."""
    peer = f"peer-{next(_serial)}"
    there = threading.Event()
    zk.read(node_paths.peer_state(peer), watch=lambda _: there.set())
    began = time.perf_counter()
    zk.create(node_paths.pulse(peer), msgspec.json.encode(PulseNote("d", "bench", 1)), ephemeral=True)
    if not there.wait(60):
        raise RuntimeError("no coordinator decided within a minute")
    return time.perf_counter() - began


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something, at most half a minute."""
    deadline = time.monotonic() + 30
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited in vain for {what}")
        time.sleep(0.02)


# Plots


def plot_loop(found: dict[str, Any], axes: Any) -> None:
    """What an event costs, step by step."""
    steps = found["us_per_event"]
    axes.barh(list(steps), list(steps.values()))
    axes.invert_yaxis()
    axes.set_xlabel("microseconds an event")
    ratio = found["ratio"]
    axes.set_title(f"The loop beside raw creates: {ratio['median']:.2f} ({ratio['least']:.2f} to {ratio['most']:.2f})")


def plot_peers(found: dict[str, Any], axes: Any) -> None:
    """What an event costs, by the number of peers."""
    for kind, label in (("loop_us", "the loop on ZooKeeper"), ("core_us", "the core alone")):
        axes.errorbar(*spread(found["sizes"], found[kind]), marker="o", capsize=3, label=label)
    axes.set(xscale="log", xlabel="virtual peers", ylabel="microseconds an event", title="Cost of an event")
    axes.set_ylim(bottom=0)
    axes.legend()


def plot_takeover(found: dict[str, Any], axes: Any) -> None:
    """How long taking over takes, by the length of the log."""
    axes.errorbar(*spread(found["lengths"], found["seconds"]), marker="o", capsize=3)
    axes.set(xscale="log", xlabel="entries in the log", ylabel="seconds", title="Taking over")
    axes.set_ylim(bottom=0)


def spread(at: list[int], samples: list[dict[str, float]]) -> tuple[list[int], list[float], list[list[float]]]:
    """Medians, and how far the runs lie below and above."""
    middle = [each["median"] for each in samples]
    below = [each["median"] - each["least"] for each in samples]
    above = [each["most"] - each["median"] for each in samples]
    return at, middle, [below, above]


# Parts that stand in modules of their own


def shapes(settings: Settings, args: argparse.Namespace) -> dict[str, Any]:
    """Clusters over simulated time; needs no services."""
    del settings, args
    return {**coordination_shapes.measure(), "load": load()}


def virtual(settings: Settings, args: argparse.Namespace) -> dict[str, Any]:
    """Real daemons with many virtual peers."""
    before = load()
    return {**coordination_virtual.measure(fresh(settings), args.daemons, args.each), "load": [before, load()]}


PARTS: dict[str, Callable[[Settings, argparse.Namespace], dict[str, Any]]]
PARTS = {"loop": loop, "peers": peers, "takeover": takeover, "shapes": shapes, "virtual": virtual}
# Of a part: how many panels each plot has, and how they are drawn; by the plot's name
PLOTS: dict[str, dict[str, tuple[int, Callable[[dict[str, Any], Any], None]]]] = {
    "loop": {"loop": (1, plot_loop)},
    "peers": {"peers": (1, plot_peers)},
    "takeover": {"takeover": (1, plot_takeover)},
    "shapes": {f"shape_{name}": (2, partial(coordination_shapes.plot, name)) for name in coordination_shapes.shapes()},
    "virtual": {"virtual": (2, coordination_virtual.plot)},
}


def keep(folder: Path, part: str, found: dict[str, Any]) -> dict[str, Any]:
    """The figures beside those of other parts, and the plots. Gives the figures, without the points that are drawn."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    for name, (panels, draw) in PLOTS[part].items():
        figure, axes = plt.subplots(panels, figsize=(7, 3 + panels), sharex=True, layout="constrained")
        draw(found, axes)
        for panel in figure.axes[:panels]:
            panel.grid(alpha=0.3)
        figure.savefig(folder / f"{name}.png", dpi=90)
        plt.close(figure)
    path = folder / "coordination.json"
    figures = json.loads(path.read_text()) if path.exists() else {}
    figures[part] = without_points(found) | {"machine": machine()}
    path.write_text(json.dumps(figures, indent=2) + "\n")
    return figures[part]


def without_points(found: dict[str, Any]) -> dict[str, Any]:
    return {
        name: without_points(value) if isinstance(value, dict) else value
        for name, value in found.items()
        if name != "points"
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="The coordinator at scale.")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the figures and plots")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--events", type=int, default=60_000, help="in a run of the loop or of the core")
    parser.add_argument("--peers", type=int, default=10_000, help="of the loop beside raw creates")
    parser.add_argument("--round", type=int, default=10_000, help="requests that wait at once, in that part")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 1000, 10_000], help="numbers of peers")
    parser.add_argument("--few", type=int, default=6, help="requests that wait at once, whatever the number of peers")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1000, 10_000, 100_000, 1_000_000], help="of the log")
    parser.add_argument("--daemons", type=int, default=5, help="in the part with real virtual peers")
    parser.add_argument("--each", type=int, default=100, help="virtual peers of each of these daemons")
    parser.add_argument("--coordinator", action="store_true", help="be a coordinator without Kafka, until killed")
    args = parser.parse_args()
    sys.setswitchinterval(SWITCH)  # as the coordinator's process does
    if args.coordinator:
        Coordinator(load_settings(), Links()).run()
        return 0
    figures = {}
    services = zookeeper() if set(args.part) - {"shapes"} else contextlib.nullcontext(load_settings())
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, services as settings:
        configure_logging(settings, stream=nowhere)  # as in the daemon; what it says is written, and not looked at
        for part in args.part:
            figures[part] = keep(args.results, part, PARTS[part](settings, args))
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
