"""Tasks that run in the micro-batches of the one before: what that makes of a graph, and where it cannot be."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from coordinator.core.plan import Plan
from sardonyx import Job, blackhole, files, generator, kafka, sql
from sardonyx.cli.graph_text import draw
from sardonyx.client.views import job_view
from sardonyx.core.events import RULES, Counts
from sardonyx.core.graph import graph_of
from sardonyx.core.notes import TaskNote
from sardonyx.job.parse import read
from sardonyx.job.validate import problems_of


def clean(rows: pa.Table) -> pa.Table:
    return rows


def label(row: dict) -> dict:
    return row


def join(rows: "pyspark.sql.DataFrame") -> Any:  # noqa: F821, UP037
    return rows


def half(rows: pa.Table) -> pa.Array: ...


class Models:
    def start(self, context: object) -> None: ...


def fused(**last: Any) -> Job:
    """Two fused functions, and a third after a queue, fused with the output that writes its files."""
    job = Job("fused")
    rows = job.input("read", generator(100, columns={"id": "sequence"}))
    first = job.task("first", clean, after=rows, on_error="dead_letter", max_peers=2)
    second = job.task("second", label, after=first, fuse=True)
    third = job.task("third", clean, after=second)
    job.output("write", files("out", format="json"), after=third, fuse=True, **last)
    return job


def test_fused_tasks_are_one_stage() -> None:
    """It has the first one's name, way in, dead letters and peers, and the last one's ways out; queues keep the names of the
    tasks that they stand between, and who comes behind waits for the stage.
    """
    graph = graph_of(fused().spec(), "d", "j")
    stages = {stage.name: [task.name for task in stage.fused] for stage in graph.stages}
    assert stages == {"read": [], "first": ["second"], "third": ["write"]}
    first, third = graph.stage("first"), graph.stage("third")
    assert [link.name for link in first.ingress] == ["read.first"]
    assert [(link.name, link.source) for link in first.egress] == [("second.third", "first"), ("first.dead", "first")]
    assert [(link.name, link.kind) for link in third.egress] == [("third.parts", "parts")]
    assert (third.last.name, third.last.connector) == ("write", "files")
    assert graph.bound == {"second": ["first"], "write": ["third"]}
    assert Plan(graph, {}, [], RULES).upstream == {"read": [], "first": ["read"], "third": ["first"]}


def test_where_no_queue_of_ours_stands_nothing_changes() -> None:
    """Beside a topic that is bound in place there is none that could be left out."""

    def kafka_to_kafka(*, fuse: bool) -> Any:
        job = Job("bound")
        work = job.task("work", clean, after=job.input("read", kafka("in", start="earliest")), fuse=fuse, max_peers=3)
        job.output("write", kafka("out"), after=work, fuse=fuse)
        graph = graph_of(job.spec(), "d", "j")
        assert problems_of(job.spec(), functions=job.functions) == []
        return graph.links, [stage.name for stage in graph.stages], graph.bound

    assert kafka_to_kafka(fuse=True) == kafka_to_kafka(fuse=False)


def test_a_fused_output_of_a_topic_with_a_function_writes_it() -> None:
    """It is no topic in place, since something is to be done with the rows; so the stage before it writes the topic."""
    job = Job("bound")
    first = job.task("first", clean, after=job.input("read", kafka("in", start="earliest")))
    job.output("write", kafka("out"), label, after=first, fuse=True)
    (stage,) = graph_of(job.spec(), "d", "j").stages
    assert [(link.name, link.topic, link.kind, link.source) for link in stage.egress] == [
        ("write.topic", "out", "output", "first")
    ]


def test_a_document_says_fuse() -> None:
    """The same as the builder does."""
    spec, problems = read(fused().data())
    assert problems == []
    assert [task.name for task in spec.catalog if task.fuse] == ["second", "write"]
    assert problems_of(spec, functions=fused().functions) == []


def test_it_is_drawn() -> None:
    """The graph of `sardonyx check` says in whose batches a task runs."""
    spec = fused().spec()
    drawn = "\n".join(draw(spec, graph_of(spec, "d", "j")))
    assert "second  " in drawn
    assert "(in the batches of first)" in drawn
    assert "(in the batches of third)" in drawn
    assert "the topic itself" not in drawn


def test_only_what_leaves_the_batch_is_counted() -> None:
    """Rows between fused tasks are not known; what came out of the last is what came out of the stage."""
    job = Job("three")
    first = job.task("first", clean, after=job.input("read", generator(9, columns={"id": "sequence"})))
    second = job.task("second", clean, after=first, fuse=True)
    job.output("write", blackhole(), clean, after=second, fuse=True)
    spec = job.spec()
    view = job_view(
        "j",
        spec,
        graph_of(spec, "d", "j"),
        None,
        {"first": TaskNote("running", 3, {"p": 0})},
        {"read": Counts(9, 9), "first": Counts(9, 4)},
    )
    shown = {task.name: (task.rows_in, task.rows_out, task.state, task.bound) for task in view.tasks[1:]}
    assert shown == {
        "first": (9, None, "running", False),
        "second": (None, None, "running", True),
        "write": (None, 4, "running", True),
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_peers": 2}, "it has max_peers of its own, but works in the batches of 'third'"),
        ({"batch_size": 10, "sequential": True}, "it has batch_size and consumption of its own"),
        ({"on_error": "skip"}, "it has on_error of its own"),
        ({"group_by": "id"}, "it has group_by of its own"),
        ({"lifecycle": Models}, "it has lifecycle of its own"),
    ],
)
def test_what_belongs_to_batches_is_said_of_the_first(given: dict[str, Any], said: str) -> None:
    """A fused task has no batches, peers or errors of its own; the error says which task to give them to."""
    job = fused(**given)
    (problem,) = problems_of(job.spec(), functions=job.functions)
    assert (problem.code, problem.where["task"]) == ("SX-JOB-FUSE", "write")
    assert said in problem.message
    assert "the first of the fused tasks" in problem.fix


def refused(job: Job) -> str:
    (problem,) = problems_of(job.spec(), functions=job.functions)
    assert problem.code == "SX-JOB-FUSE"
    return problem.message


def test_a_fused_task_has_one_before_it_that_has_none_beside_it() -> None:
    """Two ways in, a second reader, and a part of the rows need a queue."""
    job = Job("two")
    one, other = (job.input(name, generator(9, columns={"id": "sequence"})) for name in ("one", "other"))
    both = job.task("both", clean, after=[one, other], fuse=True)
    job.output("write", blackhole(), after=both)
    assert refused(job) == "task 'both': it cannot be fused: it comes after one, other"

    job = Job("beside")
    read = job.input("read", generator(9, columns={"id": "sequence"}))
    job.output("write", blackhole(), after=job.task("work", clean, after=read, fuse=True))
    job.output("all", blackhole(), after=read)
    assert refused(job) == "task 'work': it cannot be fused: 'all' reads what 'read' gives, too"

    job = Job("part")
    read = job.input("read", generator(9, columns={"id": "sequence"}))
    job.output("write", blackhole(), after=job.task("work", clean, after=read.where(half), fuse=True))
    assert refused(job) == "task 'work': it cannot be fused: only a part of what 'read' gives goes to it"


def test_keys_behind_a_topic_are_not_overlooked() -> None:
    """A topic whose reader groups is not bound in place, so the two would be fused, without a queue that puts keys together."""
    job = Job("keys")
    work = job.task("work", clean, after=job.input("read", kafka("in", start="earliest")), fuse=True, group_by="k")
    job.output("write", blackhole(), after=work)
    assert "it has group_by of its own" in refused(job)


def test_failed_records_have_no_way_out_of_the_middle() -> None:
    """They are those of the whole batch, of which the first task's on_error decides."""
    job = Job("failed")
    first = job.task("first", clean, after=job.input("read", generator(9, columns={"id": "sequence"})))
    second = job.task("second", label, after=first, fuse=True)
    job.output("write", blackhole(), after=second)
    job.output("bad", blackhole(), after=second.failed)
    assert "its failed records go to 'bad'" in refused(job)


def test_an_output_with_positions_is_not_fused_with_an_input_of_splits() -> None:
    """The list of splits begins in Kafka, the output's positions beside its rows: a queue between the two is needed."""
    job = Job("positions")
    read = job.input("read", generator(9, columns={"id": "sequence"}))
    job.output("write", sql("jdbc:sqlite:x.db", table="t"), after=read, fuse=True)
    assert "it may keep positions beside its rows" in refused(job)


def test_an_input_cannot_be_fused() -> None:
    """There is nothing before it; a document may say so all the same."""
    data = fused().data()
    data["catalog"][0]["fuse"] = True
    spec, _ = read(data)
    assert [str(problem.message) for problem in problems_of(spec, functions=fused().functions)] == [
        "task 'read': it cannot be fused: it is an input"
    ]


def test_dataframe_functions_are_fused_with_their_like() -> None:
    """Spark's plan and its workers are two places."""
    job = Job("mixed")
    first = job.task("first", join, after=job.input("read", generator(9, columns={"id": "sequence"})))
    second = job.task("second", join, after=first, fuse=True)
    job.output("write", blackhole(), label, after=second, fuse=True)
    assert "it cannot be fused with 'second': one of the two takes a pyspark.sql.DataFrame" in refused(job)


def test_specs_that_say_the_same_have_one_graph() -> None:
    """It is kept by what the spec says, and not by which object says it; also where that cannot be written down."""
    spec = fused().spec()
    graph = graph_of(spec, "d", "j")
    assert graph_of(fused().spec(), "d", "j") is graph
    assert graph_of(spec, "d", "k").stage("first").egress[0].topic == "d.k.second.third"
    other = replace(spec, catalog=[replace(task, max_peers=3) for task in spec.catalog])
    assert graph_of(other, "d", "j").stage("first").task.max_peers == 3
    odd = replace(spec, catalog=[replace(task, params={"of": object()}) for task in spec.catalog])
    assert graph_of(odd, "d", "j").order == graph.order
