"""What a state begins with, numbers of numpy in it, and slices of a list."""

from __future__ import annotations

import collections.abc
import datetime as dt
import enum
from decimal import Decimal
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import numpy as np
import pytest

from sardonyx.state.codec import Codec
from sardonyx.state.handles import ListState, State


class Colour(enum.Enum):
    RED = "red"


class Note(msgspec.Struct):
    text: str


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        (float, np.float64(0.5), 0.5),
        (float, np.float64("nan"), float("nan")),
        (float, np.float32("nan"), float("nan")),
        (int, np.int64(2**62), 2**62),
        (bool, np.bool_(True), True),
        (list[float], [np.float32(0.5), 1.0], [0.5, 1.0]),
    ],
)
def test_a_number_of_numpy_is_kept_as_one_of_python(kind, value, kept):
    """Computing with numpy gives such numbers; the function meets the number of its annotation."""
    data, back = Codec(kind, "s").encode(value)
    assert repr(back) == repr(Codec(kind, "s").decode(data)) == repr(kept)


class Pair(NamedTuple):
    n: int = 0
    text: str = ""


class Half(NamedTuple):
    n: int
    text: str = ""


class Either(TypedDict):
    n: int


class Neither(TypedDict, total=False):
    n: int


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, 0),
        (str, ""),
        (bool, False),
        (Decimal, Decimal(0)),
        (dt.timedelta, dt.timedelta()),
        (list[int], []),
        (tuple[int, ...], ()),
        (frozenset[int], frozenset()),
        (dict[str, int], {}),
        (Pair, Pair()),
        (Neither, {}),
        (Half, None),
        (Either, None),
        (Note, None),
        (Colour, None),
        (dt.datetime, None),
        (dt.date, None),
        (UUID, None),
        (int | None, None),
        (Any, None),
        (collections.abc.Sequence[int], None),
    ],
)
def test_a_state_begins_with_what_its_type_gives(kind, value):
    """None where the type has no value without arguments."""
    state = State(Codec(kind, "s"), {}, None)
    assert (state.value, type(state.value), state.exists) == (value, type(value), False)


def test_a_list_is_read_and_cut_by_slices():
    """As Python's lists are; only a replaced slice is refused, with what to do instead."""
    state = ListState(Codec(int, "s"), {}, None)
    state.extend(range(6))
    assert (state[1:3], state[-2:], state[::-2], state[9:]) == ([1, 2], [4, 5], [5, 3, 1], [])
    del state[1:5:2]
    assert list(state) == [0, 2, 4, 5]
    with pytest.raises(TypeError, match=r"set its elements one by one"):
        state[0:2] = [7]
