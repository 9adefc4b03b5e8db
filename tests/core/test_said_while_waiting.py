"""What is said while a command waits: for what, and when that comes to nothing."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace
from played import Played
from rich.console import Console
from structlog.testing import capture_logs

from coordinator.core.explain import explain
from coordinator.core.explanation import as_lines
from sardonyx.cli import call
from sardonyx.cli.call import LOG, LOG_AND_KAFKA, SILENCE
from sardonyx.cli.job_end import Silence
from sardonyx.cli.progress import Bars
from sardonyx.cli.share_commands import suspend
from sardonyx.client import resizing
from sardonyx.client.reasons import Outside, Why
from sardonyx.client.stopping import not_resumable, require_resumable
from sardonyx.client.views import JobView, TaskView, job_view, laid_out, task_notes, waiting_for
from sardonyx.core.errors import Failure, Interrupted, JobFailed, SardonyxError
from sardonyx.core.events import TaskFailed
from sardonyx.core.notes import JobNote
from sardonyx.core.spec import JobSpec
from tests.core.test_stopping import job

CLI = Path(call.__file__).parent
FULL = Failure("SX-OUTPUT-FULL", "cannot write to /data/[/out]: No space left on device", fix="free space on that disk")


class Followed(Played):
    """A job that a client can follow."""

    def __init__(self, patch: pytest.MonkeyPatch, spec: JobSpec) -> None:
        super().__init__(patch, spec)
        self.replays, self.outside = 0, list[Outside]()
        zk = self.client.zk
        zk.read_many = lambda paths: {path: self.world.zk[path] for path in paths if path in self.world.zk}
        self.client.led, self.client.is_gone = lambda: True, lambda _job: False
        self.client.explain, self.client.view_of = self.explained, self.view_of

    def explained(self, job: str, *, look: bool) -> Why:
        assert not look
        self.replays += 1
        return Why(explain(self.world.state, job), self.outside)

    def view_of(self, job: str, spec: Any, note: JobNote | None, *, live: bool) -> JobView:
        graph = laid_out(spec, "test", job)
        return job_view(job, spec, graph, note, task_notes(self.client.zk.read_many, graph, job))


class Deployment(Followed):
    """A job whose first task pauses, since a disk is full."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__(patch, job())
        state = self.world.state
        self.task = next(iter(state.plans["hits-1"].stages))
        (peer, *_) = state.on_task(state.jobs["hits-1"].tasks[self.task])
        assignment = state.assignment(peer).id
        self.deliver(TaskFailed(peer=peer, assignment=assignment, error=FULL, passing=True))


def test_a_job_that_is_submitted_says_which_tag_no_peer_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if its other tasks run, and until a peer with the tag is there. The log is read only for jobs that ask for tags."""
    spec = job()
    read, count, write = spec.catalog
    deployment = Followed(monkeypatch, replace(spec, catalog=[read, replace(count, tags=["gpu"]), write]))
    words = "task count needs a virtual peer with the tag gpu, and there is none"
    assert deployment.handle.waits_for() == words
    deployment.world.say("P9 is born with gpu")
    assert deployment.handle.waits_for() is None
    plain = Followed(monkeypatch, spec)
    assert plain.handle.waits_for() is None
    assert plain.replays == 0


def test_a_job_whose_peers_are_all_drained_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for no peers to become free: a user has taken them out, and takes them in again."""
    deployment = Followed(monkeypatch, job())
    for peer in list(deployment.world.state.peers):
        deployment.world.say(f"{peer} is drained")
    deployment.world.say("the peers that are to give their tasks up do")
    words = "a user has drained all 3 virtual peers: they get no task until they are taken in again"
    assert deployment.handle.waits_for() == words
    with pytest.raises(Interrupted, match="SX-JOB-TIMEOUT") as caught:
        deployment.handle.await_completion(0)
    assert caught.value.cause == words
    deployment.client.led = lambda: False  # that matters more
    deployment.outside.append(Outside("not-led", "no coordinator leads"))
    assert "no coordinator leads" in str(deployment.handle.waits_for())
    first = as_lines(deployment.explained("hits-1", look=False).explanation, 0.0)[2]
    assert first.startswith("    fix: `sardonyx peers undrain")


def test_a_job_says_that_a_task_pauses_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk fails no job, however long it lasts; what waits for it says so. The log is not read at each look."""
    deployment = Deployment(monkeypatch)
    handle = deployment.handle
    view = handle.status(live=False)
    assert [task.name for task in view.tasks if task.backing_off] == [deployment.task]
    words = f"task {deployment.task} backs off after failure 1 (the cause may pass, so the job survives any number)"
    silence = Silence(handle)
    said = [silence.remark(replace(view, letters=n), n / 10) for n in range(20)]  # other tasks go on
    assert {str(each).partition(", first")[0] for each in said} == {words}
    assert "SX-OUTPUT-FULL: cannot write to" in str(said[0])
    assert deployment.replays == 1
    assert silence.remark(view, SILENCE) == said[0]
    assert deployment.replays == 2
    with pytest.raises(Interrupted, match="SX-JOB-TIMEOUT") as caught:
        handle.await_completion(0)
    assert caught.value.cause == said[0]


def test_a_client_that_cannot_read_the_log_says_that_a_task_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = Deployment(monkeypatch)

    def newer(_job: str, *, look: bool) -> Why:
        raise SardonyxError("SX-LOG-FORMAT", "it is of a newer release")

    deployment.client.explain = newer
    told = deployment.handle.waiting(deployment.handle.status(live=False))
    assert told == (
        f"task {deployment.task} failed, and pauses before the next attempt; `sardonyx job explain hits-1` says why"
    )


def test_a_job_that_is_planned_waits_for_its_topics() -> None:
    view = JobView(id="j-1", name="j", status="planning", tasks=[])
    assert waiting_for(view, led=True) == "its topics are being created, or looked up in Kafka"
    assert "suspended" in str(waiting_for(replace(view, suspended=True), led=True))


def test_what_a_job_waits_for_may_have_brackets() -> None:
    """A path or the text of an error is not markup."""
    console = Console(file=io.StringIO(), width=120)
    view = JobView(id="j-1", name="j", status="running", tasks=[TaskView(name="a", type="function", state="running")])
    console.print(Bars(cast("Any", None), {}).table(view, 1.0, f"waits: {FULL.message}"))
    assert "/data/[/out]" in cast("io.StringIO", console.file).getvalue()


def test_to_suspend_a_job_ends_when_another_user_resumes_it() -> None:
    """Its peers stay then, so they are not waited for."""
    busy = TaskView(name="a", type="function", state="running", peers=1)
    view = JobView(id="j-1", name="j", status="running", tasks=[busy])

    def follow() -> Iterator[JobView]:
        yield view  # the coordinator has not written it yet
        yield replace(view, suspended=True)
        yield view
        pytest.fail("it waits on")

    handle = SimpleNamespace(suspend=lambda: None, follow=follow)
    said: list[str] = []
    call = SimpleNamespace(
        client=contextlib.nullcontext,
        job=lambda *_: handle,
        patience=lambda _: contextlib.nullcontext(),
        say=said.append,
        put=said.append,
        json=False,
    )
    suspend(cast("Any", call), "j-1")
    assert said == ["job j-1 has peers again: it was resumed meanwhile, or stopped", "job j-1 is running"]


def test_a_command_that_leaves_inputs_at_rest_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands show errors of the log, and no warnings."""
    monkeypatch.setattr(resizing, "_LET_GO", -1.0)
    with capture_logs() as logged:
        resizing._let_go("j-1", cast("Any", None), cast("Any", None), 1)
    assert [(each["event"], each["log_level"]) for each in logged] == [("inputs_may_stand_still", "error")]


@pytest.mark.parametrize(
    ("spec", "status", "fix"),
    [
        (job(), "running", "run `sardonyx job stop hits-1`"),
        (job(end="latest"), "running", "it ends by itself"),
        (job(), "stopped", "submit again when they are"),
    ],
    ids=["endless", "bounded", "stopped"],
)
def test_who_resumes_a_job_too_early_is_told_what_can_be_done(spec: Any, status: Any, fix: str) -> None:
    """A bounded job cannot be stopped, and one that was stopped is stopped already."""
    error = not_resumable("hits-1", spec, status)
    assert isinstance(error, JobFailed)
    assert (error.code, fix in error.fix, f"it is {status}" in error.message) == ("SX-JOB-RESUME", True, True)


def test_a_job_is_not_submitted_that_would_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, job())
    with pytest.raises(JobFailed, match="cannot be resumed yet: it is running"):
        require_resumable(played.handle, 0)
    played.client.zk.request = played.deliver
    played.handle.kill()
    with pytest.raises(JobFailed, match="it is killed, and its topics are still being deleted"):
        require_resumable(played.handle, 0)
    played.gone()
    require_resumable(played.handle, 0)


def test_no_command_waits_for_words_that_only_its_authors_know() -> None:
    """A command that reads the whole log waits for ZooKeeper, and says what that holds."""
    said = [line for file in CLI.glob("*.py") for line in file.read_text("utf-8").splitlines() if ".patience(" in line]
    assert len(said) > 40
    assert [line for line in said if "replayed" in line] == []
    assert "what the coordinator has decided" in LOG
    assert LOG_AND_KAFKA.startswith(LOG)
