"""Snapshots and compaction on a real ZooKeeper: what comes back, and that it holds wherever its writer breaks off."""

from __future__ import annotations

import random
import threading
from contextlib import suppress

import pytest

from coordinator.loop import event_log, snapshots
from coordinator.loop.election import Leadership
from coordinator.loop.log_writer import append
from sardonyx.core import node_paths
from sardonyx.core.effects import Create, Delete, Set
from sardonyx.core.errors import SardonyxError
from sardonyx.runtime.settings import Settings
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.services.entries import SMALL, Broke, batches, breaking, events, numbers

LARGE = random.Random(1).randbytes(6 * snapshots.PART - 1024)
"""The state of a snapshot in six parts: it cannot be compressed."""


@pytest.mark.parametrize(
    "size", [0, 1, snapshots.PART, snapshots.PART + 1, 3 * snapshots.PART, 20 * snapshots.PART + 7]
)
def test_a_snapshot_comes_back(leader: Leadership, zk: ZooKeeperSession, size: int) -> None:
    """Of whatever size, in whatever number of parts."""
    state = random.Random(size).randbytes(size)
    snapshots.write(leader, 7, state)
    assert snapshots.latest(zk) == snapshots.base(zk, 7) == (7, state)
    assert snapshots.base(zk, 6) is None


def test_a_snapshot_counts_when_what_it_holds_is_durable(leader: Leadership, zk: ZooKeeperSession) -> None:
    """Its parts are written beside other work; until all effects up to it are in the tree, the one before it is taken."""
    snapshots.write(leader, 3, b"before")
    writer = snapshots.SnapshotWriter(leader, 7, LARGE)
    for _ in range(20):
        writer.advance(durable=6)
        assert snapshots.latest(zk) == (3, b"before")
    assert len(zk.children(node_paths.snapshot(7))) == 6
    while not writer.complete:
        writer.advance(durable=7)
    assert snapshots.latest(zk) == (7, LARGE)


def test_specs_of_ended_jobs_hardly_count(leader: Leadership, zk: ZooKeeperSession) -> None:
    """What repeats itself takes little room. A snapshot that holds a state as it is, of an earlier build, is read as well."""
    state = b"{" + b'"spec": {"name": "flights"}, ' * 50_000
    snapshots.write(leader, 7, state)
    kept = zk.read(node_paths.snapshot_part(7, 0))
    assert kept is not None
    assert len(kept) < len(state) / 50
    assert len(zk.children(node_paths.snapshot(7))) == 1
    assert snapshots.latest(zk) == (7, state)
    assert snapshots.state_of(state) == state


def test_the_last_two_snapshots_are_kept(leader: Leadership, zk: ZooKeeperSession) -> None:
    """Older ones go, and so does what an earlier leader left half-written."""
    zk.commit([Create(node_paths.snapshot(15)), Create(node_paths.snapshot_part(15, 0), b"half")])
    for n in (10, 20, 30):
        snapshots.write(leader, n, str(n).encode())
    assert zk.children(node_paths.SNAPSHOT) == ["0000000020", "0000000030"]
    assert snapshots.latest(zk) == (30, b"30")


def test_sparse_snapshots_are_kept(leader: Leadership, zk: ZooKeeperSession) -> None:
    """The first one at or behind every 10,000 entries stays, and leads to every moment behind it."""
    written = [9_000, 9_999, 10_001, 10_500, 20_000, 29_999, 45_000, 46_000, 47_000, 48_000]
    for n in written:
        snapshots.write(leader, n, str(n).encode())
    kept = [10_001, 20_000, 45_000, 47_000, 48_000]
    assert snapshots.complete(zk) == kept
    for n in (10_000, 10_001, 19_999, 20_000, 44_999, 45_000, 47_500, 99_999):
        nearest = max((found for found in kept if found <= n), default=None)
        assert snapshots.base(zk, n) == (None if nearest is None else (nearest, str(nearest).encode()))


def test_a_snapshot_that_breaks_off_anywhere(settings: Settings) -> None:
    """At every moment there is a whole one: the old or the new. Written again by a successor it is whole."""
    new = random.Random(2).randbytes(2 * snapshots.PART)
    broke = True
    after = 0
    while broke:
        with breaking(settings, after) as (whole, dying):
            for n in (10, 20):
                snapshots.write(whole, n, str(n).encode())
            try:
                snapshots.write(dying, 30, new)
                broke = False
            except Broke:
                pass
            assert snapshots.latest(whole.zk) in ((20, b"20"), (30, new))
            assert snapshots.base(whole.zk, 29) == (20, b"20")
            snapshots.write(whole, 30, new)
            snapshots.write(whole, 40, b"40")
            assert whole.zk.children(node_paths.SNAPSHOT) == ["0000000030", "0000000040"]
            assert snapshots.base(whole.zk, 39) == (30, new)
        after += 1
    assert after > 5


def test_a_damaged_snapshot_is_not_taken(leader: Leadership, zk: ZooKeeperSession) -> None:
    """Parts that do not hash to what was noted, or are missing, are passed over for the snapshot before."""
    snapshots.write(leader, 10, b"ten")
    snapshots.write(leader, 20, b"twenty")
    zk.commit([Set(node_paths.snapshot_part(20, 0), b"twelve")])
    assert snapshots.latest(zk) == (10, b"ten")
    zk.commit([Delete(node_paths.snapshot_part(20, 0))])
    assert snapshots.latest(zk) == (10, b"ten")


def test_a_snapshot_that_goes_while_it_is_read(
    leader: Leadership, zk: ZooKeeperSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reader takes what has come instead."""
    snapshots.write(leader, 10, b"ten")
    read, replaced = zk.read, threading.Event()

    def reading(path: str, watch: object = None) -> bytes | None:
        if path == node_paths.snapshot(10) and not replaced.is_set():
            replaced.set()
            for n in (20, 30):
                snapshots.write(leader, n, str(n).encode())
        return read(path, watch)

    monkeypatch.setattr(zk, "read", reading)
    assert snapshots.latest(zk) == (30, b"30")


# Compaction


def test_compaction_keeps_what_is_needed(leader: Leadership, zk: ZooKeeperSession) -> None:
    """It goes up to a sparse snapshot that is behind the latest but one by as much as asked, and no further."""
    for first in range(1, 45_001, 1500):  # as the loop does: a snapshot stands at the end of a batch
        append(leader, first, events(first, first + 1499))
        snapshots.write(leader, first + 1499, str(first + 1499).encode())
    assert snapshots.complete(zk) == [10_500, 21_000, 30_000, 40_500, 43_500, 45_000]
    assert snapshots.compact(leader, keep=33_001).removed == 0
    assert event_log.begins(zk) == 1
    assert snapshots.compact(leader, keep=33_000).removed == 10_500
    assert numbers(zk) == list(range(10_501, 45_001))
    assert numbers(zk, 44_000) == list(range(44_000, 45_001))
    assert snapshots.compact(leader, keep=10_000).removed == 19_500
    assert numbers(zk) == list(range(30_001, 45_001))
    assert snapshots.complete(zk) == [30_000, 40_500, 43_500, 45_000]
    assert zk.children(node_paths.LOG)[0] == "0000030"
    assert snapshots.base(zk, 30_000) == (30_000, b"30000")
    assert snapshots.compact(leader, keep=10_000).removed == 0
    for read in (lambda: snapshots.base(zk, 29_999), lambda: snapshots.base(zk, 3)):
        with pytest.raises(SardonyxError, match="it begins at 30001") as caught:
            read()
        assert caught.value.code == "SX-LOG-COMPACTED"
    append(leader, 45_001, events(45_001, 45_002))
    assert event_log.last(zk) == 45_002


@pytest.mark.usefixtures("small_log")
def test_nothing_is_removed_for_a_snapshot_that_cannot_be_read(leader: Leadership, zk: ZooKeeperSession) -> None:
    """The one before it is taken instead."""
    fill(leader)
    zk.commit([Set(node_paths.snapshot_part(60, 0), b"damaged")])
    snapshots.compact(leader, keep=0)
    assert numbers(zk) == list(range(31, 91))
    assert snapshots.base(zk, 70) == (31 - 1, b"30")


def fill(leader: Leadership) -> None:
    """90 entries, with snapshots at 30, 60, 80 and 90."""
    for n in range(5, 95, 5):
        append(leader, n - 4, events(n - 4, n), SMALL)
        if n % 10 == 0:
            snapshots.write(leader, n, str(n).encode())
    assert snapshots.complete(leader.zk) == [30, 60, 80, 90]


def every_moment_can_be_shown(zk: ZooKeeperSession) -> None:
    """The log leads from a base to each moment that is kept; for others the error says that they are not kept."""
    first = event_log.begins(zk)
    for n in range(1, 91):
        if n < first - 1:
            with pytest.raises(SardonyxError) as caught:
                snapshots.base(zk, n)
            assert caught.value.code == "SX-LOG-COMPACTED"
            continue
        found = snapshots.base(zk, n)
        behind = 1 if found is None else found[0] + 1
        if found is not None:
            assert found[1] == str(found[0]).encode()
        assert [number for number in numbers(zk, behind) if number <= n] == list(range(behind, n + 1))


@pytest.mark.usefixtures("small_log")
def test_a_compaction_that_breaks_off_anywhere(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """For its readers it is done or not begun, never half; the next one finishes it."""
    monkeypatch.setattr(
        snapshots, "chunked", lambda groups: (list(group) for group in groups)
    )  # each removal by itself
    broke = True
    after = 0
    while broke:
        with breaking(settings, after) as (whole, dying):
            fill(whole)
            try:
                snapshots.compact(dying, keep=20)
                broke = False
            except Broke:
                pass
            first = event_log.begins(whole.zk)
            assert first == (1 if after == 0 else 61)
            assert numbers(whole.zk) == list(range(first, 91))
            assert event_log.last(whole.zk) == 90
            every_moment_can_be_shown(whole.zk)
            assert snapshots.latest(whole.zk) == (90, b"90")
            snapshots.compact(whole, keep=20)
            assert event_log.begins(whole.zk) == next(iter(batches(whole.zk))) == 61
            assert snapshots.complete(whole.zk) == [60, 80, 90]
            assert whole.zk.children(node_paths.LOG) == [f"{n:07d}" for n in range(6, 10)]
        after += 1
    assert after > 10


@pytest.mark.usefixtures("small_log")
@pytest.mark.parametrize("taken", [0, 1, 7, 14, 40, 75])
def test_a_reader_while_the_log_is_compacted(settings: Settings, monkeypatch: pytest.MonkeyPatch, taken: int) -> None:
    """It reads on to the end, or hears that the rest was compacted: what it has read is right in any case."""
    monkeypatch.setattr(snapshots, "chunked", lambda groups: (list(group) for group in groups))
    outcomes = set()
    for after in range(1, 30, 4):
        with breaking(settings, after) as (whole, dying):
            fill(whole)
            reader = event_log.read_log(whole.zk, 1)
            found = [next(reader)[0] for _ in range(taken)]
            with suppress(Broke):
                snapshots.compact(dying, keep=20)
            try:
                found += [n for n, _ in reader]
                outcomes.add("read")
                first = 61 if taken == 0 else 1  # it begins to read with its first entry
                assert found == list(range(first, 91))
            except SardonyxError as error:
                outcomes.add(error.code)
                assert found == list(range(1, len(found) + 1))
    assert outcomes <= {"read", "SX-LOG-COMPACTED"}
    assert ("read" in outcomes) or taken < 60
