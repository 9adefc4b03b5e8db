"""Rows on an internal link: an Arrow record batch as one Kafka message. Pure.

A block is an Arrow IPC stream with one batch, its buffers compressed with LZ4. Many rows to a message is what makes a durable
queue on every link affordable: Kafka, the client and Python pay per message, not per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from sardonyx.core.errors import OutputError

MAX_BYTES = 900_000
"""Largest message made, under the 1,000,000 bytes that librdkafka and brokers take unless told otherwise."""

TARGET_BYTES = 1 << 20
"""Uncompressed size aimed at: large enough to make the cost per message small, small enough to spread over partitions."""

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


class Block(NamedTuple):
    """One message's worth of rows."""

    value: bytes
    rows: int


def encode(table: pa.Table, max_bytes: int = MAX_BYTES, max_rows: int | None = None) -> list[Block]:
    """Cut a table into blocks, in order; an empty table gives none.

    ``max_rows`` is the batch size of whoever reads them: a block is the least that a reader can take.

    Raises:
        OutputError: ``SX-RECORD-TOO-LARGE``, if a single row does not fit into ``max_bytes``.
    """
    if table.num_rows == 0:
        return []
    rows = max(1, table.num_rows * TARGET_BYTES // max(table.nbytes, 1))
    rows = rows if max_rows is None else min(rows, max_rows)
    pieces = [table.slice(start, rows) for start in range(0, table.num_rows, rows)]
    blocks: list[Block] = []
    while pieces:
        piece = pieces.pop(0)
        value = _to_ipc(piece)
        if len(value) <= max_bytes:
            blocks.append(Block(value, piece.num_rows))
        elif piece.num_rows > 1:
            half = piece.num_rows // 2
            pieces[:0] = [piece.slice(0, half), piece.slice(half)]
        else:
            raise record_too_large(len(value), max_bytes, piece.to_pylist()[0])
    return blocks


def decode(values: Sequence[bytes]) -> pa.Table:
    """The rows of blocks, in order, as one table.

    Blocks may differ in schema (a per-record function may leave a field out): columns are matched by name, types widened
    where Arrow can, missing ones null.
    """
    tables = [pa.ipc.open_stream(value).read_all() for value in values]
    return concat(tables)


def concat(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables one below the other, columns matched by name; see :func:`decode`."""
    if len(tables) == 1:
        return tables[0]
    return pa.concat_tables(tables, promote_options="permissive")


def record_too_large(size: int, limit: int, record: object) -> OutputError:
    """The error for one record that no message can hold."""
    shown = repr(record)
    return OutputError(
        "SX-RECORD-TOO-LARGE",
        f"a record takes {size:,} bytes, and a message holds at most {limit:,}",
        cause=f"the record begins {shown[:200]}",
        fix="make the function give smaller records, or raise message.max.bytes on the broker, the topic's "
        'max.message.bytes and `"message.max.bytes"` under [kafka] in the settings',
    )


def _to_ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_OPTIONS) as stream:
        for batch in table.combine_chunks().to_batches():
            stream.write_batch(batch)
    return bytes(sink.getvalue())
