"""Functions for rounds, as users write them, and the same as plain loops of Python."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def nearest(points: pa.Table, aggregates: pa.Table) -> pa.Table:
    """K-means: each point goes to the nearest centre."""
    places = np.column_stack([points["x"], points["y"]])
    centres = np.column_stack([aggregates["x"], aggregates["y"]])
    least = ((places[:, None] - centres[None]) ** 2).sum(axis=2).argmin(axis=1)
    cluster = aggregates["cluster"].take(pa.array(least))
    return pa.table({"cluster": cluster})


def moving(points: pa.Table, aggregates: pa.Table) -> pa.Table:
    """K-means that says of each point whether it has come to another centre."""
    found = nearest(points, aggregates)
    moved = pc.not_equal(found["cluster"], pc.fill_null(points["cluster"], -1))
    return found.append_column("moved", moved)


def plain_centres(points: np.ndarray, centres: np.ndarray, most: int = 1_000) -> tuple[np.ndarray, np.ndarray, int]:
    """K-means in numpy. Returns the centres, the cluster of each point, and in which round nothing moved any more."""
    clusters = np.full(len(points), -1)
    for number in range(1, most + 1):
        found = ((points[:, None] - centres[None]) ** 2).sum(axis=2).argmin(axis=1)
        if (found == clusters).all():
            return centres, clusters, number
        clusters = found
        centres = np.array([points[clusters == cluster].mean(axis=0) for cluster in range(len(centres))])
    return centres, clusters, most


def least_label(edges: pa.Table, aggregates: pa.Table) -> pa.Table:
    """Connected components: the rows are edges, and each tells its target the least label that is known of its source."""
    if not len(aggregates):
        return pa.table({"label": pc.min_element_wise(edges["source"], edges["target"])})
    told = aggregates["label"].take(pc.index_in(edges["source"], aggregates["target"].combine_chunks()))
    return pa.table({"label": pc.min_element_wise(edges["label"], told)})


def mixed(rows: pa.Table, aggregates: pa.Table, modulus: int) -> pa.Table:
    """Numbers that go on changing with the sum of their group, until they happen to be as before."""
    sums = dict(zip(aggregates["part"].to_pylist(), aggregates["value"].to_pylist(), strict=True))
    found = []
    for part, value in zip(rows["part"].to_pylist(), rows["value"].to_pylist(), strict=True):
        found.append(value if value is None or part is None else (value * value + (sums.get(part) or 0)) % modulus)
    return pa.table({"value": pa.array(found, pa.int64()), "size": rows["value"]})


def plain_mixed(
    rows: list[dict[str, Any]], modulus: int, most: int
) -> tuple[list[dict[str, Any]], dict[str, Any], int]:
    """The same as a loop over dicts. Returns the rows, the aggregates, and how many rounds there were."""
    sums: dict[str, Any] = {}
    for number in range(1, most + 1):
        before, old = rows, sums
        rows = [
            row
            if row["value"] is None or row["part"] is None
            else {**row, "value": (row["value"] ** 2 + (sums.get(row["part"]) or 0)) % modulus}
            for row in before
        ]
        by_part: dict[str, list[Any]] = defaultdict(list)
        for row in rows:
            if row["part"] is not None:
                by_part[row["part"]].append(row["value"])
        plain = {part: [value for value in values if value is not None] for part, values in by_part.items()}
        sums = {part: sum(values) if values else None for part, values in plain.items()}
        if rows == before and sums == old:
            return rows, sums, number
    return rows, sums, most


def halved(rows: pa.Table) -> pa.Table:
    """Numbers that become half as great in each round."""
    return pa.table({"value": pc.divide(rows["value"], 2.0)})
