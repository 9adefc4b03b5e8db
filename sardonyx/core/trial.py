"""What two versions of a function make of the same rows, compared. Pure.

A function of records is compared record by record, so a row of the one belongs to a row of the other. A function of tables
gives rows without saying which given row they come from: equal rows are found wherever they stand, and the rest is paired in
order only if both versions leave equally many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from sardonyx.core.errors import Failure

Row = Mapping[str, Any]


class Outcome(msgspec.Struct, frozen=True):
    """What one version of a function made of one record, or of a whole table."""

    rows: Sequence[Row] = ()
    error: Failure | None = None
    """Of a record: what the function raised."""


class Difference(msgspec.Struct, frozen=True, omit_defaults=True):
    """One row in which the versions differ."""

    kind: Literal["changed", "new", "gone", "raises", "raised"]
    """``raises``: the new version raises for the record, and the old one did not; ``raised``: the other way."""
    given: Row | None = None
    """The record; None for a row of a function of tables."""
    before: Row | None = None
    after: Row | None = None
    error: Failure | None = None


class Comparison(msgspec.Struct):
    """What differs, counted in rows that the versions gave."""

    equal: int = 0
    changed: int = 0
    new: int = 0
    gone: int = 0
    raises: int = 0
    """Records for which the new version raises, and the old one does not."""
    raised: int = 0
    """Records for which the old version raises, and the new one does not."""
    both_raise: int = 0
    columns: dict[str, int] = {}
    """By column, in how many of the changed rows it differs."""
    differences: list[Difference] = []
    """The first of them."""

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (self.changed or self.new or self.gone or self.raises or self.raised)

    def add(self, difference: Difference, most: int) -> None:
        """Count a difference, and list it among the first ``most``."""
        setattr(self, difference.kind, getattr(self, difference.kind) + 1)
        if difference.kind == "changed":
            for column in differing(difference.before or {}, difference.after or {}):
                self.columns[column] = self.columns.get(column, 0) + 1
        if len(self.differences) < most:
            self.differences.append(difference)


class TaskTrial(Comparison, kw_only=True):
    """What a new version of a task makes of rows from the task's links, beside what the version that runs makes of them."""

    job: str
    """Id of the job."""
    task: str
    functions: list[str]
    """The tasks whose functions were called: this one, and those that are fused to it."""
    rows: int
    """How many rows both versions were given."""
    unread: int = 0
    """Records among the last ones that cannot be decoded."""
    types: dict[str, tuple[str | None, str | None]] = {}
    """The columns of the results that one version lacks, or whose types differ: the old type and the new one."""
    seconds: tuple[float, float] = (0.0, 0.0)
    """How long the old version and the new one took, one after the other in this process."""

    @property
    def same(self) -> bool:
        return super().same and not self.types


def compare_records(given: Sequence[Row], old: Sequence[Outcome], new: Sequence[Outcome], most: int) -> Comparison:
    """Compare what two versions of a function of records made of each of them.

    Args:
        given: the records.
        old: what the old version made of each.
        new: the same of the new version.
        most: how many differences to list.
    """
    found = Comparison()
    for record, before, after in zip(given, old, new, strict=True):
        if before.error is not None and after.error is not None:
            found.both_raise += 1
        elif after.error is not None:
            found.add(Difference("raises", record, error=after.error), most)
        elif before.error is not None:
            found.add(Difference("raised", record, error=before.error), most)
        else:
            _pair(found, before.rows, after.rows, record, most)
    return found


def compare_tables(
    old: Sequence[Row], new: Sequence[Row], most: int, failed: Sequence[tuple[Row, Failure | None, Failure | None]] = ()
) -> Comparison:
    """Compare all that two versions of a function of tables made of the same rows.

    Args:
        old: the rows that the old version gave.
        new: the same of the new version.
        most: how many differences to list.
        failed: the rows for which a version raises, with what the old one and the new one raised.
    """
    records = [row for row, _, _ in failed]
    raised = [Outcome(error=error) for _, error, _ in failed]
    raises = [Outcome(error=error) for _, _, error in failed]
    found = compare_records(records, raised, raises, most)
    common = Counter(map(_text, old)) & Counter(map(_text, new))
    found.equal += common.total()
    left, right = _without(old, common), _without(new, common)
    if len(left) == len(right):
        _pair(found, left, right, None, most)
    else:
        _pair(found, left, [], None, most)
        _pair(found, [], right, None, most)
    return found


def differing(before: Row, after: Row) -> list[str]:
    """The columns in which two rows differ, in their order. A column that a row lacks is null there."""
    return [name for name in {**before, **after} if repr(before.get(name)) != repr(after.get(name))]


def _pair(found: Comparison, old: Sequence[Row], new: Sequence[Row], given: Row | None, most: int) -> None:
    """Take rows at equal places for versions of the same row."""
    for before, after in zip(old, new, strict=False):
        if differing(before, after):
            found.add(Difference("changed", given, before, after), most)
        else:
            found.equal += 1
    for before in old[len(new) :]:
        found.add(Difference("gone", given, before=before), most)
    for after in new[len(old) :]:
        found.add(Difference("new", given, after=after), most)


def _without(rows: Sequence[Row], common: Counter[str]) -> list[Row]:
    """The rows that are left when so many of each are taken away."""
    left = common.copy()
    found = []
    for row in rows:
        text = _text(row)
        if left[text]:
            left[text] -= 1
        else:
            found.append(row)
    return found


def _text(row: Row) -> str:
    """Equal for rows that do not differ."""
    return repr(sorted((name, repr(value)) for name, value in row.items() if value is not None))


__all__ = ["Comparison", "Difference", "Outcome", "Row", "TaskTrial", "compare_records", "compare_tables", "differing"]
