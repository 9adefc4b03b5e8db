"""The job that works on dead letters, made from the job that they come from."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pytest

from peer.failed_records import unread
from peer.provenance import Provenance
from queues.dead_letters import Letter, Origin, headers, left_by, packed, row_of, row_value, told
from sardonyx import Count, Job, blackhole, event_time, files, kafka, tumbling
from sardonyx.client.dead_letters import DeadLetters, Pile
from sardonyx.client.job_handle import JobHandle
from sardonyx.core.claims import KEPT, Claim, Claims
from sardonyx.core.errors import Failure, JobInvalid, SardonyxError
from sardonyx.core.graph import graph_of
from sardonyx.core.positions import Partition
from sardonyx.core.redoing import redo_spec
from sardonyx.core.resizing import stand_still
from sardonyx.core.spec import JobSpec, OnError, Route, TaskSpec
from sardonyx.core.timing import TimeSpec
from sardonyx.job.load import LoadedJob
from sardonyx.job.validate import validate
from sardonyx.testing.memory import Stored

DEAD = OnError(then="dead_letter")
SPEC = JobSpec(
    name="orders",
    workflow=[("read", "a"), ("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", "write")],
    catalog=[
        TaskSpec(name="read", type="input", connector="kafka", options={"topic": "in", "schema": "n long"}),
        *(TaskSpec(name=name, type="function", fn=f"m:{name}", on_error=DEAD) for name in "abcd"),
        TaskSpec(name="write", type="output", connector="files", options={"path": "/out", "mode": "overwrite"}),
    ],
    routes={"a.b": Route(where="m:p"), "b.d": Route(where="m:q")},
    code="0" * 64,
)


def redo(task: str, spec: JobSpec = SPEC) -> JobSpec:
    return redo_spec(spec, task, "orders-redo-abcdef", f"t.orders-x.{task}.dead", 3, 9)


def test_a_redo_of_a_job_whose_inputs_stand_still_reads_its_letters() -> None:
    """They stand still until the job's queues have another number of partitions, or for good if it was killed before."""
    assert redo("b", stand_still(SPEC, 8)) == redo("b")


@pytest.mark.parametrize("task", ["read", "count", "add"])
def test_a_redo_keeps_no_checkpoints(task: str) -> None:
    """It may have no task with state, or rows without times, and a job with checkpoints needs both."""
    job = Job("sums", checkpoint_every="1 min")
    read = job.input(
        "read", kafka("in", schema="user long, at timestamp", start="earliest"), time="at", on_error="dead_letter"
    )
    window = job.window("count", tumbling("1 min"), after=read, group_by="user", aggregate={"n": Count()})
    added = job.task("add", same, after=window, on_error="dead_letter")
    job.output("out", blackhole(), after=added)
    again = redo(task, job.spec())
    assert again.checkpoint_every is None
    validate(again, import_functions=False)


def same(row: dict) -> dict:
    return row


def test_the_task_and_everything_behind_it() -> None:
    """The letters stand in front of the task; its other branch and what came before it are gone, conditions behind it stay."""
    again = redo("b")
    assert [task.name for task in again.catalog] == ["letters", "b", "d", "write"]
    assert again.workflow == [("letters", "b"), ("b", "d"), ("d", "write")]
    assert again.routes == {"b.d": Route(where="m:q")}
    assert (again.name, again.code) == ("orders-redo-abcdef", SPEC.code)
    letters = again.task("letters").options
    assert (letters["topic"], letters["start"], letters["end"]) == ("t.orders-x.b.dead", {"0": 3}, {"0": 9})
    graph = graph_of(again, "t", again.name)
    assert graph.bounded
    assert [link.kind for link in graph.stage("b").ingress] == ["input"]
    assert again.task("write").options == {"path": "/out", "mode": "append"}, "what was written is not written over"


def test_what_could_not_be_read_is_read_as_the_job_says() -> None:
    """By the options of the topic that it came from."""
    assert redo("a").task("letters").options["formats"] == {"in": {"topic": "in", "schema": "n long"}}
    assert redo("b").task("letters").options["formats"] == {}


def test_the_coordinator_accepts_it() -> None:
    """It checks each job as `check` does, and no client has checked this one."""
    read = msgspec.structs.replace(SPEC.catalog[0], options=kafka("in", schema="n long", start="earliest").options)
    write = msgspec.structs.replace(SPEC.catalog[-1], options=files("/out", format="json").options)
    spec = msgspec.structs.replace(SPEC, catalog=[read, *SPEC.catalog[1:-1], write])
    validate(redo("a", spec), import_functions=False)
    wrong = redo("a", spec)
    wrong.task("letters").options["formats"]["in"]["scheme"] = "n long"
    with pytest.raises(JobInvalid, match="no option 'scheme'"):
        validate(wrong, import_functions=False)


def test_an_input_reads_its_own_letters() -> None:
    """A task that reads a topic itself reads the letters instead, with its function and its errors as they were."""
    read = TaskSpec(name="read", type="input", connector="kafka", options={"topic": "in"}, on_error=DEAD, fn="m:f")
    spec = JobSpec(
        name="j", workflow=[("read", "out")], catalog=[read, TaskSpec(name="out", type="output", connector="blackhole")]
    )
    again = redo("read", spec)
    assert [task.name for task in again.catalog] == ["read", "out"]
    found = again.task("read")
    assert (found.fn, found.on_error, found.options["topic"]) == ("m:f", DEAD, "t.orders-x.read.dead")
    assert found.options["formats"] == {"in": {"topic": "in"}}


def test_a_redo_of_a_redo() -> None:
    """The name of the first redo's input is free again, and what it could not read either is read as the first job says."""
    twice = redo("a", redo("a"))
    assert [task.name for task in twice.catalog] == ["letters", "a", "b", "c", "d", "write"]
    assert twice.task("letters").options["formats"] == {"in": {"topic": "in", "schema": "n long"}}


def test_a_task_that_is_not_there() -> None:
    """A corrected job may have lost the task."""
    with pytest.raises(SardonyxError) as raised:
        redo("gone")
    assert raised.value.code == "SX-DLQ-TASK"


class Piles(DeadLetters):
    """Letters of two tasks; those of one cannot be handed in."""

    def __init__(self) -> None:
        self.handed: list[str] = []

    def piles(self, job: str | None = None) -> list[Pile]:
        return [Pile(job="orders-x", task=task, letters=1, waiting=1) for task in ("a", "b")]

    def redo(
        self, job: str, task: str, corrected: LoadedJob | None = None, *, restored: bool = False
    ) -> JobHandle | None:
        if task == "b":
            raise SardonyxError("SX-JOB-GONE", "gone")
        self.handed.append(task)
        return JobHandle(SimpleNamespace(zk=None), f"{task}-redo")  # type: ignore[arg-type]


def test_what_is_handed_in_is_told_before_the_next_fails() -> None:
    """A user who asked for all tasks must know of the jobs that work on some of them."""
    each = Piles().redo_each("orders")
    task, handle = next(each)
    assert (task, handle.id) == ("a", "a-redo")
    with pytest.raises(SardonyxError, match="gone"):
        next(each)


def test_none_is_handed_in_if_the_mended_job_lacks_a_task() -> None:
    """Each is looked for before the first is handed in."""
    letters = Piles()
    corrected = LoadedJob(redo("c"), None, Path())
    with pytest.raises(SardonyxError) as raised:
        list(letters.redo_each("orders", None, corrected))
    assert (raised.value.code, letters.handed) == ("SX-DLQ-TASK", [])


class Message(NamedTuple):
    """A message as it is read again."""

    data: bytes
    told: list[tuple[str, bytes]]

    def value(self) -> bytes:
        return self.data

    def headers(self) -> list[tuple[str, bytes]]:
        return self.told


def test_a_letter_comes_back_as_it_was_written() -> None:
    """But for texts that are too long: of a traceback the end is kept, where the reason stands."""
    row = pa.table({"n": pa.array([7], pa.int16()), "at": pa.array([None], pa.timestamp("us", "UTC"))})
    failure = Failure("SX-FN-RAISED", "m" * 5_000, traceback="x" * 9_000 + "the reason")
    letter = Letter("t", "row", "ValueError", 3, failure, Origin("in", 1, 42, 7))
    message = Message(row_value(row), headers(letter))
    read = told(message)
    assert read is not None
    assert (read.task, read.kind, read.error, read.attempts, read.origin) == (
        "t",
        "row",
        "ValueError",
        3,
        letter.origin,
    )
    assert len(read.failure.message) == 1_000
    assert read.failure.traceback.endswith("the reason")
    assert len(read.failure.traceback) == 4_000
    assert row_of(message.value()) == row


def test_a_message_that_is_no_letter() -> None:
    """Any program may write to a topic; a message that is no letter, or another version's, does not count as one."""
    for told_of in ([], [("other", b"x")], [("sx-letter", b"{}")], [("sx-letter", b"\xff")]):
        assert told(Message(b"", told_of)) is None


def test_a_row_is_traced_to_the_message_that_carried_it() -> None:
    """Over messages of one record, blocks of several rows, empty ones, and several links one after the other."""
    provenance = Provenance()
    provenance.add(["a", "b"], None)
    provenance.add(["c", "d", "e"], [2, 0, 3])
    provenance.add(["f"], [1])
    assert [provenance.message(row) for row in range(8)] == [
        ("a", None),
        ("b", None),
        ("c", 0),
        ("c", 1),
        ("e", 0),
        ("e", 1),
        ("e", 2),
        ("f", 0),
    ]


def test_rows_that_were_left_out_of_a_batch_move_no_other_row() -> None:
    """Wherever they were among the rows of their messages."""
    for without in ([], [0], [1, 2, 3], [0, 2, 5], [4, 5], [0, 1, 2, 3, 4]):
        whole, provenance = Provenance(), Provenance()
        whole.add(["a", "b", "c"], [2, 0, 4])
        provenance.add(["a", "b", "c"], [2, 0, 4], without)
        provenance.add(["d"], [1])
        stayed = [whole.message(row) for row in range(6) if row not in without]
        assert [provenance.message(row) for row in range(len(stayed) + 1)] == [*stayed, ("d", 0)]


def test_a_row_that_is_bad_again_stays_a_letter_of_its_kind() -> None:
    """With its first origin, so that it can be redone again: its value is the row, not bytes to be decoded."""
    row, origin = pa.table({"n": [1]}), Origin("split", 1, 2, 3)
    letter = Letter("read", "row", "InputError", 1, Failure("SX-TIME-VALUE", "m"), origin)
    value, key, about = packed(letter, row, None)
    failed = unread(Stored(Partition("dead", 0), 7, key, value, about), letter.failure)
    assert (failed.kind, failed.value, failed.origin) == ("row", row, origin)


def test_only_what_forgotten_jobs_have_left_is_removed() -> None:
    """By the whole id of the deployment and of a job that was forgotten; whatever is only named alike stays."""
    names = {
        *("d.j-abcdef.t.dead", "d.j-abcdef.a.b", "d.j-abcdef.t"),
        *("d.j-abcdeg.t.dead", "d.j-abcdef", "d.j-abcdefx.t.dead", "dd.j-abcdef.t.dead", "d-j-abcdef.t.dead"),
        *("x.d.j-abcdef.t.dead", "d.j.t.dead", "orders", "d.j-abcdef.a.b.c"),
    }
    assert left_by(["j-abcdef"], "d", names) == ["d.j-abcdef.a.b", "d.j-abcdef.t", "d.j-abcdef.t.dead"]
    assert left_by([], "d", names) == []


def test_claims_stay_few_enough_for_a_node() -> None:
    """Of many claims, older ones of one kind become one. What is dropped and what is redone stays known, letter by letter."""
    claims = Claims()
    for number in range(3 * KEPT):
        claim = Claim(f"job-{number}", 10 * number, 10 * number + 10, dropped=number % 7 == 0)
        claims = claims.plus(claim, 10)
    assert len(claims.claims) <= KEPT
    assert claims.claims[-1].job == f"job-{3 * KEPT - 1}"
    assert (claims.next, claims.letters) == (30 * KEPT, 30 * KEPT)
    assert [claim.start for claim in claims.claims[1:]] == [claim.end for claim in claims.claims[:-1]]
    dropped = {offset for claim in claims.claims if claim.dropped for offset in range(claim.start, claim.end)}
    assert dropped == {offset for offset in range(30 * KEPT) if offset // 10 % 7 == 0}


def test_letters_come_to_windows_with_their_times() -> None:
    """In whatever order they lie, none is late in the redo; what has no windows after it needs no times."""
    job = Job("traffic")
    hits = job.input(
        "hits", kafka("hits", start="earliest"), time=event_time("at", unit="ms", delay="5 s", idle="1 min")
    )
    parsed = job.task("parse", "json:loads", after=hits, on_error="dead_letter")
    counts = job.window(
        "counts", tumbling("1 min"), after=parsed, group_by="user", aggregate={"hits": Count()}, late="dead_letter"
    )
    done = job.task("done", "json:loads", after=counts, on_error="dead_letter")
    job.output("out", blackhole(), after=done)
    spec = job.spec()
    for task in ("parse", "counts"):
        again = redo(task, spec)
        assert again.task("letters").time == TimeSpec(column="at", unit="ms", delay="100000 d")
        validate(again, import_functions=False)
    assert redo("done", spec).task("letters").time is None
    of_input = TimeSpec(column="at", unit="ms", delay="100000 d", ahead="1 day")
    assert redo("hits", spec).task("hits").time == of_input
