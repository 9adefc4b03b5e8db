"""A job as others see it, put together from notes and counts."""

from __future__ import annotations

import msgspec
import pytest

from sardonyx.cli.tables import peers_table, tasks_table
from sardonyx.client.cluster_views import peer_view
from sardonyx.client.views import JobView, job_view, waiting_for
from sardonyx.core.errors import Failure
from sardonyx.core.events import Counts, JobStatus
from sardonyx.core.graph import graph_of
from sardonyx.core.notes import Assignment, JobNote, PeerNote, PulseNote, TaskNote
from sardonyx.core.spec import JobSpec, TaskSpec


def spec_of(*tasks: TaskSpec, edges: list[tuple[str, str]]) -> JobSpec:
    return JobSpec(name="j", workflow=edges, catalog=list(tasks))


def source(name: str) -> TaskSpec:
    return TaskSpec(name=name, type="input", connector="kafka", options={"topic": f"{name}-topic"})


def function(name: str) -> TaskSpec:
    return TaskSpec(name=name, type="function", fn="m:f")


def sink(name: str) -> TaskSpec:
    return TaskSpec(name=name, type="output", connector="kafka", options={"topic": f"{name}-topic"})


RUNNING = JobNote(name="j", status="running", n=3, submitted_at=10.0)
KAFKA_TO_KAFKA = spec_of(source("read"), function("work"), sink("write"), edges=[("read", "work"), ("work", "write")])


def view_of(
    spec: JobSpec,
    notes: dict[str, TaskNote],
    live: dict[str, Counts] | None,
    note: JobNote | None = RUNNING,
) -> JobView:
    return job_view("j-1", spec, graph_of(spec, "d", "j-1"), note, notes, live)


def test_rows_of_a_running_task_are_those_in_kafka() -> None:
    """While a task runs, its rows come from its group's positions; peers are counted and listed."""
    view = view_of(KAFKA_TO_KAFKA, {"work": TaskNote("running", 3, {"p2": 1, "p1": 0}, 1)}, {"work": Counts(7, 5, 2)})
    task = view.task("work")
    assert (task.rows_in, task.rows_out, task.skipped, task.failures) == (7, 5, 2, 1)
    assert (task.peers, task.peer_ids) == (2, ["p1", "p2"])


def test_rows_of_a_complete_task_are_those_in_its_note() -> None:
    """A complete task's counts stand in the tree and win over whatever Kafka still says."""
    view = view_of(KAFKA_TO_KAFKA, {"work": TaskNote("complete", 9, counts=Counts(8, 8))}, {"work": Counts(1, 1)})
    assert (view.task("work").rows_in, view.task("work").rows_out) == (8, 8)


def test_without_kafka_rows_are_not_known_rather_than_zero() -> None:
    """If Kafka cannot be asked, rows of what runs are None, and so are those of the topics bound to it."""
    view = view_of(KAFKA_TO_KAFKA, {"work": TaskNote("running", 3)}, None)
    assert [(task.rows_in, task.rows_out) for task in view.tasks] == [(None, None)] * 3


def test_a_task_that_nobody_touched_has_no_rows() -> None:
    """Pending, never failed, no peers: zero is known without asking."""
    view = view_of(KAFKA_TO_KAFKA, {}, None)
    assert view.task("work").rows_in == 0


def test_a_task_with_rows_has_begun() -> None:
    """The note is read before Kafka is asked, so it may be older than the rows. A topic bound to the task has its state."""
    note = TaskNote("pending", 3, {"p": 0})
    assert {task.state for task in view_of(KAFKA_TO_KAFKA, {"work": note}, {"work": Counts(1_000, 0)}).tasks} == {
        "running"
    }
    assert {task.state for task in view_of(KAFKA_TO_KAFKA, {"work": note}, {"work": Counts()}).tasks} == {"pending"}


def test_bound_topics_mirror_their_neighbours() -> None:
    """A bound input shows what its reader read, a bound output what its writer wrote; both its state; no peers."""
    view = view_of(KAFKA_TO_KAFKA, {"work": TaskNote("running", 3, {"p": 0})}, {"work": Counts(7, 5)})
    read, write = view.task("read"), view.task("write")
    assert (read.rows_in, read.rows_out, read.state, read.peers, read.bound) == (7, 7, "running", 0, True)
    assert (write.rows_in, write.rows_out, write.state, write.bound) == (5, 5, "running", True)


def test_a_bound_output_of_two_writers_adds_them_up_and_waits_for_both() -> None:
    """Two tasks that write one bound topic: rows add up, and it is complete when both are."""
    spec = spec_of(
        TaskSpec(name="make", type="input", connector="generator", options={"count": 1}),
        function("a"),
        function("b"),
        sink("write"),
        edges=[("make", "a"), ("make", "b"), ("a", "write"), ("b", "write")],
    )
    notes = {"a": TaskNote("complete", 5, counts=Counts(3, 3)), "b": TaskNote("pending", 2)}
    view = view_of(spec, notes, {"make": Counts(), "a": Counts(), "b": Counts(4, 4)})
    assert view.task("write").rows_out == 7
    assert view.task("write").state == "running"
    notes["b"] = TaskNote("complete", 9, counts=Counts(4, 4))
    assert view_of(spec, notes, None).task("write").state == "complete"


def test_a_reader_of_two_inputs_does_not_tell_how_much_came_from_which() -> None:
    """A task counts the rows of all its links together, so its bound inputs' rows are not known from it."""
    spec = spec_of(
        source("one"),
        source("two"),
        function("join"),
        function("alone"),
        sink("out"),
        sink("out2"),
        edges=[("one", "join"), ("two", "join"), ("one", "alone"), ("join", "out"), ("alone", "out2")],
    )
    view = view_of(spec, {}, {"join": Counts(9, 9), "alone": Counts(4, 4)})
    assert view.task("one").rows_out == 4
    assert view.task("two").rows_out is None


@pytest.mark.parametrize("status", ["failed", "killed"])
def test_no_task_of_an_ended_job_runs(status: JobStatus) -> None:
    """A task that had begun when its job failed or was killed is shown as stopped, and none has a column of peers."""
    notes = {"work": TaskNote(state="running", n=2)}
    note = JobNote(name="j", status=status, n=3, submitted_at=1.0, ended_at=2.0, error=Failure("SX-X", "m"))
    view = view_of(KAFKA_TO_KAFKA, notes, None, note=note)
    assert "running" not in {task.state for task in view.tasks}
    assert view.task("work").state == view.task("write").state == "stopped"
    columns = [str(column.header) for column in tasks_table(view.tasks, ended=view.ended).columns]
    assert "peers" not in columns
    assert "peers" in [str(column.header) for column in tasks_table(view.tasks).columns]


def test_a_job_that_nobody_has_taken_in_is_submitted() -> None:
    """Before the coordinator has written its status, a job shows as submitted, with its tasks pending."""
    view = view_of(KAFKA_TO_KAFKA, {}, None, note=None)
    assert (view.id, view.name, view.status, view.submitted_at) == ("j-1", "j", "submitted", None)
    assert not view.ended


def test_what_a_job_waits_for_in_words() -> None:
    """No coordinator comes first, then peers; a job that has ended waits for nothing."""
    waits = JobNote(name="j", status="running", n=3, submitted_at=1.0, waits_for=2)
    running = view_of(KAFKA_TO_KAFKA, {}, None, note=waits)
    assert waiting_for(running, led=True) == "waits for 2 more virtual peers"
    queued = view_of(KAFKA_TO_KAFKA, {}, None, note=msgspec.structs.replace(waits, queued=True))
    said = "waits for 2 more virtual peers: it is queued, and has none until enough are free"  # also if there are no other jobs
    assert waiting_for(queued, led=True) == said
    assert "no coordinator leads" in (waiting_for(running, led=False) or "")
    fine = view_of(KAFKA_TO_KAFKA, {}, None)
    assert waiting_for(fine, led=True) is None
    failed = JobNote(name="j", status="failed", n=3, submitted_at=1.0, waits_for=2, error=Failure("SX-X", "m"))
    ended = view_of(KAFKA_TO_KAFKA, {}, None, note=failed)
    assert ended.waits_for == 0
    assert waiting_for(ended, led=False) is None


def test_a_job_that_failed_after_a_change_is_not_only_to_be_resumed() -> None:
    """It would fail again. One that a user suspended goes on, also if a change was taken back before."""
    resume = "`sardonyx job resume j-1` lets it go on where it was"

    def waits(error: Failure | None) -> str | None:
        return waiting_for(
            view_of(KAFKA_TO_KAFKA, {}, None, msgspec.structs.replace(RUNNING, suspended=True, error=error)), led=True
        )

    assert waits(None) == waits(Failure("SX-JOB-TAKEN-BACK", "m")) == f"it is suspended; {resume}"
    assert waits(Failure("SX-TASK-FAILED", "m")) == (
        "it is suspended, since it failed after a change (SX-TASK-FAILED); change it again with `sardonyx job change j-1 SPEC`, "
        f"and then {resume}"
    )


def test_for_how_long_a_peer_has_been_in_its_state_is_known_only_with_the_time() -> None:
    """The log may have lost the entry that it shows: then the clock of today says nothing of that moment."""
    peers = [peer_view("p1", PeerNote("idle", 9), None, since=100.0)]
    ages = [[*peers_table(peers, now).columns[2].cells] for now in (112.0, None)]
    assert ages == [["12 s"], ["-"]]


def test_a_peer_is_its_state_and_its_pulse() -> None:
    """A peer's view joins what it is to be with where it lives; a dead one has no pulse any more."""
    note = PeerNote("active", 7, Assignment(7, "j-1", "work", 2))
    view = peer_view("p1", note, PulseNote(host="h", pid=12, daemon="d"))
    assert (view.job, view.task, view.slot, view.host, view.pid) == ("j-1", "work", 2, "h", 12)
    assert peer_view("p1", PeerNote("dead", 9), None).host == ""


def test_a_refused_job_with_impossible_edges_is_shown() -> None:
    """A job whose name was taken is refused before its edges are checked; even an edge into an input does not break the view."""
    topics = [
        TaskSpec(name=name, type="input", connector="kafka", options={"topic": name, "end": "latest"}) for name in "ab"
    ]
    spec = spec_of(*topics, function("f"), sink("out"), edges=[("a", "b"), ("a", "f"), ("b", "f"), ("f", "out")])
    view = job_view(
        "j-1", spec, graph_of(spec, "d", "j-1"), JobNote(name="j", status="failed", n=3, submitted_at=1.0), {}
    )
    assert [task.name for task in view.tasks] == ["a", "b", "f", "out"]
