"""Fronts as texts: short enough, never saying more than the front, and as exact as there is room."""

from __future__ import annotations

import random

import pytest

from sardonyx.core.front_text import LONGEST_FRONT, fitted, front_text, in_full, read_front, told
from sardonyx.core.fronts import UNKNOWN, Front, Held, greatest
from sardonyx.core.positions import LONGEST, Position


def front_of(rng: random.Random, partitions: int, digits: int = 9) -> Front:
    """One source with many partitions that are about equally far, one that no row still comes of, and a small one."""
    middle = 10**digits
    return tuple(rng.randint(middle, middle + middle // 10) for _ in range(partitions)), None, (3, 0)


def test_a_front_is_told_in_its_room_and_never_says_more(seed: int) -> None:
    """Of random fronts in random rooms: the text is short enough, a source that is done stays done, and no offset is greater."""
    rng = random.Random(seed)
    exact = coarse = nothing = 0
    for _ in range(2000):
        count = rng.choice([0, 1, 3, 150, 400])
        front: Front = tuple(
            rng.choice([None, tuple(rng.randint(0, rng.choice([3, 10**9])) for _ in range(count))]) for _ in range(3)
        )
        room = rng.choice([2, 10, 40, 300, LONGEST_FRONT])
        text = front_text(told(front, room))
        found = read_front(text)
        assert len(text) <= room, (front, room)
        assert found == fitted(front, room)
        assert greatest(front, found) == front, "it says more"
        if found != UNKNOWN:
            assert [offsets and len(offsets) for offsets in found] == [offsets and len(offsets) for offsets in front]
        exact, coarse, nothing = (
            exact + (found == front),
            coarse + (found not in (front, UNKNOWN)),
            nothing + (not found),
        )
        assert fitted(found, room) == found, "told again, it would be another one"
    assert min(exact, coarse, nothing) > 50, (exact, coarse, nothing)


@pytest.mark.parametrize(("partitions", "exact"), [(120, True), (1_000, False), (20_000, False)])
def test_thousands_of_partitions_are_told_by_their_neighbours_least(seed: int, partitions: int, exact: bool) -> None:
    """A front of a source with many partitions stays below 1,500 bytes, and each partition has the least offset of its block."""
    front = front_of(random.Random(seed), partitions)
    found = fitted(front)
    assert (found == front) is exact
    assert len(front_text(told(front, LONGEST_FRONT))) <= LONGEST_FRONT
    assert found[1:] == (None, (3, 0)) or not exact
    many, of = found[0], front[0]
    assert many is not None
    assert of is not None
    assert len(many) == partitions
    assert min(many) == min(of)
    assert len(set(many)) >= 50, "there is room for more blocks"


def test_partitions_with_the_same_offset_take_no_room() -> None:
    """A source with thousands of partitions, most of them empty, has an exact text."""
    front: Front = ((0,) * 700 + (12, 7) + (0,) * 4_000,)
    assert told(front, 60) == ((0, -699, 12, 7, 0, -3_999),)
    assert fitted(front, 60) == front
    assert in_full(told(front, 60)) == front


def test_what_is_told_twice_is_as_exact_as_what_is_told_once(seed: int) -> None:
    """A front that each task on its way tells in less room is in the end what the task with the least room made of it."""
    front = front_of(random.Random(seed), 500)
    once = fitted(front, 300)
    assert fitted(fitted(fitted(front), 700), 300) == once
    assert fitted(once) == once


def test_a_position_tells_both_fronts_in_its_room(seed: int) -> None:
    """What was stated and what is held are both told, coarser, where the text has no room for all of it."""
    rng = random.Random(seed)
    position = Position(7, front=front_of(rng, 900), held=Held(60, front_of(rng, 900)), told=(4,))
    text = position.metadata()
    assert LONGEST / 2 < len(text) <= LONGEST
    read = Position.read(7, text)
    assert read.told == (4,)
    assert read.front is not None
    assert read.held is not None
    assert read.held.until == 60
    for mine, its in ((read.front, position.front), (read.held.front, position.held.front if position.held else ())):
        assert mine != its
        assert greatest(mine, its or ()) == its
        assert len(set(mine[0] or ())) >= 50
    assert Position.read(7, read.metadata()) == read
    small = position._replace(front=((1, 2), None), held=Held(60, ((1, 1), None)))
    assert Position.read(7, small.metadata()) == small
