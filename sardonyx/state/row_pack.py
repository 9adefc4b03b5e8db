"""Rows of any columns as bytes, one value for each row, and back.

A state that keeps rows as they come must keep rows whose columns differ: a stream without a declared schema may have a column
in one batch and not in the next. So a packed row begins with the number of its schema. The schemas are entries of the state,
too.
"""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa

from sardonyx.core.column_types import together
from sardonyx.state.base import KEY
from sardonyx.state.groups import numpy, one
from sardonyx.state.overlay import Overlay
from sardonyx.state.planned import undictionaried
from sardonyx.state.row_bytes import RowBytes

HEAD = 2
"""Bytes in front of a packed row."""


class RowPack:
    """Packs and unpacks the rows of one side, by the schemas that the state of a shard has.

    Args:
        state: the entries; new schemas become entries of it.
        prefix: the keys of entries with schemas of this side begin with it, and no others.
    """

    def __init__(self, state: Overlay, prefix: bytes) -> None:
        self._state, self._prefix = state, prefix
        found = state.scan(prefix, prefix + b"\xff" * 3)
        lists = one(found[ROWS]).to_pylist()
        self._schemas = [pa.ipc.read_schema(pa.py_buffer(rows[0])) for rows in lists]

    def pack(self, rows: pa.Table) -> pa.Array:
        """Each row as bytes.

        Raises:
            InputError: ``SX-STATE-TYPE``, a column's type cannot be kept.
        """
        rows = undictionaried(rows)
        head = struct.pack(">H", self._number(rows.schema))
        return pa.array([head + value for value in RowBytes(rows.schema).encode(rows)], pa.binary())

    def unpack(self, packed: pa.Array) -> pa.Table:
        """The rows, with the columns of all schemas so far: a row that lacks one has null there.

        Raises:
            FunctionError: ``SX-COLUMN-TYPE``, columns of one name have types that do not go together.
        """
        values: list[bytes] = numpy(packed).tolist()
        if not values:
            return self.nothing()
        numbers = np.fromiter((value[1] + 256 * value[0] for value in values), np.int64, len(values))
        least = int(numbers.min())
        if least == int(numbers.max()):
            return together([self._decoded(least, values), self.nothing()])
        order = np.argsort(numbers, kind="stable")
        tables = [
            self._decoded(number, [values[row] for row in np.flatnonzero(numbers == number).tolist()])
            for number in np.unique(numbers).tolist()
        ]
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return together([*tables, self.nothing()]).take(pa.array(back))

    def know(self, rows: pa.Table) -> None:
        """Keep the columns of these rows: results have them from now on."""
        if rows.num_columns:
            self._number(undictionaried(rows).schema)

    def nothing(self) -> pa.Table:
        """A table without rows, with all columns that rows have had so far."""
        return together([schema.empty_table() for schema in self._schemas]) if self._schemas else pa.table({})

    def _decoded(self, number: int, values: list[bytes]) -> pa.Table:
        schema = self._schemas[number]
        if not len(schema):
            return pa.Table.from_struct_array(pa.array([{}] * len(values), pa.struct([])))
        return pa.table(RowBytes(schema).decode([value[HEAD:] for value in values]), schema=schema)

    def _number(self, schema: pa.Schema) -> int:
        """The number of a schema; a new one is kept."""
        schema = pa.schema([pa.field(field.name, field.type) for field in schema])
        for number, known in enumerate(self._schemas):
            if known.equals(schema):
                return number
        number = len(self._schemas)
        self._schemas.append(schema)
        self._state.put(
            pa.table(
                [[self._prefix + struct.pack(">H", number)], [[0]], [[schema.serialize().to_pybytes()]], [[False]]],
                schema=SCHEMA,
            )
        )
        return number


TIMES, ROWS, DONE = "sx_times", "sx_rows", "sx_done"
"""Of entries with packed rows: their times, the rows, and for each whether it has given a result; in the order of the log."""
SCHEMA = pa.schema(
    [
        pa.field(KEY, pa.binary(), nullable=False),
        (TIMES, pa.list_(pa.int64())),
        (ROWS, pa.list_(pa.binary())),
        (DONE, pa.list_(pa.bool_())),
    ]
)
"""The columns of the entries of joins, lookups, distinct and latest rows."""
