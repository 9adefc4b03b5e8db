"""Counts and proofs that ride beside the committed offsets."""

from hypothesis import given
from hypothesis import strategies as st

from sardonyx.core.events import Counts
from sardonyx.core.positions import Position, add, total

counts = st.builds(Counts, st.integers(0, 2**50), st.integers(0, 2**50), st.integers(0, 2**50))


@given(st.integers(0, 2**60), counts, st.none() | st.uuids().map(str))
def test_metadata_gives_the_position_back(offset, counted, drained):
    """What is committed beside an offset is read back as it was, and is far below the 4,096 bytes that brokers take."""
    position = Position(offset, counted, drained)
    text = position.metadata()
    assert len(text) < 200
    assert Position.read(offset, text) == position


def test_text_of_others_counts_for_nothing():
    """Metadata that somebody else wrote, or none, is no error and no count."""
    for text in (None, "", "hello", "[]", '{"in": "many"}'):
        assert Position.read(5, text) == Position(5)


def test_a_task_counts_the_sum_of_its_partitions():
    """The total leaves partitions without a commit out."""
    one, other = Counts(3, 2, 1), Counts(10, 10, 0)
    assert total([Position(0, one), None, Position(9, other)]) == add(one, other) == Counts(13, 12, 1)
