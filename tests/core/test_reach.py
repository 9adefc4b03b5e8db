"""The tables of distances say, after every change of any graph, what a breadth-first search of it finds."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sardonyx.core.reach import Reach

HISTORIES = 1_000
Change = tuple[str, int, int]
"""What is done, and two numbers from which the nodes, or the link, follow. So each list of changes is a history."""

CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "link", "link", "link", "unlink", "unlink", "remove"]),
        st.integers(0, 2**16),
        st.integers(0, 2**16),
    ),
    max_size=40,
)


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
            level = [target for node in level for target in self.targets[node]]
            level = [node for node in dict.fromkeys(level) if node not in found]
            found |= dict.fromkeys(level, distance)
        return found


def play(changes: list[Change], reach: Reach[str], *, most: int = 12) -> Iterator[Plain]:
    """Do the same to the tables and to a plain graph; give the graph after each change."""
    plain, made = Plain(), 0
    for what, one, two in changes:
        nodes, links = [*plain.targets], plain.links
        if (what == "add" and len(nodes) < most) or not nodes:
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


def differences(reach: Reach[str], plain: Plain) -> list[str]:
    """Where the tables do not say what a search finds."""
    wrong = []
    searched = {node: plain.search(node) for node in plain.targets}
    for a, found in searched.items():
        if dict(reach.after(a)) != found:
            wrong.append(f"after {a}: {dict(reach.after(a))}, not {found}")
        before = {b: there[a] for b, there in searched.items() if a in there}
        if dict(reach.before(a)) != before:
            wrong.append(f"before {a}: {dict(reach.before(a))}, not {before}")
        for b in plain.targets:
            asked = reach.distance(a, b), reach.reaches(a, b)
            wrong += [f"{a} to {b}: {asked}, not {found.get(b)}"] if asked != (found.get(b), b in found) else []
    return wrong


def random_changes(rng: random.Random) -> list[Change]:
    kinds = ["add", "add", "link", "link", "link", "unlink", "unlink", "remove"]
    return [(rng.choice(kinds), rng.getrandbits(16), rng.getrandbits(16)) for _ in range(rng.randint(5, 40))]


@given(CHANGES)
def test_after_every_change_the_tables_equal_a_search(changes: list[Change]) -> None:
    """Nodes and links come and go in any order, with cycles and links of a node to itself: both tables are right each time."""
    reach = Reach[str]()
    for plain in play(changes, reach):
        assert not differences(reach, plain)


@given(CHANGES)
def test_paths_and_cycles_are_shortest_ones(changes: list[Change]) -> None:
    """A path has as many links as the distance says, all of them links of the graph; a cycle is the shortest that there is."""
    reach = Reach[str]()
    for plain in play(changes, reach, most=8):
        links = set(plain.links)
        for a in plain.targets:
            found = plain.search(a)
            for b in plain.targets:
                path = reach.path(a, b)
                assert bool(path) == (b in found)
                assert not path or (path[0], path[-1], len(path) - 1) == (a, b, found[b])
                assert links.issuperset(itertools.pairwise(path))
        cycle = reach.cycle()
        lengths = [1 + there[a] for a, b in links if a in (there := plain.search(b))]
        assert len(cycle) - 1 == min(lengths, default=-1)
        assert links.issuperset(itertools.pairwise(cycle))
        assert not cycle or cycle[0] == cycle[-1]


@given(CHANGES)
def test_a_graph_given_as_a_whole_has_the_same_tables(changes: list[Change]) -> None:
    """All nodes and links at once, or one change after the other: the same distances, and the same cycle."""
    reach = Reach[str]()
    plain = [Plain(), *play(changes, reach)][-1]
    whole = Reach(plain.targets, plain.links)
    assert not differences(whole, plain)
    assert len(whole.cycle()) == len(reach.cycle())


def test_larger_graphs(rng: random.Random) -> None:
    """Sixty nodes, sparse as jobs are and with some cycles: the tables are right after each of 300 changes."""
    reach = Reach[str]()
    changes: list[Change] = [("add", rng.getrandbits(60) & rng.getrandbits(60), rng.getrandbits(60)) for _ in range(60)]
    kinds = ["link", "unlink", "unlink", "remove", "add"]
    changes += [(rng.choice(kinds), rng.getrandbits(60), rng.getrandbits(60) & rng.getrandbits(60)) for _ in range(240)]
    for plain in play(changes, reach, most=60):
        assert not differences(reach, plain)


def test_a_view_shows_later_changes() -> None:
    """What ``after`` and ``before`` gave stays true while the graph changes."""
    reach = Reach("abc", [("a", "b"), ("b", "c")])
    after, before = reach.after("a"), reach.before("c")
    reach.link("a", "c")
    assert (dict(after), dict(before)) == ({"a": 0, "b": 1, "c": 1}, {"c": 0, "b": 1, "a": 1})
    reach.unlink("a", "b")
    assert (dict(after), dict(before)) == ({"a": 0, "c": 1}, {"c": 0, "b": 1, "a": 1})
    reach.unlink("a", "c")
    assert (dict(after), dict(before)) == ({"a": 0}, {"c": 0, "b": 1})


def test_the_shortest_cycle_begins_with_its_first_node() -> None:
    """Of a cycle of three and one of two, the one of two; of two equal ones, that whose first node was added first."""
    names = ["a", "b", "c", "d", "e"]
    three = [("a", "b"), ("b", "c"), ("c", "a")]
    assert Reach(names, [*three, ("e", "d"), ("d", "e")]).cycle() == ["d", "e", "d"]
    assert Reach(names, [("e", "d"), ("d", "e"), ("c", "b"), ("b", "c")]).cycle() == ["b", "c", "b"]
    assert Reach(names, [*three, ("c", "c")]).cycle() == ["c", "c"]
    assert Reach(names, three[:2]).cycle() == []


WRONG: dict[str, tuple[Callable[[Reach[str]], object], type[Exception]]] = {
    "a node twice": (lambda reach: reach.add("a", ["b"]), ValueError),
    "after an unknown node": (lambda reach: reach.add("d", ["a", "x"]), KeyError),
    "after itself": (lambda reach: reach.add("d", ["d"]), KeyError),
    "a link from an unknown node": (lambda reach: reach.link("x", "a"), KeyError),
    "a link to an unknown node": (lambda reach: reach.link("a", "x"), KeyError),
    "a link that is not there": (lambda reach: reach.unlink("a", "c"), KeyError),
    "remove an unknown node": (lambda reach: reach.remove("x"), KeyError),
    "distance to an unknown node": (lambda reach: reach.distance("a", "x"), KeyError),
    "distance from an unknown node": (lambda reach: reach.distance("x", "a"), KeyError),
    "path to an unknown node": (lambda reach: reach.path("a", "x"), KeyError),
    "after an unknown one": (lambda reach: reach.after("x"), KeyError),
    "before an unknown one": (lambda reach: reach.before("x"), KeyError),
    "a graph with an unknown node": (lambda reach: Reach("ab", [("a", "x")]), KeyError),
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


class LazyUnlink(Reach[str]):
    """Forgets the link and the pair, and leaves all longer paths for later."""

    def _cut(self, links: list[tuple[str, str]]) -> None:
        for source, target in links:
            del self._targets[source][target], self._sources[target][source]
            self._after[source].pop(target, None)
            self._before[target].pop(source, None)


class OnlyTheSource(Reach[str]):
    """After a link is gone it searches from the link's own node, and not from those before it."""

    def _cut(self, links: list[tuple[str, str]]) -> None:
        for source, target in links:
            del self._targets[source][target], self._sources[target][source]
            self._search(source)


class AnyOtherLink(Reach[str]):
    """Takes it that a target with any other link into it is as near as it was."""

    def _cut(self, links: list[tuple[str, str]]) -> None:
        for source, target in links:
            del self._targets[source][target], self._sources[target][source]
        changed = dict.fromkeys(other for a, b in links if not self._sources[b] for other in self._before[a])
        for node in changed:
            self._search(node)


class LazyLink(Reach[str]):
    """Notes the new pair, and not what else comes nearer by it."""

    def link(self, source: str, target: str) -> None:
        self._targets[source][target] = self._sources[target][source] = None
        if source != target:
            self._after[source][target] = self._before[target][source] = 1


class FirstPathStays(Reach[str]):
    """Keeps the length of the path that it saw first."""

    def link(self, source: str, target: str) -> None:
        self._targets[source][target] = self._sources[target][source] = None
        for other, distance in list(self._before[source].items()):
            for node, more in list(self._after[target].items()):
                self._before[node].setdefault(other, distance + 1 + more)
                self._after[other].setdefault(node, distance + 1 + more)


class ForwardsOnly(Reach[str]):
    """Searches anew forwards, and leaves the table backwards as it was."""

    def _search(self, node: str) -> None:
        before = {other: dict(row) for other, row in self._before.items()}
        super()._search(node)
        self._before = before


class RemoveWithoutCut(Reach[str]):
    """Removes a node, and leaves the paths that led through it."""

    def remove(self, node: str) -> None:
        for other in self._before[node]:
            del self._after[other][node]
        for other in self._after.pop(node):
            self._before[other].pop(node, None)
        for source in self._sources.pop(node):
            self._targets[source].pop(node, None)
        for target in self._targets.pop(node):
            self._sources.get(target, {}).pop(node, None)
        self._before.pop(node)


CONTROLS = [LazyUnlink, OnlyTheSource, AnyOtherLink, LazyLink, FirstPathStays, ForwardsOnly, RemoveWithoutCut]


def failing(make: Callable[[], Reach[str]], seed: int) -> int:
    """How many of the histories show a difference."""
    failed = 0
    for number in range(HISTORIES):
        reach = make()
        try:
            wrong = any(
                differences(reach, plain) for plain in play(random_changes(random.Random(f"{seed}/{number}")), reach)
            )
        except KeyError:  # tables that contradict each other
            wrong = True
        failed += wrong
    return failed


def test_the_histories_hold(seed: int) -> None:
    """None of the histories by which the controls are judged fails with the real tables."""
    assert failing(Reach[str], seed) == 0


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.__name__)
def test_a_table_that_is_updated_less_eagerly_fails(control: type[Reach[str]], seed: int) -> None:
    """The control: with a part of an update left for later, some of the same histories find a wrong distance."""
    assert failing(control, seed) > HISTORIES // 100
