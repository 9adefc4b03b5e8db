"""Converts pandas frames to Arrow tables. Columns of objects follow the rule of records: see :mod:`sardonyx.connectors.records`.

Arrow alone takes the type of such a column from its first values, so it makes a date of a moment, and takes a time without a
zone for UTC. All other columns have a type, and Arrow is given them as they are.

Missing values. pandas writes them as ``None``, ``NaN``, ``NaT`` and ``NA``, and so do numpy's arrays, which have nothing but
``NaN`` for a number that is not there: all of these become null, also in lists and dicts. A column of an Arrow type has both, a
null and NaN, and keeps both.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from sardonyx.connectors.records import PLAIN, UnfitColumn, array_of, known_types

if TYPE_CHECKING:  # the import takes half a second, which most workers need not spend
    import pandas as pd

Typed = Callable[[str, list[Any]], pa.Array]
"""Makes a column of its name and its values, with None where there is none."""


def to_table(frame: pd.DataFrame, typed: Typed) -> pa.Table:
    """Convert a frame to a table. Its index is left out.

    Args:
        frame: with columns of any kind.
        typed: makes columns of objects.

    Raises:
        ArrowException, ValueError, TypeError, OverflowError: a column cannot be converted, or two have one name.
        UnfitColumn: a value of a column of objects has no type; and what ``typed`` raises.
    """
    places = [place for place, kind in enumerate(frame.dtypes) if _is_of_objects(kind)]
    if not places:
        return pa.Table.from_pandas(frame, preserve_index=False)
    names = pa.Table.from_pandas(frame.iloc[:0], preserve_index=False).column_names
    others = [place for place in range(len(names)) if place not in places]
    converted = dict(
        zip(others, pa.Table.from_pandas(frame.iloc[:, others], preserve_index=False).columns, strict=True)
    )
    columns = [
        converted[place] if place in converted else _of_objects(names[place], frame.iloc[:, place], typed)
        for place in range(len(names))
    ]
    return pa.Table.from_arrays(columns, names=names)


def by_rule(like: pa.Schema) -> Typed:
    """Makes columns of the type that they had in rows like these, or of one that holds their values: see ``array_of``."""
    known = known_types(like)
    return lambda name, values: array_of(name, values, known.get(name))


def objects(column: Any) -> list[Any] | None:
    """The values of a column of objects, of pandas or of numpy, with None for each that is missing; None: it has a type."""
    if not _is_of_objects(column.dtype):
        return None
    if getattr(column.dtype, "categories", None) is not None:
        column = column.astype(object)
    return without_missing(list(column))


def without_missing(values: list[Any]) -> list[Any]:
    """The values, with None for each that pandas calls missing, also in lists and dicts."""
    classes = set(map(type, values))
    if classes <= _PRESENT:
        return values
    if any(issubclass(each, _LOOKED_INTO) for each in classes):
        return [_present(value) for value in values]
    import pandas as pd

    held = np.empty(len(values), object)
    held[:] = values
    missing = pd.isna(held)
    return [None if gone else value for value, gone in zip(values, missing.tolist(), strict=True)]


_OBJECT = np.dtype(object)


def _is_of_objects(kind: Any) -> bool:
    categories = getattr(kind, "categories", None)
    return bool((kind if categories is None else categories.dtype) == _OBJECT)


def _of_objects(name: str, column: pd.Series, typed: Typed) -> pa.Array:
    if getattr(column.dtype, "categories", None) is not None:
        codes = column.cat.codes.to_numpy()
        categories = _of_values(name, list(column.cat.categories), typed)
        return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), categories)
    return _of_values(name, column.tolist(), typed)


def _of_values(name: str, values: list[Any], typed: Typed) -> pa.Array:
    if _of_one_array_type(values):
        try:
            return pa.array(values, from_pandas=True)
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise UnfitColumn(f"a value of field {name!r} has no type: {error}") from error
    return typed(name, without_missing(values))


def _of_one_array_type(values: list[Any]) -> bool:
    """Whether they are arrays of numpy with one type: Arrow is given these as they are, which is a hundred times as fast."""
    found = {value.dtype if isinstance(value, np.ndarray) else type(value) for value in values if value is not None}
    return len(found) == 1 and isinstance(kind := found.pop(), np.dtype) and kind != _OBJECT


_PRESENT = {*PLAIN, type(None)} - {float, Decimal}
"""Classes without a value that stands for a missing one, but None."""
_LOOKED_INTO = (dict, list, tuple, set, frozenset, np.ndarray, Decimal)
"""Classes with values in them, of which pandas does not say whether they are missing, and one that it cannot always compare."""


def _present(value: Any) -> Any:
    """A value, without what is missing in it; None if it is missing itself."""
    if isinstance(value, dict):
        return {key: _present(item) for key, item in value.items()}
    if isinstance(value, list | set | frozenset):
        return without_missing(list(value))
    if isinstance(value, tuple) and not isinstance(value, pa.MonthDayNano):
        return tuple(without_missing(list(value)))
    if isinstance(value, np.ndarray):
        return without_missing(list(value) if value.dtype.kind in "mM" else value.tolist())
    return None if _is_missing(value) else value


def _is_missing(value: Any) -> bool:
    if isinstance(value, float | np.floating):
        return bool(np.isnan(value))
    if isinstance(value, Decimal):
        return value.is_nan()
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value))
    return type(value).__name__ in ("NAType", "NaTType")
