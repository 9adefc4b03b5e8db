"""What becomes of what the tasks of a job hold when a user stops it: kept, or lost only if the user has agreed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from coordinator.core.decide import decide
from coordinator.core.state import new_state
from queues.batch import StartingPoint, assigned
from sardonyx import Count, Job, event_time, files, kafka, sql, tumbling
from sardonyx.cli.job_commands import _ask_to_stop
from sardonyx.client.client import Client
from sardonyx.client.stopping import Stop, check_stop, goes_on_by, held_by
from sardonyx.client.task_state import Held
from sardonyx.core.clocks import END, SourceClock
from sardonyx.core.errors import SardonyxError, SetupError
from sardonyx.core.events import OLDEST_RULES, RULES, JobStopped, JobSubmitted, LinkFacts, LinksCreated
from sardonyx.core.graph import graph_of
from sardonyx.core.job_diff import job_diff
from sardonyx.core.positions import Partition, Position, stopped
from sardonyx.core.predecessors import Predecessor
from sardonyx.core.resuming import resume_problems
from sardonyx.core.spec import JobSpec
from sardonyx.core.state_points import CheckpointPoint
from sardonyx.core.stopping import may_follow
from sardonyx.web.access import Visitor
from sardonyx.web.actions import ACTIONS, Actions, wish_of
from tests.core.web_site import book_of

SCHEMA = "at timestamp, key string"
KEY = "0123456789abcdef"
COUNTED = "5 open windows with 9 rows"
STOP = next(each for each in ACTIONS if each.path.endswith("/stop"))


def job(*, store: Any = "memory", from_files: bool = False, windows: bool = True, end: str | None = None) -> JobSpec:
    """A job that never ends by itself, unless ``end`` says so."""
    made = Job("hits", partitions=1)
    inputs = [made.input("read", kafka("hits", schema=SCHEMA, start="earliest", end=end), time=event_time("at"))]
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


def counting_twice(store: Any, other: Any) -> JobSpec:
    """A job with two tasks with windows."""
    made = Job("hits", partitions=1)
    read = made.input("read", kafka("hits", schema=SCHEMA, start="earliest"), time=event_time("at"))
    for name, each in (("count", store), ("total", other)):
        kept = made.window(name, tumbling("1 min"), after=read, group_by="key", aggregate={"n": Count()}, store=each)
        made.output(f"write-{name}", kafka(f"{name}s"), after=kept)
    return made.spec()


def refusal(spec: JobSpec, how: Stop = Stop(), rules: int = RULES) -> SardonyxError:  # noqa: B008
    with pytest.raises(SardonyxError) as caught:
        check_stop("hits-1", spec, "d", how=how, rules=lambda: rules, count=lambda: {"count": "268 open windows"})
    return caught.value


def may_stop(spec: JobSpec, how: Stop = Stop()) -> None:  # noqa: B008
    check_stop("hits-1", spec, "d", how=how, rules=lambda: RULES)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (job(store=sql("sqlite:////tmp/s.db")), "the state of count is in a database"),
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
    assert str(error.cause).endswith("; lost would be the open windows of count (their rows are in no result yet)")
    assert "job suspend hits-1" in str(error.fix)
    assert "--discard-state" in str(error.fix)
    assert "no job can go on from here" in goes_on_by("hits-1", spec)
    may_stop(spec, Stop(discard_state=True))
    may_stop(spec, Stop(close_windows=True))


@pytest.mark.parametrize(
    ("stores", "why"),
    [
        ((sql("sqlite:////tmp/s.db"),) * 2, "the state of count and total is in a database"),
        (
            ("memory", sql("sqlite:////tmp/s.db")),
            "the state of total is in a database, and no job goes on with that of count alone",
        ),
    ],
    ids=["both", "one of two"],
)
def test_the_cause_names_each_task_and_only_what_can_be(stores: tuple[Any, Any], why: str) -> None:
    """Before the stop and after it, and in `job diff`: all tasks that lose something, and nothing about other releases."""
    spec = counting_twice(*stores)
    error = refusal(spec)
    assert "count (268 open windows) and total of job hits-1 hold" in error.message
    assert f"since what tasks count and total keep stays behind: {why}; lost would be" in str(error.cause)
    known = Predecessor(spec, "stopped", topics={"count": ["hits"], "total": ["hits"]})
    for before in (None, known):
        assert goes_on_by("hits-1", spec, before).endswith(why)
    (problem,) = job_diff(spec, spec, job="hits-1").refusals
    assert problem.failure.cause == why


def test_a_stop_from_which_a_job_can_go_on_does_not_ask() -> None:
    """The next job has the open windows; the last line says so, and names the command only where it will be taken."""
    may_stop(job())
    assert goes_on_by("hits-1", job()) == (
        "kept: the open windows of count (their rows are in no result yet). "
        "To go on with what is kept: sardonyx job submit SPEC --resume hits-1"
    )
    without = job(windows=False)
    may_stop(without)
    assert goes_on_by("hits-1", without) == "to go on from here: sardonyx job submit SPEC --resume hits-1"
    unread = job(windows=False, from_files=True)
    may_stop(unread)
    assert "--resume" not in goes_on_by("hits-1", unread)


def test_a_job_that_ends_by_itself_is_not_stopped_and_not_advised_to_be() -> None:
    ends = job(end="latest")
    assert refusal(ends, Stop(discard_state=True)).code == "SX-JOB-BOUNDED"
    assert not may_follow("hits-1", ends, ends)
    assert may_follow("hits-1", job(), job())
    assert not may_follow("hits-1", job(store=sql("sqlite:////tmp/s.db")), job())


def test_what_would_be_lost_is_counted_or_the_reason_is_said_why_it_is_not() -> None:
    """For each task: one of which nothing is said would look as if it held nothing."""

    class Handle:
        def spec(self) -> JobSpec:
            return job()

        def held(self, task: str) -> Iterator[Held]:
            assert task == "count"
            return iter([Held(windows=1_000, rows=9_000), Held(windows=200, rows=224)])

    class Unread(Handle):
        def held(self, task: str) -> Iterator[Held]:
            raise SardonyxError("SX-STATE-NONE", f"the state of {task} cannot be shown", cause="a join keeps rows")

    class Away(Handle):
        def held(self, task: str) -> Iterator[Held]:
            raise SetupError("SX-DATABASE-UNREACHABLE", "there is no file s.db on this machine.")

    class Empty(Handle):
        def held(self, task: str) -> Iterator[Held]:
            return iter(())

    assert held_by(cast("Any", Handle())) == {"count": "1,200 open windows with 9,224 rows"}
    assert held_by(cast("Any", Handle()), seconds=0) == {"count": "not counted: the 0 seconds for that were over"}
    assert held_by(cast("Any", Unread())) == {"count": "not counted: a join keeps rows"}
    assert held_by(cast("Any", Away())) == {"count": "not counted: there is no file s.db on this machine"}
    assert held_by(cast("Any", Empty())) == {"count": "0 open windows with 0 rows"}


POINT = CheckpointPoint(60_000_000, {"read": {"hits": [7]}}, {"count": [(0, 0, 0)]})


@pytest.mark.parametrize(
    ("before", "fix"),
    [
        (Predecessor(job(), "killed"), "Do not begin at the positions of hits-1"),
        (
            Predecessor(job(store=sql("sqlite:////tmp/s.db")), "stopped"),
            "it begins with empty states, at its own `start=`",
        ),
        (Predecessor(job(), "stopped", closed=True, end=None), "`sardonyx job show hits-1` tells the positions"),
    ],
    ids=["killed", "state in a database", "windows closed"],
)
def test_what_cannot_be_resumed_names_the_row_to_start_from_or_none(before: Predecessor, fix: str) -> None:
    """The positions are a place to begin at only if each row before them has had its effect. The rules before 4 said it of all,
    and a replay of their log still does.
    """
    first = next(resume_problems("hits-1", before, before.spec))
    assert fix in first.fix
    assert ("positions" in first.fix) <= ("Do not" in first.fix or before.closed)
    assert "with the `start=` that you want" in next(resume_problems("hits-1", before, before.spec, reshards=False)).fix


def test_of_a_job_that_was_killed_the_last_checkpoint_is_named() -> None:
    """If the new version can go on from it; `--resume` takes what the fix says."""
    spec = msgspec.structs.replace(job(), checkpoint_every="1 min")
    before = Predecessor(spec, "killed", topics={"read": {"hits"}}, checkpoints=[POINT])
    assert "`--resume hits-1@1970-01-01T00:01:00Z`" in next(resume_problems("hits-1", before, spec)).fix
    assert list(resume_problems("hits-1", before, spec, POINT.at)) == []
    other = msgspec.structs.replace(spec, checkpoint_every="7 s")
    assert "Do not begin at the positions" in next(resume_problems("hits-1", before, other)).fix


class Stopped:
    """A job whose stop needs a user who agrees."""

    id = "hits-1"

    def __init__(self, spec: JobSpec | None = None) -> None:
        self.known = spec or job(from_files=True)
        self.said: list[bool] = []

    def spec(self) -> JobSpec:
        return self.known

    def held(self, task: str) -> Iterator[Held]:
        assert not self.said, "they are counted before the stop"
        return iter([Held(windows=len(task), rows=9)])

    def stop(self, *, close_windows: bool = False, discard_state: bool = False) -> None:
        self.said.append(discard_state)
        may_stop(self.known, Stop(close_windows, discard_state))


def call_of(lines: list[str]) -> Any:
    """A call of a command, with the lines that it says."""
    settings = SimpleNamespace(deployment="d")
    return SimpleNamespace(say=lines.append, settings=settings, patience=lambda _: nullcontext())


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
    call, handle = call_of([]), Stopped()
    if said[-1]:
        _ask_to_stop(call, cast("Any", handle), close_windows=False, discard_state=flag)
    else:
        with pytest.raises(SardonyxError, match="SX-JOB-STATE-LOST"):
            _ask_to_stop(call, cast("Any", handle), close_windows=False, discard_state=flag)
    assert handle.said == said


@pytest.mark.parametrize(
    ("spec", "closes", "said"),
    [
        (
            counting_twice(sql("sqlite:////tmp/s.db"), sql("sqlite:////tmp/s.db")),
            False,
            f"the stop discards what count ({COUNTED}) and total ({COUNTED}) hold, as counted right before it",
        ),
        (
            job(from_files=True),
            False,
            f"the stop discards what count ({COUNTED}) holds, as counted right before it",
        ),
        (job(from_files=True), True, ""),
        (job(), False, ""),
        (job(windows=False, from_files=True), False, ""),
    ],
    ids=["two tasks", "files", "windows close", "another job goes on", "no state"],
)
def test_a_stop_that_discards_says_what(spec: JobSpec, said: str, *, closes: bool) -> None:
    """A user who has agreed in advance was not asked, and so reads it now; nothing is said where nothing is discarded."""
    lines: list[str] = []
    _ask_to_stop(call_of(lines), cast("Any", Stopped(spec)), close_windows=closes, discard_state=True)
    assert lines == ([said] if said else [])


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
    for how in ("discard_state", "close_windows"):
        STOP.handler(actions, wish_of(ana, STOP, {"job": "hits-1"}, KEY, {how: "true"}))
    assert [(type(event), event.closes) for event in asked] == [(JobStopped, False), (JobStopped, True)]


# --- Windows that close -----------------------------------------------------------------------------------------------


def test_where_windows_close_the_clock_of_an_input_ends_as_at_the_end_of_a_bounded_one() -> None:
    """Where windows stay open, the clock stays where it is, for the job that goes on."""
    graph = graph_of(job(), "d", "hits-1")
    (link,) = (link for link in graph.links if link.kind == "input")
    place = Partition(link.topic, 0)
    for closes in (False, True):
        facts = stopped(graph, {link.name: LinkFacts(1)}, closes=closes)[link.name]
        assert (facts.stops, facts.closes) == (True, closes)
        start = StartingPoint(Position(7, clock=SourceClock(60, 50)))
        position = assigned(place, start, facts, 1, timed=True).commit_point()
        assert (position.offset, position.drained) == (7, "end")
        assert position.clock.value == (END if closes else 50)


def test_no_job_goes_on_with_windows_that_were_closed() -> None:
    """The job would give a second result, of the rest of such a window. A job without states goes on from the positions."""
    assert "its windows were closed" in goes_on_by("hits-1", job(), closed=True)
    assert "--resume" in goes_on_by("hits-1", job(windows=False), closed=True)
    known = Predecessor(job(), "stopped", topics={"count": ["hits"]}, closed=True)
    assert "its windows were closed" in goes_on_by("hits-1", job(), known)


def test_a_coordinator_of_the_release_before_is_not_asked_to_close_windows() -> None:
    assert refusal(job(), Stop(close_windows=True), rules=OLDEST_RULES).code == "SX-JOB-CLOSE-RULES"


def test_a_coordinator_keeps_no_states_of_a_job_whose_windows_were_closed() -> None:
    """Rules before 4 know nothing of closed windows."""
    for rules, closes in ((OLDEST_RULES, False), (RULES, True)):
        state = new_state("d", rules)
        spec = job()
        links = {link.name: LinkFacts(1) for link in graph_of(spec, "d", "hits-1").links}
        decide(state, 1, JobSubmitted(at=1.0, job="hits-1", spec=spec))
        decide(state, 2, LinksCreated(at=2.0, job="hits-1", links=links))
        decide(state, 3, JobStopped(at=3.0, job="hits-1", closes=True))
        assert state.jobs["hits-1"].closes == closes
        facts = state.jobs["hits-1"].facts or {}
        assert {known.closes for known in facts.values() if known.stops} == {closes}
