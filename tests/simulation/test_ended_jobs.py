"""What jobs leave on Kafka when they have ended, and when they are forgotten: nothing that no other job can use."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any, cast

import pytest

from coordinator.core.decide import decide
from coordinator.core.state import Job, new_state
from coordinator.loop.side_effect_queue import SideEffectQueue
from coordinator.loop.side_effects import LinksWorker
from queues import admin
from queues.dead_letter_topics import forget
from sardonyx import Count, blackhole, kafka, tumbling
from sardonyx import Job as JobOfUser
from sardonyx.core.effects import DeleteLinks
from sardonyx.core.errors import SetupError
from sardonyx.core.events import JobKilled, JobSubmitted, LastCommits, LinkFacts, LinksCreated, LinksDeleted, LinksRead
from sardonyx.core.graph import graph_of
from sardonyx.core.spec import JobSpec
from sardonyx.core.state_points import CheckpointPoint, EndPoint
from sardonyx.runtime.settings import Settings, load_settings
from tests.waiting import PATIENCE


class _Links:
    """Notes of which jobs the logs of states were to stay."""

    def __init__(self) -> None:
        self.kept: dict[str, bool] = {}

    def delete_links(self, job: str, spec: JobSpec, *, keeps_states: bool = True) -> LastCommits:
        del spec
        self.kept[job] = keeps_states
        return LastCommits()


def _none(_job: Job) -> None:
    """No other job can begin with its states."""


def _stopped(job: Job) -> None:
    job.end = EndPoint(0)


def _has_a_checkpoint(job: Job) -> None:
    job.checkpoints = [CheckpointPoint(0)]


def _lends(job: Job) -> None:
    job.lends = True


@pytest.mark.parametrize(
    ("standing", "keeps"),
    [
        (_none, False),
        (_stopped, True),
        (_has_a_checkpoint, True),
        (_lends, True),
    ],
)
def test_the_logs_of_states_that_no_job_can_begin_with_go_at_once(
    standing: Callable[[Job], None], *, keeps: bool
) -> None:
    """A thousand jobs that have ended would fill the brokers with logs which nothing reads any more. Those of a job that was
    stopped, or has a checkpoint, stay until it is forgotten; so do those with which another one has begun.
    """
    state, job = new_state("d"), "hits-1"
    made = JobOfUser("hits", partitions=1)
    read = made.input("read", kafka("t", schema="user string, at timestamp", start="earliest"), time="at")
    made.output(
        "out", blackhole(), after=made.window("count", tumbling("1 min"), after=read, aggregate={"hits": Count()})
    )
    spec = made.spec()
    links = {link.name: LinkFacts(1) for link in graph_of(spec, "d", job).links}
    events = [JobSubmitted(job=job, spec=spec), LinksCreated(job=job, links=links), JobKilled(job=job)]
    for n, event in enumerate([*events, LinksRead(job=job)], 1):
        effects = decide(state, n, event)
    standing(state.jobs[job])
    links_of = _Links()
    done: queue.Queue[Any] = queue.Queue()
    worker = LinksWorker(cast("Any", links_of), done.put)
    outside = SideEffectQueue(cast("Any", None), worker, cast("Any", None), lambda: None)
    outside.add(4, [effect for effect in effects if isinstance(effect, DeleteLinks)])
    outside.begin(state, 4)
    assert done.get(timeout=PATIENCE) == LinksDeleted(job=job)
    worker.close()
    assert links_of.kept == {job: keeps}


def test_a_group_that_cannot_be_deleted_keeps_no_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """All purged jobs are cleaned up together. So one group, which a foreign client has joined, would keep all their topics."""
    asked: list[tuple[str, list[str]]] = []

    def refuses(_settings: Settings, groups: list[str]) -> None:
        asked.append(("groups", groups))
        raise SetupError("SX-KAFKA-REFUSED", "it has members")

    monkeypatch.setattr(admin, "topics", lambda _: {"d.a-1.work.dead": [0], "d.b-1.work.dead": [0], "orders": [0]})
    monkeypatch.setattr(admin, "groups", lambda _: {"d.a-1.work", "others"})
    monkeypatch.setattr(admin, "delete_groups", refuses)
    monkeypatch.setattr(admin, "delete_topics", lambda _, topics: asked.append(("topics", topics)))
    with pytest.raises(SetupError):
        forget(load_settings(deployment="d"), ["a-1", "b-1"])
    assert asked == [("groups", ["d.a-1.work"]), ("topics", ["d.a-1.work.dead", "d.b-1.work.dead"])]
