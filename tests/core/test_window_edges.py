"""Windows where an example says more than a random history: days of 23 hours, overflow, bad input, types of results."""

import datetime as dt
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from queues.keys import canonical
from sardonyx.core.clocks import END, NEVER
from sardonyx.core.errors import FunctionError
from sardonyx.core.timing import AggregateSpec, WindowSpec
from sardonyx.state.calendars import Calendar
from sardonyx.state.combine import combine
from sardonyx.state.lists import ERROR
from sardonyx.state.windows import Piece, WindowShard, entry_schema
from tests.core.dict_store import DictStore

HOUR = 3_600_000_000
COUNT = {"n": AggregateSpec(of="count")}


def micro(text):
    return int(dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp()) * 1_000_000


def aggregated(rows, aggregate, times=None, keys=(), kind="everything", **window):
    """The final results of some rows, combined and not: they must agree."""
    spec = WindowSpec(kind=kind, aggregate=aggregate, **window)
    found = []
    for pieces in ([rows], [rows.slice(0, 1), rows.slice(1)], [combine(rows, times, spec, keys)]):
        store = DictStore(entry_schema(spec, keys, pieces[0].schema))
        shard = WindowShard(spec, keys, store, lambda rows: rows["at"].to_numpy() if times is not None else None)
        for piece in pieces:
            store.apply(shard.plan([Piece(piece, NEVER)], NEVER).changes)
        found.append(shard.plan([], END).results)
    assert repr(found[0].to_pylist()) == repr(found[1].to_pylist()) == repr(found[2].to_pylist())
    return found[0]


@pytest.mark.parametrize(
    ("unit", "time", "hours"),
    [
        ("day", "2026-03-29T12:00", 23),
        ("day", "2026-10-25T12:00", 25),
        ("day", "2026-10-26T12:00", 24),
        ("hour", "2026-10-25T00:30", 1),
        ("hour", "2026-10-25T01:30", 1),
        ("week", "2026-10-25T01:30", 7 * 24 + 1),
        ("month", "2026-03-29T12:00", 31 * 24 - 1),
        ("year", "2028-03-29T12:00", 366 * 24),
    ],
)
def test_a_unit_is_as_long_as_the_zones_clock_says(unit, time, hours):
    """Days have 23 and 25 hours where the clock is changed; an hour that comes twice is two windows."""
    calendar = Calendar(unit, "Europe/Berlin")
    starts = calendar.starts(np.array([micro(time)]))
    assert (calendar.ends(starts) - starts).tolist() == [hours * HOUR]


def test_times_far_apart_are_in_their_own_days():
    """A calendar finds the windows of times thousands of years apart, without those in between."""
    times = np.array([micro("0002-05-05T01:00"), micro("2026-01-01T00:00"), micro("9997-12-31T23:59")])
    starts = Calendar("day", "UTC").starts(times)
    assert starts.tolist() == (times // (24 * HOUR) * 24 * HOUR).tolist()
    with pytest.raises(FunctionError, match="no calendar has") as failure:
        Calendar("day", "UTC").starts(np.array([2**62]))
    assert failure.value.code == "SX-WINDOW-TIME"
    with pytest.raises(FunctionError) as failure:
        Calendar("day", "Europe/Nowhere")
    assert failure.value.code == "SX-WINDOW-ZONE"


def test_a_sum_of_integers_is_exact_or_an_error():
    """Sums use all 64 bits; one that does not fit is refused, in a block and when partials are merged."""
    total = {"total": AggregateSpec(of="sum", column="v")}
    top = 2**63 - 1
    assert aggregated(pa.table({"v": [top, -5, 5]}), total)["total"].to_pylist() == [top]
    assert aggregated(pa.table({"v": [top, -(2**63), 1]}), total)["total"].to_pylist() == [0]
    for values in ([top, 1], [-(2**63), -1]):
        with pytest.raises(FunctionError) as failure:
            aggregated(pa.table({"v": values}), total)
        assert failure.value.code == "SX-WINDOW-OVERFLOW"
    rows = pa.table({"v": [top]})
    spec = WindowSpec(kind="everything", aggregate=total)
    store = DictStore(entry_schema(spec, [], rows.schema))
    shard = WindowShard(spec, [], store)
    store.apply(shard.plan([Piece(rows, NEVER)], NEVER).changes)
    with pytest.raises(FunctionError) as failure:
        shard.plan([Piece(rows, NEVER)], NEVER)
    assert failure.value.code == "SX-WINDOW-OVERFLOW"


def test_a_sum_of_decimals_is_exact_or_an_error():
    """As many digits as the type can have, and none more: Arrow's own sum wraps around."""
    total = {"total": AggregateSpec(of="sum", column="v")}
    for kind, most in (
        (pa.decimal128(38, 18), "9" * 20),
        (pa.decimal128(10, 2), "9" * 8),
        (pa.decimal256(76, 0), "9" * 74),
    ):
        top, less = Decimal(most), Decimal(f"-{most}")  # a minus sign would round
        assert aggregated(pa.table({"v": pa.array([top, less, None, top], kind)}), total)["total"].to_pylist() == [top]
    wrapped = (pa.decimal128(38, 0), ["9" * 38, "9" * 38])
    for kind, values in (
        wrapped,
        (pa.decimal128(38, 18), ["9" * 20, "1"]),
        (pa.decimal256(76, 0), ["9" * 76, "9" * 76]),
    ):
        with pytest.raises(FunctionError) as failure:
            aggregated(pa.table({"v": pa.array([Decimal(value) for value in values], kind)}), total)
        assert failure.value.code == "SX-WINDOW-OVERFLOW"
    rows = pa.table({"v": pa.array([Decimal(wrapped[1][0])], wrapped[0])})
    spec = WindowSpec(kind="everything", aggregate=total)
    store = DictStore(entry_schema(spec, [], rows.schema))
    shard = WindowShard(spec, [], store)
    store.apply(shard.plan([Piece(rows, NEVER)], NEVER).changes)
    with pytest.raises(FunctionError) as failure:
        shard.plan([Piece(rows, NEVER)], NEVER)
    assert failure.value.code == "SX-WINDOW-OVERFLOW", "partials are merged"


@pytest.mark.parametrize(
    ("rows", "aggregate", "code"),
    [
        ({"v": [1]}, AggregateSpec(of="max", column="w"), "SX-WINDOW-COLUMN"),
        ({"v": ["x"]}, AggregateSpec(of="sum", column="v"), "SX-WINDOW-TYPE"),
        ({"v": ["x"]}, AggregateSpec(of="mean", column="v"), "SX-WINDOW-TYPE"),
        ({"v": [["x"]]}, AggregateSpec(of="quantile", column="v"), "SX-WINDOW-TYPE"),
        ({"v": [["x"]]}, AggregateSpec(of="min", column="v"), "SX-WINDOW-TYPE"),
        ({"v": [{"x": 1}]}, AggregateSpec(of="max", column="v"), "SX-WINDOW-TYPE"),
        ({"v": [["x"]]}, AggregateSpec(of="distinct", column="v"), "SX-WINDOW-TYPE"),
    ],
)
def test_what_cannot_be_aggregated_is_refused(rows, aggregate, code):
    """A missing column, and values that an aggregate has no meaning for, are errors with a code."""
    with pytest.raises(FunctionError) as failure:
        aggregated(pa.table(rows), {"found": aggregate})
    assert failure.value.code == code


def test_a_column_that_changes_its_type_is_refused():
    """State has the types of the first rows; wider ones that hold the values are cast, others are an error."""
    spec = WindowSpec(kind="everything", aggregate={"top": AggregateSpec(of="max", column="v")})
    store = DictStore(entry_schema(spec, [], pa.schema([("v", pa.int64())])))
    shard = WindowShard(spec, [], store)
    store.apply(shard.plan([Piece(pa.table({"v": pa.array([7], pa.int8())}), NEVER)], NEVER).changes)
    store.apply(shard.plan([Piece(pa.table({"v": [9.0]}), NEVER)], NEVER).changes)
    store.apply(shard.plan([Piece(pa.table({"v": pa.nulls(1)}), NEVER)], NEVER).changes)
    assert shard.plan([], END).results["top"].to_pylist() == [9]
    for value in ("ten", "10", True, dt.date(2026, 1, 1)):
        with pytest.raises(FunctionError) as failure:
            shard.plan([Piece(pa.table({"v": [value]}), NEVER)], NEVER)
        assert failure.value.code == "SX-COLUMN-TYPE"


DIGITS = Decimal("12345678901234567890123.45")


@pytest.mark.parametrize(
    ("held", "given"),
    [
        (0.5, DIGITS),
        (Decimal("1.45"), 1.005),
        (dt.date(2026, 1, 1), dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)),
        ([0.5], [DIGITS]),
        ({"a": 0.5}, {"a": DIGITS}),
    ],
)
def test_a_value_that_another_type_would_round_is_refused(held, given):
    """In a state, and among the rows of a window that a function gets. Arrow casts these without a word."""
    for aggregate in ({"last": AggregateSpec(of="last", column="v")}, {}):
        spec = WindowSpec(kind="everything", aggregate=aggregate)
        first, second = (Piece(pa.table({"v": pa.array([value])}), NEVER) for value in (held, given))
        shard = WindowShard(
            spec, [], DictStore(entry_schema(spec, [], first.rows.schema if aggregate else pa.schema([])))
        )
        with pytest.raises(FunctionError) as failure:
            shard.plan([first, second], END)
        assert failure.value.code == "SX-COLUMN-TYPE"


@pytest.mark.parametrize(
    ("held", "given"), [("10", 9), (["10"], [9]), ({"a": "10"}, {"a": 9}), ([{"a": 1}], [{"a": "1"}])]
)
def test_numbers_and_texts_do_not_become_each_other(held, given):
    """A state of texts takes no numbers and the other way round, also within lists and structures."""
    spec = WindowSpec(kind="everything", aggregate={"last": AggregateSpec(of="last", column="v")})
    first, second = pa.table({"v": [held]}), pa.table({"v": [given]})
    shard = WindowShard(spec, [], DictStore(entry_schema(spec, [], first.schema)))
    shard.plan([Piece(first, NEVER)], NEVER)
    with pytest.raises(FunctionError) as failure:
        shard.plan([Piece(second, NEVER)], NEVER)
    assert failure.value.code == "SX-COLUMN-TYPE"


def rows_of(spec, rows, *, same=False):
    """The rows that a function over windows is given, as lists by column."""
    shard = WindowShard(
        spec, [], DictStore(entry_schema(spec, [], rows.schema)), times=lambda rows: rows["t"].to_numpy(), same=same
    )
    return shard.plan([Piece(rows, NEVER)], END).results.to_pydict()


@pytest.mark.parametrize("kind", ["tumbling", "session", "counted", "everything"])
def test_the_windows_that_rows_come_from_are_kept(kind):
    """A function over hours sees which minute a row is of; of windows of windows of windows, too."""
    first, later = (dt.datetime(2026, 1, 1, 0, minute, tzinfo=dt.UTC) for minute in (0, 1))
    lengths = {"tumbling": {"size": "1 h"}, "session": {"gap": "1 h"}, "counted": {"size": 2}, "everything": {}}
    of_minute = {"window_start": [first], "window_end": [later], "own_window_start": ["mine"]}
    found = rows_of(WindowSpec(kind=kind, **lengths[kind]), pa.table({"t": [0], **of_minute}))
    assert [found[f"own_{name}"] for name in of_minute] == list(of_minute.values())
    bounds = {"tumbling": 3_600_000_000, "session": 3_600_000_000}.get(kind)
    assert found["window_end"] == [None if bounds is None else dt.datetime(1970, 1, 1, 1, tzinfo=dt.UTC)]


def test_rows_of_the_same_window_have_its_bounds_once():
    """A window of a minute over the results of the same minutes: there is nothing to keep."""
    start = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    rows = pa.table({"t": [0], "window_start": [start], "window_end": [start + dt.timedelta(minutes=1)], "n": [3]})
    spec = WindowSpec(kind="tumbling", size="1 min")
    assert list(rows_of(spec, rows, same=True)) == ["t", "n", "window_start", "window_end"]
    assert list(rows_of(spec, rows)) == ["t", "own_window_start", "own_window_end", "n", "window_start", "window_end"]


def test_keys_that_are_equal_are_one_key():
    """0.0 and -0.0 are one key, and so are all NaN."""
    rows = pa.table({"k": [0.0, -0.0, math.nan, -math.nan, 1.0]})
    assert sorted(aggregated(rows, COUNT, keys=["k"])["n"].to_pylist()) == [1, 2, 2]


def test_bounds_are_instants_or_ordinals():
    """Windows by time have bounds in UTC; those on an ordinal have integers; those without bounds have nulls."""
    rows = pa.table({"at": [61_000_000, 5]})
    found = aggregated(rows, COUNT, rows["at"].to_numpy(), kind="tumbling", size="1 min").sort_by("window_start")
    assert found.schema.field("window_start").type == pa.timestamp("us", "UTC")
    assert found["window_end"].cast(pa.int64()).to_pylist() == [60_000_000, 120_000_000]
    assert found["window_time"].cast(pa.int64()).to_pylist() == [59_999_999, 119_999_999]
    found = aggregated(rows, COUNT, rows["at"].to_numpy(), kind="tumbling", size=10).sort_by("window_start")
    assert found.select(["window_start", "window_end", "window_time"]).to_pylist()[0] == {
        "window_start": 0,
        "window_end": 10,
        "window_time": 9,
    }
    found = aggregated(rows, COUNT, rows["at"].to_numpy())
    assert found["window_start"].to_pylist() == [None]
    assert found["window_time"].cast(pa.int64()).to_pylist() == [61_000_000]
    assert aggregated(rows, COUNT)["window_time"].to_pylist() == [None]


def test_a_quantile_is_within_a_percent():
    """The sketch keeps its error over twelve orders of magnitude, and for negative and infinite values."""
    values = np.random.default_rng(7).lognormal(0, 5, 20_000)
    values[::3] *= -1
    values[:3] = [math.inf, -math.inf, 0.0]
    ranked = np.sort(values)
    for q in (0.0, 0.01, 0.33, 0.5, 0.9, 0.999, 1.0):
        spec = {"found": AggregateSpec(of="quantile", column="v", options={"q": q})}
        (found,) = aggregated(pa.table({"v": values}), spec)["found"].to_pylist()
        assert found == pytest.approx(ranked[math.floor(q * (len(values) - 1))], rel=ERROR * 1.0001)
    sizes = [combine(pa.table({"v": values}), None, WindowSpec(kind="everything", aggregate=spec), []).nbytes]
    assert sizes[0] < 60_000


@pytest.mark.parametrize(
    "values", [[1.0, math.inf], [math.inf] * 3, [math.inf, -math.inf, 1.0], [1e308, -1e308, 0.0], [1.7e308] * 2]
)
def test_infinite_values_are_aggregated_quietly(values):
    """They have no finite variance, and numpy does not warn of it, however the rows are cut."""
    names = ("var", "mean", "sum", "min", "max", "distinct", "quantile")
    spec = {of: AggregateSpec(of=of, column="v", options={"q": 0.5} if of == "quantile" else {}) for of in names}
    (row,) = aggregated(pa.table({"v": values}), spec).to_pylist()
    assert not math.isfinite(row["var"])
    assert (row["min"], row["max"], row["distinct"]) == (min(values), max(values), len(set(values)))


def test_dictionary_columns_are_read_as_their_values():
    """Keys and values may come dictionary-encoded."""
    rows = pa.table(
        {"k": pa.array(["a", "b", "a"]).dictionary_encode(), "v": pa.array(["x", "y", "z"]).dictionary_encode()}
    )
    found = aggregated(rows, {"last": AggregateSpec(of="last", column="v")}, keys=["k"]).sort_by("k")
    assert found["last"].to_pylist() == ["z", "y"]


@pytest.mark.parametrize("spread", [1, 700, 10**9])
def test_large_blocks_are_combined_by_key_and_slice(spread):
    """Each key and slice has one partial row, with the first row's key, however far apart the times are."""
    chance = np.random.default_rng(spread)
    keys, times = chance.integers(0, 300, 5_000), chance.integers(-spread, spread, 5_000) * 1_000_000
    rows = pa.table({"k": keys, "v": chance.integers(0, 100, 5_000)})
    aggregate = {"n": AggregateSpec(of="count"), "total": AggregateSpec(of="sum", column="v")}
    partial = combine(rows, times, WindowSpec(kind="tumbling", size="1 s", aggregate=aggregate), ["k"])
    wanted = {}
    for key, time, value in zip(keys.tolist(), times.tolist(), rows["v"].to_pylist(), strict=True):
        count, total = wanted.get((key, time // 1_000_000 * 1_000_000), (0, 0))
        wanted[key, time // 1_000_000 * 1_000_000] = count + 1, total + value
    assert {(row["k"], row["sx_slice"]): (row["n.count"], row["total.sum"]) for row in partial.to_pylist()} == wanted
    assert partial.num_rows == len(wanted)
    assert partial["sx_key"].to_pylist() == [canonical(key) for key in partial["k"].to_pylist()]
