"""The coordinator on a real ZooKeeper: the way of one decision, and what remains of it when a leader dies on that way."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from structlog.testing import capture_logs

from coordinator.core.decide import replay
from coordinator.core.projection import project
from coordinator.core.stored_state import encode_state
from coordinator.daemon import SWITCH, Coordinator
from coordinator.loop import event_log
from coordinator.loop.leader import Leader
from coordinator.loop.limits import Limits
from coordinator.loop.log_writer import PendingEntry
from sardonyx.core import node_paths
from sardonyx.core.effects import Create
from sardonyx.core.errors import InternalError
from sardonyx.core.events import (
    Acked,
    Evicted,
    JobKilled,
    JobPurged,
    JobSubmitted,
    LinkFacts,
    LinksCreated,
    LinksDeleted,
    PeerBorn,
    PeerDied,
    encode_event,
)
from sardonyx.core.graph import graph_of
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.runtime.settings import Settings
from sardonyx.zookeeper.session import ZooKeeperSession
from sardonyx.zookeeper.transactions import Append, Check
from tests.services.coordination import (
    SPEC,
    FakeLinks,
    completed,
    coordinator,
    decided_nodes,
    hold_together,
    leadership,
    peers,
    status,
    submit,
    with_timers,
)
from tests.waiting import until


@pytest.fixture
def quick(settings: Settings) -> Settings:
    return with_timers(settings)


@pytest.fixture
def zk(settings: Settings) -> Iterator[ZooKeeperSession]:
    opened = ZooKeeperSession.connect(settings, survive_expiry=True)
    yield opened
    opened.close()


def follows(settings: Settings) -> Leader:
    """A leader of its own that has taken over, and does no more."""
    with leadership(settings) as won:
        leader = Leader(won, settings, FakeLinks(), wake=threading.Event())
        leader.take_over()
        leader.close()
        return leader


# The way of one decision


def test_unreadable_requests_are_removed_and_harm_nobody(zk: ZooKeeperSession, quick: Settings) -> None:
    """Rubbish in the inbox is named in a warning, bounded, and removed; what is readable beside it is handled."""
    zk.create("/inbox/rubbish", b"\xff\x00" * 5_000)
    zk.create_sequential("/inbox/evict-1234-", b'{"kind":"born","peer":"p"}')
    zk.create_sequential("/inbox/submit-5678-", b"x" * 100_000)
    zk.create("/inbox/nest", b"{}")
    zk.create("/inbox/nest/egg", b"{}")
    with capture_logs() as lines, coordinator(quick):
        submit(zk, "count-1")
        until(lambda: status(zk, "count-1"), what="the job to be seen")
        until(lambda: zk.children(node_paths.INBOX) == ["nest"], what="the inbox to be emptied")
    warned = {line["request"].split("-")[0] for line in lines if line["event"] == "request_unreadable"}
    assert warned >= {"rubbish", "evict", "submit", "nest"}
    assert all(len(line.get("data", b"")) <= 200 for line in lines)
    assert not [line for line in lines if line["log_level"] == "error"]


def test_many_requests_at_once(zk: ZooKeeperSession, quick: Settings) -> None:
    """What waits for a leader is taken in its order, in as few transactions as its size allows."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: submit(zk, f"count-{n}", f"name{n}"), range(600)))
    order = sorted(zk.children(node_paths.INBOX), key=lambda name: name[-10:])
    with coordinator(quick):
        until(lambda: event_log.last(zk) >= 1200, what="600 submissions and 600 plans to be logged")
        until(lambda: event_log.read_checkpoint(zk) == event_log.last(zk), what="all to be decided")
    taken = [entry.request for _, entry in event_log.read_entries(zk) if isinstance(entry.event, JobSubmitted)]
    assert taken == [name.split("-")[1] for name in order]
    hold_together(zk, quick)


# Taking over


def test_snapshots_are_taken_in_the_midst_of_much_that_waits(zk: ZooKeeperSession, settings: Settings) -> None:
    """However much waits at once, a snapshot is taken as soon as one is due, while more is being appended; the next leader
    finds the same state.
    """
    timers = with_timers(settings, snapshot_every=50)
    for at in range(4):
        transaction = zk.client.transaction()
        for n in range(at * 500, at * 500 + 500):
            prefix = zk.path(node_paths.inbox_prefix("evicted", f"{n:032x}"))
            transaction.create(prefix, encode_event(Evicted(peer=f"nobody-{n}")), sequence=True)
        assert all(made is True for made in transaction.commit())
    with leadership(timers) as won, capture_logs() as lines:
        every = Limits(client_requests=2000)
        leader = Leader(won, timers, FakeLinks(), wake=threading.Event(), limits=every)
        leader.take_over()
        leader.turn()
        leader.settle()
        leader.close()
    written = [line["n"] for line in lines if line["event"] == "snapshot_written"]
    assert leader.state.n == 2000
    assert written[0] < 1000
    assert len(written) >= 3
    assert encode_state(follows(timers).state) == encode_state(leader.state)
    hold_together(zk, timers)


def test_effects_too_large_for_one_transaction(
    zk: ZooKeeperSession, quick: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One event that concerns 3,000 peers is applied in several transactions, and what came just before it as ever in one of its
    own; a leader that dies between is made good.
    """
    wide = {link.name: LinkFacts(4_000) for link in graph_of(SPEC, "d", "count-1").links}
    with leadership(quick) as won:
        leader = Leader(won, quick, FakeLinks(), wake=threading.Event())
        leader.handle([PendingEntry(PeerBorn(at=1.0, peer=f"p{n}")) for n in range(3_000)])
        leader.handle([PendingEntry(JobSubmitted(at=2.0, job="count-1", spec=SPEC))])
        leader.handle([PendingEntry(LinksCreated(at=3.0, job="count-1", links=wide))])
        leader.settle()
        hold_together(zk, quick)

        passed: list[str] = []

        def die_before_the_last(point: str) -> None:
            passed.append(point)
            if passed.count("before-effects") == 3:
                raise KeyboardInterrupt

        monkeypatch.setattr("coordinator.loop.pipeline.failpoint", die_before_the_last)
        with pytest.raises(KeyboardInterrupt):
            leader.handle([PendingEntry(PeerBorn(at=4.0, peer="late")), PendingEntry(JobKilled(at=4.0, job="count-1"))])
        leader.close()
    monkeypatch.undo()
    assert event_log.read_checkpoint(zk) == event_log.last(zk) - 1
    assert zk.read(node_paths.peer_state("late"))
    assert decided_nodes(zk) != project(replay(event_log.read_log(zk), deployment=quick.deployment))
    follows(quick)
    hold_together(zk, quick)


def test_what_is_behind_refused_effects_is_refused_too(zk: ZooKeeperSession, quick: Settings) -> None:
    """Effects of several transactions are under way at once. When one is refused, since a user has edited the tree, the
    checkpoint stays in front of it, and the next leader repairs all of it.
    """
    with leadership(quick) as won:
        limits = Limits(log_node=500, transaction=1_000)
        leader = Leader(won, quick, FakeLinks(), wake=threading.Event(), limits=limits)
        leader.take_over()
        zk.create(node_paths.peer_state("p100"), b"not from here")
        with pytest.raises(InternalError):
            leader.handle([PendingEntry(PeerBorn(at=1.0, peer=f"p{n}")) for n in range(1, 301)])
        leader.close()
    assert 0 < event_log.read_checkpoint(zk) < 100 < event_log.last(zk)
    assert {f"p{n}" for n in range(1, event_log.read_checkpoint(zk) + 1)} == set(zk.children(node_paths.PEER_STATE)) - {
        "p100"
    }
    follows(quick)
    hold_together(zk, quick)


def test_nothing_is_begun_outside_before_the_effects_stand(quick: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is a slot fenced before its peer is gone from the tree, nor are letters removed before their job is."""
    begun: list[str] = []

    def begins(what: str) -> Callable[..., None]:
        return lambda *_: begun.append(f"{what} early" if leader._effects.in_flight else what)

    monkeypatch.setattr("coordinator.loop.slot_fencing.SlotFencer.submit", begins("fence"))
    monkeypatch.setattr("coordinator.loop.topic_gc.TopicCollector.collect", begins("forget"))
    with leadership(quick) as won:
        leader = Leader(won, quick, FakeLinks(), wake=threading.Event())
        facts = {link.name: LinkFacts(4) for link in graph_of(SPEC, "d", "count-1").links}
        leader.handle([PendingEntry(PeerBorn(at=1.0, peer="p1"))])
        leader.handle([PendingEntry(JobSubmitted(at=2.0, job="count-1", spec=SPEC))])
        leader.handle([PendingEntry(LinksCreated(at=3.0, job="count-1", links=facts))])
        assert leader.state.peers["p1"].assignment
        leader.handle([PendingEntry(Acked(at=4.0, peer="p1", assignment=leader.state.peers["p1"].assignment.id))])
        leader.handle([PendingEntry(PeerDied(at=5.0, peer="p1"))])
        assert begun == []
        leader.settle()
        leader.handle([PendingEntry(JobKilled(at=6.0, job="count-1"))])
        leader.handle([PendingEntry(LinksDeleted(at=7.0, job="count-1", counts={}))])
        leader.handle([PendingEntry(JobPurged(at=8.0, job="count-1"))])
        leader.turn()
        assert begun == ["fence"]
        leader.settle()
        leader.turn()
        leader.close()
    assert begun == ["fence", "forget"]


def test_letters_that_a_redo_has_just_asked_for_stay(
    zk: ZooKeeperSession, quick: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claim stood before its job was gone, and its request came behind those that were read when that was decided."""
    swept: list[str] = []
    monkeypatch.setattr("coordinator.loop.topic_gc.TopicCollector.collect", lambda _, jobs: swept.extend(jobs))
    letters = {"topic": f"{quick.deployment}.count-1.count.dead", "format": "letters"}
    redo = JobSpec(
        name="again",
        workflow=[("a", "b")],
        catalog=[
            TaskSpec(name="a", type="input", connector="kafka", options=letters),
            TaskSpec(name="b", type="output", connector="blackhole"),
        ],
    )
    claim = Create(f"{node_paths.REDO}/count-1.count", b"{}")
    asks = Append(node_paths.inbox_prefix("submit", "0f1e"), encode_event(JobSubmitted(job="again", spec=redo)))
    with leadership(quick) as won:
        wake = threading.Event()
        leader = Leader(won, quick, FakeLinks(), wake=wake)
        leader.take_over()
        leader.handle([PendingEntry(JobSubmitted(at=1.0, job="count-1", spec=SPEC))])
        leader.handle(
            [
                PendingEntry(JobKilled(at=2.0, job="count-1")),
                PendingEntry(LinksDeleted(at=3.0, job="count-1", counts={})),
            ]
        )
        leader.settle()
        leader.turn()
        flush = leader._effects.flush
        wake.clear()
        zk.request(JobPurged(job="count-1"))
        until(wake.is_set, what="the leader to hear of the request")
        won.zk.sync()

        def asked_before_it_is_gone() -> None:
            monkeypatch.setattr(leader._effects, "flush", flush)
            zk.commit([Check(node_paths.job_status("count-1")), claim, asks])
            flush()

        monkeypatch.setattr(leader._effects, "flush", asked_before_it_is_gone)
        leader.turn()
        assert leader.state.jobs.keys() == set()
        for _ in range(3):
            leader.settle()
            leader.turn()
        assert leader.state.jobs.keys() == {"again"}
        assert swept == []
        leader.handle([PendingEntry(JobKilled(at=4.0, job="again"))])
        leader.turn()
        leader.close()
    assert swept == ["count-1"]


def test_an_embedded_coordinator_does_not_change_how_threads_take_turns() -> None:
    """Only the coordinator's own process does (``main``), and others that a process of tests has run in itself."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(10 * SWITCH)
    try:
        coordinator = Coordinator(Settings(), FakeLinks())
        coordinator.stop()
        coordinator.run()
        assert sys.getswitchinterval() == pytest.approx(10 * SWITCH)
    finally:
        sys.setswitchinterval(before)


def test_a_leadership_that_breaks_is_said_and_begun_anew(zk: ZooKeeperSession, quick: Settings) -> None:
    """What should not be in the tree ends the leadership, with a traceback; the next one repairs it and goes on."""
    zk.create(node_paths.job("count-1"), b"not from here")
    with capture_logs() as lines, coordinator(quick), peers(quick, "p1"):
        submit(zk, "count-1")
        until(lambda: completed(zk, "count-1"), what="the job to be completed")
    broke = [line for line in lines if line["event"] == "leadership_broke"]
    assert len(broke) == 1
    assert broke[0]["exc_info"].code == "SX-INTERNAL-TRANSACTION"
    hold_together(zk, quick)
