"""Checks of time: where the rows of inputs have it, and whether it is the one that windows and keyed state need.

A part of :mod:`sardonyx.job.validate`. What only the rows show (a function that drops the column with the time, a null, a date in
the year 9999) is found when the job runs.
"""

from __future__ import annotations

import graphlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sardonyx.connectors.schema import arrow_schema
from sardonyx.core.errors import JobInvalid, SardonyxError
from sardonyx.core.graph import order_of
from sardonyx.core.joining import RelationSpec
from sardonyx.core.keyed import KeyedSpec
from sardonyx.core.row_times import Times, Untimed, row_times, time_of, time_over
from sardonyx.core.spec import LETTERS_FORMAT, JobSpec, TaskSpec, database_of, late_policy, stateful, whole_of
from sardonyx.core.text import listed, near
from sardonyx.core.timing import RowTime, TimeSpec, WindowSpec
from sardonyx.job.parse import UNREAD
from sardonyx.job.validate_windows import LENGTHS, Wrong, duration, emit_every, nothing, problems_from


def problems_of_times(spec: JobSpec) -> Iterator[SardonyxError]:
    """What is wrong with the times of inputs, and with what comes of them to each window."""
    for task in spec.catalog:
        if task.time is not None:
            yield from problems_from(task, _input(task, task.time))
    names = {task.name for task in spec.catalog}
    if not all(names.issuperset(edge) for edge in spec.workflow):
        return
    try:
        times = row_times(spec, order_of(spec))
    except graphlib.CycleError:  # another check reports it
        return
    for task in spec.catalog:
        wrong: list[Wrong] = []
        if task.window is not None:
            wrong += _of_window(task.window, times[task.name])
        if task.keyed is not None:
            wrong += _of_keyed(task.keyed, times[task.name])
        if late_policy(task) == "edge":
            wrong += _of_late(times[task.name])
        if task.graph is not None and task.graph.window is not None:
            wrong += _of_versions(spec, task, task.graph.window, times)
        if spec.checkpoint_every is not None and stateful(task):
            wrong += _of_checkpoints(task, times[task.name]) if not wrong else ()
        yield from problems_from(task, iter(wrong))


def _input(task: TaskSpec, time: TimeSpec) -> Iterator[Wrong]:
    if task.type != "input":
        yield Wrong(
            "SX-TIME-INPUT",
            "it has time, but is not an input",
            "give time to the inputs; of a window, name the column with time= in it",
        )
    if not time.column:
        yield Wrong("SX-TIME-INPUT", "time names a column without a name", "name the column")
    if time.kind == "kafka" and task.type == "input" and task.connector != "kafka":
        fix = "take a column of its rows: event_time(...)"
        yield Wrong("SX-TIME-INPUT", f"kafka_time needs Kafka records, and it reads {task.connector}", fix)
    if time.adds_column and time.kind != "kafka" and task.type == "input" and task.connector != "kafka":
        yield Wrong(
            "SX-TIME-INPUT",
            f"{time.kind} numbers or stamps the records of Kafka topics, and it reads {task.connector}",
            "take a column of its rows: event_time(...)",
        )
    yield from _not_for(time)
    chosen = time.since is not None or time.until is not None
    if chosen and task.type == "input" and (task.connector != "kafka" or time.kind not in ("column", "kafka")):
        yield Wrong(
            "SX-TIME-INPUT",
            "time: since and until choose among the records of a topic by times that these keep",
            "remove since and until",
            "a task that reads other rows could not tell whether they are of these times",
        )
    for name in ("delay", "idle", "ahead"):
        text = getattr(time, name)
        if text is not None:
            yield from duration(f"time: {name}", text, least=0 if name == "delay" else 1)
    if time.at_rest == "wall" and time.idle is None:
        yield Wrong(
            "SX-TIME-IDLE",
            'time: at_rest="wall" has no effect without idle',
            'give idle, such as "1 min"',
            "it says how the clock goes on when all partitions are idle, and without idle none ever is",
        )


def _not_for(time: TimeSpec) -> Iterator[Wrong]:
    """Fields that have no meaning for a kind."""
    if time.kind != "column" and time.unit is not None:
        yield Wrong(
            "SX-TIME-INPUT", f"time: unit belongs to a column of whole numbers, not to kind {time.kind}", "remove unit"
        )
    given = {"delay": not nothing(time.delay), "ahead": time.ahead is not None, "at_rest": time.at_rest != "hold"}
    if time.kind == "wall":
        given.pop("at_rest")
    if time.kind in ("wall", "ordinal"):
        for name in (name for name, there in given.items() if there):
            cause = {
                "wall": "no row is older or newer than the clock by which it was read",
                "ordinal": "the numbers of a partition's rows rise without a gap, and no clock counts them",
            }[time.kind]
            yield Wrong("SX-TIME-INPUT", f"time: {time.kind} has no {name}", f"remove {name}", cause)


def _of_window(window: WindowSpec, times: Times) -> Iterator[Wrong]:
    """The rows that come to a window have one kind of time, and it has lengths of that kind."""
    often = emit_every(window)
    if not window.by_time and often is None:  # it needs no time
        return
    why = "its windows are by time" if window.by_time else f"emit is {window.emit!r}, which is by their time"
    yield from _untimed(why, times)
    known = [each for each in times if isinstance(each, RowTime)]
    if len({each.ordinal for each in known}) > 1:
        yield _MIXED
        return
    if window.time is None:
        yield from _one_column(known)
    if window.time in ("window_start", "window_end") and any(each.column == "window_time" for each in known):
        yield Wrong(
            "SX-TIME-MIXED",
            f"the results of windows would come into the wrong windows by their {window.time}",
            "leave out time: results of windows have window_time, which is right before their window_end",
            "window_start is before the clock when they come, so all would be late; window_end belongs to the next window",
        )
    if known:
        by_time = (*LENGTHS, "grace", "allowed_lateness") if window.by_time else ()
        lengths = {name: getattr(window, name) for name in by_time}
        yield from _fitting(window.kind, {**lengths, "emit: every": often}, ordinal=known[0].ordinal)


def _of_late(times: Times) -> Iterator[Wrong]:
    """Late rows keep their time, in its column."""
    for each in times:
        if isinstance(each, RowTime) and each.column in _OF_LATE_ROWS:
            yield Wrong(
                "SX-WINDOW-LATE",
                f"its late rows have a column {each.column!r} of their own, and the time of rows stands in one of that name",
                "give the column with the time another name in a task before it, or do without the edge of late rows",
            )


_OF_LATE_ROWS = ("window_start", "window_end", "late_by", "late_side")


def _of_versions(spec: JobSpec, task: TaskSpec, window: WindowSpec, by_task: Mapping[str, Times]) -> Iterator[Wrong]:
    """All rows that come to a graph with windows have one kind of time, those of each task before it in one column."""
    times = by_task[task.name]
    yield from _untimed("its graph has windows by time", times)
    known = [each for each in times if isinstance(each, RowTime)]
    if len({each.ordinal for each in known}) > 1:
        yield _MIXED
    elif known:
        before = [source for source, target in spec.workflow if target == task.name]
        if len(known) == len(times) and any(time_over(spec, by_task, each, task.name) is None for each in before):
            yield from _one_column(known)
        lengths = {"window: size": window.size} if window.kind == "tumbling" else {}
        yield from _fitting(window.kind, lengths, ordinal=known[0].ordinal)


def _of_keyed(keyed: KeyedSpec, times: Times) -> Iterator[Wrong]:
    """States that expire do so by the times of rows, which must be moments and in one column."""
    if not keyed.ttl:
        return
    yield from _untimed("its states have a ttl, which goes by the times of rows", times)
    known = [each for each in times if isinstance(each, RowTime)]
    if any(each.ordinal for each in known):
        yield Wrong(
            "SX-TIME-ORDINAL",
            "its states have a ttl, but its rows have numbers as their times",
            "remove ttl, or give the inputs another time",
            "an ordinal time counts rows; all others are moments",
        )
    elif keyed.time is None:
        yield from _one_column(known)


def _of_checkpoints(task: TaskSpec, times: Times) -> Iterator[Wrong]:
    """Of which time a row is decides about which checkpoints it is in; and the log must say what came when."""
    store = database_of(task)
    if store is not None:
        yield Wrong(
            "SX-CHECKPOINT-STORE",
            f"the job has checkpoints, and the state of this task is in the database {store.url}",
            "keep it in memory or in RocksDB, or leave out checkpoint_every",
            "a checkpoint is made again from the log of the state, and a database keeps no log",
        )
    if whole_of(task) is not None:
        what, of = ("computes over a graph", "a graph") if task.graph is not None else ("works in rounds", "rounds")
        yield Wrong(
            "SX-CHECKPOINT-STORE",
            f"the job has checkpoints, and this task {what}",
            "leave out checkpoint_every",
            f"the state of {of} is of all rows that have come, and cannot be made again as it was at a time",
        )
        return
    yield from _untimed("the job has checkpoints, which go by the times of rows", times)
    known = [each for each in times if isinstance(each, RowTime)]
    if any(each.ordinal for each in known):
        yield Wrong(
            "SX-TIME-ORDINAL",
            "the job has checkpoints, but its rows have numbers as their times",
            "leave out checkpoint_every, or give the inputs another time",
            "an ordinal time counts rows; all others are moments",
        )
    elif time_of(task, times) is None and not (task.relation is not None and task.relation.two_sided):
        yield from _one_column(known)


def _untimed(why: str, times: Times) -> Iterator[Wrong]:
    for untimed in sorted(each for each in times if isinstance(each, Untimed)):
        yield Wrong("SX-TIME-MISSING", f"{why}, and {_UNTIMED[untimed.why].format(untimed.task)}", _TIMED[untimed.why])


def _one_column(known: Sequence[RowTime]) -> Iterator[Wrong]:
    if len(known) > 1:
        columns = sorted({f"{each.column} in {each.unit}" if each.unit else each.column for each in known})
        yield Wrong(
            "SX-TIME-MIXED",
            f"the rows that come to it have their times in different columns: {listed(columns)}",
            "bring them into one column in the tasks before it, and name it with time=",
        )


_MIXED = Wrong(
    "SX-TIME-MIXED",
    "some rows that come to it have a moment as their time, others a number (ordinal)",
    "give all inputs before it times of one kind",
)
_UNTIMED = {
    "input": "the rows of input {!r} have none",
    "window": "the results of {!r} have none",
    "failed": "the failed records of {!r} have none",
    "latest": "the results of {!r} come at no particular time",
    "graph": "the results of {!r} have none",
    "iterate": "the results of {!r} have none",
}
_TIMED = {
    "input": 'give the input time="column", or kafka_time, wall or ordinal; see docs/time.md',
    "window": "use windows by time there, or let this task come before it",
    "failed": "let it come after the results of a task, and write failed records to an output",
    "latest": 'use emit="changes" there, or let this task come before it',
    "graph": "let this task come before it",
    "iterate": "let this task come before it",
}


def _fitting(kind: str, lengths: Mapping[str, str | int | None], *, ordinal: bool) -> Iterator[Wrong]:
    cause = "an ordinal time counts rows; all others are moments"
    if ordinal and kind == "calendar":
        message = "its rows have numbers as their times, which have no days"
        yield Wrong("SX-TIME-ORDINAL", message, "use tumbling(n), or another time", cause)
    for name, value in lengths.items():
        if (
            value is None
            or nothing(value)
            or isinstance(value, int) is ordinal
            or (isinstance(value, int) and value < 1)
        ):
            continue
        if ordinal:
            message = f"{name} is {value!r}, but its rows have numbers as their times"
            fix = f"give {name} as a number of rows"
        else:
            message, fix = f"{name} is {value}, a number without a unit", f'write a duration, such as "{value} s"'
        yield Wrong("SX-TIME-ORDINAL", message, fix, cause)


# --- What schemas and functions show ----------------------------------------------------------------------------------


def problems_of_columns(spec: JobSpec) -> Iterator[SardonyxError]:
    """What the schema of an input shows: whether the columns are there that its time and the tasks right after it need."""
    tasks = {task.name: task for task in spec.catalog}
    for task in spec.catalog:
        schema = _schema_of(task)
        if schema is None:
            continue
        found = list(_time_column(task.time, schema)) if task.time is not None else []
        yield from problems_from(task, found)
        if found or task.fn is not None:
            continue
        columns = {field.name: str(field.type) for field in schema}
        if task.time is not None and task.time.adds_column:
            columns[task.time.column] = "int64" if task.time.kind == "ordinal" else "timestamp"
        for source, target in spec.workflow:
            after = tasks.get(target)
            if source != task.name or after is None or spec.route(source, target).of != "results":
                continue
            if after.window is not None:
                yield from problems_from(after, _columns(after, after.window, columns, task.name))
            if after.keyed is not None:
                yield from problems_from(after, _columns_of_keyed(after, after.keyed, columns, task.name))
            if after.relation is not None:
                yield from problems_from(after, _columns_of_relation(after, after.relation, columns, task.name))
            if not stateful(after):
                yield from problems_from(after, _columns_of_key("SX-JOB-GROUP", _key(after), columns, task.name))


def _schema_of(task: TaskSpec) -> Any:
    """The schema of what an input reads, as an Arrow schema; None if it is not known."""
    text = task.options.get("schema")
    if task.type != "input" or not isinstance(text, str) or task.options.get("format") == LETTERS_FORMAT:
        return None
    try:
        return arrow_schema(text)
    except JobInvalid:  # the check of connectors reports it
        return None


def _time_column(time: TimeSpec, schema: Any) -> Iterator[Wrong]:
    there = time.column in schema.names
    if time.adds_column:
        if there:
            fix = "give the added column another name, or take the one of the schema: event_time(...)"
            yield Wrong(
                "SX-TIME-INPUT", f"time: {time.kind} adds a column {time.column!r}, which its schema has already", fix
            )
        return
    if not there:
        if time.column not in ("", UNREAD):
            fix = f"choose from {', '.join(schema.names)}, or add it to the schema"
            yield Wrong(
                "SX-TIME-INPUT",
                f"its schema has no column {time.column!r} for the time{near(time.column, schema.names)}",
                fix,
            )
        return
    kind = str(schema.field(time.column).type)
    whole = _INTEGER.fullmatch(kind) is not None
    if not whole and not kind.startswith(("timestamp", "date")):
        fix = "declare the column as a timestamp, or as a whole number and give unit"
        yield Wrong("SX-TIME-INPUT", f"column {time.column!r} is of type {kind}, which is not a time", fix)
    elif whole and time.unit is None:
        yield Wrong(
            "SX-TIME-INPUT",
            f"column {time.column!r} holds whole numbers, and time does not say what they count",
            'give unit, such as "ms"',
        )
    elif not whole and time.unit is not None:
        yield Wrong("SX-TIME-INPUT", f"column {time.column!r} is of type {kind}, which needs no unit", "remove unit")


_INTEGER = re.compile(r"u?int\d+")
_NUMBER = re.compile(r"u?int\d+|halffloat|float|double|decimal\d*\(.*\)")
_NESTED = ("list", "map", "struct")
_OF_NUMBERS = ("sum", "mean", "var", "quantile")


def _columns(task: TaskSpec, window: WindowSpec, columns: dict[str, str], source: str) -> Iterator[Wrong]:
    """What a window needs of the rows that come to it.

    Args:
        task: the task with windows.
        window: its windows.
        columns: by name, their types.
        source: the input that gives them.
    """
    yield from _columns_of_key("SX-WINDOW-KEY", _key(task), columns, source)
    from_ = f"the rows of {source!r}"
    choose = f"choose from {', '.join(columns)}"
    if window.by_time and window.time is not None and window.time not in columns:
        yield Wrong(
            "SX-WINDOW-COLUMN",
            f"time names {window.time!r}, which {from_} do not have{near(window.time, columns)}",
            choose,
        )
    for name, aggregate in window.aggregate.items():
        column = aggregate.column
        if not column:
            continue
        if column not in columns:
            hint = near(column, columns)
            yield Wrong(
                "SX-WINDOW-COLUMN", f"aggregate {name!r} needs {column!r}, which {from_} do not have{hint}", choose
            )
        elif aggregate.of in _OF_NUMBERS and not _NUMBER.fullmatch(columns[column]):
            message = f"aggregate {name!r}: {aggregate.of} is of numbers, and {column!r} is of type {columns[column]}"
            yield Wrong(
                "SX-WINDOW-TYPE",
                message,
                "cast it in a task before it, or aggregate it otherwise: count, first, last, distinct",
            )


def _columns_of_keyed(task: TaskSpec, keyed: KeyedSpec, columns: dict[str, str], source: str) -> Iterator[Wrong]:
    """What keyed state needs of the rows that come to it; see :func:`_columns`."""
    yield from _columns_of_key("SX-KEYED-KEY", _key(task), columns, source)
    if keyed.time is not None and keyed.time not in columns:
        message = f"time names {keyed.time!r}, which the rows of {source!r} do not have{near(keyed.time, columns)}"
        yield Wrong("SX-KEYED-TIME", message, f"choose from {', '.join(columns)}")


def _columns_of_relation(
    task: TaskSpec, relation: RelationSpec, columns: dict[str, str], source: str
) -> Iterator[Wrong]:
    """What a join, a lookup, distinct or latest rows need of the rows that come to them; see :func:`_columns`."""
    right = relation.two_sided and relation.right == source and relation.right_on is not None
    names = (relation.right_on or []) if right else _key(task)
    yield from _columns_of_key("SX-JOIN-KEY", names, columns, source, "its key")
    if relation.time is not None and relation.time not in columns:
        message = (
            f"time names {relation.time!r}, which the rows of {source!r} do not have{near(relation.time, columns)}"
        )
        yield Wrong("SX-JOIN-COLUMN", message, f"choose from {', '.join(columns)}")


def _key(task: TaskSpec) -> list[str]:
    """The columns of the key of a task; none if a function makes it."""
    return task.group_by if isinstance(task.group_by, list) else []


def _columns_of_key(
    code: str, names: Sequence[str], columns: dict[str, str], source: str, word: str = "group_by"
) -> Iterator[Wrong]:
    for name in names:
        if name not in columns:
            message = f"{word} names {name!r}, which the rows of {source!r} do not have{near(name, columns)}"
            yield Wrong(code, message, f"choose from {', '.join(columns)}")
        elif columns[name].startswith(_NESTED):
            yield Wrong(
                code,
                f"{word} names {name!r}, whose values are of type {columns[name]}",
                "group by a text or a number that a task before it makes of them",
                "only single values can be keys",
            )
