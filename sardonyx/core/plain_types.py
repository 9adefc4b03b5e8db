"""Forms of Arrow's types with which little can be done, as those that every operator takes. Pure.

Polars and DuckDB give texts as views, for instance, and Arrow can neither take rows of these nor compare them.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds


def plain_table(table: pa.Table) -> pa.Table:
    """The same rows without views and runs: ``string`` for ``string_view``, lists for views of lists, each value of a run.

    Texts and bytes within lists, structs and maps have these types, too. Runs and views of lists within them stay.
    """
    plain = [plain_type(field.type) for field in table.schema]
    if plain == table.schema.types:
        return table
    columns = [_as_plain(column, kind) for column, kind in zip(table.columns, plain, strict=True)]
    fields = [field.with_type(kind) for field, kind in zip(table.schema, plain, strict=True)]
    return pa.table(columns, schema=pa.schema(fields, table.schema.metadata))


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type that a column of this type has in a plain table."""
    if kinds.is_run_end_encoded(kind):
        return _inner(kind.value_type)
    if kind in _VIEWS:
        return _VIEWS[kind]
    inside = _inside(kind)
    plain = [field.with_type(_inner(field.type)) for field in inside]
    same = all(one.type == field.type for one, field in zip(plain, inside, strict=True))
    return kind if same and not _is_list_view(kind) else _with_inside(kind, plain)


_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def _with_inside(kind: pa.DataType, plain: list[pa.Field]) -> pa.DataType:
    """A type like this one that has these fields, as :func:`_inside` gives them. A view of lists becomes a list."""
    if kinds.is_struct(kind):
        return pa.struct(plain)
    if kinds.is_map(kind):
        return pa.map_(*plain, kind.keys_sorted)
    if kinds.is_fixed_size_list(kind):
        return pa.list_(plain[0], kind.list_size)
    is_large = kinds.is_large_list(kind) or kinds.is_large_list_view(kind)
    return pa.large_list(plain[0]) if is_large else pa.list_(plain[0])


def _inside(kind: pa.DataType) -> list[pa.Field]:
    """The fields of a struct, those of a map's keys and items, or that of a list's items."""
    if kinds.is_struct(kind):
        return list(kind)
    if kinds.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.value_field] if _is_list(kind) else []


def _is_list(kind: pa.DataType) -> bool:
    tests = (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list, kinds.is_list_view, kinds.is_large_list_view)
    return any(test(kind) for test in tests)


def _is_list_view(kind: pa.DataType) -> bool:
    return bool(kinds.is_list_view(kind) or kinds.is_large_list_view(kind))


def _inner(kind: pa.DataType) -> pa.DataType:
    return kind if kinds.is_run_end_encoded(kind) or _is_list_view(kind) else plain_type(kind)


def _as_plain(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    if kinds.is_run_end_encoded(column.type):
        return pa.chunked_array([_without_runs(chunk, kind) for chunk in column.chunks], kind)
    if _is_list_view(column.type):
        return pa.chunked_array([_as_lists(chunk, kind) for chunk in column.chunks], kind)
    return column.cast(kind)


def _as_lists(chunk: pa.Array, kind: pa.DataType) -> pa.Array:
    """Arrow's own cast leaves out the last offset."""
    made, whole = (pa.LargeListArray, pa.int64()) if kinds.is_large_list(kind) else (pa.ListArray, pa.int32())
    ends = pc.cumulative_sum_checked(pc.fill_null(pc.list_value_length(chunk), 0))
    offsets = pa.concat_arrays([pa.array([0], whole), ends.cast(whole)])
    missing = chunk.is_null() if chunk.null_count else None
    return made.from_arrays(offsets, chunk.flatten().cast(kind.value_type), type=kind, mask=missing)


def _without_runs(chunk: pa.Array, kind: pa.DataType) -> pa.Array:
    """Arrow decodes no runs of views, so the values are made plain before."""
    plain = pa.RunEndEncodedArray.from_arrays(chunk.run_ends, chunk.values.cast(kind))
    return pc.run_end_decode(plain.slice(chunk.offset, len(chunk)))


__all__ = ["plain_table", "plain_type"]
