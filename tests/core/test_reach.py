"""The tables of distances say, after every change of any graph, what a breadth-first search of it finds."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sardonyx.core.reach import Reach

HISTORIES = 100
MOST = 8
Change = tuple[str, int, int]
"""What is done, and two numbers from which the nodes, or the link, follow. So each list of changes is a history."""
KINDS = ["add", "add", "link", "link", "link", "unlink", "unlink", "remove"]
CHANGES = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 2**16), st.integers(0, 2**16)), max_size=30)


class Plain:
    """The graph itself, without a table: the second implementation."""

    def __init__(self) -> None:
        self.targets: dict[str, list[str]] = {}

    @property
    def links(self) -> list[tuple[str, str]]:
        return [(source, target) for source, targets in self.targets.items() for target in targets]

    def search(self, start: str) -> dict[str, int]:
        """Breadth first: the nodes by their distances."""
        found, level, distance = {start: 0}, [start], 0
        while level:
            distance += 1
            level = [target for node in level for target in self.targets[node] if target not in found]
            found |= dict.fromkeys(level, distance)
        return found


def play(changes: list[Change], reach: Reach[str]) -> Iterator[Plain]:
    """Do the same to the tables and to a plain graph; give the graph after each change."""
    plain, made = Plain(), 0
    for what, one, two in changes:
        nodes, links = [*plain.targets], plain.links
        if (what == "add" and len(nodes) < MOST) or not nodes:
            name, made = f"n{made}", made + 1
            after = [node for bit, node in enumerate(nodes) if one >> bit & two >> bit & 1]
            reach.add(name, after)
            plain.targets[name] = []
            for source in after:
                plain.targets[source].append(name)
        elif what == "unlink" and links:
            source, target = links[one % len(links)]
            reach.unlink(source, target)
            plain.targets[source].remove(target)
        elif what == "remove":
            name = nodes[one % len(nodes)]
            reach.remove(name)
            del plain.targets[name]
            plain.targets = {node: [each for each in found if each != name] for node, found in plain.targets.items()}
        else:
            source, target = nodes[one % len(nodes)], nodes[two % len(nodes)]  # may be one node, or linked already
            reach.link(source, target)
            if target not in plain.targets[source]:
                plain.targets[source].append(target)
        yield plain


def right(reach: Reach[str], plain: Plain) -> bool:
    """Whether both tables say what a search finds."""
    searched = {node: plain.search(node) for node in plain.targets}
    return all(
        dict(reach.after(a)) == found
        and dict(reach.before(a)) == {b: there[a] for b, there in searched.items() if a in there}
        for a, found in searched.items()
    )


@given(CHANGES)
def test_after_every_change_the_tables_equal_a_search(changes: list[Change]) -> None:
    """Nodes and links come and go in any order, with cycles and links of a node to itself. So do tables that are made whole."""
    reach, plain = Reach[str](), Plain()
    for plain in play(changes, reach):
        assert right(reach, plain)
    assert right(Reach(plain.targets, plain.links), plain)
    links = set(plain.links)
    for a in plain.targets:
        found = plain.search(a)
        for b in plain.targets:
            path = reach.path(a, b)
            assert bool(path) == reach.reaches(a, b) == (b in found)
            assert not path or (path[0], path[-1], len(path) - 1) == (a, b, found[b])
            assert links.issuperset(itertools.pairwise(path))
    cycle = reach.cycle()
    assert len(cycle) - 1 == min((1 + there[a] for a, b in links if a in (there := plain.search(b))), default=-1)
    assert links.issuperset(itertools.pairwise(cycle))
    assert not cycle or cycle[0] == cycle[-1]


def test_a_view_shows_later_changes() -> None:
    """What ``after`` and ``before`` gave stays true while the graph changes."""
    reach = Reach("abc", [("a", "b"), ("b", "c")])
    after, before = reach.after("a"), reach.before("c")
    reach.link("a", "c")
    assert (dict(after), dict(before)) == ({"a": 0, "b": 1, "c": 1}, {"c": 0, "b": 1, "a": 1})
    reach.unlink("a", "c")
    reach.unlink("a", "b")
    assert (dict(after), dict(before)) == ({"a": 0}, {"c": 0, "b": 1})


def test_the_shortest_cycle_begins_with_its_first_node() -> None:
    """Of a cycle of three and one of two, the one of two; of two equal ones, that whose first node was given first."""
    three = [("a", "b"), ("b", "c"), ("c", "a")]
    assert Reach("abcde", [*three, ("e", "d"), ("d", "e")]).cycle() == ["d", "e", "d"]
    assert Reach("abcde", [("e", "d"), ("d", "e"), ("c", "b"), ("b", "c")]).cycle() == ["b", "c", "b"]
    assert Reach("abcde", [*three, ("c", "c")]).cycle() == ["c", "c"]
    assert Reach("abcde", three[:2]).cycle() == []


WRONG: dict[str, tuple[Callable[[Reach[str]], object], type[Exception]]] = {
    "a node twice": (lambda reach: reach.add("a", ["b"]), ValueError),
    "after an unknown node": (lambda reach: reach.add("d", ["a", "x"]), KeyError),
    "after itself": (lambda reach: reach.add("d", ["d"]), KeyError),
    "a link from an unknown node": (lambda reach: reach.link("x", "a"), KeyError),
    "a link to an unknown node": (lambda reach: reach.link("a", "x"), KeyError),
    "a link that is not there": (lambda reach: reach.unlink("a", "c"), KeyError),
    "remove an unknown node": (lambda reach: reach.remove("x"), KeyError),
    "reaches an unknown node": (lambda reach: reach.reaches("a", "x"), KeyError),
    "an unknown node reaches": (lambda reach: reach.reaches("x", "a"), KeyError),
    "path to an unknown node": (lambda reach: reach.path("a", "x"), KeyError),
    "after an unknown one": (lambda reach: reach.after("x"), KeyError),
    "before an unknown one": (lambda reach: reach.before("x"), KeyError),
    "a graph with an unknown node": (lambda reach: Reach("ab", [("a", "x")]), KeyError),
    "a graph with an unknown source": (lambda reach: Reach("ab", [("x", "a")]), KeyError),
}


@pytest.mark.parametrize("do", WRONG)
def test_what_cannot_be_done_changes_nothing(do: str) -> None:
    """An unknown node or link, or a node twice, is an error, and the graph is as before."""
    reach, same = (Reach("abc", [("a", "b"), ("b", "c")]) for _ in range(2))
    call, error = WRONG[do]
    with pytest.raises(error):
        call(reach)
    assert [getattr(reach, name) for name in Reach.__slots__] == [getattr(same, name) for name in Reach.__slots__]


# --- Controls: tables that are kept up to date less eagerly -------------------------------------------------------------


class OnlyTheSource(Reach[str]):
    """After a link is gone it searches from the link's own node, and not from those before it."""

    def _cut(self, links: list[tuple[str, str]]) -> None:
        for source, target in links:
            del self._targets[source][target], self._sources[target][source]
            self._search(source)


class LazyLink(Reach[str]):
    """Notes the new pair, and not what else comes nearer by it."""

    def link(self, source: str, target: str) -> None:
        self._targets[source][target] = self._sources[target][source] = None
        if source != target:
            self._after[source][target] = self._before[target][source] = 1


class ForwardsOnly(Reach[str]):
    """Searches anew forwards, and leaves the table backwards as it was."""

    def _search(self, node: str) -> None:
        before = {other: dict(row) for other, row in self._before.items()}
        super()._search(node)
        self._before = before


def fails(make: Callable[[], Reach[str]], seed: int) -> bool:
    """Whether one of the histories shows a difference."""
    for number in range(HISTORIES):
        rng = random.Random(f"{seed}/{number}")
        changes = [(rng.choice(KINDS), rng.getrandbits(16), rng.getrandbits(16)) for _ in range(rng.randint(5, 40))]
        reach = make()
        try:
            if not all(right(reach, plain) for plain in play(changes, reach)):
                return True
        except KeyError:  # tables that contradict each other
            return True
    return False


@pytest.mark.parametrize("control", [OnlyTheSource, LazyLink, ForwardsOnly], ids=lambda control: control.__name__)
def test_a_table_that_is_updated_less_eagerly_fails(control: type[Reach[str]], seed: int) -> None:
    """The control: with a part of an update left for later, one of the histories finds a wrong distance."""
    assert fails(control, seed)
