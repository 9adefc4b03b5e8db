"""Counts and proofs that ride beside the committed offsets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sardonyx.core.errors import InputError, SetupError
from sardonyx.core.events import Counts, LinkFacts
from sardonyx.core.graph import graph_of
from sardonyx.core.positions import Position, add, continued, next_offsets, total
from sardonyx.core.spec import JobSpec, TaskSpec

counts = st.builds(Counts, st.integers(0, 2**50), st.integers(0, 2**50), st.integers(0, 2**50))


@given(st.integers(0, 2**60), counts, st.none() | st.uuids().map(str))
def test_metadata_gives_the_position_back(offset, counted, drained):
    """What is committed beside an offset is read back as it was, and is far below the 4,096 bytes that brokers take."""
    position = Position(offset, counted, drained)
    text = position.metadata()
    assert len(text) < 200
    assert Position.read(offset, text) == position


def test_text_of_others_counts_for_nothing():
    """Metadata of another program, or none, is no error and no count."""
    for text in (None, "", "hello", "[]", '{"in": "many"}'):
        assert Position.read(5, text) == Position(5)


def test_a_position_of_a_newer_release_is_an_error():
    """Its rows are never counted as zero in silence."""
    with pytest.raises(SetupError, match="SX-POSITION-UNREADABLE"):
        Position.read(5, '{"in":7,"format":5}')


def test_a_task_counts_the_sum_of_its_partitions():
    """The total leaves partitions without a commit out."""
    one, other = Counts(3, 2, 1), Counts(10, 10, 0)
    assert total([Position(0, one), None, Position(9, other)]) == add(one, other) == Counts(13, 12, 1)


def test_where_nothing_was_committed_a_task_goes_on_where_the_job_began():
    """The next offsets are complete: one for each partition that the job knows, also for those that were never read. Those that
    were added to the topic since follow.
    """
    spec = JobSpec(
        name="copy",
        workflow=[("orders", "copied")],
        catalog=[
            TaskSpec(name="orders", type="input", connector="kafka", options={"topic": "shop.orders"}),
            TaskSpec(name="copied", type="output", connector="blackhole"),
        ],
    )
    graph = graph_of(spec, "test", "copy-1")
    (stage,) = graph.stages
    facts = {"orders.copied": LinkFacts(3, start=[5, 6, 7])}
    assert next_offsets(stage, facts, {"shop.orders": [9, None, 0]}) == {"shop.orders": [9, 6, 0]}
    assert next_offsets(stage, facts, {"shop.orders": [9]}) == {"shop.orders": [9, 6, 7]}
    added = [None, None, None, None, 4]
    assert next_offsets(stage, facts, {"shop.orders": added}) == {"shop.orders": [5, 6, 7, 0, 4]}
    assert next_offsets(stage, facts, {"of another job": [1]}) == {}
    again = continued(graph, {"orders.copied": LinkFacts(4)}, {"copied": {"shop.orders": [9, 6, 7]}}, {"shop.bills"})
    assert again["orders.copied"].start == [9, 6, 7, 0]
    with pytest.raises(InputError, match="SX-INPUT-RECREATED"):
        continued(graph, facts, {"copied": {"shop.orders": [9, 6, 7]}}, {"shop.orders"})
    assert next_offsets(stage, {"orders.copied": LinkFacts(2)}, {"shop.orders": [None, 3]}) == {"shop.orders": [0, 3]}
