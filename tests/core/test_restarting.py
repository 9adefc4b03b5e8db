"""A user has a job changed or restarted: what is found out before anything is done, what it waits for, and what bad days get."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from played import Played

from coordinator.core.explain import explain
from sardonyx import sql
from sardonyx.client.going_back import Known
from sardonyx.core.errors import Interrupted, JobFailed, SardonyxError
from sardonyx.core.events import Event, JobChanged, JobKilled, JobRolledBack, JobStopped, JobSubmitted, LinksRead
from sardonyx.core.spec import JobSpec
from sardonyx.job.load import LoadedJob
from tests.core.test_stopping import POINT, job


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


# --- Rollbacks --------------------------------------------------------------------------------------------------------


def with_checkpoint(monkeypatch: pytest.MonkeyPatch) -> Played:
    """A job with a checkpoint, of which Kafka would tell."""
    played = Played(monkeypatch, replace(job(), checkpoint_every="1 min"))
    played.client.led = lambda: False
    known = Known([POINT], played.world.state.jobs["hits-1"].facts or {}, {"read": {"hits": [9]}})
    monkeypatch.setattr("sardonyx.client.going_back.of_running", lambda *_: known)
    return played


def test_a_rollback_ends_with_the_job_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the topics of the old one are deleted, `job explain` of that one says which job goes on."""
    played = with_checkpoint(monkeypatch)
    said: list[str] = []

    def explained() -> None:
        said.extend(reason.text for reason in explain(played.world.state, "hits-1").reasons)

    def gone() -> None:
        played.deliver(LinksRead(job="hits-1", positions={"read": {"hits": [9]}}, checkpoints=[POINT]))
        played.world.say("the links of hits-1 are gone")

    played.steps = [played.taken_in, explained, gone]
    found = played.handle.rollback()
    then = played.world.state.jobs[found.id]
    assert (then.resumes, then.resumes_at, then.status) == ("hits-1", POINT.at, "planning")
    assert said[-1].endswith(f"being deleted; then job {found.id} goes on from there")


@pytest.mark.parametrize(
    ("meanwhile", "code", "fix"),
    [
        (JobKilled(job="hits-1"), "SX-JOB-ENDED", "--resume hits-1@TIME"),
        (JobStopped(job="hits-1"), "SX-JOB-CHANGE-NOW", "--resume hits-1@TIME"),
        (JobRolledBack(job="hits-1", into="hits-9", to=POINT.at), "SX-JOB-ENDED", "wait for job hits-9"),
    ],
    ids=["killed", "stopped", "rolled back"],
)
def test_a_rollback_that_changes_nothing_does_not_wait_for_ever(
    meanwhile: Event, code: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user kills the job, stops it or rolls it back, before the request comes or before it is made."""
    late = with_checkpoint(monkeypatch)
    late.steps = [lambda: late.deliver(meanwhile), late.taken_in]
    with pytest.raises(SardonyxError, match=code) as caught:
        late.handle.rollback(timeout="20 s")
    assert fix in str(caught.value.fix)
    known = with_checkpoint(monkeypatch)
    known.deliver(meanwhile)
    with pytest.raises(SardonyxError, match=code) as caught:
        known.handle.rollback(timeout="20 s")
    assert fix in str(caught.value.fix)
    assert not known.asked


def test_a_rollback_says_what_it_waits_for_and_what_can_be_asked_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no job of the new id yet, so `job await` would not know it."""
    played = with_checkpoint(monkeypatch)
    with pytest.raises(Interrupted, match="SX-JOB-ROLLBACK-PENDING") as caught:
        played.handle.rollback(timeout=0)
    assert caught.value.cause == "no coordinator leads this deployment"
    played.asked.clear()
    played.steps = [played.taken_in]
    with pytest.raises(Interrupted, match="SX-JOB-ROLLBACK-PENDING") as caught:
        played.handle.rollback(timeout=0)
    assert "deletes its topics" in str(caught.value.cause)
    assert "`sardonyx job explain hits-1`" in str(caught.value.fix)
    assert "job await" not in str(caught.value.fix)
