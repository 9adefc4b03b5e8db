"""The shape of a store: its columns and their types. What was written with another shape is refused, and the difference told."""

from __future__ import annotations

import zlib
from collections.abc import Collection

import pyarrow as pa

from sardonyx.core.errors import InputError
from sardonyx.core.text import counted
from sardonyx.state.base import GONE


def shape_of(schema: pa.Schema) -> bytes:
    """A fingerprint of the columns: 8 hex digits."""
    return b"%08x" % zlib.crc32("\n".join(_columns(schema)).encode())


def refuse_other_shape(store: str, written: pa.Schema, schema: pa.Schema, where: dict[str, object]) -> None:
    """Compare what a block of the state log holds with what the store holds.

    Args:
        store: the name of the store.
        written: the schema of the block, with or without the column :data:`~sardonyx.state.base.GONE`.
        schema: that of the store.
        where: topic, partition and offset of the block.

    Raises:
        InputError: ``SX-STATE-SHAPE``.
    """
    old = [column for column in _columns(written) if column != f"{GONE} bool"]
    new = _columns(schema)
    if old == new:
        return
    removed = [column for column in old if column not in new]
    added = [column for column in new if column not in old]
    parts = [f"it has lost {', '.join(removed)}"] * bool(removed) + [f"it has got {', '.join(added)}"] * bool(added)
    raise InputError(
        "SX-STATE-SHAPE",
        f"the columns of the state {store!r} have changed since it was written",
        cause="; ".join(parts) or f"the order was {', '.join(old)} and is {', '.join(new)}",
        fix="give the task its columns back, or submit the job under another name, so that it begins without state",
        where=where,
    )


def unknown_store(name: str, stores: Collection[str], where: dict[str, object]) -> InputError:
    """What is kept has a store that the task does not have."""
    return InputError(
        "SX-STATE-SHAPE",
        f"the state holds a store {name!r}, which the task does not have",
        cause=f"the task has {counted(len(stores), 'store')}: {', '.join(sorted(stores))}",
        fix="give the task its state back, or submit the job under another name, so that it begins without state",
        where=where,
    )


def _columns(schema: pa.Schema) -> list[str]:
    return [f"{field.name} {field.type}" for field in schema]
