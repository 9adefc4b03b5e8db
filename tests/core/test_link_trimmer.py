"""A complete checkpoint of a running job is put into the log: once, not too often, and only of the job as it is."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from coordinator.core.state import Job, State, new_state
from coordinator.loop import link_trimmer
from coordinator.loop.link_trimmer import LinkTrimmer
from coordinator.loop.side_effects import Needed, Trimmed
from sardonyx.core.events import Checkpointed
from sardonyx.core.spec import JobSpec
from sardonyx.core.state_points import CheckpointPoint
from sardonyx.zookeeper.transactions import ENTRY_LIMIT
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("threads_end")

POINTS = [CheckpointPoint(at, {"read": {"t": [at]}}, {"count": [(at, at, 0)]}) for at in range(1, 6)]


class Rounds:
    """A leader of one running job. ``needed``: what each round was told that the logs must hold."""

    def __init__(self, rules: int = 4) -> None:
        self.state: State = new_state("test", rules)
        self.state.jobs["j-1"] = Job(1, 1, JobSpec(name="j", workflow=[], catalog=[]), 0.0, "running")
        self.deposed = False
        self.found: CheckpointPoint | None = None
        self.meanwhile: Callable[[], None] = lambda: None
        self.needed: list[list[int] | None] = []
        self.done: queue.SimpleQueue[Checkpointed] = queue.SimpleQueue()
        self.trimmer = LinkTrimmer(self._trim, 0.0, lambda: self.state, lambda: self.deposed, self.done.put)

    @property
    def job(self) -> Job:
        return self.state.jobs["j-1"]

    def _trim(self, job: str, spec: JobSpec, needed: Needed) -> Trimmed:
        assert (job, spec) == ("j-1", self.job.spec)
        points = needed()
        self.meanwhile()
        self.needed.append(None if points is None else [point.at for point in points])
        return Trimmed(0, self.found)

    def round(self, found: CheckpointPoint | None) -> Checkpointed | None:
        """The event of a round that finds this checkpoint."""
        self.found, before = found, len(self.needed)
        self.trimmer.trim({"j-1": self.job.spec})
        until(lambda: len(self.needed) > before and not self.trimmer._under_way, what="the end of the round")
        return None if self.done.empty() else self.done.get()


@contextmanager
def rounds(rules: int = 4) -> Iterator[Rounds]:
    found = Rounds(rules)
    try:
        yield found
    finally:
        found.trimmer.close()


def test_a_checkpoint_is_logged_and_its_logs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logs are kept from the moment on at which a round finds the checkpoint, before the event is decided. The next one is
    logged a while later.
    """
    with rounds() as leader:
        assert leader.round(None) is None
        assert leader.round(POINTS[0]) == Checkpointed(job="j-1", revision=1, point=POINTS[0])
        assert leader.round(POINTS[1]) is None
        assert leader.needed == [[], [], [1]]
        leader.job.checkpoints = [POINTS[0]]
        monkeypatch.setattr(link_trimmer, "LOG_EVERY", 0.0)
        assert leader.round(POINTS[0]) is None
        assert leader.round(POINTS[2]) == Checkpointed(job="j-1", revision=1, point=POINTS[2])
        assert leader.round(POINTS[2]) == Checkpointed(job="j-1", revision=1, point=POINTS[2]), "it is not decided yet"
        assert set(leader.needed[-1] or ()) == {1, 3}
        leader.job.lends = True
        leader.round(None)
        leader.job.lends, leader.deposed = False, True
        leader.round(None)
        assert leader.needed[-2:] == [None, None]


@pytest.mark.parametrize("why", ["changed meanwhile", "purged meanwhile", "older rules", "known", "too large"])
def test_what_is_not_logged(why: str) -> None:
    """A coordinator of the release before reads logs under rules 3, and does not know such an entry."""
    with rounds(3 if why == "older rules" else 4) as leader:
        point = POINTS[2]
        if why == "changed meanwhile":
            leader.meanwhile = lambda: setattr(leader.job, "spec", replace(leader.job.spec, name="other"))
        elif why == "purged meanwhile":
            leader.meanwhile = lambda: leader.state.jobs.pop("j-1") and None
            leader.found = point
            leader.trimmer.trim({"j-1": leader.job.spec})
            until(lambda: leader.needed and not leader.trimmer._under_way, what="the end of the round")
            assert leader.done.empty()
            return
        elif why == "known":
            leader.job.checkpoints = [POINTS[3]]
        elif why == "too large":
            point = replace(point, marks={"count": [(n, n, 0) for n in range(ENTRY_LIMIT // 4)]})
        assert leader.round(point) is None
