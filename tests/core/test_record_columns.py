"""Records of a user's topic as columns."""

from __future__ import annotations

import random

from queues.record_columns import Pair, RecordColumns

PAIRS: list[Pair] = [(key, value) for key in (None, b"", b"k") for value in (None, b"", b"v", b"\0\xff")]


def test_record_columns_are_a_sequence_of_pairs() -> None:
    rng = random.Random(5)
    for _ in range(50):
        given = [rng.choice(PAIRS) for _ in range(rng.randrange(12))]
        found = RecordColumns.of(given)
        assert len(found) == len(given)
        assert list(found) == given
        most = rng.randrange(1, 5)
        pieces = list(found.pieces(most))
        assert all(0 < len(values) <= most for _, values in pieces)
        assert [
            pair for keys, values in pieces for pair in zip(keys.to_pylist(), values.to_pylist(), strict=True)
        ] == given
