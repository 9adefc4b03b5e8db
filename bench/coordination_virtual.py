"""Five hundred virtual peers in five daemons, and two coordinators, as real processes on a real ZooKeeper.

A daemon is the product's own, with its virtual peers, grants, votes and task loops; what a task reads and writes stands
nowhere, so no Spark and no Kafka: a peer finds its input exhausted when it is let go, and some time after it began. Run as
a script this is one of those processes: ``coordinator`` or ``daemon``.

The story: all peers are born; one job with four wide tasks is handed in, all peers work on it and are let go when all do;
five such jobs at once; a last one, during which every daemon gets SIGTERM.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter as Tally
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import psutil

from coordinator.core.decide import decide
from coordinator.core.state import State, new_state
from coordinator.daemon import SWITCH, Coordinator
from coordinator.loop import event_log
from coordinator.loop.side_effects import Needed, Rewired, Since, Trimmed
from peer.assignment import WORKING, AssignmentHandle
from peer.daemon import PeerDaemon
from peer.slot_clients import SlotClients
from peer.task_loop import TaskLoop
from sardonyx.core import node_paths
from sardonyx.core.events import ENDED, Acked, Counts, JobSubmitted, LastCommits, LinkFacts, kind_of
from sardonyx.core.graph import Link, graph_of
from sardonyx.core.notes import JobNote, PeerNote
from sardonyx.core.positions import Partition, Position
from sardonyx.core.slot import Slot
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.dev.servers import four_letters
from sardonyx.runtime.logging import configure_logging
from sardonyx.runtime.settings import Settings, load_settings
from sardonyx.runtime.signals import heard
from sardonyx.zookeeper.session import ZooKeeperSession

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.services.light import LightReader, LightRunner, LightWork

PARTITIONS = 512
TASKS = 4
JOBS = 5
"""Handed in at once, in the second act."""
WORK = 0.5
"""Seconds from the beginning of a peer's work on a task until it finds the input exhausted, if it is let go."""
LOOK = 0.25
"""Seconds between looks of a peer that waits: to be let go, or to be told to seal."""
PATIENCE = 180.0
"""Seconds that any step of the story may take."""
POLL = 0.1
"""Seconds between looks at the tree: so exact are the times."""


# In the processes


class WideLinks:
    """Says that a job's links stand, without Kafka, as wide as the job wants them."""

    def create_links(self, job: str, spec: JobSpec) -> dict[str, LinkFacts]:
        return {link.name: LinkFacts(spec.partitions) for link in graph_of(spec, "bench", job).links}

    def read_links(self, job: str, spec: JobSpec) -> LastCommits:
        del job, spec
        return LastCommits()

    def delete_links(self, job: str, spec: JobSpec, *, keeps_states: bool = True) -> LastCommits:
        del job, spec, keeps_states
        return LastCommits()

    def change_links(self, job: str, spec: JobSpec, rewired: Rewired) -> tuple[dict[str, LinkFacts], Since]:
        del rewired
        return self.create_links(job, spec), {}

    def drop_links(self, job: str, spec: JobSpec, rewired: Rewired) -> None:
        pass

    def fence(self, slot: Slot, spec: JobSpec) -> None:
        pass

    def remove_static_member(self, slot: Slot, spec: JobSpec) -> None:
        pass

    def trim_links(self, job: str, spec: JobSpec, needed: Needed) -> Trimmed:
        del job, spec, needed
        return Trimmed()

    def forget(self, jobs: Collection[str]) -> None:
        pass


@dataclass
class HeldRunner(LightRunner):
    """Tasks that take a while, once the daemon is let go, and that end when those before them have sealed.

    Which links are sealed a daemon hears from ZooKeeper, once for all its peers; real ones read the sentinels from Kafka.
    """

    released: threading.Event = field(default_factory=threading.Event)
    _ended: set[str] = field(default_factory=set)
    _asked: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ended(self, zk: ZooKeeperSession, job: str, link: Link) -> bool:
        """Whether everything that will ever be on the link is there."""
        path = node_paths.sentinel(job, link.name)
        if link.kind == "splits" or path in self._ended:
            return True
        with self._lock:
            asked = path in self._asked
            self._asked.add(path)
        if not asked and zk.read(path, watch=lambda _: self._asked.discard(path)) is not None:
            self._ended.add(path)
        return path in self._ended

    def work(self, prepared: LightWork, handle: AssignmentHandle, zk: ZooKeeperSession) -> None:
        TaskLoop(prepared, handle, zk, held_slot(handle)).run()  # type: ignore[arg-type]


@dataclass
class HeldReader(LightReader):
    """All of a task's partitions, empty but for a sentinel."""

    due: float = field(default_factory=lambda: time.monotonic() + WORK)

    def poll(self, timeout: float) -> None:
        del timeout
        rest = self.due - time.monotonic()
        self.handle.pause(rest if 0 < rest < LOOK else LOOK)

    @property
    def held(self) -> dict[Partition, Position | None]:
        (link,) = self.work.stage.ingress
        runner = self.work.runner
        assert isinstance(runner, HeldRunner)
        through = runner.released.is_set() and time.monotonic() >= self.due
        ended = through and runner.ended(self.work.zk, self.work.assignment.job, link)
        drained = self.leader(link.name, uuid.uuid4().hex) if ended else None
        return {Partition(link.topic, 0): Position(0, Counts(10, 10), drained)}


@dataclass
class SealWriter:
    """Writes nothing but sentinels, and those as the votes that they would win."""

    work: LightWork

    def write(self, messages: list[str], positions: object, group: object, clock: object) -> None:
        del positions, group, clock
        for link in self.work.stage.egress if messages else []:
            self.work.zk.create(node_paths.sentinel(self.work.assignment.job, link.name), messages[0].encode())

    def close(self) -> None:
        pass


def held_slot(handle: AssignmentHandle) -> Callable[..., SlotClients]:
    """The clients of a slot without Kafka, for the real loop."""
    return lambda work, elect, _store: SlotClients(HeldReader(work, handle, elect), SealWriter(work))  # type: ignore[arg-type]


def serve() -> None:
    """A daemon: says what it takes of memory before there is any peer, begins when told to, ends by SIGTERM."""
    runner = HeldRunner("bench")
    daemon = PeerDaemon(load_settings(), runner)
    does = {signal.SIGTERM: daemon.stop, signal.SIGUSR1: runner.released.set, signal.SIGUSR2: runner.released.clear}
    with heard(does, lambda number: does[signal.Signals(number)]()):
        print(psutil.Process().memory_info().rss, flush=True)
        sys.stdin.readline()
        daemon.run()


def coordinate() -> None:
    """A coordinator, until SIGTERM."""
    sys.setswitchinterval(SWITCH)  # as the coordinator's process does
    coordinator = Coordinator(load_settings(), WideLinks())
    with heard([signal.SIGTERM], lambda _: coordinator.stop()):
        coordinator.run()


# Beside them


def wide(name: str) -> JobSpec:
    """A chain of tasks, each wide enough for every peer."""
    names = [f"t{index}" for index in range(TASKS)]
    catalog = [TaskSpec(name=names[0], type="input", connector="generator")]
    catalog += [TaskSpec(name=each, type="function", fn="m:f") for each in names[1:-1]]
    catalog.append(TaskSpec(name=names[-1], type="output", connector="blackhole"))
    return JobSpec(name=name, workflow=list(itertools.pairwise(names)), catalog=catalog, partitions=PARTITIONS)


class Stage:
    """The processes, and what is seen of them from outside.

    Args:
        settings: of a deployment that only this run uses.
        daemons, each: how many, and the virtual peers of each.
        folder: for their logs.
    """

    def __init__(self, settings: Settings, daemons: int, each: int, folder: Path, stack: ExitStack) -> None:
        self.peers = daemons * each
        self._environment = {**os.environ, **settings.environment(), "SARDONYX__PEER__VIRTUAL_PEERS": str(each)}
        self._folder, self._stack = folder, stack
        self.lists: dict[str, int] = {}
        """The longest that each child list was when it was looked at."""
        self.zk = ZooKeeperSession.connect(settings)
        stack.callback(self.zk.close)
        self.coordinators: list[subprocess.Popen[str]] = []
        for number in range(2):  # the first one leads
            self.coordinators.append(self._process("coordinator", number))
            self.until(
                lambda standing=number + 1: len(self.zk.children(node_paths.ELECTION)) == standing, "a coordinator"
            )
        self.until(lambda: self.zk.read(node_paths.EPOCH), "one of them to lead")
        self.leader = psutil.Process(self.coordinators[0].pid)
        self.alone = self.leader.memory_info().rss
        self.daemons = [self._process("daemon", number) for number in range(daemons)]
        self.before = [int(daemon.stdout.readline()) for daemon in self.daemons if daemon.stdout is not None]

    def _process(self, role: str, number: int) -> subprocess.Popen[str]:
        log = (self._folder / f"{role}-{number}.log").open("w", encoding="utf-8")
        self._stack.callback(log.close)
        command = [sys.executable, __file__, role]
        pipe = subprocess.PIPE
        made = subprocess.Popen(command, env=self._environment, stdin=pipe, stdout=pipe, stderr=log, text=True)
        self._stack.callback(made.kill)
        return made

    def begin(self) -> None:
        """Let the daemons begin."""
        for daemon in self.daemons:
            assert daemon.stdin is not None
            daemon.stdin.write("\n")
            daemon.stdin.flush()

    def tell(self, number: int) -> None:
        """Send a signal to every daemon."""
        for daemon in self.daemons:
            daemon.send_signal(number)

    def until(self, condition: Callable[[], Any], what: str) -> float:
        """Wait for something; the seconds that it took, as exactly as :data:`POLL`."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() > began + PATIENCE:
                raise RuntimeError(f"waited {PATIENCE:g} s for {what}: {self.states()}")
            time.sleep(POLL)
        return time.monotonic() - began

    def states(self) -> Tally[str]:
        """How many peers are in which state, as the tree says."""
        self._look_at_lists()
        notes = self.zk.read_many(map(node_paths.peer_state, self.zk.children(node_paths.PEER_STATE)))
        return Tally(msgspec.json.decode(data, type=PeerNote).state for data in notes.values())

    def _look_at_lists(self) -> None:
        for path in node_paths.TOP:
            found = self.zk.client.exists(self.zk.path(path))
            if found is not None:
                self.lists[path] = max(self.lists.get(path, 0), int(found.children_count))

    def all_idle(self) -> bool:
        return self.states() == {"idle": self.peers}

    def all_at_work(self) -> bool:
        return sum(count for state, count in self.states().items() if state in WORKING) == self.peers

    def submit(self, *names: str) -> None:
        for name in names:
            self.zk.request(JobSubmitted(job=name, spec=wide(name)))

    def ended(self, *names: str) -> bool:
        self._look_at_lists()
        found = [self.zk.read(node_paths.job_status(name)) for name in names]
        notes = [msgspec.json.decode(data, type=JobNote) for data in found if data]
        if any(note.status != "completed" for note in notes if note.status in ENDED):
            raise RuntimeError(f"a job failed: {notes}")
        return [note.links for note in notes] == ["gone"] * len(names)

    def taken(self) -> int:
        """Events that have been handled so far."""
        return int(self.zk.read(node_paths.CHECKPOINT) or 0)

    def memory(self) -> dict[str, float]:
        """MiB of the coordinator that leads beyond what it took alone, KiB of a virtual peer beyond the daemon without any;
        threads of a daemon.
        """
        daemons = [psutil.Process(daemon.pid) for daemon in self.daemons]
        beyond = sum(daemon.memory_info().rss for daemon in daemons) - sum(self.before)
        return {
            "coordinator_mib": round((self.leader.memory_info().rss - self.alone) / 2**20, 1),
            "kib_per_peer": round(beyond / self.peers / 1024, 1),
            "threads_per_daemon": max(daemon.num_threads() for daemon in daemons),
        }

    def cpu(self) -> dict[str, float]:
        """Seconds of processor that coordinator and daemons have used."""
        leader = self.leader.cpu_times()
        others = [psutil.Process(daemon.pid).cpu_times() for daemon in self.daemons]
        return {
            "coordinator_s": round(leader.user + leader.system, 2),
            "daemons_s": round(sum(times.user + times.system for times in others), 2),
        }

    def verify(self) -> tuple[int, str]:
        """``sardonyx log verify``: exit code and last line."""
        command = [sys.executable, "-m", "sardonyx", "log", "verify"]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        return done.returncode, (done.stdout or done.stderr).strip().splitlines()[-1]


def measure(settings: Settings, daemons: int, each: int) -> dict[str, Any]:
    """Play the story once."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        stage = Stage(settings, daemons, each, folder, stack)
        found: dict[str, Any] = {"daemons": daemons, "peers": stage.peers, "seconds": {}}
        took: dict[str, float] = found["seconds"]
        found["memory"] = {"idle": {}, "at_work": {}, "end": {}}

        stage.begin()
        took["start_to_all_idle"] = stage.until(stage.all_idle, "all to be idle")
        found["memory"]["idle"] = stage.memory()
        tell("all idle", took)

        began, events = time.monotonic(), stage.taken()
        stage.submit("wide")
        took["submission_to_all_at_work"] = stage.until(stage.all_at_work, "all to be at work")
        found["memory"]["at_work"] = stage.memory()
        stage.tell(signal.SIGUSR1)
        took["let_go_to_completion"] = stage.until(lambda: stage.ended("wide"), "the job's end")
        took["submission_to_completion"] = time.monotonic() - began
        found["wide_events"] = stage.taken() - events
        tell("one wide job", took)

        took["idle_again"] = stage.until(stage.all_idle, "all to be idle again")
        events, used = stage.taken(), stage.cpu()
        names = [f"many{number}" for number in range(JOBS)]
        stage.submit(*names)
        took["many_jobs"] = stage.until(lambda: stage.ended(*names), "the jobs' end")
        found["many_events"] = stage.taken() - events
        found["many_events_per_s"] = round(found["many_events"] / took["many_jobs"], 1)
        found["many_cpu"] = {key: round(value - used[key], 2) for key, value in stage.cpu().items()}
        tell("many jobs", took)

        stage.until(stage.all_idle, "all to be idle again")
        stage.tell(signal.SIGUSR2)
        stage.submit("last")
        stage.until(stage.all_at_work, "all to be at work again")
        found["memory"]["end"] = stage.memory()
        stage.tell(signal.SIGTERM)
        took["drain"] = stage.until(lambda: not stage.states() and left(stage), "all to have left")
        found["exit_codes"] = [daemon.wait(PATIENCE) for daemon in stage.daemons]
        tell("drained", took)

        for coordinator in stage.coordinators:
            coordinator.send_signal(signal.SIGTERM)
            coordinator.wait(PATIENCE)
        found["verify_exit_code"], found["verify"] = stage.verify()
        found["lists"] = stage.lists
        found["zookeeper"] = served(str(settings.zookeeper.hosts))
        found |= told_by_the_log(stage.zk)
        found["warnings"] = warnings(folder)
    found["seconds"] = {name: round(seconds, 2) for name, seconds in took.items()}
    return found


def left(stage: Stage) -> bool:
    return not stage.zk.children(node_paths.PULSE)


def tell(what: str, took: dict[str, float]) -> None:
    print(f"{what}: { {name: round(seconds, 2) for name, seconds in took.items()} }", flush=True)


def served(hosts: str) -> dict[str, str]:
    """What ZooKeeper says of itself."""
    lines = [line.partition(": ") for line in four_letters(hosts.split(",", maxsplit=1)[0], "srvr").splitlines()]
    wanted = ("Latency min/avg/max", "Node count")
    return {key: value for key, _, value in lines if key in wanted}


def warnings(folder: Path) -> dict[str, int]:
    """Lines of the processes' logs that warn of something, by their text."""
    found: Tally[str] = Tally()
    for path in folder.glob("*.log"):
        for line in path.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line) if line.startswith("{") else {"level": "error", "event": line}
            if entry.get("level") in ("warning", "error"):
                found[str(entry.get("event"))[:100]] += 1
    return dict(found.most_common(20))


def told_by_the_log(zk: ZooKeeperSession) -> dict[str, Any]:
    """Kinds of events, how long peers took to take a task, and how many were in which state, by the log's own times."""
    state: State = new_state("bench")
    kinds: Tally[str] = Tally()
    answered: list[float] = []
    points: dict[str, list[float]] = {name: [] for name in ("at", "idle", "offered", "at_work", "events")}
    first: float | None = None
    for n, entry in event_log.read_entries(zk):
        event = entry.event
        kinds[kind_of(event)] += 1
        first = event.at if first is None else first
        if isinstance(event, Acked) and event.peer in state.peers:
            answered.append(event.at - state.peers[event.peer].since)
        decide(state, n, event)
        at = round(event.at - first, 2)
        by = {name: len(peers) for name, peers in state.by_state.items()}
        values = (at, by["idle"], by["acking"], by["active"] + by["waiting"] + by["sealing"], n)
        repeated = bool(points["at"]) and points["at"][-1] == at
        for name, value in zip(points, values, strict=True):
            if repeated:
                points[name].pop()
            points[name].append(value)
    return {
        "events": state.n,
        "kinds": dict(kinds.most_common()),
        "offer_to_ack_s": {"median": round(statistics.median(answered), 3), "most": round(max(answered), 3)},
        "points": points,
    }


def plot(found: dict[str, Any], axes: Any) -> None:
    """Peers above, events below, over the seconds since the first birth."""
    points = found["points"]
    peers, events = axes
    for name, label, colour in (
        ("idle", "idle", "tab:red"),
        ("offered", "offered a task", "tab:orange"),
        ("at_work", "at work", "tab:blue"),
    ):
        peers.step(points["at"], points[name], where="post", label=label, color=colour)
    peers.set(ylabel="virtual peers", title=f"{found['peers']} virtual peers in {found['daemons']} daemons")
    peers.legend()
    events.step(points["at"], points["events"], where="post", color="tab:green")
    events.set(xlabel="seconds since the first birth, by the log", ylabel="events so far")


if __name__ == "__main__":
    configure_logging(load_settings(log={"format": "json"}), stream=sys.stderr)
    {"coordinator": coordinate, "daemon": serve}[sys.argv[1]]()
