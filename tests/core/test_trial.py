"""What two versions of a function made of the same rows is compared row by row, and told in words."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sardonyx.cli.trial_text import trial_lines
from sardonyx.core.errors import Failure
from sardonyx.core.trial import Outcome, TaskTrial, compare_records, compare_tables, differing

WRONG = Failure("SX-FN-RAISED", "function price raised KeyError: 'amount'")


def of(*rows: dict[str, Any]) -> Outcome:
    return Outcome(rows)


def test_records_are_compared_one_by_one() -> None:
    """A row of the one version belongs to the row at its place among the results of the same record."""
    given = [{"n": n} for n in range(6)]
    old = [of({"a": 1}), of({"a": 1}), of(), of({"a": 1}, {"a": 2}), Outcome(error=WRONG), of({"a": None})]
    new = [of({"a": 1}), of({"a": 2}), of({"a": 3}), of({"a": 1}), of({"a": 4}), of({"b": None})]
    found = compare_records(given, old, new, most=10)
    assert (found.equal, found.changed, found.new, found.gone, found.raised) == (3, 1, 1, 1, 1)
    assert found.columns == {"a": 1}
    assert [(each.kind, (each.given or {})["n"]) for each in found.differences] == [
        ("changed", 1),
        ("new", 2),
        ("gone", 3),
        ("raised", 4),
    ]
    assert not found.same


def test_what_raises_now_is_told_and_its_old_rows_are_not_gone() -> None:
    """A record for which only the new version raises is counted once, with its error; one for which both raise, apart."""
    given = [{"n": 0}, {"n": 1}]
    old = [of({"a": 1}, {"a": 2}), Outcome(error=WRONG)]
    found = compare_records(given, old, [Outcome(error=WRONG), Outcome(error=WRONG)], most=1)
    assert (found.raises, found.both_raise, found.gone) == (1, 1, 0)
    assert [each.error for each in found.differences] == [WRONG]


def test_numbers_that_print_otherwise_differ() -> None:
    """1 and 1.0 are other values in results, NaN is equal to itself, and a column that is lacking is null."""
    assert differing({"a": 1, "b": float("nan"), "c": None}, {"a": 1.0, "b": float("nan")}) == ["a"]


def test_rows_of_tables_are_paired_only_if_as_many_are_left() -> None:
    """Equal rows are found wherever they stand. The others are versions of each other only if both leave equally many."""
    old = [{"a": 1}, {"a": 2}, {"a": 3}]
    found = compare_tables(old, [{"a": 3}, {"a": 1}, {"a": 20}], most=10)
    assert (found.equal, found.changed, found.new, found.gone) == (2, 1, 0, 0)
    assert (found.differences[0].before, found.differences[0].after) == ({"a": 2}, {"a": 20})
    found = compare_tables(old, [{"a": 1}], most=1, failed=[({"n": 7}, None, WRONG)])
    assert (found.equal, found.changed, found.new, found.gone, found.raises) == (1, 0, 0, 2, 1)
    assert len(found.differences) == 1


ROWS = st.lists(st.fixed_dictionaries({"a": st.integers(0, 3)}), max_size=8)


@given(ROWS, ROWS)
def test_every_row_of_both_versions_is_counted_once(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> None:
    """Equal, changed and gone are the old rows, equal, changed and new the new ones; rows in both are equal."""
    for found in (compare_tables(old, new, 99), compare_records([{}], [Outcome(old)], [Outcome(new)], 99)):
        assert found.equal + found.changed + found.gone == len(old)
        assert found.equal + found.changed + found.new == len(new)
        assert len(found.differences) == found.changed + found.new + found.gone
        assert found.same == (Counter(map(repr, old)) == Counter(map(repr, new))) or found.changed
    assert compare_tables(old, new, 0).equal == (Counter(map(repr, old)) & Counter(map(repr, new))).total()


def test_the_words() -> None:
    """Counts come first, then the columns whose types differ, then the first differences, with what the record was."""
    given = [{"n": 1, "amount": 10}, {"n": 2, "amount": 1}, {"n": 3}]
    old = [of({"n": 1, "tax": 1}), of(), of({"n": 3, "tax": 0})]
    new = [of({"n": 1, "tax": 1.5}), of({"n": 2, "tax": 0.5}), Outcome(error=WRONG)]
    found = compare_records(given, old, new, most=10)
    trial = TaskTrial(
        **{name: getattr(found, name) for name in found.__struct_fields__},
        job="orders-abc123",
        task="price",
        functions=["price"],
        rows=3,
        types={"tax": ("int64", "double")},
        seconds=(0.5, 0.25),
    )
    assert trial_lines(trial) == [
        "price on the last 3 rows before task price of job orders-abc123",
        "          1  changed: tax in 1",
        "          1  new",
        "          1  raise now, and did not before",
        "  column tax: int64 -> double",
        "~ n 1, amount 10",
        "    tax: 1 -> 1.5",
        "+ n 2, tax 0.5",
        "! n 3",
        "    raises: function price raised KeyError: 'amount'",
        "the old version took 0.500 s here, the new one 0.250 s; nothing is committed or written",
    ]
