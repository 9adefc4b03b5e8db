"""What daemons and the pages count beside batches: requests, side effects, votes, seals, and how new what is shown is."""

from __future__ import annotations

import time
from collections import Counter
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from coordinator.loop import snapshots
from coordinator.loop.intake import Intake
from coordinator.loop.leader_metrics import SNAPSHOT_SECONDS
from coordinator.loop.side_effect_queue import SideEffectQueue
from peer import sealing
from sardonyx.core.effects import CreateLinks
from sardonyx.core.events import RULES, Left, encode_event
from sardonyx.runtime.metrics import REGISTRY
from sardonyx.runtime.settings import load_settings
from sardonyx.web.live import LiveSource
from sentinel.election import ElectionClosed, SentinelElection


def values(name: str) -> Counter[str]:
    """By the value of its only label; of a histogram, how many were measured."""
    found: Counter[str] = Counter()
    for series in REGISTRY.snapshot().series(f"sardonyx_{name}"):
        found["".join(series.labels.values())] = int(series.count or series.value)
    return found


def test_requests_that_are_not_decided_are_counted_by_reason() -> None:
    """One that no coordinator can read, and one that came before. A request that is decided is neither."""
    before = values("coordinator_requests_refused_total")
    intake, leave = Intake(Mock(), wake=Mock()), encode_event(Left(peer="p"))
    found = {"/inbox/left-1": leave, "/inbox/left-2": leave, "/inbox/left-3": b"nonsense"}
    taken = intake.readable([("/inbox/left-1", "u"), ("/inbox/left-2", "u"), ("/inbox/left-3", "v")], found, 1.0)
    assert [entry.inbox for entry in taken] == ["left-1"]
    assert values("coordinator_requests_refused_total") - before == {"repeated": 1, "unreadable": 1}


def test_side_effects_wait_until_they_are_done() -> None:
    """Those that are held back until their entry is in the tree, and those that are begun."""
    queue = SideEffectQueue(Mock(), Mock(pending=2), Mock(pending=3), Mock())
    queue.add(7, [CreateLinks("j1"), CreateLinks("j2")])
    assert queue.waiting == 7
    queue.begin(Mock(jobs={"j1": Mock(), "j2": Mock()}), 7)
    assert queue.waiting == 5


def test_a_snapshot_is_measured_and_tells_where_the_log_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its begin until what it makes superfluous is removed."""
    leadership: Any = Mock()
    leadership.zk.runtime.now.side_effect = [10.0, 12.5]
    monkeypatch.setattr(snapshots, "SnapshotWriter", Mock(return_value=Mock(complete=True)))
    monkeypatch.setattr(snapshots, "thin", Mock())
    monkeypatch.setattr(snapshots, "compact", Mock(return_value=snapshots.Compacted(begins=7, removed=6)))
    schedule = snapshots.SnapshotSchedule(leadership, load_settings().coordinator)
    assert (schedule.last, schedule.log_begins) == (0, 1)
    before = sum(series.value for series in SNAPSHOT_SECONDS.taken().series)
    schedule.begin(20, b"x" * 300)
    schedule.finish(20)
    assert (schedule.last, schedule.size, schedule.log_begins) == (20, 300, 7)
    assert sum(series.value for series in SNAPSHOT_SECONDS.taken().series) - before == 2.5


def test_votes_are_counted_by_their_outcome() -> None:
    """A reader asks once for each link; what it knows already is no vote."""
    before = values("sentinel_votes_total")
    zk: Any = Mock()
    zk.read.side_effect = [b"mine", b"theirs", None]
    election = SentinelElection(zk, "j-1")
    assert [election.leader("a.b", "mine"), election.leader("a.b", "other")] == ["mine", "mine"]
    assert election.leader("b.c", "mine") == "theirs"
    with pytest.raises(ElectionClosed):
        election.leader("c.d", "mine")
    assert values("sentinel_votes_total") - before == {"won": 1, "lost": 1, "closed": 1}


def test_a_seal_is_measured_from_when_the_peer_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it looks until everything is committed."""
    monkeypatch.setattr(sealing, "rules_in_force", lambda _zk: RULES)
    monkeypatch.setattr(sealing, "of_inputs", lambda *_: {})
    work = SimpleNamespace(loop=None, peer="p", assignment=SimpleNamespace(id=3), stage=None, sinks=[])
    session: Any = Mock(work=work)
    session.handle.state = "sealing"
    session.reader.all_committed.return_value = {}  # nothing is committed yet
    seal, before = sealing.Sealing(session), values("seal_seconds")
    seal.look()
    told = seal._told_at
    seal.look()
    assert seal._told_at == told is not None
    seal._complete({}, {})
    assert values("seal_seconds") - before == {"": 1}


def test_the_pages_tell_what_they_show_and_since_when() -> None:
    """Each look at the log counts, whether or not anything is new in it."""
    source: Any = object.__new__(LiveSource)
    source.book, source._wake, source._seen, source._away = Mock(last=8), Mock(), None, None
    source._read, source._zk = Mock(return_value=False), Mock()
    source._zk.children.return_value, source._zk.read.return_value = [], None
    source._log = source._zk.creation.return_value
    began = time.time()
    source._look()
    assert values("web_log_last")[""] == 8
    assert values("web_log_read_timestamp_seconds")[""] >= int(began)
