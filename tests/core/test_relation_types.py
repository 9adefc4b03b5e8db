"""What joins, lookups and latest rows keep takes wider types when their rows do, wherever batches are cut and peers take over."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from sardonyx.connectors.records import to_records, to_table
from sardonyx.core.clocks import END, NEVER
from sardonyx.core.errors import SardonyxError
from sardonyx.core.joining import RelationSpec
from sardonyx.state.sides import LEFT, RIGHT
from tests.core.relation_histories import Block
from tests.core.test_column_types import VALUES, equal
from tests.core.test_relation_shards import Peer

SIDES = {"left": "views", "right": "orders", "prefix": "r_"}
KINDS = {
    "join": RelationSpec(kind="join", **SIDES, within=[0, 10], how="left"),
    "lookup": RelationSpec(kind="lookup", **SIDES),
    "latest": RelationSpec(kind="latest", emit="final"),
}


class Typed(Block):
    """A block in the types of its own values, as a peer writes it that has seen no others."""

    def piece(self) -> Any:
        return SimpleNamespace(rows=to_table(self.rows, pa.schema([])))


def outcome(kind: str, batches: list[list[Any]], chance: random.Random | None) -> tuple[str, list[tuple[Any, Any]]]:
    """The values of the results, and those of their partners; or the code of the error. ``chance``: when peers take over."""
    peer, at = Peer(KINDS[kind]), 0
    sides = (LEFT, RIGHT) if KINDS[kind].two_sided else (LEFT,)
    try:
        for values in batches:
            blocks = []
            for side in sides:
                rows = [
                    {"k": "a" if len(sides) > 1 else str(at + n), "t": at + n, "v": value}
                    for n, value in enumerate(values)
                ]
                blocks.append(Typed(side, rows, NEVER, NEVER))
            at += len(values)
            peer.give(*blocks)
            if chance is not None and chance.random() < 0.5:
                peer.take_over()
        peer.give(*(Typed(side, [], NEVER, END) for side in sides))
    except SardonyxError as error:
        return error.code, []
    found = [row for table in peer.tables for row in to_records(table)]
    found.sort(key=lambda row: (row["t"], row.get("r_t") or 0))
    return "rows", [(row["v"], row.get("r_v")) for row in found]


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_of_values_does_not_depend_on_where_batches_are_cut(kind: str, seed: int) -> None:
    """The same values, of both sides, or the same error: those of a window's state follow the same rule."""
    chance = random.Random(f"{seed}/{kind}")
    said = set()
    for kept in VALUES:
        values = chance.choices(kept, k=chance.randrange(2, 5))
        code, rows = outcome(kind, [values], None)
        assert code in ("rows", "SX-COLUMN-TYPE")
        one_by_one = outcome(kind, [[value] for value in values], chance)
        assert (one_by_one[0], len(one_by_one[1])) == (code, len(rows)), values
        assert all(equal([*one], [*other]) for one, other in zip(one_by_one[1], rows, strict=True)), values
        said.add(code)
    assert "rows" in said
