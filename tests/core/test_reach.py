"""The tables of distances say, for any graph, what a breadth-first search of it finds."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sardonyx.core.reach import Reach

NODES = "abcdefgh"
LINKS = st.lists(st.tuples(st.sampled_from(NODES), st.sampled_from(NODES)), max_size=20)


def search(start: str, links: list[tuple[str, str]]) -> dict[str, int]:
    """Breadth first: the nodes by their distances."""
    found, level, distance = {start: 0}, [start], 0
    while level:
        distance += 1
        level = [target for node in level for source, target in links if source == node and target not in found]
        found |= dict.fromkeys(level, distance)
    return found


@given(LINKS)
def test_tables_paths_and_cycles_equal_a_search(links: list[tuple[str, str]]) -> None:
    """Also with cycles and links of a node to itself: distances, paths with as many links as they say, the shortest cycle."""
    reach = Reach(NODES, links)
    searched = {node: search(node, links) for node in NODES}
    for a, found in searched.items():
        assert dict(reach.after(a)) == found
        assert dict(reach.before(a)) == {b: there[a] for b, there in searched.items() if a in there}
        for b in NODES:
            path = reach.path(a, b)
            assert bool(path) == reach.reaches(a, b) == (b in found)
            assert not path or (path[0], path[-1], len(path) - 1) == (a, b, found[b])
            assert set(links).issuperset(itertools.pairwise(path))
    cycle = reach.cycle()
    lengths = [1 + searched[b][a] for a, b in links if a in searched[b]]
    assert len(cycle) - 1 == min(lengths, default=-1)
    assert set(links).issuperset(itertools.pairwise(cycle))
    assert not cycle or cycle[0] == cycle[-1]


def test_the_shortest_cycle_begins_with_its_first_node() -> None:
    """Of a cycle of three and one of two, the one of two; of two equal ones, that whose first node was given first."""
    three = [("a", "b"), ("b", "c"), ("c", "a")]
    assert Reach("abcde", [*three, ("e", "d"), ("d", "e")]).cycle() == ["d", "e", "d"]
    assert Reach("abcde", [("e", "d"), ("d", "e"), ("c", "b"), ("b", "c")]).cycle() == ["b", "c", "b"]
    assert Reach("abcde", [*three, ("c", "c")]).cycle() == ["c", "c"]
    assert Reach("abcde", three[:2]).cycle() == []


def test_an_unknown_node_is_an_error() -> None:
    """Whatever is asked of it."""
    reach = Reach("ab", [("a", "b")])
    for ask in (
        lambda: reach.reaches("a", "x"),
        lambda: reach.reaches("x", "a"),
        lambda: reach.path("a", "x"),
        lambda: reach.after("x"),
        lambda: reach.before("x"),
        lambda: Reach("ab", [("a", "x")]),
        lambda: Reach("ab", [("x", "a")]),
    ):
        with pytest.raises(KeyError):
            ask()
