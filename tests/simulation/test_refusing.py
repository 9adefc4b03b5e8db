"""What a record or a topic that is refused holds up, and for how long: decided by the product's own policy and coordinator."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from peer.assignment import AssignmentHandle, AssignmentRevoked
from peer.batch_result import BatchDropped
from peer.connector_sink import ConnectorSink, Staging
from peer.retry_policy import Reaction, may_pass, policy
from peer.task_loop import TaskLoop
from queues.transaction_errors import ProducerLost, TransactionAborted
from sardonyx.core.errors import FunctionError, SetupError
from sardonyx.core.events import TaskFailed
from sardonyx.core.spec import JobSpec, OnError, TaskSpec
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.simulation.engine import SimRuntime
from tests.simulation.kafka import RECORDS, Partition
from tests.simulation.peer_work import BATCH, Loop, Prepared, SimRunner
from tests.simulation.plan import Plan, Submission
from tests.simulation.world import World

Refuses = Callable[[Loop, int], Exception | None]
"""What goes wrong with the batch of a peer that begins at a position; None: nothing."""


class RefusedLoop(Loop):
    """As :class:`peer.task_loop.TaskLoop`, it reports the error of a batch as the policy says."""

    refuses: Refuses

    def _batch(self, where: tuple[str, int], times: int, partition: Partition) -> None:
        error = self.refuses(self, partition.position)
        if error is None:
            super()._batch(where, times, partition)
        else:
            self._report_error(error)

    def _report_error(self, error: Any) -> NoReturn:
        retries_task = self.stage.task.on_error.then == "retry_task"
        found = policy(
            error, may_restart=False, store_reached=None, runner_alive=lambda: True, retries_task=retries_task
        )
        assert found in (Reaction.FAIL_TASK, Reaction.FAIL_JOB)
        fatal = found is Reaction.FAIL_JOB
        self._report(
            TaskFailed(
                peer=self.peer,
                assignment=self.assignment.id,
                error=error.to_failure(),
                fatal=fatal,
                passing=not fatal and may_pass(error),
            )
        )
        while not self.handle.revoked:  # the coordinator takes the task away
            self.handle.pause(1.0)
        raise AssignmentRevoked


class RefusedWorld(World):
    """A history of one job, some of whose batches go wrong."""

    def __init__(self, spec: JobSpec, refuses: Refuses, until: float = 3.0) -> None:
        super().__init__(Plan(seed="refused", daemons=(2,), jobs=[Submission(0.3, "job", spec)], until=until))

        class Runner(SimRunner):
            def work(self, prepared: Prepared, handle: AssignmentHandle, zk: ZooKeeperSession) -> None:
                loop = RefusedLoop(self, prepared, handle, zk)
                loop.refuses = refuses
                loop.run()

        self._runner = Runner

    def _make_runner(self, runtime: SimRuntime) -> SimRunner:
        return self._runner(self.kafka, runtime, self)

    @property
    def failures(self) -> list[TaskFailed]:
        return [event for event in self.oracle.events if isinstance(event, TaskFailed)]


def a_job(*outputs: TaskSpec, then: Any = "fail") -> JobSpec:
    """``work`` reads a topic with one partition to its end, and writes these topics."""
    return JobSpec(
        name="job",
        workflow=[("read", "work"), *(("work", each.name) for each in outputs)],
        catalog=[
            TaskSpec(
                name="read",
                type="input",
                connector="kafka",
                options={"topic": "in", "start": "earliest", "end": "latest"},
            ),
            TaskSpec(name="work", type="function", fn="m:f", on_error=OnError(then=then)),
            *outputs,
        ],
        partitions=1,
        failure_limit=2,
    )


def output(name: str, **options: Any) -> TaskSpec:
    return TaskSpec(name=name, type="output", connector="kafka", options={"topic": name, **options})


@pytest.mark.parametrize(
    ("then", "raises", "tried", "status"),
    [
        ("fail", 99, 1, "failed"),
        ("retry_task", 99, 3, "failed"),
        ("retry_task", 2, 3, "completed"),
    ],
)
def test_a_task_begins_again_with_its_bad_record_as_often_as_its_job_allows(
    then: str, raises: int, tried: int, status: str
) -> None:
    """With ``retry_task`` the task begins anew at what it has committed, after a pause, and leaves out nothing: when the record
    raises no more, each comes out once. Past ``failure_limit`` the job fails with the error of the function.
    """
    tries: list[tuple[int, int, float]] = []

    def refuses(loop: Loop, position: int) -> Exception | None:
        if position != BATCH:  # the second batch has the bad record
            return None
        tries.append((loop.assignment.id, position, loop.runtime.now()))
        return FunctionError("SX-FN-RAISED", "a record raises") if len(tries) <= raises else None

    world = RefusedWorld(a_job(output("out"), then=then), refuses)
    world.play()
    assert len({assignment for assignment, _, _ in tries}) == len(tries) == tried
    pauses = [after - before for (_, _, before), (_, _, after) in pairwise(tries)]
    assert all(pause >= least for pause, least in zip(pauses, (1.0, 2.0), strict=False)), pauses
    job = world.oracle.state.jobs["job"]
    assert job.status == status
    assert [event.fatal for event in world.failures] == [then == "fail"] * min(tried, raises)
    assert world.kafka.put["job", "work.out"] == (RECORDS if status == "completed" else BATCH)
    if status == "failed":
        assert job.error is not None
        assert job.error.code == "SX-FN-RAISED"


@pytest.mark.parametrize("independent", [True, False])
def test_a_topic_that_cannot_be_written_stops_an_independent_output_alone(independent: bool) -> None:
    """The output beside it has all rows meanwhile, and the job does not fail, however often the topic refuses. When it may be
    written, the rows that waited come, each once. Without ``independent`` neither topic gets a row until then.
    """
    given = 60.0
    meanwhile: list[tuple[int, str]] = []

    def refuses(loop: Loop, _position: int) -> Exception | None:
        writes = any(link.topic == "two" for link in loop.stage.egress)
        return SetupError("SX-KAFKA-DENIED", "it may not write topic two") if writes and world.sim.now < given else None

    def rows(topic: str) -> int:
        (link,) = [link for link in world.kafka.graphs["job"].links if link.topic == topic]
        return world.kafka.put["job", link.name]

    world = RefusedWorld(a_job(output("one"), output("two", independent=independent)), refuses, until=given)
    world.sim.at(given - 1, lambda: meanwhile.append((rows("one"), world.oracle.state.jobs["job"].status)))
    world.play()
    assert meanwhile == [(RECORDS if independent else 0, "running")]
    assert len(world.failures) > world.oracle.state.jobs["job"].spec.failure_limit
    assert (rows("one"), rows("two")) == (RECORDS, RECORDS)
    assert world.oracle.state.jobs["job"].status == "completed"


@pytest.mark.parametrize(
    ("error", "store", "removed"),
    [
        (TransactionAborted(KafkaError(KafkaError._TIMED_OUT), "out"), None, True),
        (BatchDropped("its partitions were given to another peer"), None, True),
        (ProducerLost("the reply is lost"), None, False),
        (AssignmentRevoked("gone"), None, False),
        (TransactionAborted(KafkaError(KafkaError._TIMED_OUT), "out"), "database", False),
        (BatchDropped("its partitions were given to another peer"), "database", False),
    ],
)
def test_what_is_staged_goes_only_if_it_is_certainly_not_committed(
    error: Exception, store: str | None, removed: bool
) -> None:
    """A reply that is lost leaves open whether a batch is committed, and so does a database that has the batch: the files that it
    lists must stay.
    """
    taken: list[Any] = []

    def commit(*_: Any) -> None:
        raise error

    output = cast("Any", SimpleNamespace(stage=lambda _: [b"a"]))
    sink = ConnectorSink(Staging(output, unstage=taken.extend), None)
    list(sink.messages(pa.table({"n": [1]})))
    loop = object.__new__(TaskLoop)
    loop.session = cast("Any", SimpleNamespace(store=store))
    loop._work = cast("Any", SimpleNamespace(sinks=[sink]))
    loop._batch = cast("Any", SimpleNamespace(check=lambda _: None, commit=commit))
    with pytest.raises(type(error)):
        loop._commit(cast("Any", None), cast("Any", None), [])
    assert taken == ([b"a"] if removed else [])
