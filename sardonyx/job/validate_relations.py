"""Checks of joins, lookups, distinct and latest rows: their sides, keys, lengths, times, late rows and state.

A part of :mod:`sardonyx.job.validate`. What only the rows show (a column that a function dropped, two columns with one name) is
found when the job runs.
"""

from __future__ import annotations

import graphlib
import re
from collections.abc import Iterator

from sardonyx.core import units
from sardonyx.core.errors import SardonyxError
from sardonyx.core.graph import has_end, order_of
from sardonyx.core.joining import JOIN_TIME, RelationSpec
from sardonyx.core.row_times import Times, Untimed, row_times, time_over
from sardonyx.core.spec import JobSpec, TaskSpec, group_function
from sardonyx.core.text import listed, near, shorten
from sardonyx.core.timing import RowTime
from sardonyx.job.validate_stores import wrong_stores
from sardonyx.job.validate_windows import MOST_ROWS, Wrong, duration, inputs_of, nothing, problems_from

_FIELDS = {
    "join": ("left", "right", "right_on", "how", "within", "prefix", "grace", "late"),
    "lookup": ("left", "right", "right_on", "how", "within", "prefix", "wait", "grace", "late"),
    "distinct": ("within", "time", "grace", "late"),
    "latest": ("within", "emit", "time", "late"),
}
"""Kind -> the fields that it may have, besides those of the state."""

_STATE = ("kind", "state_limit", "store")

_EMIT = re.compile(r"changes|final|every (?P<every>.+)")


# --- One task ---------------------------------------------------------------------------------------------------------


def problems_of_task(task: TaskSpec) -> Iterator[SardonyxError]:
    """What is wrong with the relation of one task, as far as it alone tells."""
    relation = task.relation
    if relation is not None:
        found = [*_task(task, relation), *_key(task, relation)]
        for rule in (_sides, _fields_of_kind, _lengths, _emit, _late, _state):
            found += rule(relation)
        yield from problems_from(task, found)


def _task(task: TaskSpec, relation: RelationSpec) -> Iterator[Wrong]:
    other = (
        "has windows, too"
        if task.window is not None
        else "keeps a state of its own, too"
        if task.keyed is not None
        else ""
    )
    if task.type != "function" or other:
        what = other or f"is an {task.type}"
        yield Wrong("SX-JOIN-TASK", f"it is a {relation.kind}, but {what}", "make it a task of its own")
    if task.consumption == "sequential":
        yield Wrong(
            "SX-JOIN-TASK",
            f"it is a {relation.kind}, so it cannot be sequential",
            "remove sequential",
            "the rows of a key go to one peer at a time, in order, anyway",
        )
    if task.lifecycle is not None and task.fn is None:
        yield Wrong(
            "SX-JOIN-TASK",
            "it has a lifecycle, but no function that uses it",
            "remove lifecycle, or give it fn",
        )


def _key(task: TaskSpec, relation: RelationSpec) -> Iterator[Wrong]:
    if group_function(task) is not None or not task.group_by:
        said = "a function cannot make its key" if task.group_by else "it has no key"
        word = {"distinct": "by", "latest": "group_by"}.get(relation.kind, "on")
        fix = f'name the columns of the key: {word}="order_id"; in YAML group_by'
        yield Wrong("SX-JOIN-KEY", f"it is a {relation.kind}, and {said}", fix)
    elif relation.right_on is not None and len(relation.right_on) != len(task.group_by):
        yield Wrong(
            "SX-JOIN-KEY",
            f"the key has {len(task.group_by)} columns on the left side and {len(relation.right_on)} on the right",
            'name as many on either: on={"order_id": "id"}',
        )
    elif relation.kind == "join" and JOIN_TIME in task.group_by:
        yield Wrong(
            "SX-JOIN-KEY",
            f"its key has a column {JOIN_TIME!r}, which each result has of its own",
            "give the column another name in a task before it",
        )


def _sides(relation: RelationSpec) -> Iterator[Wrong]:
    if relation.two_sided and (relation.left is None or relation.right is None):
        yield Wrong("SX-JOIN-SIDE", f"a {relation.kind} has a left and a right side", "name both tasks: left and right")
    elif relation.two_sided and relation.left == relation.right:
        yield Wrong(
            "SX-JOIN-SIDE",
            f"both of its sides are {relation.left!r}",
            "let a task come between on one side, so that its rows come over a link of their own",
        )
    if relation.prefix is not None and relation.prefix.startswith("sx_"):
        yield Wrong("SX-JOIN-COLUMN", f"prefix cannot be {relation.prefix!r}", "names with sx_ are used inside")


def _fields_of_kind(relation: RelationSpec) -> Iterator[Wrong]:
    defaults = RelationSpec(kind=relation.kind)
    for name in RelationSpec.__struct_fields__:
        if name not in (*_FIELDS[relation.kind], *_STATE) and getattr(relation, name) != getattr(defaults, name):
            others = listed(kind for kind, fields in _FIELDS.items() if name in fields)
            yield Wrong("SX-JOIN-TASK", f"a {relation.kind} has no {name}", f"remove {name}; it belongs to {others}")


def _lengths(relation: RelationSpec) -> Iterator[Wrong]:
    within = relation.within
    if relation.kind == "join" and within is None:
        yield Wrong(
            "SX-JOIN-WITHIN",
            "a join needs within: how far the times of two rows may be from each other",
            'give within="10 min", or two bounds such as within=("-1 min", "10 min")',
            "without a bound each row would be kept until the job ends",
        )
    if isinstance(within, list):
        yield from _two(relation, within)
    elif within is not None:
        yield from _length("within", within)
    if relation.wait is not None:
        yield from _length("wait", relation.wait)
    yield from _length("grace", relation.grace)


def _two(relation: RelationSpec, within: list[str | int]) -> Iterator[Wrong]:
    if relation.kind != "join" or len(within) != 2:
        fix = 'give one length, such as "10 min"' + (" or two" if relation.kind == "join" else "")
        yield Wrong("SX-JOIN-WITHIN", f"within cannot have {len(within)} bounds", fix)
        return
    wrong = [each for bound in within for each in _length("within", bound, sign=True)]
    yield from wrong
    if (
        not wrong
        and isinstance(within[0], str) is isinstance(within[1], str)
        and _signed(within[0]) > _signed(within[1])
    ):
        yield Wrong(
            "SX-JOIN-WITHIN",
            f"within is from {within[0]} to {within[1]}, so no two rows are in it",
            "write the lesser one first",
            "they are bounds for the time of the right row less that of the left row",
        )


def _signed(text: str | int) -> float:
    if isinstance(text, int):
        return text
    sign = text.strip().startswith("-")
    return units.seconds(text.strip().removeprefix("-")) * (-1 if sign else 1)


def _length(name: str, value: str | int, *, sign: bool = False) -> Iterator[Wrong]:
    """A duration, or a number of rows on an ordinal time; with ``sign`` it may begin with a minus."""
    if isinstance(value, int):
        if not (-MOST_ROWS if sign else 0) <= value <= MOST_ROWS:
            yield Wrong("SX-JOIN-WITHIN", f"{name} cannot be {value}", f"give 0 or more, and at most {MOST_ROWS:,}")
        return
    text = value.strip().removeprefix("-") if sign else value
    for wrong in duration(name, text, least=0):
        yield wrong._replace(code="SX-JOIN-WITHIN") if wrong.code == "SX-WINDOW-SIZE" else wrong


def _emit(relation: RelationSpec) -> Iterator[Wrong]:
    match = _EMIT.fullmatch(relation.emit)
    if match is None:
        fix = 'give "changes", "final" or every("10 s")'
        known = ("changes", "final")
        yield Wrong("SX-JOIN-EMIT", f"emit cannot be {shorten(relation.emit)!r}{near(relation.emit, known)}", fix)
    elif match["every"] is not None:
        often = match["every"]
        if re.fullmatch("[0-9]{1,15}", often):
            if int(often) < 1:
                yield Wrong("SX-JOIN-EMIT", "emit: every 0", "give 1 or more")
        else:
            for wrong in duration("emit: every", often, least=1):
                yield wrong._replace(code="SX-JOIN-EMIT") if wrong.code == "SX-WINDOW-SIZE" else wrong


def _late(relation: RelationSpec) -> Iterator[Wrong]:
    given = ["grace"] if not nothing(relation.grace) else []
    given += ["late"] if relation.late != "drop" else []
    if given and not relation.two_sided and relation.within is None:
        yield Wrong(
            "SX-JOIN-LATE",
            f"without within no row is late, so {listed(given)} has no effect",
            f"remove {listed(given)}, or give within",
            "without within all keys are remembered for all time",
        )


def _state(relation: RelationSpec) -> Iterator[Wrong]:
    for wrong in wrong_stores(relation.store):
        yield Wrong("SX-WINDOW-STORE", *wrong)
    if relation.state_limit is not None and not 1 <= relation.state_limit <= MOST_ROWS:
        fix = f"give 1 entry or more, and at most {MOST_ROWS:,}"
        yield Wrong("SX-WINDOW-STORE", f"state_limit cannot be {relation.state_limit}", fix)


# --- Rules about several tasks ----------------------------------------------------------------------------------------


def problems_of_relations(spec: JobSpec) -> Iterator[SardonyxError]:
    """What is wrong between joins and the like and the tasks before and after them."""
    names = {task.name for task in spec.catalog}
    if not all(names.issuperset(edge) for edge in spec.workflow):
        return
    try:
        times = row_times(spec, order_of(spec))
    except graphlib.CycleError:  # another check reports it
        return
    for task in spec.catalog:
        if task.relation is not None:
            yield from problems_from(task, _among(spec, task, task.relation, times))


def _among(spec: JobSpec, task: TaskSpec, relation: RelationSpec, times: dict[str, Times]) -> Iterator[Wrong]:
    before = [source for source, target in spec.workflow if target == task.name]
    wanted = [relation.left, relation.right]
    if relation.two_sided and None not in wanted and sorted(before) != sorted(map(str, wanted)):
        yield Wrong(
            "SX-JOIN-SIDE",
            f"its sides are {listed(map(repr, wanted))}, and {listed(map(repr, before)) or 'nothing'} comes before it",
            "let exactly the two tasks of its sides come before it; bring several into one in a task before",
        )
        return
    yield from _timed(spec, task, relation, times)
    taken = any(spec.route(source, target).of == "late" for source, target in spec.edges if source == task.name)
    if relation.late == "edge" and not taken:
        fix = "let a task come after its late rows (.late; in YAML a route with of: late), or write late: drop"
        yield Wrong("SX-JOIN-LATE", 'late is "edge", but no task takes its late rows', fix)
    endless = [each.name for each in inputs_of(spec, task.name) if not has_end(each)]
    if relation.emit == "final" and relation.within is None and endless:
        yield Wrong(
            "SX-JOIN-EMIT",
            "it would never give a result",
            'give emit="changes" or every("10 s"), give within, or give the input an end',
            f"its rows come at the end of its inputs, and {endless[0]!r} has none",
        )


def _timed(spec: JobSpec, task: TaskSpec, relation: RelationSpec, times: dict[str, Times]) -> Iterator[Wrong]:
    """The rows that come to it have times of one kind, and it has lengths of that kind."""
    if not relation.timed:
        return
    reads = times[task.name]
    why = f"a {relation.kind} goes by the times of rows"
    for untimed in sorted(each for each in reads if isinstance(each, Untimed)):
        yield Wrong("SX-TIME-MISSING", f"{why}, and {_UNTIMED[untimed.why].format(untimed.task)}", _TIMED[untimed.why])
    known = [each for each in reads if isinstance(each, RowTime)]
    if len({each.ordinal for each in known}) > 1:
        message = "some rows that come to it have a moment as their time, others a number (ordinal)"
        yield Wrong("SX-TIME-MIXED", message, "give all inputs before it times of one kind")
        return
    if len(known) < len(reads) or not known:
        return
    if relation.two_sided:
        mixed = [
            side for side in (relation.left, relation.right) if time_over(spec, times, str(side), task.name) is None
        ]
    else:
        mixed = [task.name] if relation.time is None and len(known) > 1 else []
    if mixed:
        yield Wrong(
            "SX-TIME-MIXED",
            f"rows that come to it over {mixed[0]!r} have their times in different columns",
            "bring them into one column in the tasks before it",
        )
    yield from _fitting(relation, ordinal=known[0].ordinal)


def _fitting(relation: RelationSpec, *, ordinal: bool) -> Iterator[Wrong]:
    within = relation.within if isinstance(relation.within, list) else [relation.within]
    often = relation.emit.removeprefix("every ") if relation.emit.startswith("every ") else None
    every = int(often) if often is not None and often.isdecimal() else often
    named = [
        *(("within", each) for each in within),
        ("wait", relation.wait),
        ("grace", relation.grace),
        ("every", every),
    ]
    for name, value in named:
        if value in (None, 0) or isinstance(value, int) is ordinal or (isinstance(value, str) and _is_nothing(value)):
            continue
        said = f"{name} is {value!r}, but its rows have numbers as their times"
        fix = f"give {name} as a number of rows"
        if not ordinal:
            said, fix = f"{name} is {value}, a number without a unit", f'write a duration, such as "{value} s"'
        yield Wrong("SX-TIME-ORDINAL", said, fix, "an ordinal time counts rows; all others are moments")


def _is_nothing(text: str) -> bool:
    return nothing(text.strip().removeprefix("-"))


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

__all__ = ["problems_of_relations", "problems_of_task"]
