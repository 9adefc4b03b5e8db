"""What two versions of a task made of the same rows, as text. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from sardonyx.core.text import counted, listed, shorten
from sardonyx.core.trial import Difference, Row, TaskTrial, differing

LONGEST = 100
"""Characters of a row or value that are shown; `--json` gives all."""


def trial_lines(trial: TaskTrial) -> list[str]:
    """What was tried, what differs in numbers, and the first differences."""
    names = " and ".join(trial.functions)
    lines = [f"{names} on the last {counted(trial.rows, 'row')} before task {trial.task} of job {trial.job}"]
    if trial.unread:
        lines.append(f"{counted(trial.unread, 'record')} more cannot be decoded")
    lines += [f"  {number:>9,}  {words}" for number, words in _counts(trial) if number]
    for name, (old, new) in trial.types.items():
        lines.append(f"  column {name}: {old or 'none'} -> {new or 'none'}")
    lines += [line for each in trial.differences for line in _difference(each)]
    before, after = trial.seconds
    lines.append(
        f"the old version took {before:.3f} s here, the new one {after:.3f} s; nothing is committed or written"
    )
    return lines


def _counts(trial: TaskTrial) -> Iterator[tuple[int, str]]:
    where = listed(f"{name} in {number:,}" for name, number in trial.columns.items())
    yield trial.equal, "equal"
    yield trial.changed, f"changed: {where}"
    yield trial.new, "new"
    yield trial.gone, "gone"
    yield trial.raises, "raise now, and did not before"
    yield trial.raised, "raised before, and do not now"
    yield trial.both_raise, "raise with both versions"


def _difference(each: Difference) -> Iterator[str]:
    if each.kind == "changed":
        before, after = each.before or {}, each.after or {}
        columns = differing(before, after)
        yield f"~ {_row(each.given or before)}"
        for name in columns:
            yield f"    {name}: {_value(before.get(name))} -> {_value(after.get(name))}"
        return
    mark = {"new": "+", "gone": "-"}.get(each.kind, "!")
    yield f"{mark} {_row(each.after or each.before or each.given or {})}"
    if each.error is not None:
        yield f"    {'raises' if each.kind == 'raises' else 'raised before'}: {shorten(each.error.message, 3 * LONGEST)}"


def _row(row: Row) -> str:
    return shorten(", ".join(f"{name} {_value(value)}" for name, value in row.items()), LONGEST)


def _value(value: Any) -> str:
    return shorten(json.dumps(msgspec.to_builtins(value), ensure_ascii=False), LONGEST)


__all__ = ["trial_lines"]
