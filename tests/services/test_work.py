"""What a peer makes of a batch of messages, where neither Kafka nor Spark is asked for anything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from peer.preparation import assemble
from peer.prepared_task import PreparedTask
from peer.slot_clients import SlotClients
from peer.step_timer import StepTimer
from peer.task_loop import TaskLoop
from queues import dead_letters
from queues.batch import Batch
from queues.dead_letters import Letter, Origin
from sardonyx import Job, blackhole, kafka
from sardonyx.core.errors import Failure, InputError, SetupError
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import graph_of
from sardonyx.core.notes import Assignment
from sardonyx.core.spec import LETTERS_FORMAT, LETTERS_ORIGINS
from sardonyx.runtime.settings import Settings

CALLS: list[tuple[str, int]] = []


class Noted:
    """A lifecycle that keeps book."""

    def before_batch(self, rows: int) -> None:
        CALLS.append(("before", rows))

    def after_batch(self, rows_out: int) -> None:
        CALLS.append(("after", rows_out))


class Message(NamedTuple):
    data: bytes | None
    told: tuple[tuple[str, bytes], ...] = ()

    def value(self) -> bytes | None:
        return self.data

    def key(self) -> None:
        return None

    def headers(self) -> tuple[tuple[str, bytes], ...]:
        return self.told

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 5


def work_of(options: dict[str, Any], on_error: str = "skip") -> PreparedTask:
    """That of an input task with a lifecycle, which leaves bad records out."""
    job = Job("j")
    rows = job.input("read", kafka("t", schema="n long"), on_error=on_error, lifecycle=f"{__name__}:Noted")
    job.output("drop", blackhole(), after=rows)
    graph = graph_of(job.spec(), "d", "j-1")
    (link,) = graph.stage("read").ingress
    link.options.update(options)
    facts: Any = {name.name: LinkFacts(partitions=1) for name in graph.links}
    return assemble(Settings(), None, "p", Assignment(1, "j-1", "read", 0), graph, facts, None)


@pytest.fixture(autouse=True)
def _afresh() -> None:
    CALLS.clear()


def test_hooks_come_in_pairs_where_no_record_can_be_read() -> None:
    """before_batch hears of every batch whose commit after_batch will hear of."""
    work = work_of({})
    assert work.hooks is not None
    work.hooks.start()
    messages: Any = {"read.topic": [Message(b"no JSON"), Message(b"{")]}
    result = work.apply(Batch(messages=messages), StepTimer())
    assert (result.rows_in, result.skipped, result.table.num_rows) == (2, 2, 0)
    assert CALLS == [("before", 2)]


def test_a_record_that_cannot_be_read_says_where_it_is() -> None:
    """Topic, partition and offset are in the text, so that the record can be found."""
    work = work_of({}, on_error="fail")
    work.hooks = None
    messages: Any = {"read.topic": [Message(b"no JSON")]}
    with pytest.raises(InputError, match=r"\(topic t, partition 0, offset 5\)"):
        work.apply(Batch(messages=messages), StepTimer())


def test_a_letter_without_its_record_cannot_be_redone() -> None:
    """The redo says so, whatever format the record's topic has; all others go through."""
    work = work_of({"format": LETTERS_FORMAT, LETTERS_ORIGINS: {"t": {"topic": "t", "schema": "n long"}}})
    letter = Letter("clean", "raw", "E", 1, Failure("SX-C", "m"), Origin("t", 0, 7))
    packed = [dead_letters.packed(letter, record, None) for record in (b"x" * 1_000_000, b'{"n": 1}')]
    messages: Any = {"read.topic": [Message(each.value, tuple(each.headers)) for each in packed]}
    result = work.apply(Batch(messages=messages), StepTimer())
    assert result.table.equals(pa.table({"n": [1]}))
    assert result.first_error is not None
    assert (result.skipped, result.first_error.code) == (1, "SX-LETTER-LARGE")


def test_what_is_away_in_mid_job_drops_the_batch_and_no_more() -> None:
    """A loop that has committed before rests and goes back to the committed positions; before that it is a failure."""
    calls: list[str] = []

    def cut(_size: int, _number: int | None) -> Batch:
        raise SetupError("SX-REGISTRY-UNREACHABLE", "the schema registry does not answer")

    reader: Any = SimpleNamespace(
        held={},
        poll=lambda _timeout: None,
        batch_due_in=lambda *_: 0.0,
        cut=cut,
        recover=lambda: calls.append("recover"),
        close=lambda: None,
    )
    handle: Any = SimpleNamespace(away=None, pause=lambda _seconds: calls.append("pause"))
    loop = TaskLoop(work_of({}), handle, SimpleNamespace())  # type: ignore[arg-type]
    loop.session.clients = SlotClients(reader, None)  # type: ignore[arg-type]
    with pytest.raises(SetupError):
        loop.step()
    loop._retries.reset()  # as after a commit
    loop.step()
    assert calls == ["pause", "recover"]


def test_the_way_to_sparks_workers_is_a_step_of_its_own() -> None:
    """The function's step is what it took there, if that is known; nothing is counted twice."""
    clock = StepTimer()
    clock.start()
    with clock("function"):
        pass
    whole = clock.seconds["function"]
    clock.share_out("function", {"function": 0.0}, rest="spark")
    clock.share_out("function", {"function": 2 * whole}, rest="spark")  # another machine's clock
    assert clock.seconds["function"] == whole
    clock.share_out("function", {"function": whole / 4}, rest="spark")
    assert clock.seconds["function"] == whole / 4
    assert clock.seconds["spark"] == pytest.approx(whole * 3 / 4)
