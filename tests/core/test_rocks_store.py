"""A store on disk after restarts, crashes and damage: it holds what was saved, or it is read from the state log."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from log_world import World, run

from sardonyx.core.errors import InputError, SardonyxError
from sardonyx.state.base import GONE, KEY
from sardonyx.state.log import ShardLog
from sardonyx.state.memory import KEY_MEMORY, MemoryStore
from sardonyx.state.rocks import RocksStore
from tests.faults.disk import SmallDisk, can_mount

SCHEMA = pa.schema([pa.field(KEY, pa.binary(), nullable=False), ("v", pa.int64())])
MANY = 20_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def opened(folder: Path) -> Iterator[Callable[..., RocksStore]]:
    """Opens the folder; closes it after the test."""
    stores = []

    def opens(schema: pa.Schema = SCHEMA, **options) -> RocksStore:
        stores.append(RocksStore(schema, folder, **options))
        return stores[-1]

    yield opens
    for store in stores:
        store.close()


def put(store: RocksStore, first: int, count: int, value: int | None = 7) -> None:
    keys = pa.array([b"%07d" % number for number in range(first, first + count)], pa.binary())
    values, gone = pa.repeat(pa.scalar(value, pa.int64()), count), pa.repeat(value is None, count)
    store.apply(pa.table([keys, values, gone], schema=SCHEMA.append(pa.field(GONE, pa.bool_(), nullable=False))))


def test_its_memory_counts_what_rocksdb_holds(opened: Callable[..., RocksStore]) -> None:
    """Entries that were written and wait in RocksDB's memory count, and no longer once they are on the disk."""
    store = opened(pending=1_000)
    empty = store.memory
    for part in range(20):
        put(store, part * MANY, MANY, value=part)
    written = store.memory
    assert written - empty > 2 * KEY_MEMORY * MANY, "more than what was written last, which the store also keeps itself"
    store.flush(b"all")
    assert store.memory < written / 2


def filled(store: RocksStore) -> RocksStore:
    keys = pa.array([b"%07d" % number for number in range(MANY)], pa.binary())
    values = pa.array(np.random.default_rng(1).integers(0, 2**60, MANY))
    changes = pa.table([keys, values, pa.repeat(False, MANY)], schema=SCHEMA.append(pa.field(GONE, pa.bool_(), False)))
    store.apply(changes)
    store.flush(b"first")
    return store


def test_what_was_flushed_is_there_after_a_restart(opened: Callable[..., RocksStore]) -> None:
    """With what the log said of it. What came later is not: the log has it."""
    store = opened()
    assert (store.saved, len(store)) == (None, 0)
    put(store, 0, 10)
    store.flush(b"first")
    put(store, 0, 4, None)
    store.flush(b"second")
    put(store, 100, 1)
    store.close()
    again = opened()
    assert (again.saved, again.rebuilt, len(again)) == (b"second", None, 6)
    assert again.scan()[KEY].to_pylist() == [b"%07d" % number for number in range(4, 10)]


def test_a_process_that_is_killed_leaves_what_it_flushed(folder: Path, opened: Callable[..., RocksStore]) -> None:
    """RocksDB has no log of its own: entries and what the log said of them come to the disk together, or not."""
    program = """if True:
        import os, sys
        from pathlib import Path
        sys.path.append("tests/core")
        from test_rocks_store import SCHEMA, RocksStore, put
        store = RocksStore(SCHEMA, Path(sys.argv[1]), pending=0)
        put(store, 0, 1_000)
        store.flush(b"first")
        put(store, 500, 1_000, 8)
        store._write(b"second")
        os.kill(os.getpid(), 9)
    """
    ended = subprocess.run([sys.executable, "-c", program, folder], cwd=Path(__file__).parents[2], check=False)
    assert ended.returncode == -9
    store = opened()
    assert (store.saved, len(store)) == (b"first", 1_000)
    assert set(store.scan()["v"].to_pylist()) == {7}


def test_many_pending_changes_are_written_before_a_flush(opened: Callable[..., RocksStore]) -> None:
    """They are ahead of what was saved; to apply them again changes nothing."""
    store = opened(pending=100)
    put(store, 0, 50)
    store.flush(b"first")
    put(store, 20, 200, 8)
    put(store, 0, 10, None)
    store.close()
    again = opened(pending=100)
    assert again.saved == b"first"
    assert len(again) == 220, "the first change was written, and the second one was not"
    put(again, 20, 200, 8)
    put(again, 0, 10, None)
    assert len(again) == 210
    assert again.scan()["v"].to_pylist() == [7] * 10 + [8] * 200


def test_scans_with_a_limit_see_memory_and_disk_as_one(opened: Callable[..., RocksStore]) -> None:
    """Also where long stretches of one of them are removed."""
    store, twin, chance = opened(pending=10**9), MemoryStore(SCHEMA), np.random.default_rng(5)
    for number in range(30):
        for each in (store, twin):
            put(each, 0, 3_000) if number == 0 else None
        first, count = int(chance.integers(0, 3_000)), int(chance.integers(1, 700))
        value = None if chance.random() < 0.5 else number
        for each in (store, twin):
            put(each, first, count, value)
        if chance.random() < 0.3:
            store.flush(b"x")
        for limit in (1, 99, 500, None):
            start = b"%07d" % chance.integers(0, 3_000)
            assert store.scan(start, None, limit) == twin.scan(start, None, limit)
            assert store.scan(b"", start, limit) == twin.scan(b"", start, limit)
        assert len(store) == len(twin)


def test_a_scan_does_not_pass_by_what_windows_have_removed(opened: Callable[..., RocksStore]) -> None:
    """The least key is remembered, until a lower one is put, also before they are flushed."""
    store = filled(opened())
    put(store, 0, MANY - 5, None)
    for _ in range(2):
        assert len(store.scan(limit=3)) == 3
        assert store._floor == b"%07d" % (MANY - 5)
        store.flush(b"second")
    assert len(store.scan(b"0", b"%07d" % (MANY - 5), 3)) == 0
    put(store, 17, 1)
    assert store.scan(limit=2)[KEY].to_pylist() == [b"0000017", b"%07d" % (MANY - 5)]


def test_a_folder_that_is_held_is_refused(opened: Callable[..., RocksStore]) -> None:
    """By another process, or by another store of this one."""
    opened()
    with pytest.raises(SardonyxError) as caught:
        opened()
    assert caught.value.code == "SX-STATE-HELD"
    assert "another process" in caught.value.message


@pytest.mark.parametrize("pattern", ["*.sst", "MANIFEST*", "CURRENT", "*"])
def test_a_folder_without_its_files_is_emptied(folder: Path, opened: Callable[..., RocksStore], pattern: str) -> None:
    """It says why, and knows of nothing that was saved, so all is read from the log."""
    filled(opened()).close()
    for path in folder.glob(pattern):
        path.unlink()
    store = opened()
    assert (store.saved, len(store), len(store.scan())) == (None, 0, 0)
    assert pattern == "*" or store.rebuilt


@pytest.mark.parametrize("pattern", ["MANIFEST*", "CURRENT"])
def test_a_folder_that_cannot_be_opened_is_emptied(
    folder: Path, opened: Callable[..., RocksStore], pattern: str
) -> None:
    """As one that has lost files."""
    filled(opened()).close()
    spoil(folder, pattern, 0.5)
    store = opened()
    assert (store.saved, len(store)) == (None, 0)
    assert store.rebuilt


@pytest.mark.parametrize("place", [0.05, 0.3, 0.6])
def test_damaged_entries_are_never_taken_for_missing_ones(
    folder: Path, opened: Callable[..., RocksStore], place: float
) -> None:
    """To read or scan them is an error, and the next start makes the store again."""
    filled(opened()).close()
    spoil(folder, "*.sst", place)
    store = opened()
    assert store.saved == b"first", "the damage is not found at the start"
    for look in (store.scan, lambda: store.read(pa.array([b"%07d" % n for n in range(MANY)], pa.binary()))):
        with pytest.raises(SardonyxError) as caught:
            look()
        assert caught.value.code == "SX-STATE-CORRUPT"
    with pytest.raises(SardonyxError, match="holds"):
        opened()
    store.close()
    again = opened()
    assert (again.saved, len(again), again.rebuilt) == (None, 0, "RocksDB had found the folder damaged")


def spoil(folder: Path, pattern: str, place: float) -> None:
    (path,) = folder.glob(pattern)
    data = bytearray(path.read_bytes())
    at = int(len(data) * place)
    data[at : at + 10] = b"\xff" * len(data[at : at + 10])
    path.write_bytes(data)


def test_a_folder_that_is_deleted_under_a_store_is_found(folder: Path, opened: Callable[..., RocksStore]) -> None:
    """At the next flush; the next start reads the log."""
    store = filled(opened())
    shutil.rmtree(folder)
    put(store, 0, 10)
    with pytest.raises(SardonyxError) as caught:
        store.flush(b"second")
    assert caught.value.code == "SX-STATE-CORRUPT"
    store.close()
    assert opened().saved is None


def test_other_columns_empty_the_folder(opened: Callable[..., RocksStore]) -> None:
    """The log then says what has changed."""
    filled(opened()).close()
    store = opened(pa.schema([SCHEMA.field(0), ("v", pa.string())]))
    assert (store.saved, len(store)) == (None, 0)
    assert store.rebuilt == "the columns of the state have changed"


def test_a_type_that_has_no_bytes_is_refused(opened: Callable[..., RocksStore]) -> None:
    """Before anything is written."""
    with pytest.raises(InputError, match="'v'") as caught:
        opened(pa.schema([SCHEMA.field(0), ("v", pa.month_day_nano_interval())]))
    assert caught.value.code == "SX-STATE-TYPE"


def test_a_folder_that_may_not_be_written_is_refused(folder: Path, opened: Callable[..., RocksStore]) -> None:
    """It names the setting."""
    folder.write_text("a file")
    with pytest.raises(SardonyxError) as caught:
        opened()
    assert caught.value.code == "SX-STATE-DISK"
    assert "peer.state_dir" in caught.value.fix


@pytest.mark.skipif(not can_mount(), reason="a small disk cannot be mounted here")
def test_a_full_disk_loses_nothing(folder: Path) -> None:
    """The flush fails, and so does a start; once there is room, the store stands where it was saved before."""
    folder.mkdir()
    with SmallDisk(folder, 8 << 20) as disk:
        path = disk.path / "store"
        store = filled(RocksStore(SCHEMA, path))
        with disk.full():
            put(store, 0, MANY)
            with pytest.raises(SardonyxError) as caught:
                store.flush(b"second")
            assert caught.value.code == "SX-STATE-FULL"
            store.close()
            with pytest.raises(SardonyxError) as caught:
                RocksStore(SCHEMA, path)
            assert caught.value.code == "SX-STATE-FULL"
        again = RocksStore(SCHEMA, path)
        assert (again.saved, again.rebuilt, len(again.scan())) == (b"first", None, MANY)
        again.close()


def test_the_store_and_the_log_give_the_state_after_any_crash(tmp_path: Path) -> None:
    """The random histories of the log, with stores on disk that are flushed now and then, and that write before that."""

    class WorldOnDisk(World):
        def __init__(self, seed: int, log: type[ShardLog]) -> None:
            self.folder = tmp_path / str(seed)
            self.stores = {}
            super().__init__(seed, log)

        def recover(self) -> None:
            for store in self.stores.values():
                store.close()
            pending = self.chance.choice([0, 5, 1_000])
            self.stores = {name: RocksStore(SCHEMA, self.folder / name, pending) for name in self.names}
            state = self.restore(self.stores, {name: store.saved for name, store in self.stores.items()})
            self.log = self.make_log(self.partition.end, state, spare=self.spare, piece=self.piece)

        def after_commit(self) -> None:
            for store in self.stores.values():
                if self.chance.random() < 0.3:
                    store.flush(self.log.saved(self.partition.end()))
            if self.chance.random() < 0.2:
                self.partition.delete_before(self.log.mark.low)

        def run(self) -> None:
            super().run()
            for store in self.stores.values():
                store.close()

    for seed in range(25):
        run(seed, world=WorldOnDisk)
