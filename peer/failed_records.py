"""Handle the records of a batch that a task could not process: find where each came from, and route it.

A failed edge of the task takes each failed record for which its condition holds, as a row. The task's ``on_error``
decides about a record that no failed edge takes: it ends the job, skips the record, or makes it a dead letter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from peer.provenance import Provenance
from peer.sinks import FAILED, Sink, taken
from queues import block, dead_letters
from queues.dead_letters import Letter, Origin
from queues.messages import REFUSED_HEADER, Outgoing
from queues.shown_values import records
from sardonyx.connectors import json_text
from sardonyx.core.errors import Failure, FunctionError, InputError, OutputError, SardonyxError
from sardonyx.core.graph import Stage
from sardonyx.core.spec import late_policy
from sardonyx.runtime.secret_values import unquoted
from sardonyx.state.keyed_work import Failed as KeyFailed
from spark_tasks.failures import Bad

if TYPE_CHECKING:
    from spark_tasks.applied import Applied


@dataclass(frozen=True)
class Failed:
    """A record that the task could not process."""

    bad: Bad
    origin: Origin
    kind: dead_letters.Kind
    value: pa.Table | bytes | None
    """The row; or the message's bytes, if the task could not decode them."""
    key: bytes | None = None

    def text(self) -> str:
        """Return the record as JSON. Values without a JSON form appear as their Python text."""
        if not isinstance(self.value, pa.Table):
            return json.dumps((self.value or b"").decode("utf-8", "backslashreplace"))
        try:
            (only,) = json_text.rows(self.value)
            return only.decode()
        except OutputError:  # JSON cannot represent this type
            return json.dumps(records(self.value)[0], default=str)


@dataclass(frozen=True)
class Sorted:
    """The failed records of a batch, sorted by what happens to them."""

    failed: pa.Table | None = None
    """All failed records as rows, for the sinks that take them. None if there is no such sink, or no record failed."""
    skipped: int = 0
    letters: Sequence[Outgoing] = ()
    first_error: Failure | None = None
    """The failure of the first record that is skipped or becomes a dead letter."""


def origin_of(message: Any, row: int | None) -> Origin:
    """Return where a record came from. A record that was a dead letter before keeps its first origin."""
    letter = dead_letters.told(message)
    if letter is not None:
        return letter.origin
    return Origin(message.topic(), message.partition(), message.offset(), row)


def unread(message: Any, failure: Failure) -> Failed:
    """Make a failed record of a message that could not be decoded, or whose row has a bad time. It keeps the bytes unchanged.
    What was a dead letter becomes one of the same kind.
    """
    letter = dead_letters.told(message)
    kind: dead_letters.Kind = "raw" if letter is None else letter.kind
    value = dead_letters.row_of(message.value()) if kind == "row" else message.value()
    return Failed(Bad(0, "InputError", 1, failure), origin_of(message, None), kind, value, message.key())


def refused(message: Any) -> Failed | None:
    """Make a failed record of a message with a row that its writer has refused for this task; None: it has rows to work on.
    A row that is too large for a message is not kept.
    """
    said = dict(message.headers() or ()).get(REFUSED_HEADER)
    if said is None:
        return None
    failure, row = msgspec.json.decode(said, type=Failure), block.decode([message.value()])
    if not row.num_rows:
        return Failed(Bad(0, "OutputError", 1, failure), origin_of(message, None), "large", None)
    return Failed(Bad(0, "FunctionError", 1, failure), origin_of(message, 0), "row", row)


def unfit(applied: Applied, provenance: Provenance, kind: dead_letters.Kind = "row") -> list[Failed]:
    """Return the rows of a batch for which the task's function raised. ``kind``: whether it read them or made them."""
    rows = applied.bad_rows
    if rows is None:
        return []
    return [
        Failed(bad, origin_of(*provenance.message(bad.index)), kind, rows.slice(index, 1))
        for index, bad in enumerate(applied.bad)
    ]


def failed_key(failed: KeyFailed, row: pa.Table, message: Any, place: int | None, *, attempts: int) -> Failed:
    """Make a failed record of a row, or a timer, that a function with keyed state raised for.

    Args:
        failed: what the function's run says.
        row: the record.
        message: that it came with.
        place: its place in the message.
        attempts: how often it was run.
    """
    index = 0 if failed.row is None else failed.row
    kind: dead_letters.Kind = "made" if failed.row is None else "row"
    return Failed(Bad(index, failed.kind, attempts, failed.failure), origin_of(message, place), kind, row)


def sort_out(stage: Stage, sinks: Sequence[Sink], records: Sequence[Failed]) -> Sorted:
    """Route failed records over failed edges or by the task's ``on_error``.

    Raises:
        SardonyxError: the failure of the first record that no failed edge takes, if ``on_error`` is to fail.
        FunctionError: a user's condition raised or gave an invalid result.
    """
    if not records:
        return Sorted()
    records = [
        replace(each, bad=msgspec.structs.replace(each.bad, failure=unquoted(each.bad.failure))) for each in records
    ]
    task = stage.task
    table = _rows(task.name, records) if stage.takes_failed else None
    rest = list(records)
    if table is not None:
        rest = [record for record, goes in zip(records, taken(sinks, table), strict=True) if not goes]
    first = rest[0].bad.failure if rest else None
    if rest and not task.on_error.leaves_out:
        raise error_of(rest[0])
    if task.on_error.then == "skip":
        return Sorted(table, len(rest), (), first)
    dead = next((link for link in stage.egress if link.kind == "dead"), None)
    letters = [_letter(dead.topic, task.name, record) for record in rest] if dead is not None else []
    return Sorted(table, 0, letters, first)


def late_letters(stage: Stage, late: pa.Table | None, prefix: str, origins: Provenance) -> Iterator[Outgoing]:
    """The dead letters of late rows, if the task keeps such rows.

    Args:
        stage: the task.
        late: the rows, with their window; None if there are none.
        prefix: of the columns that say what they are too late for.
        origins: where they came from.
    """
    if late is None or late_policy(stage.task) != "dead_letter":
        return
    dead = next(link for link in stage.egress if link.kind == "dead")
    ordinal = any(link.row_time is not None and link.row_time.ordinal for link in stage.ingress)
    about = [name for name in late.column_names if name.startswith(prefix)]
    rows = late.drop_columns(about)
    for index, found in enumerate(records(late.select(about))):
        said = {name.removeprefix(prefix): value for name, value in found.items()}
        by = (
            None
            if said["late_by"] is None
            else f"{said['late_by']} rows"
            if ordinal
            else f"{said['late_by'] / 1e6:g} s"
        )
        failure = _of_window(said, by) if "window_end" in said else _of_relation(said, by)
        record = Failed(Bad(index, "Late", 1, failure), origin_of(*origins.message(index)), "row", rows.slice(index, 1))
        yield _letter(dead.topic, stage.task.name, record)


def _of_window(said: dict[str, Any], by: str | None) -> Failure:
    return Failure(
        "SX-TIME-LATE",
        f"a row came after its window from {said['window_start']} to {said['window_end']} had closed",
        cause=_ENDED if by is None else f"the clock had passed the window's end and grace by {by}",
        fix="give the input a longer `delay=`, or the window a `grace=` or `allowed_lateness=`",
    )


def _of_relation(said: dict[str, Any], by: str | None) -> Failure:
    which = f"a row of the {said['late_side']} side" if "late_side" in said else "a row"
    return Failure(
        "SX-TIME-LATE",
        f"{which} came after the clock had passed its time",
        cause=_ENDED if by is None else f"it was too old by {by} for the clock that stood before it",
        fix="give the input a longer `delay=`, or the task a `grace=`",
    )


_ENDED = "the input had ended"


def error_of(record: Failed) -> SardonyxError:
    """Build the error that says why a record failed, with its topic, partition and offset."""
    failure, origin = record.bad.failure, record.origin
    kind = FunctionError if record.kind in ("row", "made") else InputError
    fix = 'correct the topic, or set on_error="skip" or "dead_letter" on the tasks that read it'
    place = (
        f" (topic {origin.topic}, partition {origin.partition}, offset {origin.offset})" if kind is InputError else ""
    )
    return kind(
        failure.code,
        failure.message + place,
        cause=failure.cause,
        fix=failure.fix or fix,
        traceback=failure.traceback,
        where={**failure.where, **{key: str(value) for key, value in msgspec.to_builtins(origin).items()}},
    )


def _letter(topic: str, task: str, record: Failed) -> Outgoing:
    bad = record.bad
    version = 2 if record.kind == "made" else 1
    letter = Letter(task, record.kind, bad.error, bad.attempts, bad.failure, record.origin, version)
    value, key, headers = dead_letters.packed(letter, record.value, record.key)
    return Outgoing(topic, value, 0, key, headers)


def _rows(task: str, records: Sequence[Failed]) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "task": task,
                "code": record.bad.failure.code,
                "error": record.bad.error,
                "message": record.bad.failure.message,
                "traceback": record.bad.failure.traceback,
                "attempts": record.bad.attempts,
                "topic": record.origin.topic,
                "partition": record.origin.partition,
                "offset": record.origin.offset,
                "record": record.text(),
            }
            for record in records
        ],
        schema=FAILED,
    )
