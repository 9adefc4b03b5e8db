"""The names of the columns that windows add to tables of rows and of entries."""

from __future__ import annotations

import pyarrow as pa

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
