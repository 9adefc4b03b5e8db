"""What becomes of what the tasks of a job hold when a user stops it: kept, or lost only if the user has agreed."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sardonyx import Count, Job, event_time, files, kafka, sql, tumbling
from sardonyx.cli.job_commands import _ask_to_stop
from sardonyx.client.client import Client
from sardonyx.client.stopping import check_stop, goes_on_by, held_by
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import JobStopped, JobSubmitted
from sardonyx.core.spec import JobSpec
from sardonyx.core.stopping import may_follow
from sardonyx.web.access import Visitor
from sardonyx.web.actions import ACTIONS, Actions, wish_of
from tests.core.web_site import book_of

SCHEMA = "at timestamp, key string"
KEY = "0123456789abcdef"
STOP = next(each for each in ACTIONS if each.path.endswith("/stop"))


def job(*, store: Any = "memory", from_files: bool = False, windows: bool = True, end: str | None = None) -> JobSpec:
    """A job that never ends by itself, unless ``end`` says so."""
    made = Job("hits", partitions=1)
    inputs = [made.input("read", kafka("hits", schema=SCHEMA, end=end), time=event_time("at"))]
    if from_files:
        inputs.append(made.input("past", files("past/*.json", schema=SCHEMA), time=event_time("at")))
    last = inputs[0]
    if windows:
        last = made.window(
            "count", tumbling("1 min"), after=inputs, group_by="key", aggregate={"n": Count()}, store=store
        )
    for number, each in enumerate(inputs if not windows else [last]):
        made.output(f"write-{number}", kafka(f"counts-{number}"), after=each)
    return made.spec()


def refusal(spec: JobSpec, *, discard_state: bool = False) -> SardonyxError:
    with pytest.raises(SardonyxError) as caught:
        check_stop("hits-1", spec, "d", discard_state=discard_state, count=lambda: {"count": "268 open windows"})
    return caught.value


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (job(store=sql("sqlite:////tmp/s.db")), "it is in a database"),
        (job(from_files=True), "its input past would be read"),
    ],
    ids=["database", "files"],
)
def test_a_stop_that_loses_what_tasks_hold_asks_first(spec: JobSpec, why: str) -> None:
    """It says which task, how much that is, why no job can go on with it, and two ways out."""
    error = refusal(spec)
    assert error.code == "SX-JOB-STATE-LOST"
    assert "count (268 open windows)" in error.message
    assert why in str(error.cause)
    assert "job suspend hits-1" in str(error.fix)
    assert "--discard-state" in str(error.fix)
    assert "no job can go on from here" in goes_on_by("hits-1", spec)
    check_stop("hits-1", spec, "d", discard_state=True)


def test_a_stop_from_which_a_job_can_go_on_does_not_ask() -> None:
    """The next job has the open windows; the last line says so, and names the command only where it will be taken."""
    check_stop("hits-1", job(), "d", discard_state=False)
    assert goes_on_by("hits-1", job()).startswith("what count held is kept, and in no result yet")
    without = job(windows=False)
    check_stop("hits-1", without, "d", discard_state=False)
    assert goes_on_by("hits-1", without) == "to go on from here: sardonyx job submit SPEC --resume hits-1"
    unread = job(windows=False, from_files=True)
    check_stop("hits-1", unread, "d", discard_state=False)
    assert "--resume" not in goes_on_by("hits-1", unread)


def test_a_job_that_ends_by_itself_is_not_stopped_and_not_advised_to_be() -> None:
    ends = job(end="latest")
    assert refusal(ends, discard_state=True).code == "SX-JOB-BOUNDED"
    assert not may_follow("hits-1", ends, ends)
    assert may_follow("hits-1", job(), job())
    assert not may_follow("hits-1", job(store=sql("sqlite:////tmp/s.db")), job())


def test_what_would_be_lost_is_counted_as_far_as_it_can_be_read() -> None:
    class Handle:
        def spec(self) -> JobSpec:
            return job()

        def state(self, task: str) -> Iterator[dict[str, int]]:
            assert task == "count"
            return ({"n": n} for n in range(1_200))

    class Unread(Handle):
        def state(self, task: str) -> Iterator[dict[str, int]]:
            raise SardonyxError("SX-STATE-NONE", f"the state of {task} is no log in Kafka")

    assert held_by(cast("Any", Handle())) == {"count": "1,200 open windows"}
    assert held_by(cast("Any", Handle()), seconds=0) == {}
    assert held_by(cast("Any", Unread())) == {}


class Stopped:
    """A job whose stop needs a user who agrees."""

    id = "hits-1"

    def __init__(self) -> None:
        self.said: list[bool] = []

    def stop(self, *, discard_state: bool = False) -> None:
        self.said.append(discard_state)
        check_stop("hits-1", job(from_files=True), "d", discard_state=discard_state)


@pytest.mark.parametrize(
    ("terminal", "answer", "flag", "said"),
    [
        (False, True, False, [False]),
        (True, False, False, [False]),
        (True, True, False, [False, True]),
        (False, False, True, [True]),
    ],
)
def test_the_command_asks_on_a_terminal_and_refuses_without_one(
    monkeypatch: pytest.MonkeyPatch, *, terminal: bool, answer: bool, flag: bool, said: list[bool]
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: terminal))
    monkeypatch.setattr("typer.confirm", lambda _question, err: answer and err)
    call, handle = cast("Any", SimpleNamespace(say=lambda _: None)), Stopped()
    if said[-1]:
        _ask_to_stop(call, cast("Any", handle), discard_state=flag)
    else:
        with pytest.raises(SardonyxError, match="SX-JOB-STATE-LOST"):
            _ask_to_stop(call, cast("Any", handle), discard_state=flag)
    assert handle.said == said


def test_the_pages_ask_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request changes nothing; the second one, under the same key, agrees."""
    monkeypatch.setattr("sardonyx.web.actions.TAKE_IN", 0.0)
    asked: list[Any] = []
    book = book_of([JobSubmitted(at=1.0, job="hits-1", spec=job(from_files=True))])
    zk = SimpleNamespace(request=lambda event, _token: asked.append(event))
    client = cast("Client", SimpleNamespace(zk=zk, settings=SimpleNamespace(deployment="d")))
    actions, ana = Actions(client, lambda: book), Visitor("ana", "operator")
    with pytest.raises(SardonyxError, match="SX-JOB-STATE-LOST"):
        STOP.handler(actions, wish_of(ana, STOP, {"job": "hits-1"}, KEY))
    assert not asked
    with pytest.raises(SardonyxError, match="SX-WEB-QUERY"):
        wish_of(ana, STOP, {"job": "hits-1"}, KEY, {"discard": "true"})
    STOP.handler(actions, wish_of(ana, STOP, {"job": "hits-1"}, KEY, {"discard_state": "true"}))
    assert [type(event) for event in asked] == [JobStopped]
