"""The layout of graphs: layers respect edges, boxes never overlap, and the same graph always looks the same."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from sardonyx.web.graph_view import with_feedback
from sardonyx.web.layout import GAP_X, HEIGHT, WIDTH, lay_out


def random_graph(seed: int, count: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Tasks in topological order, and edges that lead forwards."""
    chance = random.Random(seed)
    names = [f"t{index}" for index in range(count)]
    edges = {
        (names[chance.randrange(max(0, index - 12), index)], names[index])
        for index in range(1, count)
        for _ in range(chance.randint(1, 3))
    }
    return names, sorted(edges, key=lambda edge: (int(edge[0][1:]), int(edge[1][1:])))


@pytest.mark.parametrize("seed", range(30))
def test_every_edge_leads_to_the_right_and_no_boxes_overlap(seed: int) -> None:
    """A task stands right of all that it reads from; two boxes of one layer are apart; all lie inside the picture."""
    names, edges = random_graph(seed, 3 + seed * 2)
    layout = lay_out(names, edges)
    for source, target in edges:
        assert layout.places[source][0] + WIDTH + GAP_X <= layout.places[target][0]
    boxes = sorted(layout.places.values())
    for (x, y), (other, below) in pairwise(boxes):
        assert x != other or below - y >= HEIGHT
    assert all(0 <= x <= layout.width - WIDTH and 0 <= y <= layout.height - HEIGHT for x, y in boxes)


@pytest.mark.parametrize("seed", range(10))
def test_an_edge_runs_from_the_side_of_one_box_to_the_side_of_the_other_and_through_none_between(seed: int) -> None:
    """Its points begin at the right side of the source and end at the left side of the target; it passes beside boxes."""
    names, edges = random_graph(seed, 25)
    layout = lay_out(names, edges)
    for (source, target), way in layout.ways.items():
        (x, y), (to, down) = layout.places[source], layout.places[target]
        assert way[0] == (x + WIDTH, y + HEIGHT / 2)
        assert way[-1] == (to, down + HEIGHT / 2)
        for passed in way[1:-1]:
            assert all(
                not (x - 1 < passed[0] < x + WIDTH + 1 and y < passed[1] < y + HEIGHT)
                for x, y in layout.places.values()
            )


def test_the_same_graph_always_looks_the_same() -> None:
    """Nothing of it is left to chance."""
    names, edges = random_graph(3, 60)
    assert lay_out(names, edges) == lay_out(names, edges)


def test_two_ways_that_need_not_cross_do_not() -> None:
    """The order of the layers follows the edges, not the order of the tasks."""
    layout = lay_out(["a", "b", "c", "d"], [("a", "d"), ("b", "c")])
    assert layout.crossings == 0


def test_a_chain_is_a_straight_line() -> None:
    """Tasks one after the other stand at one height, and the picture is no higher than one of them."""
    names = [f"t{index}" for index in range(6)]
    layout = lay_out(names, list(pairwise(names)))
    assert len({y for _, y in layout.places.values()}) == 1
    assert layout.height < 2 * HEIGHT


def test_a_job_without_tasks_has_an_empty_picture() -> None:
    """A job that was refused has no graph."""
    assert lay_out([], []).places == {}


def test_edges_that_lead_back_run_below_all_boxes() -> None:
    """Each in a lane of its own, and the picture has room for them."""
    layout = lay_out(["a", "b", "c"], [("a", "b"), ("b", "c")])
    found = with_feedback(layout, [("c", "a"), ("b", "b")])
    assert found.places == layout.places
    lowest = max(y + HEIGHT for _, y in found.places.values())
    lanes = [found.ways[edge][1][1] for edge in (("c", "a"), ("b", "b"))]
    assert lowest < lanes[0] < lanes[1] < found.height
    assert found.ways["c", "a"][0][0] > found.ways["c", "a"][-1][0]
    assert with_feedback(layout, []) == layout
