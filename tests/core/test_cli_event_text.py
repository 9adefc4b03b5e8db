"""What the command says: events in words, errors, graphs, progress."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import get_args

import pytest

from sardonyx.cli import report
from sardonyx.cli.event_text import summary
from sardonyx.cli.graph_text import draw, headline
from sardonyx.cli.progress import PlainLines, Rates, share
from sardonyx.client.views import JobView, TaskView
from sardonyx.core import events
from sardonyx.core.errors import Failure, Interrupted, JobInvalid, SardonyxError, SetupError
from sardonyx.core.events import AnyEvent, Counts, LinkFacts
from sardonyx.core.graph import graph_of
from sardonyx.core.notes import Assignment
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.core.state_points import CheckpointPoint
from sardonyx.core.units import duration

FAILURE = Failure("SX-FN-RAISED", "it raised\nat length")
SPEC = JobSpec(
    name="flights",
    workflow=[("read", "clean"), ("read", "airlines"), ("clean", "join"), ("airlines", "join"), ("join", "publish")],
    catalog=[
        TaskSpec(name="read", type="input", connector="files", options={"path": "/a.csv", "format": "csv"}),
        TaskSpec(name="clean", type="function", fn="job:clean"),
        TaskSpec(name="airlines", type="function", fn="job:airlines", max_peers=2),
        TaskSpec(name="join", type="function", fn="job:join", consumption="sequential"),
        TaskSpec(name="publish", type="output", connector="kafka", options={"topic": "t", "format": "json"}),
    ],
)
EVENTS = [
    (events.RulesRaised(rules=2), "all coordinators know rules 2: decisions follow these from here on"),
    (events.PeerBorn(peer="p", host="h", pid=3), "peer p registered on h, process 3"),
    (events.PeerDied(peer="p"), "peer p is gone"),
    (events.Left(peer="p"), "peer p leaves"),
    (events.JobSubmitted(job="j-1", spec=SPEC), "job j-1 is submitted: 5 tasks"),
    (events.LinksCreated(job="j-1", links={"a.b": LinkFacts(8)}), "job j-1 has its 1 link"),
    (
        events.LinkLost(job="j-1", link="a.b", error=FAILURE),
        "an audit of link a.b of job j-1 has failed: SX-FN-RAISED: it raised",
    ),
    (events.LinksFailed(job="j-1", error=FAILURE), "the links of job j-1 cannot be created: SX-FN-RAISED: it raised"),
    (
        events.Checkpointed(job="j-1", revision=1, point=CheckpointPoint(1_764_151_200_000_000)),
        "job j-1 has a checkpoint at 2025-11-26T10:00:00Z",
    ),
    (events.LinksRead(job="j-1"), "the links of job j-1 are read for the last time"),
    (events.LinksDeleted(job="j-1"), "the links of job j-1 are deleted"),
    (
        events.LinksCreated(job="j-1", links={}, revision=2, since={"t": {"orders": [7, None, 9]}}),
        "job j-1 has the links of revision 2, which takes over at t orders[0]@7, t orders[2]@9",
    ),
    (
        events.LinksFailed(job="j-1", error=FAILURE, revision=2),
        "job j-1 cannot have the links of revision 2: SX-FN-RAISED: it raised",
    ),
    (events.LinksDropped(job="j-1", revision=2), "what revision 2 of job j-1 has removed is deleted"),
    (events.Acked(peer="p", assignment=5), "peer p accepts assignment 5"),
    (
        events.Declined(peer="p", assignment=5, error=FAILURE),
        "peer p declines assignment 5: SX-FN-RAISED: it raised",
    ),
    (events.AckTimedOut(peer="p", assignment=5), "peer p did not answer the offer of assignment 5"),
    (events.GraceEnded(peer="p"), "peer p did not withdraw in time after its task was revoked"),
    (events.Exhausted(peer="p", assignment=5), "peer p has read all input of assignment 5"),
    (
        events.Completed(peer="p", assignment=5, counts=Counts(1000, 990, 10)),
        "peer p has completed assignment 5: 1,000 rows in, 990 out, 10 skipped",
    ),
    (
        events.TaskFailed(peer="p", assignment=5, error=FAILURE, fatal=True),
        "peer p gives up assignment 5, for good: SX-FN-RAISED: it raised",
    ),
    (
        events.JobSubmitted(job="j-2", spec=SPEC, resumes="j-1", resumes_at=1_795_687_200_500_000),
        "job j-2 is submitted: 5 tasks, and resumes j-1 at 2026-11-26T10:00:00.5Z or before",
    ),
    (
        events.JobRolledBack(job="j-1", into="j-2", to=1_795_687_200_000_000),
        "a user has job j-1 go back to 2026-11-26T10:00:00Z or before, as job j-2",
    ),
    (
        events.JobRestarted(job="j-1", into="j-2", spec=SPEC, revision=1),
        "a user stops job j-1, from which job j-2 goes on when it has ended",
    ),
    (events.JobKilled(job="j-1"), "a user kills job j-1"),
    (events.JobStopped(job="j-1"), "a user stops job j-1"),
    (events.LinksKept(job="j-1", seconds=3600), "records stay in the links of job j-1 for at least 1 h"),
    (events.LinksKept(job="j-1", seconds=0), "records stay in the links of job j-1 no longer than they are needed"),
    (events.JobPurged(job="j-1"), "job j-1 is purged"),
    (
        events.LettersClaimed(job="j-1", task="t", letters=3),
        "3 dead letters of task j-1/t have been redone or dropped so far",
    ),
    (events.BackoffEnded(job="j-1", task="t", failures=2), "the back-off of task j-1/t is over after 2 failures"),
    (events.Yielded(peer="p", assignment=5), "peer p gives up assignment 5 after its batch"),
    (events.TurnEnded(peer="p", assignment=5), "the turn of peer p at assignment 5 is over"),
    (
        events.Rebalanced(job="j-1", peers=2, gave=0),
        "job j-1 is to give 2 peers, which it has beyond its share",
    ),
    (events.JobScaled(job="j-1", weight=1e6, percentage=0.0), "a user scales job j-1: weight 1000000, no percentage"),
    (
        events.JobChanged(job="j-1", spec=JobSpec(name="j", workflow=[], catalog=[]), revision=3),
        "a user changes revision 3 of job j-1",
    ),
    (events.JobScaled(job="j-1", suspended=True), "a user suspends job j-1"),
    (events.JobScaled(job="j-1", suspended=False, weight=2.0), "a user resumes job j-1, and scales it: weight 2"),
    (events.JobScaled(job="j-1", max_peers=0), "a user scales job j-1: no limit of peers"),
    (events.PolicySet(scheduler="balanced"), "a user has peers divided by the scheduler balanced"),
    (events.JobScaled(job="j-1", weight=2.0, max_peers=4), "a user scales job j-1: weight 2, max peers 4"),
    (events.Evicted(peer="p"), "a user evicts peer p"),
    (events.Drained(peer="p"), "a user drains peer p"),
    (events.Drained(host="h", back=True), "a user takes the peers of host h in again"),
    (
        events.Restored(job="j-1", error=FAILURE),
        "the deployment was restored from a backup; job j-1: SX-FN-RAISED: it raised",
    ),
    (
        events.SetAside(event=events.JobKilled(job="j-1", by="ann"), job="j-1", error=FAILURE),
        "an entry is set aside, and job j-1 fails; left out: a user kills job j-1. SX-FN-RAISED: it raised",
    ),
    (
        events.SetAside(event=events.Evicted(peer="p"), job="j-1", error=FAILURE, decided=True),
        "an entry is set aside, and job j-1 fails; decided without it: a user evicts peer p. SX-FN-RAISED: it raised",
    ),
    (
        events.SetAside(event=events.PolicySet(scheduler="balanced"), error=FAILURE),
        "an entry is set aside; left out: a user has peers divided by the scheduler balanced. SX-FN-RAISED: it raised",
    ),
]


@pytest.mark.parametrize(("event", "words"), EVENTS, ids=lambda value: type(value).__name__)
def test_every_event_has_one_line_of_words(event: AnyEvent, words: str) -> None:
    """`log tail` says each event in one line."""
    assert summary(event) == words


def test_an_assignment_is_named_by_its_job_and_task() -> None:
    """A number says nothing to people: where the log tells what the peer worked on, the line has it."""
    held = Assignment(5, "orders-x", "check", 0)
    assert summary(events.Acked(peer="p", assignment=5), held) == "peer p accepts assignment 5 (orders-x/check)"
    assert summary(events.Acked(peer="p", assignment=4), held) == "peer p accepts assignment 4"
    assert summary(events.PeerDied(peer="p"), held) == "peer p is gone"


def test_no_event_is_without_words() -> None:
    """The table above names every event that there is."""
    assert {type(event) for event, _ in EVENTS} == set(get_args(AnyEvent))


def test_the_traceback_of_the_user_comes_first() -> None:
    """An error begins with the user's own traceback, then code, cause and what to do."""
    error = SardonyxError("SX-A", "wrong", cause="why", fix="do", traceback="Traceback\n  ValueError: x\n")
    assert report.error_text(error).splitlines() == [
        "Traceback",
        "  ValueError: x",
        "",
        "SX-A: wrong",
        "  cause: why",
        "  fix:   do",
    ]


def test_all_problems_are_told() -> None:
    """Several problems of one job are all shown, and all in the JSON."""
    error = JobInvalid([SardonyxError("SX-A", "one"), SardonyxError("SX-B", "two", where={"task": "t"})])
    assert report.error_text(error) == "SX-A: one\nSX-B: two\n2 problems"
    data = report.error_json(error)["error"]
    assert data["code"] == "SX-A"
    assert [each["code"] for each in data["problems"]] == ["SX-A", "SX-B"]
    assert json.loads(report.to_json(data))["problems"][1]["where"] == {"task": "t"}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SetupError("SX-CONFIG-MISSING", "no address"), 2),
        (SardonyxError("SX-USAGE", "no duration"), 2),
        (Interrupted("SX-JOB-KILLED", "killed"), 3),
        (Interrupted("SX-JOB-TIMEOUT", "late"), 4),
        (SardonyxError("SX-JOB-UNKNOWN", "no job"), 1),
    ],
)
def test_exit_codes_of_errors(error: SardonyxError, code: int) -> None:
    """0 completed, 1 failed, 2 usage, 3 killed, 4 timed out."""
    assert report.exit_code(error) == code


def test_exit_codes_of_jobs() -> None:
    """How a job ended is how the command ends."""
    assert [report.exit_code_of(status) for status in ("completed", "failed", "killed")] == [0, 1, 3]


def test_the_graph_is_drawn_with_every_task_once() -> None:
    """A task with two ways in stands under the last, and an arrow names it at the first."""
    graph = graph_of(SPEC, "d", "j")
    assert draw(SPEC, graph) == [
        "read              input files csv /a.csv",
        "├─ clean          function job:clean",
        "│  └─ → join",
        "└─ airlines       function job:airlines (at most 2 peers)",
        "   └─ join        function job:join (one peer at a time)",
        "      └─ publish  output kafka json t (the topic itself is the link)",
    ]
    assert headline(SPEC, graph) == "job flights: 5 tasks, 5 links; ends by itself"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (3.21, "3.2 s"), (12.4, "12 s"), (185, "3 min 5 s"), (7800, "2 h 10 min"), (-1, "0.0 s")],
)
def test_durations(seconds: float, text: str) -> None:
    """Durations read as people write them."""
    assert duration(seconds) == text


def job(status: str = "running", **rows: tuple[str, int]) -> JobView:
    tasks = [
        TaskView(name=name, type="function", state=state, rows_in=count, rows_out=count)  # type: ignore[arg-type]
        for name, (state, count) in rows.items()
    ]
    return JobView(id="j-1", name="j", status=status, tasks=tasks)  # type: ignore[arg-type]


def test_plain_lines_only_on_change_and_at_most_one_a_second_per_task() -> None:
    """A log of progress: no line without news, none too soon, and the last state always."""
    lines = PlainLines()
    assert lines.lines(job(a=("pending", 0)), 0.0) == ["j-1: running"]
    assert lines.lines(job(a=("running", 10)), 0.1) == ["  a: running, 10 rows in, 10 out"]
    assert lines.lines(job(a=("running", 20)), 0.6) == []
    assert len(lines.lines(job(a=("running", 30)), 1.2)) == 1
    assert lines.lines(job(a=("running", 30)), 9.0) == []
    assert len(lines.lines(job(a=("complete", 40)), 9.1)) == 1
    assert lines.lines(job("completed", a=("complete", 40)), 9.2) == ["j-1: completed"]


def test_plain_lines_say_what_is_known_and_no_more() -> None:
    """Of a task that has not begun that it has not; rows that are not known are no dashes."""
    lines = PlainLines()
    unknown = TaskView(name="a", type="function", state="running")
    view = job(b=("pending", 0))
    assert lines.lines(view, 0.0) == ["j-1: running"]
    view = JobView(id="j-1", name="j", status="running", tasks=[unknown, view.task("b")])
    assert lines.lines(view, 1.0) == ["  a: running, rows not known"]
    fused = TaskView(name="a", type="function", state="running", rows_in=7, dead=2)
    assert lines.lines(JobView(id="j-1", name="j", status="running", tasks=[fused]), 3.0) == [
        "  a: running, 7 rows in, 2 dead letters"
    ]


def test_a_remark_is_said_once() -> None:
    """The text says what a job waits for when that changes, not after every event."""
    lines = PlainLines()
    lines.lines(job(), 0.0)
    assert lines.lines(job(), 1.0, "waits for 2 more virtual peers") == ["j-1: waits for 2 more virtual peers"]
    assert lines.lines(job(), 2.0, "waits for 2 more virtual peers") == []
    assert lines.lines(job(), 3.0, None) == []
    assert len(lines.lines(job(), 4.0, "waits for 2 more virtual peers")) == 1


def test_rates_are_rows_a_second() -> None:
    """The rate comes from two looks and is smoothed; a complete task has none."""
    rates = Rates()
    looks = [rates.update(job(a=("running", rows)).task("a"), now) for now, rows in ((0.0, 0), (1.0, 100), (2.0, 300))]
    assert looks == [0.0, 100.0, 150.0]
    assert rates.update(job(a=("complete", 300)).task("a"), 3.0) == 0.0


def test_rows_that_are_not_known_make_no_rate() -> None:
    """Kafka has not answered in time: when it does again, a job that has run for long has not worked all its rows just now."""
    unknown = JobView(
        id="j-1", name="j", status="running", tasks=[TaskView(name="a", type="function", state="running")]
    )
    rates, began = Rates(), Rates()
    assert [rates.update(job(a=("running", rows)).task("a"), now) for now, rows in ((0.0, 5_000), (1.0, 5_100))] == [
        0,
        100,
    ]
    assert rates.update(unknown.task("a"), 2.0) == 0.0
    assert rates.update(job(a=("running", 5_300)).task("a"), 3.0) == 100.0
    assert began.update(unknown.task("a"), 0.0) == 0.0
    assert began.update(job(a=("running", 5_000)).task("a"), 1.0) == 0.0


def test_a_tasks_share_is_measured_by_what_is_in_front_of_it() -> None:
    """Rows read of rows written so far; an input has no known total, a complete task is full."""
    view = job(a=("running", 200), b=("running", 50), c=("complete", 1), d=("pending", 0))
    assert share(view, view.task("b"), ["a"]) == (50.0, 200.0)
    assert share(view, view.task("a"), []) == (0.0, None)
    assert share(view, view.task("c"), ["b"]) == (1.0, 1.0)
    assert share(view, view.task("d"), ["b"]) == (0.0, 1.0)


def test_silence_is_broken_after_a_few_seconds() -> None:
    """A job without progress says what it waits for; one that moves does not."""
    from sardonyx.cli.call import SILENCE
    from sardonyx.cli.job_end import Silence

    @dataclasses.dataclass
    class Handle:
        asked: itertools.count[int] = dataclasses.field(default_factory=itertools.count)

        def waiting(self, view: JobView, *, closely: bool) -> str:
            assert closely
            next(self.asked)
            return f"waits in {view.status}"

    silence = Silence(Handle())  # type: ignore[arg-type]
    assert silence.remark(job("submitted"), 0.0) is None
    assert silence.remark(job("submitted"), SILENCE) == "waits in submitted"
    assert silence.remark(job("running"), SILENCE + 0.1) is None
