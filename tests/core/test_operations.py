"""Effects merged for one transaction do what they would have done one by one."""

from __future__ import annotations

import random

from sardonyx.core.effects import Create, Delete, Set, TreeEffect
from sardonyx.zookeeper.transactions import WriteCoalescer, chunked, weight


class Nodes:
    """A tree in memory that is as strict as ZooKeeper: parents first, no node twice, nothing removed above others."""

    def __init__(self, nodes: dict[str, bytes]) -> None:
        self.nodes = dict(nodes)

    def apply(self, effect: TreeEffect) -> None:
        parent = effect.path.rpartition("/")[0]
        if isinstance(effect, Create):
            assert effect.path not in self.nodes
            assert not parent or parent in self.nodes
            self.nodes[effect.path] = effect.data
        elif isinstance(effect, Set):
            assert effect.path in self.nodes
            self.nodes[effect.path] = effect.data
        else:
            assert not any(path.startswith(effect.path + "/") for path in self.nodes)
            del self.nodes[effect.path]


def random_effect(nodes: dict[str, bytes], rng: random.Random) -> TreeEffect:
    """Any effect that is possible now."""
    leaves = [path for path in nodes if not any(other.startswith(path + "/") for other in nodes)]
    parent = rng.choice([*nodes, ""])
    path = f"{parent}/{rng.choice('abc')}"
    if path not in nodes and path.count("/") < 5:
        return Create(path, rng.randbytes(3))
    if leaves and rng.random() < 0.5:
        return Delete(rng.choice(leaves))
    return Set(rng.choice([*nodes]), rng.randbytes(rng.randrange(9))) if nodes else Create("/a")


def test_merged_effects_give_the_same_tree(rng: random.Random) -> None:
    """Random effects, merged over any stretch, lead to the same nodes, and each path is written at most once."""
    for _ in range(300):
        nodes = Nodes({})
        for _ in range(rng.randrange(20)):
            nodes.apply(random_effect(nodes.nodes, rng))
        together, merged = Nodes(nodes.nodes), WriteCoalescer()
        for _ in range(rng.randrange(30)):
            effect = random_effect(nodes.nodes, rng)
            nodes.apply(effect)
            merged.add([effect])
        operations = merged.operations()
        assert len({operation.path for operation in operations}) == len(operations)
        assert merged.size >= sum(map(weight, operations))
        for operation in operations:
            together.apply(operation)
        assert together.nodes == nodes.nodes


def test_what_comes_and_goes_is_not_written() -> None:
    """A node that is made and removed within the same stretch never reaches ZooKeeper."""
    merged = WriteCoalescer()
    merged.add([Create("/a"), Set("/a", b"1"), Delete("/a"), Set("/b", b"1"), Set("/b", b"2")])
    assert merged.operations() == [Set("/b", b"2")]


def test_chunks_keep_groups_together() -> None:
    """Groups stay whole and in order; one that is too large by itself comes alone."""
    groups = [
        [Create(f"/{n}", b"x" * size)] * count for n, (size, count) in enumerate([(10, 2), (500, 3), (10, 1), (10, 1)])
    ]
    chunks = list(chunked(groups, limit=600))
    assert [[int(operation.path[1:]) for operation in chunk] for chunk in chunks] == [[0, 0], [1, 1, 1], [2, 3]]
    assert list(chunked([])) == []
