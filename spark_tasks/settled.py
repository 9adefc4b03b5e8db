"""The types of columns that hold only nulls."""

from __future__ import annotations

import pyarrow as pa


class SettledTypes:
    """Gives a column that contains only nulls the type that it had before, in the results of one task."""

    def __init__(self) -> None:
        self._known: dict[str, pa.DataType] = {}

    def settle(self, table: pa.Table) -> pa.Table:
        """The same rows."""
        for index, field in enumerate(table.schema):
            known = self._known.get(field.name)
            if not pa.types.is_null(field.type):
                self._known[field.name] = field.type
            elif known is not None:
                table = table.set_column(index, pa.field(field.name, known), pa.nulls(table.num_rows, known))
        return table
