"""How many values become one: exact, and the same bits in every order."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

from sardonyx.graphs.combine import combined, reduced, sums, whole_sums


def test_sums_are_exact_and_the_same_in_every_order() -> None:
    """Of numbers of any size: within half a bit of the true sum, or 2**-75 of the greatest number; whole numbers to the bit."""
    chance = np.random.default_rng(3)
    for trial in range(600):
        count = int(chance.integers(1, 60))
        numbers = chance.standard_normal(count)
        if trial % 3:
            numbers *= 10.0 ** chance.integers(*((-320, 300) if trial % 3 == 1 else (-324, -300)), count)
        places = chance.integers(0, 3, count)
        found = sums(places, numbers, 3)
        order = chance.permutation(count)
        assert sums(places[order], numbers[order], 3).tobytes() == found.tobytes()
        for place in range(3):
            true = sum(map(Fraction, numbers[places == place].tolist()), Fraction(0))
            off = abs(Fraction(float(found[place])) - true)
            assert off <= max(abs(true) / 2**52, Fraction(float(np.abs(numbers).max())) / 2**75, Fraction(5e-324))
        whole = chance.integers(-(2**61), 2**61, count)
        wanted = [sum(whole[places == place].tolist()) for place in range(3)]
        if all(-(2**63) <= each < 2**63 for each in wanted):
            assert whole_sums(places, whole, 3).tolist() == wanted
        else:
            with pytest.raises(OverflowError):
                whole_sums(places, whole, 3)
        assert reduced("sum", pa.array(whole)) == sum(whole.tolist())


def test_sums_with_infinite_numbers() -> None:
    """They are as in every sum: infinite, or NaN."""
    numbers = np.array([1.0, np.inf, 2.0, np.inf, -np.inf, 3.0, np.nan, 4.0, -np.inf])
    places = np.array([0, 0, 1, 2, 2, 3, 3, 4, 4])
    assert str(sums(places, numbers, 6).tolist()) == "[inf, 2.0, nan, nan, -inf, 0.0]"


def test_least_and_greatest_values() -> None:
    """Both zeros are one, and so is every NaN; texts are compared by their bytes, false is less than true."""
    zeros = pa.array([0.0, -0.0, -0.0, 0.0])
    for order in ([0, 1, 2, 3], [3, 2, 1, 0]):
        found = combined("min", np.array([0, 0, 1, 1]), zeros.take(pa.array(order)), 2).to_numpy()
        assert np.copysign(1, found).tolist() == [1, 1]
    assert math.isnan(combined("max", np.array([0, 0]), pa.array([math.nan, 1.0]), 1)[0].as_py())
    places = np.array([1, 0, 1, 0])
    assert combined("min", places, pa.array(["b", "z", "ä", "a"]), 2).to_pylist() == ["a", "b"]
    assert combined("max", places, pa.array([True, False, False, False]), 2).to_pylist() == [False, True]
    assert combined("collect", places, pa.array([3, 2, 1, 2]), 2).to_pylist() == [[2, 2], [1, 3]]
    assert reduced("max", pa.array(["b", None, "c"])) == "c"
    assert (reduced("sum", pa.nulls(2, pa.int64())), reduced("count", pa.nulls(2, pa.int64()))) == (None, 0)
    assert reduced("mean", pa.chunked_array([[1.0, None], [4.0]])) == 2.5
