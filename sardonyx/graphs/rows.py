"""From rows with edges to vertices by number, and back. Which rows can be edges, vertices and weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from queues.shown_values import records
from sardonyx.core.errors import FunctionError
from sardonyx.core.text import listed, shorten
from sardonyx.graphs.shards import Numbers

SOURCE, TARGET, WEIGHT, VERTEX = "source", "target", "weight", "vertex"
"""The columns of tables that have been read, whatever the user calls them."""
COLUMN = "column:"
"""What further columns of edges begin with; the user's name follows."""


def read_rows(rows: pa.Table, columns: dict[str, str]) -> pa.Table:
    """The columns of rows that matter, checked: vertices are 64-bit whole numbers or texts, weights are ``double``.

    Args:
        rows: as the task before gave them.
        columns: by the name that they are to have, such as :data:`SOURCE`, the user's names.

    Raises:
        FunctionError: ``SX-GRAPH-COLUMN``, ``SX-GRAPH-ID``, ``SX-GRAPH-WEIGHT``.
    """
    found: dict[str, pa.ChunkedArray] = {}
    for name, column in columns.items():
        if column not in rows.column_names:
            raise FunctionError(
                "SX-GRAPH-COLUMN",
                f"there is no column {column!r} in the rows of a graph",
                cause=f"they have {', '.join(rows.column_names)}",
                fix="name one of these, or let the task before give the column with every batch",
            )
        if name.startswith(COLUMN):
            found[name] = _plain(rows[column])
        else:
            found[name] = (_weights if name == WEIGHT else _ids)(rows[column], column, rows)
    return pa.table(found)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column as it is; whole numbers and floats with 64 bits."""
    if kinds.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if kinds.is_integer(column.type) and column.type != pa.uint64():
        return column.cast(pa.int64())
    if kinds.is_floating(column.type):
        return column.cast(pa.float64())
    if kinds.is_large_string(column.type) or kinds.is_string_view(column.type):
        return column.cast(pa.string())
    return column


def _ids(column: pa.ChunkedArray, name: str, rows: pa.Table) -> pa.ChunkedArray:
    if kinds.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.null_count:
        raise FunctionError(
            "SX-GRAPH-ID",
            f"a vertex in column {name!r} is null",
            cause=f"the row is {_row(rows, pc.is_null(column))}",
            fix="leave such rows out in the task before; vertices without edges come from `vertices=`",
        )
    if kinds.is_integer(column.type):
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise FunctionError(
                "SX-GRAPH-ID",
                f"a vertex in column {name!r} is a number that is too great",
                cause=str(error).splitlines()[0],
                fix="give vertices as whole numbers below 2^63, or as texts",
            ) from error
    if kinds.is_string(column.type) or kinds.is_large_string(column.type) or kinds.is_string_view(column.type):
        return column.cast(pa.string())
    raise FunctionError(
        "SX-GRAPH-ID",
        f"column {name!r} is {column.type}, and vertices are whole numbers or texts",
        cause=f"a row is {_row(rows, pc.is_valid(column))}" if rows.num_rows else "",
        fix="convert the column in the task before, for example to bigint or string",
    )


def _weights(column: pa.ChunkedArray, name: str, rows: pa.Table) -> pa.ChunkedArray:
    if not any(of(column.type) for of in (kinds.is_integer, kinds.is_floating, kinds.is_decimal, kinds.is_null)):
        raise FunctionError(
            "SX-GRAPH-WEIGHT",
            f"column {name!r} is {column.type}, and weights are numbers",
            fix="convert the column in the task before, for example to double",
        )
    try:
        weights = column.cast(pa.float64())
        if kinds.is_decimal(column.type) and not weights.cast(column.type).equals(column):
            raise pa.ArrowInvalid(f"it is {column.type}, and double holds fewer digits")
    except pa.ArrowInvalid as error:
        raise FunctionError(
            "SX-GRAPH-WEIGHT",
            f"a weight in column {name!r} is a number that double does not hold exactly",
            cause=str(error).splitlines()[0],
            fix="convert the column to double in the task before, if that is exact enough",
        ) from error
    for what, wrong in (
        ("null", pc.is_null(weights)),
        ("NaN", pc.is_nan(weights)),
        ("negative", pc.less(weights, 0.0)),
        ("infinite", pc.is_inf(weights)),
    ):
        if pc.any(wrong).as_py():
            raise FunctionError(
                "SX-GRAPH-WEIGHT",
                f"a weight in column {name!r} is {what}",
                cause=f"the row is {_row(rows, wrong)}",
                fix="give every edge a weight of 0 or more, or leave the row out in the task before",
            )
    return weights


def _row(rows: pa.Table, chosen: pa.ChunkedArray) -> str:
    return shorten(repr(records(rows.filter(chosen).slice(0, 1))[0]), 1_000)


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables of :func:`read_rows` with the same columns, in one.

    Raises:
        FunctionError: ``SX-GRAPH-ID``, some vertices are numbers and others texts; ``SX-GRAPH-COLUMN``, a further column has
            several types.
    """
    for name in tables[0].column_names:
        if name != WEIGHT and not name.startswith(COLUMN):
            _of_one_type([table[name] for table in tables])
        types = dict.fromkeys(table[name].type for table in tables if not kinds.is_null(table[name].type))
        if name.startswith(COLUMN) and len(types) > 1:
            raise FunctionError(
                "SX-GRAPH-COLUMN",
                f"column {name.removeprefix(COLUMN)!r} of the edges of a graph has several types",
                cause=f"they are {listed(map(str, types))}",
                fix="convert the column to one type in the task before",
            )
    return pa.concat_tables(tables, promote_options="default")


def _of_one_type(columns: Sequence[pa.ChunkedArray]) -> pa.DataType | None:
    """The type of all columns with vertices; None: there are none."""
    types = {column.type for column in columns if len(column)}
    if len(types) > 1:
        some = {str(column.type): column[0].as_py() for column in columns if len(column)}
        raise FunctionError(
            "SX-GRAPH-ID",
            "some vertices of a graph are numbers and others texts",
            cause=", ".join(f"{value!r} is {kind}" for kind, value in sorted(some.items())),
            fix="convert all of them to one type in the tasks before: 1 and '1' are two vertices",
        )
    return types.pop() if types else None


class Vertices:
    """All vertices of a graph, numbered from 0 in their order: of numbers by value, of texts by their bytes in UTF-8.

    Args:
        columns: with all vertices, as often as they come; of :func:`read_rows`.

    Raises:
        FunctionError: ``SX-GRAPH-ID``, some are numbers and others texts.
    """

    def __init__(self, columns: Sequence[pa.ChunkedArray]) -> None:
        self.type: pa.DataType = _of_one_type(columns) or pa.int64()
        chunks = [chunk for column in columns if len(column) for chunk in column.chunks]
        every = pa.chunked_array(chunks, self.type)
        if kinds.is_integer(self.type):
            ids, self._places = _numbered(every.to_numpy())
            self.ids: pa.Array = pa.array(ids, pa.int64())
        else:
            self.ids, self._places = _named(every)
        self._ends = np.cumsum([len(column) for column in columns])
        self._lengths = [len(column) for column in columns]

    def __len__(self) -> int:
        return len(self.ids)

    def column(self, number: int) -> Numbers:
        """The numbers of the vertices in one of the columns."""
        end = int(self._ends[number])
        places: Numbers = self._places[end - self._lengths[number] : end]
        return places

    def find(self, wanted: pa.ChunkedArray | pa.Array, what: str) -> Numbers:
        """The numbers of vertices.

        Args:
            wanted: the vertices.
            what: names them in an error.

        Raises:
            FunctionError: ``SX-GRAPH-VERTEX``, one is not in the graph.
        """
        same = wanted.type == self.type
        found = pc.index_in(wanted, self.ids) if same else pa.nulls(len(wanted), pa.int32())
        if found.null_count:
            raise no_vertex(
                what, wanted.filter(pc.is_null(found))[0].as_py(), len(self), is_text=kinds.is_string(self.type)
            )
        places: Numbers = found.to_numpy(zero_copy_only=False).astype(np.int64)
        return places


def no_vertex(what: str, missing: int | str, vertices: int, *, is_text: bool) -> FunctionError:
    """The error ``SX-GRAPH-VERTEX``: ``what`` names a vertex that is not among those of a graph."""
    other = "" if is_text == isinstance(missing, str) else f"; its vertices are {'texts' if is_text else 'numbers'}"
    return FunctionError(
        "SX-GRAPH-VERTEX",
        f"{what} names vertex {shorten(repr(missing), 200)}, which is not in the graph",
        cause=f"the graph has {vertices:,} vertices, and no edge names it{other}",
        fix="name a vertex with an edge, or give it to the graph with `vertices=`",
    )


def _numbered(values: Numbers) -> tuple[Numbers, Numbers]:
    """The different values, ascending, and the place of each value among them."""
    if not len(values):
        return values, values
    least, greatest = int(values.min()), int(values.max())
    if greatest - least >= 8 * len(values) + 1024:
        ids, places = np.unique(values, return_inverse=True)
        return ids, places.astype(np.int64)
    there = np.zeros(greatest - least + 1, np.bool_)  # ten times as fast as sorting
    there[values - least] = True
    return np.flatnonzero(there) + least, (np.cumsum(there) - 1)[values - least]


def _named(values: pa.ChunkedArray) -> tuple[pa.Array, Numbers]:
    encoded = values.combine_chunks().dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return encoded.dictionary.take(pa.array(order)), place[encoded.indices.to_numpy()]
