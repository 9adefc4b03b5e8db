"""The results that an output leaves out because Kafka never takes them."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import pytest

from peer.preparation import assemble
from peer.prepared_task import PreparedTask
from peer.step_timer import StepTimer
from queues import dead_letters
from queues.batch import Batch
from queues.messages import digest_of
from sardonyx import Job, kafka
from sardonyx.core.errors import OutputError
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import graph_of
from sardonyx.core.notes import Assignment
from sardonyx.core.positions import Partition
from sardonyx.core.spec import JobSpec, OnError
from sardonyx.runtime.settings import load_settings
from sardonyx.testing.memory import Stored

PLACE = Partition("in", 0)


class Refused(NamedTuple):
    """What the writer says of a record without key."""

    value: bytes
    topic: str = "out"

    @property
    def digest(self) -> bytes:
        return digest_of(None, self.value)

    def explained(self) -> OutputError:
        return OutputError("SX-KAFKA-REJECTED", f"Kafka does not take a record for topic {self.topic}")


def a_spec(**options: Any) -> JobSpec:
    job = Job("copies")
    read = job.input("read", kafka("in", start="earliest", schema="id bigint, k string"))
    job.output("write", kafka("out", key="k"), after=read, **options)
    return job.spec()


def prepared(spec: JobSpec) -> PreparedTask:
    graph = graph_of(spec, "d", "copies-1")
    facts = {link.name: LinkFacts(1) for link in graph.links}
    assignment = Assignment(id=1, job="copies-1", task="write", slot=0)
    return assemble(
        load_settings(deployment="d"), None, "p", assignment, graph, facts, None, cast("Any", lambda _: None)
    )


def a_batch(*values: bytes) -> Batch:
    messages: list[Any] = [Stored(PLACE, at, None, value) for at, value in enumerate(values)]
    return Batch({"read.write": messages}, {PLACE: len(values)})


BATCH = a_batch(b'{"id":0,"k":"a"}', b"not json", b'{"id":1,"k":null}', b'{"id":2,"k":null}', b'{"id":3,"k":"b"}')


@pytest.mark.parametrize("then", ["skip", "dead_letter"])
def test_what_kafka_refuses_is_a_bad_record_of_its_output(then: str) -> None:
    """The output leaves it out, and keeps its row, its origin and Kafka's reason, as of a record that cannot be read."""
    work = prepared(a_spec(on_error=then))
    assert work.refused.learn([cast("Any", Refused(b'{"id":2,"k":null}'))])
    result = work.apply(BATCH, StepTimer())
    assert result.table.column("id").to_pylist() == [0, 1, 3]
    assert (result.rows_in, result.skipped, len(result.letters)) == (5, *((2, 0) if then == "skip" else (0, 2)))
    for message, origin, row in zip(result.letters, (1, 3), (None, {"id": 2, "k": None}), strict=False):
        letter = dead_letters.told(Stored(PLACE, 0, message.key, message.value, message.headers))
        assert letter is not None
        assert (letter.origin.topic, letter.origin.offset) == ("in", origin)
        if row is not None:
            assert (letter.kind, letter.error, letter.failure.code) == ("row", "OutputError", "SX-KAFKA-REJECTED")
            assert dead_letters.row_of(message.value or b"").to_pylist() == [row]
    work.refused.committed()
    assert work.apply(BATCH, StepTimer()).table.column("id").to_pylist() == [0, 1, 2, 3]


@pytest.mark.parametrize("then", ["fail", "retry_task"])
def test_otherwise_nothing_is_left_out(then: str) -> None:
    work = prepared(a_spec(on_error=then))
    assert not work.refused.learn([cast("Any", Refused(b'{"id":2,"k":null}'))])


def test_records_that_are_others_in_each_run_do_not_go_on_for_ever() -> None:
    """A function may put the time into them. What is refused again and again, and nothing new, fails the job in the end."""
    refused = prepared(a_spec(on_error="skip")).refused
    assert sum(refused.learn([cast("Any", Refused(b"%d" % n))]) for n in range(1_000)) == 100
    refused.committed()
    assert refused.learn([cast("Any", Refused(b"x"))])
    assert not refused.learn([cast("Any", Refused(b"x"))])
    assert not refused.learn([cast("Any", Refused(b"y", "elsewhere"))])


def test_equal_records_and_no_others_have_one_digest() -> None:
    """A key that is empty is not one that is missing, and the end of a key is not the beginning of a value."""
    records = [(None, b"ab"), (b"", b"ab"), (b"a", b"b"), (b"ab", b""), (b"ab", None), (None, None)]
    assert len({digest_of(*record) for record in records}) == len(records)
    assert digest_of(b"a", b"b") == digest_of(b"a", b"b")


def test_only_what_is_left_out_is_looked_for() -> None:
    """A task that begins again takes its batch as it is, so nothing is cut until each bad record is alone."""
    assert OnError(then="skip").leaves_out
    assert OnError(then="dead_letter").leaves_out
    assert not OnError(then="fail").leaves_out
    assert not OnError(then="retry_task").leaves_out
    assert prepared(a_spec(on_error="skip")).isolate
    assert not prepared(a_spec(on_error="retry_task")).isolate
