"""A user has a job changed or restarted: what is found out before anything is done, what it waits for, and what bad days get."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from played import Played

from sardonyx import sql
from sardonyx.core.errors import Interrupted, JobFailed, SardonyxError
from sardonyx.core.events import JobChanged, JobKilled, JobStopped, JobSubmitted
from sardonyx.core.spec import JobSpec
from sardonyx.job.load import LoadedJob
from tests.core.test_stopping import job


def test_a_job_is_followed_by_one_with_its_states_in_other_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request, and the handle is that of the next job, which takes the states of all old shards."""
    played = Played(monkeypatch, job())
    played.steps = [played.taken_in, played.ended, played.gone, played.say("the links of NEXT are made")]
    found = played.handle.restart(partitions=4)
    then = played.world.state.jobs[found.id]
    assert (found.spec().partitions, then.resumes, then.status) == (4, "hits-1", "running")
    assert then.facts is not None
    assert then.facts["count.state"].reshards
    assert [event.revision for event in played.asked] == [1]


def test_the_client_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what it waits for. The two steps go on without it."""
    played = Played(monkeypatch, job())
    played.steps = [played.taken_in]
    with pytest.raises(Interrupted, match="SX-JOB-RESTART-PENDING") as caught:
        played.handle.restart(partitions=4, timeout=0)
    assert caught.value.cause == "what its inputs have read still goes through its tasks"
    played.ended()
    played.gone()
    assert played.world.state.jobs[played.asked[0].into].status == "planning"


@pytest.mark.parametrize(
    ("spec", "rules", "code"),
    [
        (job(store=sql("sqlite:////tmp/s.db")), 4, "SX-JOB-RESUME"),
        (job(end="latest"), 4, "SX-JOB-BOUNDED"),
        (job(), 3, "SX-JOB-RESTART-RULES"),
    ],
    ids=["database", "bounded", "rules"],
)
def test_what_cannot_be_is_refused_before_anything_is_done(
    spec: JobSpec, rules: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(monkeypatch, spec, rules)
    with pytest.raises(SardonyxError, match=code):
        played.handle.restart(partitions=4)
    assert not played.asked


def test_bad_days_have_an_error_and_leave_nothing_half_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user stops the job before the request comes, or kills it meanwhile; the next job's topics cannot be made."""
    stopped = Played(monkeypatch, job())
    stopped.steps = [lambda: stopped.deliver(JobStopped(job="hits-1")), stopped.taken_in]
    with pytest.raises(SardonyxError, match="SX-JOB-CHANGE-RIVAL"):
        stopped.handle.restart(partitions=4)
    stopped.ended()
    stopped.gone()
    assert list(stopped.world.state.jobs) == ["hits-1"]

    killed = Played(monkeypatch, job())
    killed.steps = [killed.taken_in, lambda: killed.deliver(JobKilled(job="hits-1"))]
    with pytest.raises(Interrupted, match="SX-JOB-KILLED"):
        killed.handle.restart(partitions=4)
    killed.gone()
    assert list(killed.world.state.jobs) == ["hits-1"]

    unmade = Played(monkeypatch, job())
    unmade.steps = [unmade.taken_in, unmade.ended, unmade.gone, unmade.say("the links of NEXT cannot be made: full")]
    with pytest.raises(JobFailed, match="full") as caught:
        unmade.handle.restart(partitions=4)
    assert "--resume hits-1" in str(caught.value.fix)
    again = replace(job(), partitions=2)
    unmade.deliver(JobSubmitted(job="hits-3", spec=again, resumes="hits-1"))
    assert unmade.world.state.jobs["hits-3"].status == "planning"


# --- Changes ----------------------------------------------------------------------------------------------------------


def with_batches(size: int) -> LoadedJob:
    """The job with another setting, which a change takes."""
    spec = job()
    spec = replace(spec, catalog=[replace(task, batch_size=size) for task in spec.catalog])
    return LoadedJob(spec, None, Path())


def test_of_two_users_who_change_a_job_at_once_one_gets_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose request came second, whether the other change is still being made or has just been made. The other one stays."""
    played = Played(monkeypatch, job())
    other = JobChanged(job="hits-1", spec=with_batches(5).spec, revision=1)
    played.steps = [lambda: played.deliver(other), played.taken_in]
    with pytest.raises(SardonyxError, match="SX-JOB-CHANGE-RIVAL"):
        played.handle.change(with_batches(7))
    known = played.world.state.jobs["hits-1"]
    assert (known.revision, known.next_spec) == (1, with_batches(5).spec)
    with pytest.raises(SardonyxError, match="SX-JOB-CHANGE-RIVAL"):  # while it is being made
        played.handle.restart(partitions=4)


def test_a_change_waits_and_says_for_what(monkeypatch: pytest.MonkeyPatch) -> None:
    """For peers that are at their batches, or for a coordinator. It goes on when the time is over."""
    played = Played(monkeypatch, job())
    with pytest.raises(Interrupted, match="SX-JOB-CHANGE-PENDING") as caught:
        played.handle.change(with_batches(7), timeout=0)
    assert caught.value.cause == "no coordinator has processed it"
    played.asked.clear()
    played.steps = [played.taken_in]
    with pytest.raises(Interrupted, match="SX-JOB-CHANGE-PENDING") as caught:
        played.handle.change(with_batches(7), timeout=0)
    assert caught.value.cause == "its peers are still at their batches"
    assert played.world.state.jobs["hits-1"].next_spec == with_batches(7).spec


@pytest.mark.parametrize("way", ["stopped", "deleted"])
def test_a_job_that_cannot_be_changed_now_says_why(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user has stopped it, or what the change before has removed is still being deleted. Nothing is asked for."""
    played = Played(monkeypatch, job())
    if way == "stopped":
        played.deliver(JobStopped(job="hits-1"))
    else:
        played.world.state.jobs["hits-1"].gone_spec = job()
    with pytest.raises(SardonyxError, match="SX-JOB-CHANGE-NOW") as caught:
        played.handle.change(with_batches(7))
    assert way in str(caught.value.cause)
    assert not played.asked
