"""Windows over the results of windows: whether these keep their bounds is decided by the two specs, and never by the rows."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from sardonyx import (
    Count,
    Job,
    calendar,
    counted,
    event_time,
    everything,
    generator,
    hopping,
    kafka,
    ordinal,
    session,
    tumbling,
)
from sardonyx.core.clocks import END, NEVER
from sardonyx.core.graph import graph_of
from sardonyx.core.spec import JobSpec
from sardonyx.core.timing import WindowSpec
from sardonyx.job.parse import read
from sardonyx.state.windows import Piece, WindowShard, entry_schema
from tests.core.dict_store import DictStore

OWN = ["own_window_start", "own_window_end"]


def spec_of(job: Job) -> JobSpec:
    spec, problems = read(job.data())
    assert problems == []
    return spec


def function(rows: pa.Table) -> pa.Table:
    return rows


def of_windows(inner: Any, outer: Any, time: Any = None) -> JobSpec:
    """Windows of whole rows over the results of others."""
    job = Job("bounds", partitions=1)
    rows = job.input("rows", generator(count=1), time=time or event_time("at"))
    first = job.window("first", inner, after=rows, aggregate={"n": Count()})
    job.output("out", kafka("out"), after=job.window("second", outer, after=first, fn=function))
    return spec_of(job)


def given(spec: JobSpec, times: list[str], same: bool) -> pa.Table:
    """What the function of the second windows is given."""
    inner, outer = (spec.task(name).window for name in ("first", "second"))
    assert inner is not None
    assert outer is not None
    rows = pa.table({"at": [round(dt.datetime.fromisoformat(at).timestamp()) * 1_000_000 for at in times]})
    results = _results(inner, rows, "at")
    return _results(outer, results, "window_time", same=same)


def _results(window: WindowSpec, rows: pa.Table, time: str, *, same: bool = False) -> pa.Table:
    store = DictStore(entry_schema(window, [], rows.schema))
    return (
        WindowShard(window, [], store, lambda rows: rows[time].cast(pa.int64()).to_numpy(), same=same)
        .plan([Piece(rows, NEVER)], END)
        .results
    )


@pytest.mark.parametrize(
    ("inner", "outer", "own"),
    [
        (tumbling("1 d"), calendar("day", zone="Europe/London"), True),
        (calendar("day"), calendar("day", zone="Europe/London"), True),
        (calendar("day", zone="Europe/London"), calendar("day", zone="Europe/London"), False),
        (tumbling("1 d"), tumbling("24 h"), False),
        (tumbling("2 h"), hopping("2 h", every="2 h"), False),
        (hopping("2 h", every="1 h"), tumbling("2 h"), True),
        (hopping("2 h", every="1 h"), hopping("2 h", every="1 h"), True),
        (session("1 h"), session("1 h"), True),
        (counted(1), everything(), False),
        (tumbling("1 d"), everything(), True),
    ],
    ids=repr,
)
def test_the_columns_do_not_depend_on_the_rows(inner: Any, outer: Any, own: bool) -> None:
    """In winter London's day is that of UTC, in summer it is not; and so with each row by itself."""
    winter, summer = ["2026-01-01T00:30:00Z", "2026-01-03T01:10:00Z"], ["2026-07-01T00:30:00Z", "2026-07-03T01:10:00Z"]
    spec = of_windows(inner, outer)
    (link,) = graph_of(spec, "d", "j").stage("second").ingress
    assert link.same_bounds != own
    for times in (winter, summer, winter[:1], summer[:1], winter + summer):
        names = given(spec, times, link.same_bounds).column_names
        assert [name for name in names if name in OWN] == (OWN if own else []), times
        if not own:  # what is not kept is nothing new
            kept = given(spec, times, False)
            assert [kept[name].to_pylist() for name in OWN] == [
                kept[name].to_pylist() for name in ("window_start", "window_end")
            ]


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"time": "at"}, False),
        ({"inner": {"fn": function}}, False),
        ({"between": True}, False),
        ({"late": True}, False),
        ({"second": True}, False),
    ],
    ids=lambda given: " ".join(given) or "none" if isinstance(given, dict) else str(given),
)
def test_only_results_that_come_straight_from_such_windows_have_them_once(change: dict[str, Any], same: bool) -> None:
    """A function may change the columns, late rows are in no window, and other rows beside them are in others."""
    job = Job("bounds", partitions=1)
    rows = job.input("rows", kafka("rows", start="earliest", schema="at timestamp"), time=event_time("at"))
    inner: Any = job.window(
        "inner",
        tumbling("1 h"),
        after=rows,
        aggregate={"at": Count()},
        late="edge" if change.get("late") else "drop",
        **change.get("inner", {}),
    )
    source = job.task("between", function, after=inner) if change.get("between") else inner
    after = [inner.late] if change.get("late") else [source, *([rows] if change.get("second") else [])]
    time = {"time": change["time"]} if "time" in change else {}
    job.output("out", kafka("out"), after=job.window("outer", tumbling("1 h"), after=after, fn=function, **time))
    stage = graph_of(spec_of(job), "d", "j").stage("outer")
    assert all(link.same_bounds for link in stage.ingress) == same


def test_numbers_of_rows_are_no_lengths_of_time() -> None:
    """Windows of an ordinal time have the same rule."""
    for outer, same in ((tumbling(10), True), (tumbling(20), False)):
        spec = of_windows(tumbling(10), outer, ordinal("nr"))
        assert [link.same_bounds for link in graph_of(spec, "d", "j").stage("second").ingress] == [same]
