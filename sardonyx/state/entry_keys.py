"""The keys of a shard's entries: a start in eight bytes that sort as numbers do, and the canonical bytes of the key.

An entry of an open window or slice has the key ``ordered(start) + key``. What is not open has a prefix that sorts after all of
these: :data:`KEPT` and the same again for a closed window that is kept for late rows; :data:`INDEX` and the key for what is
found by key; :data:`MARK` alone for the one entry of the shard itself; :data:`WAITS` and a letter for how long its windows wait.
"""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sardonyx.state.groups import Column, Numbers, one

WAITS = b"\xff" * 8 + b"g"
"""See :mod:`sardonyx.state.waits`."""
KEPT = b"\xff" * 8 + b"k"
KEPT_END = b"\xff" * 8 + b"l"
INDEX = b"\xff" * 8 + b"x"
MARK = b"\xff" * 8 + b"z"
OPEN_END = b"\xff" * 8
"""Keys of entries of open windows are less than this."""
_FLIP = 1 << 63


def ordered(number: int) -> bytes:
    """A number of 64 bits as eight bytes that sort as numbers do. A number beyond 64 bits becomes the nearest within."""
    return struct.pack(">Q", min(max(number, -_FLIP), _FLIP - 1) + _FLIP)


def keys(starts: Numbers, canonical: Column, prefix: bytes = b"") -> pa.Array:
    """The keys of entries.

    Args:
        starts: of windows or slices.
        canonical: the canonical bytes of the keys, one for each start.
        prefix: :data:`KEPT` for windows that are closed.
    """
    flipped = (starts.astype(np.int64).view(np.uint64) ^ np.uint64(_FLIP)).astype(">u8")
    fixed = pa.Array.from_buffers(pa.binary(8), len(flipped), [None, pa.py_buffer(flipped.tobytes())])
    parts = [fixed.cast(pa.binary()), one(canonical)]
    return pc.binary_join_element_wise(
        *([pa.scalar(prefix, pa.binary())] if prefix else []), *parts, pa.scalar(b"", pa.binary())
    )


def indexed(canonical: Column) -> pa.Array:
    """The keys of entries that are found by key."""
    return pc.binary_join_element_wise(pa.scalar(INDEX, pa.binary()), one(canonical), pa.scalar(b"", pa.binary()))


def starts_of(entries: Column, skip: int = 0) -> Numbers:
    """The starts in the keys of entries. ``skip``: the length of their prefix."""
    array = one(entries)
    if not len(array):
        return np.zeros(0, np.int64)
    fixed = pc.binary_slice(array, skip, skip + 8).cast(pa.binary(8))
    raw = np.frombuffer(fixed.buffers()[1], ">u8", len(fixed), fixed.offset * 8)
    return (raw.astype(np.uint64) ^ np.uint64(_FLIP)).view(np.int64)


def canonical_of(entries: Column, skip: int = 0) -> pa.Array:
    """The canonical bytes of the keys in the keys of entries."""
    return pc.binary_slice(one(entries), skip + 8, 2**31 - 1)  # without a bound, Arrow 26.0 fails on short values
