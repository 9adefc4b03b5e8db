"""The end of a partition, rule by rule, and on thousands of random histories of one partition."""

import random
from collections import Counter

import pytest

from sentinel.rules import PartitionView, exhausted, sealable
from tests.sizes import histories

LEADER, OTHER = "leader", "other"


def test_reduce_reads_past_sentinels_of_others():
    """A sentinel that the vote did not choose is dropped: the position goes behind it, and it drains nothing."""
    view = PartitionView(0)
    view.sentinel(0, OTHER, LEADER)
    view.end_of_partition(1)
    assert (view.position, view.drained) == (1, None)


def test_drained_only_with_the_end_behind_the_leader():
    """The leader's sentinel drains its partition once the client says that nothing stands behind it; the position stays AT it."""
    view = PartitionView(0)
    view.record(0)
    view.sentinel(1, LEADER, LEADER)
    assert view.drained is None
    view.end_of_partition(3)  # offset 2 is the transaction's marker
    assert (view.position, view.drained) == (1, LEADER)


def test_an_end_before_the_sentinel_proves_nothing():
    """The end of a partition that has no sentinel yet is only a pause."""
    view = PartitionView(0)
    view.record(0)
    view.end_of_partition(2)
    assert view.drained is None
    view.sentinel(2, LEADER, LEADER)
    assert view.drained is None


def test_in_the_middle_moves_the_leader_to_the_end_once():
    """Records behind the leader's sentinel make it be written again at the end, with the commit that reads past it, once."""
    view = PartitionView(0)
    view.sentinel(0, LEADER, LEADER)
    view.record(1)
    view.record(2)
    assert view.take_displaced() == LEADER
    assert view.take_displaced() is None
    view.end_of_partition(3)
    assert (view.position, view.drained) == (3, None)


def test_a_later_copy_makes_moving_needless():
    """If a later copy of the leader's sentinel was seen already, the earlier one is not written again."""
    view = PartitionView(0)
    view.sentinel(0, LEADER, LEADER)
    view.record(1)
    view.sentinel(2, LEADER, LEADER)
    view.end_of_partition(4)
    assert view.take_displaced() is None
    assert (view.position, view.drained) == (2, LEADER)


def test_a_foreign_sentinel_behind_the_leader_changes_nothing():
    """The position stays at the leader's sentinel, so that the partition's next holder finds it again."""
    view = PartitionView(0)
    view.sentinel(0, LEADER, LEADER)
    view.sentinel(1, OTHER, LEADER)
    view.end_of_partition(2)
    assert (view.position, view.drained) == (0, LEADER)


@pytest.mark.parametrize(("start", "end"), [(0, 0), (7, 7)])
def test_a_bound_input_without_records_is_drained_at_once(start, end):
    """No record, no event of the client is needed where the end stands before anything to read."""
    assert PartitionView(start, end).drained == "end"


def test_a_bound_end_is_not_read_past():
    """Records at and behind the end are not worked on, and the position stops at the end, also over gaps of markers."""
    view = PartitionView(0, 5)
    assert view.record(3)
    assert view.drained is None
    assert not view.record(6)
    assert (view.position, view.drained) == (5, "end")
    gap = PartitionView(0, 5)
    gap.record(3)
    gap.end_of_partition(5)  # offset 4 is a marker
    assert (gap.position, gap.drained) == (5, "end")


def test_exhausted_with_partitions_means_all_of_mine():
    """A peer that holds partitions asks when each of them is drained, whatever others still do."""
    assert exhausted(["u", "u"], None)
    assert not exhausted(["u", None], None)


def test_exhausted_without_partitions_means_all_of_everybody():
    """A peer that holds none asks only when the whole task is drained, by what the group has committed."""
    assert exhausted([], {0: "u", 1: "u"})
    assert not exhausted([], {0: "u", 1: None})
    assert not exhausted([], {})
    assert not exhausted([], None)


def test_sealable_needs_every_partition():
    """One partition that is not drained, or no partition known at all, forbids the seal."""
    assert sealable({0: "u", 1: "u"})
    assert not sealable({0: "u", 1: None})
    assert not sealable({})


def test_random_histories_converge_on_one_sentinel_at_the_end():
    """Writers append records and sentinels in any order, readers cut batches anywhere, abort and die: every record is
    committed exactly once, and in the end the partition is drained with the leader's sentinel as the last thing to read.
    """
    for seed in range(histories(600, whole=3_000)):
        _history(random.Random(seed), seed)


def _history(chance: random.Random, seed: int) -> None:
    log: list[tuple[str, object]] = []
    for index in range(chance.randrange(8)):
        log.append(("record", index))
        if chance.random() < 0.3:
            log.append(("sentinel", chance.choice([LEADER, OTHER])))
    late = chance.randrange(3)  # records that come behind the sentinels
    log.append(("sentinel", LEADER))
    committed, done = 0, Counter()
    view, cursor, taken = PartitionView(0), 0, []
    for _ in range(500):
        if cursor < len(log):
            kind, what = log[cursor]
            if kind == "sentinel":
                view.sentinel(cursor, str(what), LEADER)
            elif view.record(cursor):
                taken.append(what)
            cursor += 1
        else:
            view.end_of_partition(cursor)
        if late and chance.random() < 0.2:
            late -= 1
            log.append(("record", f"late-{late}"))
            view.at_end = False  # the client has more to give
        if chance.random() < 0.1:  # aborted, or the reader died: the next begins at what was committed
            view, cursor, taken = PartitionView(committed), committed, []
        elif chance.random() < 0.3:
            displaced = view.take_displaced()
            if displaced:
                log.append(("sentinel", displaced))
                view.at_end = False
            done.update(taken)
            taken = []
            committed = view.position
            if view.drained and not late and cursor == len(log):
                break
    records = Counter(what for kind, what in log if kind == "record")
    assert done == records, f"seed {seed}: {log}"
    assert view.drained == LEADER, f"seed {seed}: {log}"
    assert [entry for entry in log[committed:] if entry[0] == "record"] == [], f"seed {seed}"
