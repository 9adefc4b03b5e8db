"""Types of a store become wider: when rows come whose values its types cannot hold, it is made anew with types that can."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from sardonyx.core.column_types import UnfitTypes, as_schema, common, known_part
from sardonyx.state.base import GONE, KEY, Store
from sardonyx.state.columns import KEY_PART

_PIECE = 50_000
"""Entries that are copied at a time."""


def roomy(store: Store, given: pa.Schema) -> pa.Schema:
    """The columns of a store in types that hold its entries, and others with the columns of ``given``. A column without any value
    takes the other type. Where the two do not go together, the store's type stays.
    """
    fields = []
    for field in store.schema:
        other = given.field(field.name).type
        kind = common(field.type, other)
        if kind is None and kinds.is_null(known_part(store.scan()[field.name])):
            kind = other
        fields.append(field if kind is None else field.with_type(kind))
    return pa.schema(fields)


def holds(schema: pa.Schema, given: pa.Schema) -> bool:
    """Whether the types of a store hold entries of other types."""
    return all(common(field.type, given.field(field.name).type) == field.type for field in schema)


def shown(rows: pa.Table) -> pa.Schema:
    """The columns of rows; those without any value have no type."""
    kinds_of = [pa.null() if column.null_count == len(column) else column.type for column in rows.columns]
    return pa.schema(list(zip(rows.column_names, kinds_of, strict=True)))


def of_state(error: UnfitTypes) -> UnfitTypes:
    """The error as users see it, who know the aggregate and not its parts."""
    return UnfitTypes(
        error.column.removeprefix(KEY_PART).partition(".")[0],
        error.had,
        error.given,
        error.reason,
        who="the state of a window and of the rows for it",
        fix="declare the column that it is made of in `schema=`, of the task with the function or of the input that gives it; or "
        "convert it before the window. Without `schema=`, each peer that reads an input settles the types by its first records",
    )


def copy(store: Store, to: Store) -> None:
    """Put all entries of a store into another one, which is empty and has wider types.

    Raises:
        FunctionError: ``SX-COLUMN-TYPE``, a value would change.
    """
    first = b""
    while (entries := store.scan(first, None, _PIECE)).num_rows:
        first = entries[KEY][-1].as_py() + b"\0"
        flags = pa.array(np.zeros(entries.num_rows, np.bool_))
        try:
            wide = as_schema(entries, to.schema)
        except UnfitTypes as error:
            raise of_state(error) from error
        changes = wide.append_column(pa.field(GONE, pa.bool_(), nullable=False), flags)
        to.apply(changes)


__all__ = ["copy", "holds", "of_state", "roomy", "shown"]
