"""What tests of the coordinator share: links that stand nowhere, peers that only do what their state node says, a coordinator
process.

Run as a script it is a coordinator in a process of its own, with the settings of its environment, that can be killed.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from coordinator.core.decide import replay
from coordinator.core.invariants import check
from coordinator.core.projection import project
from coordinator.daemon import Coordinator
from coordinator.loop import event_log
from coordinator.loop.election import Candidate, Leadership
from coordinator.loop.side_effects import Needed, Rewired, SideEffects, Since, Trimmed
from sardonyx.core import node_paths
from sardonyx.core.events import Acked, Completed, Counts, Exhausted, JobSubmitted, LastCommits, LinkFacts
from sardonyx.core.graph import graph_of
from sardonyx.core.notes import JobNote, PeerNote, PulseNote
from sardonyx.core.slot import Slot
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.runtime.settings import Settings, load_settings
from sardonyx.zookeeper.session import ZooKeeperSession

SPEC = JobSpec(
    name="count",
    workflow=[("read", "work"), ("work", "write")],
    catalog=[
        TaskSpec(name="read", type="input", connector="generator", options={"count": 10}),
        TaskSpec(name="work", type="function", fn="jobs:work"),
        TaskSpec(name="write", type="output", connector="blackhole"),
    ],
)


class FakeLinks:
    """Says that a job's links stand, without Kafka, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.kept: list[str | None] = []
        """What specs said in trims about how long records are kept."""
        self.lent = False
        """Whether the last trim left logs of states alone."""

    def create_links(self, job: str, spec: JobSpec) -> dict[str, LinkFacts]:
        self.asked.append(("create", job))
        return {link.name: LinkFacts(4) for link in graph_of(spec, "fake", job).links}

    def topic_ids(self, job: str, spec: JobSpec) -> dict[str, str]:
        return {}

    def read_links(self, job: str, spec: JobSpec) -> LastCommits:
        self.asked.append(("read", job))
        return LastCommits()

    def delete_links(self, job: str, spec: JobSpec, *, keeps_states: bool = True) -> LastCommits:
        self.asked.append(("delete", job))
        return LastCommits()

    def change_links(self, job: str, spec: JobSpec, rewired: Rewired) -> tuple[dict[str, LinkFacts], Since]:
        self.asked.append(("change", job))
        return {link.name: LinkFacts(4) for link in graph_of(spec, "fake", job).links}, {}

    def drop_links(self, job: str, spec: JobSpec, rewired: Rewired) -> None:
        self.asked.append(("drop", job))

    def fence(self, slot: Slot, spec: JobSpec) -> None:
        self.asked.append(("fence", "/".join(map(str, slot))))

    def remove_static_member(self, slot: Slot, spec: JobSpec) -> None:
        self.asked.append(("remove_static_member", "/".join(map(str, slot))))

    def trim_links(self, job: str, spec: JobSpec, needed: Needed) -> Trimmed:
        self.asked.append(("trim", job))
        self.lent = needed() is None
        self.kept.append(spec.keep)
        return Trimmed()

    def audit_link(self, job: str, spec: JobSpec, facts: Mapping[str, LinkFacts], link: str) -> None:
        self.asked.append(("audit", f"{job}/{link}"))

    def forget(self, jobs: Collection[str]) -> None:
        self.asked += [("forget", job) for job in jobs]


class FakePeer:
    """A virtual peer without work: takes what it is offered, finds it exhausted, seals it at once.

    Args:
        zk: its own session.
        name: its id.
        answers: whether it answers offers at all.
    """

    def __init__(self, zk: ZooKeeperSession, name: str, *, answers: bool = True) -> None:
        self._zk = zk
        self.name = name
        self.seen: list[PeerNote] = []
        """Its state notes, in order."""
        self._answers = answers
        self._stop = threading.Event()
        self._changed = threading.Event()
        zk.create(node_paths.pulse(name), msgspec.json.encode(PulseNote("fake", "here", 1)), ephemeral=True)
        self._thread = threading.Thread(target=self._follow, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop following; the pulse stays until the session ends."""
        self._stop.set()
        self._changed.set()
        self._thread.join()

    def _follow(self) -> None:
        while True:
            self._changed.clear()
            if self._stop.is_set():
                return
            data = self._zk.read(node_paths.peer_state(self.name), watch=lambda _: self._changed.set())
            if data is not None:
                note = msgspec.json.decode(data, type=PeerNote)
                if not self.seen or self.seen[-1] != note:
                    self.seen.append(note)
                    self._obey(note)
            self._changed.wait()

    def _obey(self, note: PeerNote) -> None:
        if note.assignment is None or not self._answers:
            return
        mine = note.assignment.id
        if note.state == "acking":
            self._zk.request(Acked(peer=self.name, assignment=mine))
        elif note.state == "active":
            self._zk.request(Exhausted(peer=self.name, assignment=mine))
        elif note.state == "sealing":
            self._zk.request(Completed(peer=self.name, assignment=mine, counts=Counts(10, 10)))


def with_timers(settings: Settings, **changes: object) -> Settings:
    """The same deployment, with a short session so that a takeover is quick."""
    return load_settings(
        deployment=settings.deployment,
        zookeeper={"hosts": settings.zookeeper.hosts, "session_timeout": 2},
        kafka={"bootstrap_servers": settings.kafka.bootstrap_servers},
        coordinator=changes,
    )


@contextmanager
def peers(settings: Settings, *names: str, answers: bool = True) -> Iterator[list[FakePeer]]:
    """Fake peers in one session."""
    zk = ZooKeeperSession.connect(settings)
    made = [FakePeer(zk, name, answers=answers) for name in names]
    yield made
    for peer in made:
        peer.stop()
    zk.close()


@contextmanager
def coordinator(settings: Settings, side_effects: SideEffects | None = None) -> Iterator[Coordinator]:
    """A coordinator in a thread of this process, stopped in the end; what ended it otherwise is raised."""
    running = Coordinator(settings, FakeLinks() if side_effects is None else side_effects)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            running.run()
        except BaseException as error:  # noqa: BLE001 - raised again in the test
            raised.append(error)

    thread = threading.Thread(target=run, name="coordinator", daemon=True)
    thread.start()
    yield running
    running.stop()
    thread.join(180)
    assert not thread.is_alive()
    if raised:
        raise raised[0]


@contextmanager
def leadership(settings: Settings) -> Iterator[Leadership]:
    """A won election, without a leader's loop."""
    zk = ZooKeeperSession.connect(settings)
    candidate = Candidate(zk, threading.Event())
    assert candidate.wait(threading.Event())
    yield candidate.take()
    zk.close()


def submit(zk: ZooKeeperSession, job: str, name: str | None = None) -> None:
    zk.request(JobSubmitted(job=job, spec=msgspec.structs.replace(SPEC, name=name or job.rpartition("-")[0] or job)))


def status(zk: ZooKeeperSession, job: str) -> JobNote | None:
    data = zk.read(node_paths.job_status(job))
    return None if data is None else msgspec.json.decode(data, type=JobNote)


def nodes_below(zk: ZooKeeperSession, path: str) -> dict[str, bytes]:
    """Every node below a path, with its data."""
    paths = [f"{path}/{name}" for name in zk.children(path)]
    found = zk.read_many(paths)
    if path != node_paths.PEER_STATE:  # has thousands of children, and none of them has any
        for below in paths:
            found |= nodes_below(zk, below)
    return found


def decided_nodes(zk: ZooKeeperSession) -> dict[str, bytes]:
    """What the coordinator's decisions have put into the tree: the same nodes as in ``project(state)``."""
    return nodes_below(zk, node_paths.PEER_STATE) | nodes_below(zk, node_paths.JOB)


def completed(zk: ZooKeeperSession, job: str) -> bool:
    """Whether a job ran to its end, and its topics are gone."""
    note = status(zk, job)
    return note is not None and note.status == "completed" and note.links == "gone"


def hold_together(zk: ZooKeeperSession, settings: Settings) -> None:
    """The log replayed from its beginning gives a sound state, and the tree is just what that state says."""
    state = replay(event_log.read_log(zk), deployment=settings.deployment)
    check(state)
    assert event_log.read_checkpoint(zk) == state.n
    assert decided_nodes(zk) == project(state)
    requests = [entry.request for _, entry in event_log.read_entries(zk) if entry.request]
    assert len(set(requests)) == len(requests), "a request was taken twice"
