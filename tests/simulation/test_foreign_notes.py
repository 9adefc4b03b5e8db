"""What any program may write into ZooKeeper: it never ends the leadership, which would stop all jobs."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from coordinator.loop.intake import DEEPEST, Intake
from sardonyx.core import node_paths
from sardonyx.core.events import JobChanged, JobRestarted, JobSubmitted, PeerBorn, encode_event
from sardonyx.core.notes import CandidateNote, PulseNote
from sardonyx.core.spec import JobSpec, TaskSpec

JUNK = {
    "nothing": b"",
    "no JSON": b"{",
    "no object": b"[1]",
    "no UTF-8": b'{"host":"\xff"}',
    "another type": b'{"pid":"x","name":1}',
    "nested": b'{"later":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}


@pytest.mark.parametrize("what", JUNK)
def test_a_pulse_that_is_no_note_is_that_of_a_peer_without_a_host(what: str) -> None:
    zk: Any = Mock()
    zk.zk.read_many.return_value = {node_paths.pulse("P"): JUNK[what]}
    (born,) = Intake(zk, wake=Mock()).births(["P"], 7.0)
    assert born.event == PeerBorn(at=7.0, peer="P")
    assert PulseNote.read(JUNK[what]) is None


@pytest.mark.parametrize("what", JUNK)
def test_a_candidate_that_is_no_note_knows_no_rules(what: str) -> None:
    assert CandidateNote.read(JUNK[what]).rules == 0


def test_a_spec_that_is_nested_too_deeply_is_refused_whoever_brings_it() -> None:
    """In the log, no coordinator could read it from a deeper place: of a job that is submitted, changed or restarted."""
    deep: Any = 1
    for _ in range(DEEPEST + 1):
        deep = [deep]
    for params, taken in (({"x": 1}, 3), ({"x": deep}, 0)):
        spec = JobSpec(name="j", workflow=[], catalog=[TaskSpec(name="t", type="function", params=params)])
        requests = [
            JobSubmitted(job="j", spec=spec),
            JobChanged(job="j", spec=spec, revision=1),
            JobRestarted(job="j", into="k", spec=spec, revision=1),
        ]
        found = {f"/inbox/{number}": encode_event(each) for number, each in enumerate(requests)}
        entries = Intake(Mock(), wake=Mock()).readable([(path, path) for path in found], found, 1.0)
        assert len(entries) == taken
