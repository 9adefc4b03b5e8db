"""What stands on a topic that an output has written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from sardonyx.connectors.registry import NO_REGISTRY, topic_format
from sardonyx.runtime.settings_sections import SchemaRegistry


def tables_in(
    options: dict[str, Any],
    records: Sequence[tuple[bytes | None, bytes | None]],
    registry: SchemaRegistry = NO_REGISTRY,
) -> list[pa.Table]:
    """The rows of a topic, in their order. A table ends where the types of the next record do not go together with it.

    Args:
        options: of the output.
        records: keys and values.
        registry: the schema registry of the settings.
    """
    tables, rest = list[pa.Table](), records
    while rest:
        decoded = _decoded(options, rest, registry)
        end = next((index for index, failure in decoded.bad if failure.code == "SX-COLUMN-TYPE"), len(rest))
        if end:
            tables.append((decoded if end == len(rest) else _decoded(options, rest[:end], registry)).table)
        rest = rest[max(end, 1) :]
    return tables


def _decoded(
    options: dict[str, Any], records: Sequence[tuple[bytes | None, bytes | None]], registry: SchemaRegistry
) -> Any:
    return topic_format(options, registry).decode([value for _, value in records], [key for key, _ in records])
