"""Conditions of edges that Sardonyx itself sets."""

from __future__ import annotations

import pyarrow as pa


def nothing(rows: pa.Table) -> pa.Array:
    """No row: what stands on the queue can be read to its end (:func:`sardonyx.core.changing.draining`)."""
    return pa.repeat(pa.scalar(False), rows.num_rows)
