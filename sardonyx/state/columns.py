"""The columns that tasks with state add to tables of rows and of entries."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from sardonyx.state.groups import Column

OWN = "own_"
"""A column of the rows that is called as one that is added has this before its name."""

SX_KEY = "sx_key"
"""Of partial rows: the canonical bytes of the key."""
SLICE = "sx_slice"
"""Of partial rows: the start of the slice."""
FIRST, LAST, ROWS = "sx_first", "sx_last", "sx_rows"
"""Of partial rows and entries: the least and the greatest time, and the number of rows."""
PANE, NEW = "sx_pane", "sx_new"
"""Of entries: how many results the window has given, and how many rows it has had since the last one."""
KEY_PART = "key:"
"""The names of the key's columns in entries begin with this: a key may be named as one of the columns here."""
START, ENDS = "sx_start", "sx_ends"
"""Of entries of sessions: when a session begins; the ends of a key's sessions."""
LATE = pa.schema(
    [
        ("piece", pa.int64()),
        ("row", pa.int64()),
        ("window_start", pa.int64()),
        ("window_end", pa.int64()),
        ("late_by", pa.int64()),
    ]
)
"""The columns of tables of late rows; see :class:`~sardonyx.state.planned.Planned`."""


def with_columns(rows: pa.Table, added: Mapping[str, Column]) -> pa.Table:
    """Rows with further columns. Their own columns with these names are kept, with :data:`OWN` before the name."""
    names = rows.column_names
    for name in added:
        _set_aside(names, name)
    return pa.table([*rows.columns, *added.values()], names=[*names, *added])


def _set_aside(names: list[str], name: str) -> None:
    if name in names:
        _set_aside(names, OWN + name)
        names[names.index(name)] = OWN + name
