"""Writes what shards of a graph have stored that several peers compute: ``python -m tests.compat.make_supersteps``.

Once for each format of their entries (:data:`sardonyx.state.graph_supersteps.FORMAT`). Shard 0 is a superstep ahead of shard 1,
in whose inbox messages and a marker wait; others are still on their way to both.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa

from queues import block
from sardonyx.core.graphing import GraphSpec
from sardonyx.graphs.homes import homes_of
from sardonyx.state.graph_rows import EDGES
from sardonyx.state.graph_supersteps import FORMAT, MESSAGES, SuperstepShard
from sardonyx.state.memory import MemoryStore
from sardonyx.state.window_rows import SCHEMA

SHARDS = 2
SPEC = GraphSpec(algorithm="pagerank", edges="e", source="a", target="b", id="v", max_supersteps=6, durable=True)
EDGE_ROWS = pa.table({"a": [*range(12), 3, 3], "b": [*range(1, 12), 0, 7, 9]})
"""A ring with two chords."""


class Middle:
    """Shards, each with its store and what is on its way to it."""

    def __init__(self, entries: list[pa.Table] | None = None, waiting: list[list[pa.Table]] | None = None) -> None:
        self.stores = [MemoryStore(SCHEMA) for _ in range(SHARDS)]
        self.waiting: list[list[pa.Table]] = [[] for _ in range(SHARDS)] if waiting is None else waiting
        self.results: list[pa.Table] = []
        for store, table in zip(self.stores, entries or [], strict=False):
            store.apply(table.append_column("gone", pa.array([False] * table.num_rows)))

    def plan(self, shard: int, *, rows: pa.Table | None = None) -> bool:
        """A batch of a shard, committed: edges, or all that waits for it. Gives whether something is left."""
        messages, self.waiting[shard] = self.waiting[shard], []
        worker = SuperstepShard(SPEC, self.stores[shard], shard, SHARDS)
        planned = worker.plan([(EDGES, rows)] if rows is not None else [], messages, 1_000, ended=rows is None)
        self.stores[shard].apply(planned.changes)
        for to, blocks in planned.sent.items():
            self.waiting[to] += [block.decode([each.value]) for each in blocks]
        if planned.results.num_rows:
            self.results.append(planned.results)
        return planned.more or bool(self.waiting[shard])


def middle() -> Middle:
    """Where the corpus is."""
    found = Middle()
    homes = homes_of(EDGE_ROWS["a"], SHARDS)
    for shard in range(SHARDS):
        found.plan(shard, rows=EDGE_ROWS.filter(pa.array(homes == shard)))
    for _ in range(5):
        for shard in range(SHARDS):
            found.plan(shard)
    found.plan(0)
    return found


def write(folder: Path) -> None:
    """Write it."""
    folder.mkdir(parents=True, exist_ok=True)
    found = middle()
    for shard in range(SHARDS):
        (folder / f"entries_{shard}.arrow").write_bytes(block.encode(found.stores[shard].scan())[0].value)
        waiting = pa.concat_tables([MESSAGES.empty_table(), *found.waiting[shard]])
        (folder / f"waiting_{shard}.arrow").write_bytes(block.encode(waiting)[0].value if waiting.num_rows else b"")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / f"supersteps_{FORMAT}")
