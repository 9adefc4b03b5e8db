"""Rows on an internal link: an Arrow record batch as one Kafka message. Pure.

A block is an Arrow IPC stream with one batch, whose buffers are compressed with LZ4. Every link can afford a durable
queue because a message holds many rows: the cost in Kafka, the client and Python is per message, not per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from queues.shown_values import records
from sardonyx.core.column_types import together
from sardonyx.core.errors import OutputError, SardonyxError, refuse_newer

MAX_BYTES = 900_000
"""Largest value of a message in bytes. By default, librdkafka and brokers accept messages up to 1,000,000 bytes."""

TARGET_BYTES = 1 << 20
"""Target size of a block in bytes, uncompressed.

It is large enough to keep the cost per message small, and small enough to spread rows over partitions.
"""

FORMAT = 2
"""Version of the form of a block. Blocks of version 1 do not say it; later ones say it in the metadata of their schema. One
of version 2 holds nothing, and stands in the place of a row that is too large."""

_FORMAT_KEY = b"sx-format"
_CLOCKS_KEY = b"sx-clocks"
"""In the metadata of a block's schema, of some: the clock in force before each of its rows. Others do not see it."""

Clocks = npt.NDArray[np.int64]

_CODEC = pa.Codec("lz4_raw")
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")
_SMALL = 64 * 2**10
"""Bytes of a block, or of a table, up to which other threads have no part in it: to wake them takes longer than the work."""
_ALONE = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False), pa.ipc.IpcReadOptions(use_threads=False)


class Block(NamedTuple):
    """The rows of one message, encoded."""

    value: bytes
    rows: int
    refused: SardonyxError | None = None
    """Why its reader does not take the row; also where the block stands in the place of one that is too large, and holds
    nothing."""


def encode(
    table: pa.Table,
    max_bytes: int = MAX_BYTES,
    max_rows: int | None = None,
    *,
    max_row: int | None = None,
    clocks: Clocks | None = None,
    leave_out: bool = False,
    made_of: pa.Table | None = None,
) -> list[Block]:
    """Cut a table into blocks, in order. An empty table gives no block.

    Args:
        table: the rows.
        max_bytes: of a block with several rows.
        max_rows: the batch size of the task that reads the blocks, because a reader takes whole blocks.
        max_row: bytes of a block with one row; None: ``max_bytes``.
        clocks: the clock in force before each row, for readers that judge each row by its own; None: blocks do not say it.
        leave_out: whether a block that holds nothing takes the place of a single row that does not fit.
        made_of: the row that the only one was made of, for the error; None: itself.

    Raises:
        OutputError: ``SX-RECORD-TOO-LARGE``, a single row does not fit.
    """
    if table.num_rows == 0:
        return []
    rows = max(1, table.num_rows * TARGET_BYTES // max(table.nbytes, 1))
    rows = rows if max_rows is None else min(rows, max_rows)
    cuts = [(start, min(start + rows, table.num_rows)) for start in range(0, table.num_rows, rows)]
    blocks: list[Block] = []
    while cuts:
        start, stop = cuts.pop(0)
        piece = table.slice(start, stop - start)
        value = _to_ipc(piece if clocks is None else _saying(piece, clocks[start:stop]))
        if len(value) <= (max_bytes if piece.num_rows > 1 else max_row or max_bytes):
            blocks.append(Block(value, piece.num_rows))
        elif piece.num_rows > 1:
            middle = start + piece.num_rows // 2
            cuts[:0] = [(start, middle), (middle, stop)]
        else:
            error = record_too_large(
                len(value), max_row or max_bytes, records(piece if made_of is None else made_of)[0]
            )
            if not leave_out:
                raise error
            blocks.append(Block(_NOTHING, 1, error))
    return blocks


def decode(values: Sequence[bytes]) -> pa.Table:
    """Decode blocks into one table, with the rows in order.

    Blocks may differ in schema, because a per-record function may omit a field. This function matches columns by name,
    widens types by the rule of :mod:`sardonyx.core.column_types`, and fills missing columns with null.

    Raises:
        SetupError: ``SX-BLOCK-FORMAT``, a newer release wrote a block.
        FunctionError: ``SX-COLUMN-TYPE``, a column has types that do not go together.
    """
    return together([_read(value) for value in values])


def decode_clocked(value: bytes) -> tuple[pa.Table, Clocks | None]:
    """The rows of one block, and the clock in force before each of them, if the block says it. Raises as :func:`decode`."""
    table = _read(value)
    said = (table.schema.metadata or {}).get(_CLOCKS_KEY)
    if said is None:
        return table, None
    table = table.replace_schema_metadata({k: v for k, v in table.schema.metadata.items() if k != _CLOCKS_KEY} or None)
    steps = np.frombuffer(_CODEC.decompress(said, decompressed_size=8 * table.num_rows), np.uint8)
    return table, np.cumsum(steps.reshape(8, -1).T.copy().view(np.int64).ravel())


def record_too_large(size: int, limit: int, record: object) -> OutputError:
    """Build the error for a record that is too large for any message."""
    shown = repr(record)
    return OutputError(
        "SX-RECORD-TOO-LARGE",
        f"a record takes {size:,} bytes, and a message holds at most {limit:,}",
        cause=f"the record begins {shown[:200]}",
        fix="make the function give smaller records, or raise message.max.bytes on the broker, the topic's "
        'max.message.bytes and `"message.max.bytes"` under [kafka] in the settings',
    )


def _read(value: bytes) -> pa.Table:
    stream = pa.ipc.open_stream(value, options=_ALONE[1] if len(value) <= _SMALL else None)
    refuse_newer("rows", int((stream.schema.metadata or {}).get(_FORMAT_KEY, 1)), FORMAT)
    return stream.read_all()


def _saying(piece: pa.Table, clocks: Clocks) -> pa.Table:
    """Clocks mostly rise by little. What is kept are the differences: all first bytes, then all second ones, and so on."""
    steps = np.diff(clocks, prepend=np.int64(0))
    packed = _CODEC.compress(steps.view(np.uint8).reshape(-1, 8).T.tobytes(), asbytes=True)
    return piece.replace_schema_metadata({**(piece.schema.metadata or {}), _CLOCKS_KEY: packed})


def _to_ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_ALONE[0] if table.nbytes <= _SMALL else _OPTIONS) as stream:
        for batch in table.combine_chunks().to_batches():
            stream.write_batch(batch)
    return bytes(sink.getvalue())


_NOTHING = _to_ipc(pa.table({}).replace_schema_metadata({_FORMAT_KEY: b"2"}))
"""A block that stands in the place of a row."""
