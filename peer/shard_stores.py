"""The stores of a shard: made empty where a task keeps its state, and given back."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from peer.operators import Operator, Stores
from sardonyx.core.stores import is_own
from sardonyx.state.base import GONE, KEY, Store
from sardonyx.state.custom import CustomStore
from sardonyx.state.disk import folders_below
from sardonyx.state.memory import MemoryStore

log = structlog.get_logger()


def empty_stores(operator: Operator, folder: Path | None, load: Callable[[str], Any]) -> tuple[Stores, Path | None]:
    """The stores of a shard without entries, and their folder.

    Args:
        operator: of the task.
        folder: where stores on disk get folders of their own; None: the one for temporary files.
        load: finds a store of the user's own.

    Raises:
        OutputError: ``SX-STATE-FULL``.
        SetupError: ``SX-STATE-DISK``, or as the store does.
    """
    own: Path | None = None
    if operator.store not in ("memory", "sql"):
        with folders_below(folder or Path(tempfile.gettempdir())):
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            own = Path(tempfile.mkdtemp(prefix="state-", dir=folder))
    stores = Stores(_maker(operator.store, load, own))
    try:
        for name, schema in operator.schemas().items():
            stores.open(name, schema)
    except BaseException:
        discard(stores, own)
        raise
    return stores, own


def _maker(store: str, load: Callable[[str], Any], folder: Path | None) -> Callable[[str, pa.Schema], Store]:
    """Makes the stores of a shard. It holds nothing of the assignment unless the store is the user's own: a kept shard outlives
    its assignment.
    """
    if folder is None:
        return lambda _, schema: MemoryStore(schema)

    def place(name: str) -> Path:
        with folders_below(folder):
            # Each its own: a store in wider types is made beside the one before.
            return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder))

    def own(name: str, schema: pa.Schema) -> Store:
        return CustomStore(store, load, schema, place(name))

    def rocks(name: str, schema: pa.Schema) -> Store:
        from sardonyx.state.rocks import RocksStore  # needs an extra, and only here

        return RocksStore(schema, place(name) / "rocks")

    return own if is_own(store) else rocks


def discard(stores: Stores, folder: Path | None) -> None:
    """Give back what a shard holds. No store that cannot be closed may keep the others' memory, or the folder on a full disk."""
    for name, store in stores.all.items():
        try:
            store.close()
        except Exception as error:  # noqa: BLE001 - what it held is in the log
            log.warning("store_not_closed", store=name, error=str(error))
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def growth(store: Store, changes: pa.Table) -> int:
    """How many more entries a store has after changes."""
    gone = changes[GONE].combine_chunks()
    puts, removed = changes.filter(pc.invert(gone))[KEY], changes.filter(gone)[KEY]
    new = len(puts) - len(store.read(puts.combine_chunks())[0])
    return new - len(store.read(removed.combine_chunks())[0])


__all__ = ["discard", "empty_stores", "growth"]
