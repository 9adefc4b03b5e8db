"""Generated rows, for trials and measurements. A row depends only on the seed and on its own number.

The rows are therefore the same on every machine, in whatever pieces and whatever order they are read.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sardonyx.connectors.base import Split
from sardonyx.core import units
from sardonyx.core.errors import InputError

SPLIT_ROWS = 50_000
"""The most rows that are read in one go: one micro-batch."""
SMALLEST_PART = 5_000
"""A part with fewer rows than this is not worth a worker of its own: the worker costs more than it saves."""
SPLIT_SECONDS = 0.25
"""If there is a rate, the rows of this many seconds are read in one go."""

DEFAULT_COLUMNS: dict[str, dict[str, Any]] = {
    "id": {"kind": "sequence"},
    "key": {"kind": "key", "distinct": 1000},
    "value": {"kind": "number", "min": 0, "max": 1000},
    "at": {"kind": "moment", "start": "2026-01-01T00:00:00Z", "step": "1 ms"},
}
"""As JSON, a record has about 110 bytes."""

_Numbers = npt.NDArray[np.uint64]
_Maker = Callable[[_Numbers, _Numbers, Mapping[str, Any]], pa.Array]


class Generator:
    """An input that generates its rows.

    Args:
        options: ``count`` (rows), ``seed``, ``rate`` (rows a second), ``columns`` (name -> kind, or kind and its
            settings).

    Raises:
        InputError: ``SX-INPUT-OPTION`` if a column cannot be generated.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._count: int = options["count"]
        self._seed: int = options.get("seed", 0)
        self._rate: float | None = options.get("rate")
        given = options.get("columns") or DEFAULT_COLUMNS
        self._columns: dict[str, dict[str, Any]] = {
            name: {"kind": spec} if isinstance(spec, str) else dict(spec) for name, spec in given.items()
        }
        for name, spec in self._columns.items():
            _check(name, spec)

    def splits(self) -> Iterator[Split]:
        """Yield the rows in pieces, in order.

        If there is a rate, ``data["due"]`` says when a piece may be read, in seconds since the job began. The reader
        waits for that moment; :meth:`read` never waits.
        """
        size = SPLIT_ROWS
        if self._rate is not None:
            size = min(max(int(self._rate * SPLIT_SECONDS), 1), SPLIT_ROWS)
        for first in range(0, self._count, size):
            rows = min(size, self._count - first)
            data: dict[str, Any] = {"first": first, "count": rows}
            if self._rate is not None:
                data["due"] = round(first / self._rate, 3)
            yield Split(data, rows)

    def divide(self, data: dict[str, Any], most: int) -> list[dict[str, Any]]:
        """Divide a piece into smaller ranges of rows."""
        first, count = data["first"], data["count"]
        parts = min(most, max(1, count // SMALLEST_PART))
        edges = [first + count * n // parts for n in range(parts + 1)]
        return [{**data, "first": low, "count": high - low} for low, high in itertools.pairwise(edges)]

    def read(self, data: dict[str, Any]) -> pa.Table:
        """Generate the rows from ``first`` up to, but not including, ``first + count``."""
        numbers = np.arange(data["first"], data["first"] + data["count"], dtype=np.uint64)
        made = {
            name: _KINDS[spec["kind"]][0](numbers, _chances(numbers, self._seed, name), spec)
            for name, spec in self._columns.items()
        }
        return pa.table(made)


def _chances(numbers: _Numbers, seed: int, column: str) -> _Numbers:
    """Return 64 random-looking bits for each row.

    They are splitmix64's output function (Steele, Lea, Flood 2014), applied to the number of the row.
    """
    stream = hashlib.blake2b(f"{seed}/{column}".encode(), digest_size=8).digest()
    mixed = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(int.from_bytes(stream, "little"))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _shares(chances: _Numbers) -> npt.NDArray[np.float64]:
    """Turn random bits into numbers from 0 up to, but not including, 1. They use all 53 bits that a double has."""
    return (chances >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _below(chances: _Numbers, end: int) -> npt.NDArray[np.int64]:
    """Turn random bits into whole numbers from 0 up to, but not including, ``end``."""
    if end < 1:
        raise ValueError("there is nothing to choose from")
    return (chances % np.uint64(end)).astype(np.int64)


def _sequence(numbers: _Numbers, _: _Numbers, spec: Mapping[str, Any]) -> pa.Array:
    return pa.array(numbers.astype(np.int64) * spec.get("step", 1) + spec.get("start", 0))


def _key(_: _Numbers, chances: _Numbers, spec: Mapping[str, Any]) -> pa.Array:
    picked = pa.array(_below(chances, spec.get("distinct", 1000)))
    digits = pc.utf8_lpad(pc.cast(picked, pa.string()), 12, "0")
    return pc.binary_join_element_wise(spec.get("prefix", "customer-"), digits, "")


def _number(_: _Numbers, chances: _Numbers, spec: Mapping[str, Any]) -> pa.Array:
    low, high = float(spec.get("min", 0)), float(spec.get("max", 1))
    return pa.array(low + _shares(chances) * (high - low))


def _integer(_: _Numbers, chances: _Numbers, spec: Mapping[str, Any]) -> pa.Array:
    low, high = spec.get("min", 0), spec.get("max", 999)
    return pa.array(_below(chances, high - low + 1) + low)


def _boolean(_: _Numbers, chances: _Numbers, spec: Mapping[str, Any]) -> pa.Array:
    return pa.array(_shares(chances) < spec.get("share", 0.5))


def _choice(_: _Numbers, chances: _Numbers, spec: Mapping[str, Any]) -> pa.Array:
    of = spec["of"]
    return pa.array(of).take(pa.array(_below(chances, len(of))))


def _moment(numbers: _Numbers, _: _Numbers, spec: Mapping[str, Any]) -> pa.Array:
    start = datetime.fromisoformat(spec.get("start", "2026-01-01T00:00:00Z")).timestamp()
    step = units.seconds(spec.get("step", "1 ms"))
    made = round(start * 1_000_000) + numbers.astype(np.int64) * round(step * 1_000_000)
    return pa.array(made).cast(pa.timestamp("us", "UTC"))


_KINDS: dict[str, tuple[_Maker, tuple[str, ...]]] = {
    "sequence": (_sequence, ("start", "step")),
    "key": (_key, ("distinct", "prefix")),
    "number": (_number, ("min", "max")),
    "integer": (_integer, ("min", "max")),
    "boolean": (_boolean, ("share",)),
    "choice": (_choice, ("of",)),
    "moment": (_moment, ("start", "step")),
}
"""Kind -> the function that generates it, and its settings."""


def _check(name: str, spec: Mapping[str, Any]) -> None:
    kind = spec.get("kind")
    if kind not in _KINDS:
        raise _option(name, f"there is no kind {kind!r}", f"kinds are {', '.join(_KINDS)}")
    maker, settings = _KINDS[kind]
    unknown = [setting for setting in spec if setting not in ("kind", *settings)]
    if unknown:
        raise _option(name, f"kind {kind} has no setting {unknown[0]!r}", f"it has {', '.join(settings)}")
    none = np.zeros(1, np.uint64)
    try:
        maker(none, none, spec)
    except (ArithmeticError, KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise _option(name, f"its settings do not fit: {error!r}", f"kind {kind} has {', '.join(settings)}") from None


def _option(name: str, message: str, fix: str) -> InputError:
    return InputError("SX-INPUT-OPTION", f"generator: column {name!r} cannot be made: {message}", fix=fix)
