"""Windows against a twin that loops over all rows: the same results and the same late rows, however the log is cut."""

import datetime as dt
import math
import os
import random
from collections import Counter
from decimal import Decimal

import pyarrow as pa
import pytest

from sardonyx.core.clocks import END, NEVER
from sardonyx.core.timing import AggregateSpec, WindowSpec, combines
from sardonyx.state import counted, hopping, sessions, timed
from sardonyx.state.combine import combine
from sardonyx.state.memory import MemoryStore
from sardonyx.state.overlay import Overlay
from sardonyx.state.times import times_of
from sardonyx.state.windows import Piece, WindowShard, entry_schema
from tests.core.dict_store import DictStore
from tests.core.window_twin import Twin
from tests.sizes import as_asked

SEED = int(os.environ.get("SARDONYX_SEED", "20261125"))
HISTORIES = as_asked(5, whole=84)
"""Logs for each kind of window. ``make test-all`` plays 84 for each: 20,160 histories. ``SARDONYX_HISTORIES=2000`` for a long
run."""
SHARES = 5
"""Tests over which the logs of a kind are spread: several processes run them."""
GROUPS = 40
"""Groups of keys in a log. What a key gives depends on its own rows and on the clocks, so the rows of each group are a history of
their own; the groups of a log share its window, its clocks and how it is cut."""
HOUR = 3_600_000_000
CHANGES_OF_CLOCKS = {
    "Europe/Berlin": dt.datetime(2026, 10, 25, tzinfo=dt.UTC),
    "America/Sao_Paulo": dt.datetime(2017, 10, 15, tzinfo=dt.UTC),
    "Asia/Kolkata": dt.datetime(2026, 12, 31, tzinfo=dt.UTC),
    "Pacific/Apia": dt.datetime(2011, 12, 30, tzinfo=dt.UTC),
}
AGGREGATES = {
    "rows": AggregateSpec(of="count"),
    "hits": AggregateSpec(of="count", column="n"),
    "n_sum": AggregateSpec(of="sum", column="n"),
    "x_sum": AggregateSpec(of="sum", column="x"),
    "d_sum": AggregateSpec(of="sum", column="d"),
    "n_min": AggregateSpec(of="min", column="n"),
    "x_max": AggregateSpec(of="max", column="x"),
    "s_min": AggregateSpec(of="min", column="s"),
    "s_max": AggregateSpec(of="max", column="s"),
    "x_mean": AggregateSpec(of="mean", column="x"),
    "n_var": AggregateSpec(of="var", column="n"),
    "s_first": AggregateSpec(of="first", column="s"),
    "n_last": AggregateSpec(of="last", column="n"),
    "s_distinct": AggregateSpec(of="distinct", column="s"),
    "n_distinct": AggregateSpec(of="distinct", column="n", options={"most": 3}),
    "x_half": AggregateSpec(of="quantile", column="x", options={"q": 0.5}),
    "n_most": AggregateSpec(of="quantile", column="n", options={"q": 0.9}),
    "s_list": AggregateSpec(of="collect", column="s"),
    "n_list": AggregateSpec(of="collect", column="n", options={"most": 4}),
}
KINDS = ["tumbling", "hopping", "calendar", "everything", "session", "counted"]
QUANTILES = {"x_half", "n_most"}


# --- Histories --------------------------------------------------------------------------------------------------------


class History:
    """A random window and a random log: blocks, each with the clock in force before it, and the clock after it.

    Its rows are of :data:`GROUPS` groups of keys, each with rows and times of its own.
    """

    def __init__(self, seed, kind, rows=False):
        self.rows = rows
        self.chance = random.Random(seed)
        self.unit = 1
        self.base = self.chance.choice([0, -50, 1000])
        self.window = self._window(kind)
        self.blocks = self._log()

    def _window(self, kind):
        chance = self.chance
        sizes = {"tumbling": {"size": chance.choice([1, 7, 10, 60])}, "everything": {}}
        sizes["hopping"] = {"size": chance.choice([6, 10, 20]), "every": chance.choice([2, 3, 4, 5, 8, 25])}
        sizes["session"] = {"gap": chance.choice([1, 4, 10]), "most": chance.choice([None, None, 12, 30])}
        sizes["counted"] = {"size": chance.choice([1, 3, 5]), "every": chance.choice([None, 1, 2, 5, 7])}
        if kind == "calendar":
            zone = chance.choice(list(CHANGES_OF_CLOCKS))
            unit = chance.choice(["hour", "day", "week", "month", "year"])
            unit = "day" if unit == "hour" and zone == "Pacific/Apia" else unit
            sizes["calendar"] = {"unit": unit, "zone": zone}
            self.base = int(CHANGES_OF_CLOCKS[zone].timestamp()) * 1_000_000
            self.unit = {"hour": HOUR // 8, "day": HOUR, "week": 6 * HOUR, "month": 24 * HOUR, "year": 300 * HOUR}[unit]
        names = chance.sample(list(AGGREGATES), chance.randint(1, 6))
        every = max(1, 7 * self.unit)
        keep = kind not in {"session", "counted", "everything"} and chance.random() < 0.4
        if self.rows:
            return WindowSpec(kind=kind, grace=chance.choice([0, 5]) * self.unit, **sizes[kind])
        return WindowSpec(
            kind=kind,
            aggregate={name: AGGREGATES[name] for name in names},
            emit=chance.choice(["final", "final", "changes", "count 3", f"every {every}"]),
            accumulate=chance.random() < 0.6,
            grace=chance.choice([0, 0, 5]) * self.unit,
            allowed_lateness=chance.choice([4, 20]) * self.unit if keep else 0,
            **sizes[kind],
        )

    def _log(self):
        chance, blocks, clock, now = self.chance, [], NEVER, self.base
        disorder = chance.choice([1, 10, 40])
        for _ in range(chance.randint(1, 12)):
            rows = []
            for _ in range(chance.choice([0, 1, 3, 8])):
                now += chance.choice([0, 0, 1, 3])
                rows += [
                    self._row(group, self._time(now - chance.randint(0, disorder)))
                    for group in range(GROUPS)
                    if chance.random() < 0.8
                ]
            before = clock
            if chance.random() < 0.6:
                clock = max(clock, self._time(now - chance.choice([0, 3, 15])))
            blocks.append((rows, before, clock))
            if chance.random() < 0.1:
                now += 50
        rows, before, _ = blocks[-1]
        blocks[-1] = (rows, before, END)
        return blocks

    def _time(self, number):
        return (number - self.base) * self.unit + self.base

    def _row(self, group, time):
        chance = self.chance
        name = chance.choice(["a", "b", None, "ü"])
        return {
            "key": f"{name or ''}{group}" if group else name,
            "at": time,
            "n": chance.choice([None, 1, 2, -3, 10**9]),
            "x": chance.choice([None, 0.5, -2.25, 1e6, 0.0, 7.0, math.nan]),
            "d": chance.choice([None, Decimal("1.25"), Decimal("-0.50")]),
            "s": chance.choice([None, "x", "y", "", "zz"]),
        }


SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("at", pa.int64()),
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("d", pa.decimal128(9, 2)),
        ("s", pa.string()),
    ]
)


def cut(history, chance):
    """The blocks of a history in batches: the rows and clocks in force of each, and the clock after it."""
    batch = []
    for rows, before, after in history.blocks:
        batch.append((rows, before))
        if after == END or chance.random() < 0.5:
            yield batch, after
            batch = []
            if chance.random() < 0.1:
                yield [], after


class Run:
    """The shard under test, with crashes: plans that are not applied, and stores that are made again from all changes."""

    def __init__(self, window, chance, combined):
        self.window, self.chance, self.combined = window, chance, combined
        self.schema = entry_schema(window, ["key"], SCHEMA)
        self.changes = []
        self.blocks = 0
        self._restart()

    def _restart(self):
        self.store = self.chance.choice([DictStore, MemoryStore])(self.schema)
        for changes in self.changes:
            self.store.apply(changes)
        self.shard = WindowShard(self.window, ["key"], self.store, lambda rows: times_of(rows["at"], ordinal=True)[0])

    def plan(self, batch, clock):
        pieces = [Piece(self._rows(rows), before) for rows, before in batch]
        results, late = [], []
        while True:
            limit = self.chance.choice([None, 1, 3])
            planned = self.shard.plan(pieces, clock, limit)
            if self.chance.random() < 0.2:
                self._restart()
                again = self.shard.plan(pieces, clock, limit)
                assert all(
                    repr(old.to_pylist()) == repr(new.to_pylist())
                    for old, new in zip(planned[:3], again[:3], strict=True)
                )
            results += planned.results.to_pylist()
            for row in planned.late.to_pylist():
                rows = pieces[row["piece"]].rows
                weight = rows["sx_rows"][row["row"]].as_py() if "sx_rows" in rows.column_names else 1
                late += [(self.blocks + row["piece"], *list(row.values())[1:])] * weight
            self.store.apply(planned.changes)
            self.changes.append(planned.changes)
            if not planned.more:
                break
            pieces = []
        self.blocks += len(batch)
        return list(map(plain, results)), late

    def _rows(self, rows):
        table = pa.Table.from_pylist(rows, schema=SCHEMA)
        if not self.combined or self.chance.random() < 0.3:
            return table
        return combine(table, table["at"].to_numpy(), self.window, ["key"])


def plain(row):
    """A row of results with its times as integers."""
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return {
        name: (value - epoch) // dt.timedelta(microseconds=1) if isinstance(value, dt.datetime) else value
        for name, value in row.items()
    }


def same(found, wanted):
    """Whether two rows of results are the same, but for rounding and the error of quantiles."""
    return found.keys() == wanted.keys() and all(_same(name, found[name], wanted[name]) for name in wanted)


def _same(name, found, wanted):
    if name in QUANTILES and wanted is not None:
        return _near(found, wanted, 0.0101)
    if isinstance(wanted, float):
        return _near(found, wanted, 1e-9)
    return found == wanted


def _near(found, wanted, rel):
    """As ``pytest.approx(wanted, rel=rel, nan_ok=True)``, which takes half of the time of a comparison."""
    if found == wanted:
        return True
    if not isinstance(found, int | float) or math.isnan(wanted):
        return isinstance(found, float) and math.isnan(found)
    return math.isfinite(wanted) and abs(found - wanted) <= max(rel * abs(wanted), 1e-12)


def order(row):
    """Sorts rows that the shard and the twin gave in the same way. The values of quantiles differ by more than their error."""
    if "pane" not in row:
        return sorted((name, repr(value)) for name, value in row.items())
    exact = {
        name: f"{value:.9g}" if isinstance(value, float) else value
        for name, value in row.items()
        if name not in QUANTILES
    }
    near = [(value is None, value != value, value or 0) for name, value in sorted(row.items()) if name in QUANTILES]  # noqa: PLR0124
    bounds = (row["window_start"] or 0, row["window_end"] or 0, row["pane"], row["window_time"] or 0)
    return repr(row["key"]), *bounds, sorted((name, repr(value)) for name, value in exact.items()), near


def check(history, seed, combined):
    """One cut of a history through the shard and the twin. Returns the final results and the late rows."""
    chance = random.Random(seed)
    run, twin = Run(history.window, chance, combined), Twin(history.window)
    finals, lates = [], []
    for batch, clock in cut(history, chance):
        found, late = run.plan(batch, clock)
        wanted, wanted_late = twin.plan(batch, clock)
        compare(found, wanted)
        if combined:
            assert Counter((row[0], *row[2:]) for row in late) == Counter((row[0], *row[2:]) for row in wanted_late)
        else:
            assert late == wanted_late or sorted(late, key=repr) == sorted(wanted_late, key=repr)
        finals += [row for row in found if history.rows or row["final"] or history.window.emit == "final"]
        lates += late
    assert not run.store.scan(b"", b"\xff" * 8).num_rows, "entries of windows that have closed"
    return finals, lates


def compare(found, wanted):
    if len(found) == len(wanted) and all(map(same, found, wanted)):
        return  # often they come in the same order
    found, wanted = sorted(found, key=order), sorted(wanted, key=order)
    assert len(found) == len(wanted), (found, wanted)
    for one, other in zip(found, wanted, strict=True):
        assert same(one, other), (one, other)


def examined(kind, numbers, rows=False):
    for number in numbers:
        seed = f"{SEED}-{kind}-{number}"
        history = History(seed, kind, rows)
        try:
            finals, lates = check(history, seed, combined=False)
            for cutting in (f"{seed}-2", f"{seed}-3"):
                combined = combines(history.window) and cutting.endswith("3")
                others, other_lates = check(history, cutting, combined)
                if history.window.emit == "final":
                    compare(others, finals)
                assert len(other_lates) == len(lates)
        except BaseException:
            print(f"seed {seed}: {history.window}")  # noqa: T201 - what a failure needs to be repeated
            raise


# --- Tests ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("kind", KINDS)
def test_every_cut_of_a_log_gives_what_the_twin_gives(kind, share):
    """Results and late rows depend on the log alone: batches, crashes, limits and combining change nothing."""
    examined(kind, range(share, HISTORIES, SHARES))


@pytest.mark.parametrize("kind", KINDS)
def test_a_window_with_a_function_gives_all_its_rows(kind):
    """Without aggregates the rows of the windows that close come out, whole windows at a time."""
    examined(kind, range(HISTORIES // 4 + 1), rows=True)


def judge_by_the_batch(monkeypatch):
    """Rows are late by the clock after their batch, and not by their place in the log."""
    sort, plan = timed.TimeWindows._sort, timed.TimeWindows.plan

    def sorted_late(self, number, piece, found):
        sort(self, number, piece._replace(in_force=self.clock), found)

    def planned(self, pieces, clock, limit, now):
        self.clock = clock
        return plan(self, pieces, clock, limit, now)

    monkeypatch.setattr(timed.TimeWindows, "_sort", sorted_late)
    monkeypatch.setattr(timed.TimeWindows, "plan", planned)


def forget_which_windows_closed(monkeypatch):
    """Hopping windows close again as long as their slices are there."""
    monkeypatch.setattr(hopping.HoppingSlices, "_mark", lambda self, state: (-(2**63), None))


def let_closed_sessions_take_rows(monkeypatch):
    """A session that the clock has closed, and no plan yet, takes rows."""
    held = sessions.SessionWindows._held
    monkeypatch.setattr(
        sessions.SessionWindows, "_held", lambda self, state, keys, clock: held(self, state, keys, NEVER)
    )


def number_rows_by_batch(monkeypatch):
    """Counted windows forget how many rows a key had in the batches before."""
    numbered = counted.CountedWindows._numbered
    monkeypatch.setattr(
        counted.CountedWindows,
        "_numbered",
        lambda self, state, *rows: numbered(self, Overlay(DictStore(state.schema)), *rows),
    )


@pytest.mark.parametrize(
    ("kind", "defect"),
    [
        ("tumbling", judge_by_the_batch),
        ("hopping", forget_which_windows_closed),
        ("session", let_closed_sessions_take_rows),
        ("counted", number_rows_by_batch),
    ],
)
def test_a_planted_defect_is_found(monkeypatch, kind, defect):
    """With a defect in the windows, the histories fail: they reach what they are meant to show."""
    defect(monkeypatch)
    with pytest.raises(AssertionError):
        examined(kind, range(400))
