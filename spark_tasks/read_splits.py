"""Reading the splits of a bounded input on Spark's workers: by themselves, or shared out for a function that runs there too."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from sardonyx.connectors.base import DivisibleInput, Split, SplitInput
from sardonyx.core.column_types import UnfitTypes, together
from sardonyx.core.errors import InputError
from sardonyx.core.settled_types import SettledTypes
from spark_tasks.worker_pool import from_buffer, on_workers, to_buffer

SMALLEST_SLICE = 2_000
"""Rows below which a slice is not worth a Spark task of its own (about 10 ms)."""


def read_splits(spark: Any, connector: SplitInput, datas: Sequence[dict[str, Any]]) -> list[pa.Table]:
    """The rows of each of some splits, in their order; one Spark task a split.

    Args:
        spark: the session.
        connector: whose ``read`` is called on the workers.
        datas: the ``data`` of each split; at least one.

    Raises:
        SardonyxError: what ``read`` raised, as it was.
        SetupError: ``SX-SPARK-LOST``.
    """
    if not datas:
        raise ValueError("there is no split to read")
    return [from_buffer(data) for data in on_workers(spark, "read splits", partial(_read, connector), list(datas))]


def joined_splits(tables: Sequence[pa.Table], types: SettledTypes | None = None) -> pa.Table:
    """The rows of several splits as one table.

    Args:
        tables: at least one.
        types: those of the splits that were read before. These splits may widen them.

    Raises:
        InputError: ``SX-INPUT-SCHEMA``, two splits have types in one column that do not go together.
    """
    try:
        found = together(tables)
        return found if types is None else types.settle(found)
    except UnfitTypes as error:
        raise InputError(
            "SX-INPUT-SCHEMA",
            "two splits of the input do not have the same columns",
            cause=error.message,
            fix="declare a schema that fits the whole input; of a connector of your own, let `read` give a column one type",
        ) from error


class Part(NamedTuple):
    """A split, or a part of one."""

    split: int
    """Index of the split."""
    data: dict[str, Any]
    """For the connector's ``read``."""


def shared_out(connector: SplitInput, splits: Sequence[Split], workers: int) -> list[list[Part]] | None:
    """Splits as shares of about equal size, one for each worker, in the order of their rows.

    None means that the splits would keep fewer workers busy than their rows deserve. Then it is better to read the rows first
    and to deal them out afterwards.

    Args:
        connector: divides splits, if it is a :class:`DivisibleInput`.
        splits: of one batch; at least one.
        workers: the number of Spark's cores.
    """
    rows = [split.rows for split in splits]
    known = sum(count for count in rows if count is not None)
    wanted = workers if None in rows else min(workers, max(1, known // SMALLEST_SLICE))
    each = -(-wanted // len(splits))
    parts: list[Part] = []
    sizes: list[float] = []
    for number, split in enumerate(splits):
        divided: Sequence[dict[str, Any]] | None = [split.data]
        if each > 1:
            divided = connector.divide(split.data, each) if isinstance(connector, DivisibleInput) else None
        if not divided:
            return None
        if len(divided) < each and (split.rows or 0) // len(divided) > 2 * max(SMALLEST_SLICE, known // wanted):
            return None  # one part has so many rows that one core would work on them alone
        parts += [Part(number, data) for data in divided]
        sizes += [(1.0 if split.rows is None else split.rows) / len(divided)] * len(divided)
    total = sum(sizes) or 1.0
    middles = [end - size / 2 for end, size in zip(itertools.accumulate(sizes), sizes, strict=True)]
    shares = [min(wanted - 1, int(middle / total * wanted)) for middle in middles]
    numbered = itertools.groupby(zip(shares, parts, strict=True), key=lambda pair: pair[0])
    return [[part for _, part in group] for _, group in numbered]


def _read(connector: SplitInput, data: dict[str, Any]) -> pa.Buffer:
    return to_buffer(connector.read(data))
