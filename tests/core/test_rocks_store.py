"""A store on disk, and damage to it: it holds what it was given, or says that it does not."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest
from log_world import World, run

from sardonyx.core.errors import InputError, SardonyxError
from sardonyx.state.base import GONE, KEY
from sardonyx.state.memory import KEY_MEMORY, MemoryStore
from sardonyx.state.rocks import RocksStore
from tests.faults.disk import SmallDisk, can_mount
from tests.sizes import histories

SCHEMA = pa.schema([pa.field(KEY, pa.binary(), nullable=False), ("v", pa.int64())])
MANY = 20_000
HOLD = """
import sys
from pathlib import Path
from sardonyx.state.rocks_folder import RocksFolder
held = RocksFolder(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
held.close()
"""
"""Opens a folder until its input ends."""


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
    on_disk(store)
    assert store.memory < written / 2


def on_disk(store: RocksStore) -> None:
    """Have RocksDB write its files, as it does when it has enough."""
    store._write()
    with store._folder._errors():
        store._folder._db.flush()


def filled(store: RocksStore) -> RocksStore:
    keys = pa.array([b"%07d" % number for number in range(MANY)], pa.binary())
    values = pa.array(np.random.default_rng(1).integers(0, 2**60, MANY))
    changes = pa.table([keys, values, pa.repeat(False, MANY)], schema=SCHEMA.append(pa.field(GONE, pa.bool_(), False)))
    store.apply(changes)
    on_disk(store)
    return store


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
            on_disk(store)
        for limit in (1, 99, 500, None):
            start = b"%07d" % chance.integers(0, 3_000)
            assert store.scan(start, None, limit) == twin.scan(start, None, limit)
            assert store.scan(b"", start, limit) == twin.scan(b"", start, limit)
        assert len(store) == len(twin)


def test_a_scan_does_not_pass_by_what_windows_have_removed(opened: Callable[..., RocksStore]) -> None:
    """The least key is remembered, until a lower one is put, also before they are written."""
    store = filled(opened())
    put(store, 0, MANY - 5, None)
    for _ in range(2):
        assert len(store.scan(limit=3)) == 3
        assert store._floor == b"%07d" % (MANY - 5)
        on_disk(store)
    assert len(store.scan(b"0", b"%07d" % (MANY - 5), 3)) == 0
    put(store, 17, 1)
    assert store.scan(limit=2)[KEY].to_pylist() == [b"0000017", b"%07d" % (MANY - 5)]


@pytest.mark.parametrize("place", [0.05, 0.3, 0.6])
def test_damaged_entries_are_never_taken_for_missing_ones(
    folder: Path, opened: Callable[..., RocksStore], place: float
) -> None:
    """To read or scan them is an error."""
    store = opened(pending=MANY // 2)  # so that it keeps none of them in memory
    filled(store)
    store._read.clear()
    spoil(folder, "*.sst", place)
    for look in (store.scan, lambda: store.read(pa.array([b"%07d" % n for n in range(MANY)], pa.binary()))):
        with pytest.raises(SardonyxError) as caught:
            look()
        assert caught.value.code == "SX-STATE-CORRUPT"


def test_a_store_that_is_cleared_is_empty(opened: Callable[..., RocksStore]) -> None:
    """And takes entries again."""
    store = filled(opened())
    store.clear()
    assert (len(store), len(store.scan())) == (0, 0)
    put(store, 5, 2)
    on_disk(store)
    assert store.scan()[KEY].to_pylist() == [b"0000005", b"0000006"]


def spoil(folder: Path, pattern: str, place: float) -> None:
    (path,) = folder.glob(pattern)
    data = bytearray(path.read_bytes())
    at = int(len(data) * place)
    data[at : at + 10] = b"\xff" * len(data[at : at + 10])
    path.write_bytes(data)


def test_a_folder_that_is_deleted_under_a_store_is_found(folder: Path, opened: Callable[..., RocksStore]) -> None:
    """When RocksDB writes its next file."""
    store = filled(opened())
    shutil.rmtree(folder)
    put(store, 0, 10)
    with pytest.raises(SardonyxError) as caught:
        on_disk(store)
    assert caught.value.code == "SX-STATE-CORRUPT"


def test_a_type_that_has_no_bytes_is_refused(opened: Callable[..., RocksStore]) -> None:
    """Before anything is written."""
    with pytest.raises(InputError, match="'v'") as caught:
        opened(pa.schema([SCHEMA.field(0), ("v", pa.month_day_nano_interval())]))
    assert caught.value.code == "SX-STATE-TYPE"


def test_a_folder_that_may_not_be_written_is_refused(folder: Path, opened: Callable[..., RocksStore]) -> None:
    """It names what says where the folder is."""
    folder.write_text("a file")
    with pytest.raises(SardonyxError) as caught:
        opened()
    assert caught.value.code == "SX-STATE-DISK"
    assert "TMPDIR" in caught.value.fix


def test_a_folder_that_is_held_is_refused(opened: Callable[..., RocksStore], folder: Path) -> None:
    """Two processes that write there would spoil it. The error says how to find the one that holds it."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(SardonyxError) as caught:
            opened()
        assert caught.value.code == "SX-STATE-HELD"
        assert "LOCK" in caught.value.fix
        holder.communicate("let go")
    filled(opened())


@pytest.mark.skipif(not can_mount(), reason="a small disk cannot be mounted here")
def test_a_full_disk_is_told(folder: Path) -> None:
    """To write fails, and so does a start; once there is room, a new store can be made."""
    folder.mkdir()
    with SmallDisk(folder, 8 << 20) as disk:
        store = filled(RocksStore(SCHEMA, disk.path / "store"))
        with disk.full():
            put(store, 0, MANY)
            with pytest.raises(SardonyxError) as caught:
                on_disk(store)
            assert caught.value.code == "SX-STATE-FULL"
            store.close()
            with pytest.raises(SardonyxError) as caught:
                RocksStore(SCHEMA, disk.path / "other")
            assert caught.value.code == "SX-STATE-FULL"
        filled(RocksStore(SCHEMA, disk.path / "third")).close()


def test_the_log_gives_a_store_on_disk_after_any_crash(tmp_path: Path) -> None:
    """The random histories of the log, with stores on disk."""
    folders = (tmp_path / str(number) for number in itertools.count())

    class WorldOnDisk(World):
        made: ClassVar[list[RocksStore]] = []

        def make_store(self) -> RocksStore:
            self.made.append(RocksStore(SCHEMA, next(folders), self.chance.choice([0, 5, 1_000])))
            return self.made[-1]

    for seed in range(histories(8, whole=25)):
        run(seed, world=WorldOnDisk)
        while WorldOnDisk.made:
            WorldOnDisk.made.pop().close()
