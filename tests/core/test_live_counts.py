"""Row counts that a client asks from Kafka: those of the job that they are shown of, or none."""

from __future__ import annotations

import threading
from typing import Any

from sardonyx.client.live_counts import LiveCounts
from sardonyx.client.row_counts import still_known
from sardonyx.client.views import JobView, job_view
from sardonyx.core.errors import Failure, SardonyxError
from sardonyx.core.events import Counts, JobStatus
from sardonyx.core.graph import graph_of
from sardonyx.core.notes import JobNote, TaskNote
from sardonyx.core.spec import JobSpec, TaskSpec
from tests.waiting import PATIENCE

SPEC = JobSpec(
    name="copy",
    workflow=[("read", "write")],
    catalog=[
        TaskSpec(name="read", type="input", connector="generator", options={"count": 1}),
        TaskSpec(name="write", type="output", connector="blackhole"),
    ],
)
GRAPH: Any = graph_of(SPEC, "d", "copy-1")


class Kafka:
    """Brokers that do not answer about one job before they are let."""

    def __init__(self) -> None:
        self.asked, self.answers = threading.Event(), threading.Event()

    def counts(self, _graph: Any, job: str) -> dict[str, Counts]:
        if job == "slow-1":
            self.asked.set()
            assert self.answers.wait(PATIENCE)
            return {"read": Counts(0, 1_000_000)}
        return {"read": Counts(0, 7)}


def test_what_kafka_says_of_one_job_is_shown_of_no_other() -> None:
    """The pages ask about many jobs over one client, and a question may take longer than they wait for it."""
    kafka = Kafka()
    live = LiveCounts(kafka.counts, patience=PATIENCE)
    of_slow: list[Any] = []
    first = threading.Thread(target=lambda: of_slow.append(live.counts(GRAPH, "slow-1")))
    first.start()
    assert kafka.asked.wait(PATIENCE)
    threading.Timer(0.1, kafka.answers.set).start()
    assert live.counts(GRAPH, "quick-1") == {"read": Counts(0, 7)}
    first.join(PATIENCE)
    assert of_slow == [{"read": Counts(0, 1_000_000)}]


def test_nothing_new_is_asked_before_there_is_an_answer() -> None:
    """Brokers that do not answer would else be asked by ever more threads. Until then nothing is known of any job."""
    kafka = Kafka()
    live = LiveCounts(kafka.counts, patience=0.0)
    assert live.counts(GRAPH, "slow-1") is None
    assert live.counts(GRAPH, "quick-1") is None
    kafka.answers.set()


def test_without_an_answer_nothing_is_known() -> None:
    """And the next question is asked anew."""
    answers: list[Any] = [SardonyxError("SX-KAFKA-UNREACHABLE", "no"), {"read": Counts(0, 7)}]

    def ask(_graph: Any, _job: str) -> dict[str, Counts]:
        answer = answers.pop(0)
        if isinstance(answer, SardonyxError):
            raise answer
        return answer

    live = LiveCounts(ask)
    assert live.counts(GRAPH, "copy-1") is None
    assert live.counts(GRAPH, "copy-1") == {"read": Counts(0, 7)}


def shown(status: JobStatus, kafka: dict[str, Counts]) -> JobView:
    """A job with a task that has worked and one that has not."""
    error = Failure("SX-X", "m") if status == "failed" else None
    note = JobNote(name="copy", status=status, n=9, submitted_at=1.0, links="made", error=error)
    notes = {"read": TaskNote("running", 3, {"p": 0}), "write": TaskNote("pending", 2)}
    ended = status not in ("planning", "running")
    return job_view("copy-1", SPEC, GRAPH, note, notes, still_known(kafka, ended=ended))


def test_rows_of_a_job_that_has_ended_are_not_zero_because_its_groups_are_deleted() -> None:
    """While a broker is away, that may last for hours: its positions are gone, and the log does not have the counts yet."""
    gone = {"read": Counts(), "write": Counts()}
    ended: tuple[JobStatus, ...] = ("killed", "failed")
    for status in ended:
        view = shown(status, gone)
        assert (view.task("read").rows_out, view.task("write").rows_in) == (None, 0)
        assert shown(status, gone | {"read": Counts(0, 7)}).task("read").rows_out == 7
    assert shown("running", gone).task("read").rows_out == 0
