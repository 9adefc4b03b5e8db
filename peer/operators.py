"""What a task does with the rows of its shards: the ground that windows, keyed functions and joins share.

A shard is the state of one task for one partition number. :class:`peer.shards.Shards` knows what is true of shards of any kind:
which this peer holds, how they are made again from the state log, how far they have come. What their rows become is the task's
*operator*. It reads the stores of a shard, and gives results and changes. It changes nothing: the changes go into the state log,
in the transaction of the batch, and are applied to the stores only after that has committed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.compute as pc

from peer.window_split import late_in, row_times
from queues.messages import Outgoing
from sardonyx.core.clocks import NEVER
from sardonyx.core.graph import Stage
from sardonyx.core.stores import kind_of
from sardonyx.state.base import Store
from sardonyx.state.columns import SLICE
from sardonyx.state.entry_keys import OPEN_END
from sardonyx.state.groups import numpy, one
from sardonyx.state.kinds import ordinal
from sardonyx.state.planned import INSTANT, Piece
from sardonyx.state.release import window_release
from sardonyx.state.roomy import copy, roomy, shown
from sardonyx.state.times import Times
from sardonyx.state.windows import WindowShard, entry_schema

if TYPE_CHECKING:
    from peer.failed_records import Failed

LATE_PREFIX = "sx_late:"
"""Of the columns that say what a late row is too late for. They are apart from those of the row."""


class Read(NamedTuple):
    """A block of a link."""

    link: int
    """The number of the link among those that the task reads."""
    piece: Piece
    """Its rows, and the clock in force before them."""
    message: Any
    """The message of Kafka that it came with."""
    stated: int = NEVER
    """The clock that its own link had stated before them. Of a task with one link it is the one in force."""
    clocks: Times | None = None
    """The clock that was in force before each of its rows where its own link was written, if the link says it."""


_MOST_KNOWN = 100
"""So many schemas of rows are remembered by a task with windows."""


class Stores:
    """The stores of one shard, by name, as they are after its last commit.

    Args:
        make: makes an empty store of a name and a schema.
    """

    def __init__(self, make: Callable[[str, pa.Schema], Store]) -> None:
        self._make = make
        self._open: dict[str, Store] = {}

    def get(self, name: str) -> Store | None:
        """The store, if there is one. A store whose columns follow from the rows is there from its first row on."""
        return self._open.get(name)

    def made(self, name: str, schema: pa.Schema) -> Store:
        """The store as it is, whatever its types. If it is not there, it is made, with this schema."""
        known = self._open.get(name)
        return self.open(name, schema) if known is None else known

    def open(self, name: str, schema: pa.Schema) -> Store:
        """The store. If it is not there, it is made, with this schema. If its types are narrower than these, it is made anew,
        with the same entries.

        Raises:
            FunctionError: ``SX-COLUMN-TYPE``, a value would change.
        """
        known = self._open.get(name)
        if known is None or (known.schema != schema and roomy(known, schema) == schema):
            made = self._make(name, schema)
            if known is not None:
                copy(known, made)
                known.close()
            self._open[name] = made
        return self._open[name]

    @property
    def all(self) -> Mapping[str, Store]:
        """Those that there are."""
        return self._open

    def __len__(self) -> int:
        """The number of entries."""
        return sum(map(len, self._open.values()))

    @property
    def memory(self) -> int:
        """Bytes that they take, roughly; a store of the user's own does not say it, and counts nothing."""
        return sum(getattr(store, "memory", 0) for store in self._open.values())


class Asked(NamedTuple):
    """What an operator is to plan for one shard."""

    number: int
    """Of the partition."""
    stores: Stores
    reads: Sequence[Read]
    """In the order of the log; of several links one after the other. None if only the clock has gone on."""
    clock: int
    """After the rows: the least over the shard's partitions, in microseconds."""
    before_end: int
    """The same, or the clock that was stated right before the end if the clock is ``END`` since this batch."""
    now: int
    """What the machine's clock says, in microseconds since 1970."""
    clocks: Sequence[int] = ()
    """After the rows, of each link that the task reads."""
    origin: Any = None
    """In place of a message for what comes of no row: the first partition of the shard, up to its position."""


class Answer(NamedTuple):
    """What becomes of a shard's rows."""

    results: pa.Table
    changes: Mapping[str, pa.Table] = {}
    """By name of the store. It is one of the shard's stores."""
    more: bool = False
    """Something is still due by this clock: a further plan without rows and with the same clock comes before any other."""
    late_rows: int = 0
    late: Sequence[tuple[Any, pa.Table]] = ()
    """Late rows that the task keeps, with the message that they came with. What they are too late for stands in columns with
    :data:`LATE_PREFIX`."""
    failed: Sequence[Failed] = ()
    """Records that the user's function raises for. They have changed nothing."""
    sent: Sequence[Outgoing] = ()
    """What the shard sends to others of the task, in its order."""
    waits: int | None = None
    """By how many more rows wait in it for another input than before; less than 0: fewer wait. None: none ever wait."""


class Operator(Protocol):
    """Plans for the shards of one task."""

    @property
    def store(self) -> str:
        """Where the stores are kept: see :func:`sardonyx.core.stores.kind_of`."""
        ...

    @property
    def by_rows(self) -> Collection[str]:
        """The names of the stores whose columns follow from the rows."""
        ...

    @property
    def state_limit(self) -> int | None:
        """The most entries of a shard."""
        ...

    @property
    def entries(self) -> str:
        """What an entry is, as the error about the limit says it."""
        ...

    def schemas(self) -> Mapping[str, pa.Schema]:
        """The stores whose columns are known before there is a row. They are made with the shard.

        Those ``by_rows`` are made as the state log has them, or by the first plan that needs them.
        """
        ...

    def plan(self, asked: Sequence[Asked]) -> Sequence[Answer]:
        """What becomes of the rows of a batch: an answer for each shard, in their order. It changes no store.

        The same call gives the same again, as far as the user's function does.

        Raises:
            FunctionError: the rows do not fit the task.
        """
        ...

    def until(self, asked: Asked) -> int | None:
        """The clock at which all that the rows of a batch go into is out; None: they are worked at once.

        ``END``: at the end of the input, or when the shard is not open any more (:meth:`is_open`).
        """
        ...

    def is_open(self, stores: Stores) -> bool:
        """Whether a shard may hold rows that no clock lets out but that of the end."""
        ...

    def wake(self, stores: Stores) -> int | None:
        """The time of the machine's clock, in microseconds, at which a shard is due again without rows; None: at none.

        It is asked after the changes of a batch are applied.
        """
        ...


class WindowOperator:
    """Windows: see :class:`sardonyx.state.windows.WindowShard`.

    Args:
        stage: a task with windows.
        most: about the most results of a batch, for each shard.
    """

    entries = "a window has an entry for each key, as long as it is open"
    by_rows = ("windows",)
    _STORE = "windows"

    def __init__(self, stage: Stage, most: int) -> None:
        assert stage.task.window is not None  # noqa: S101 (for the type checker: the caller asks)
        self._window = stage.task.window
        self._keys = list(stage.task.group_by or ())
        self._links = stage.ingress
        self._most = most
        self._shards: WeakKeyDictionary[Stores, WindowShard] = WeakKeyDictionary()
        self._known: dict[pa.Schema, pa.Schema] = {}
        """Of rows, the columns of their entries."""
        self.store = kind_of(self._window.store)
        self.state_limit = self._window.state_limit

    def schemas(self) -> Mapping[str, pa.Schema]:
        return {}

    def plan(self, asked: Sequence[Asked]) -> Sequence[Answer]:
        return [self._plan(each) for each in asked]

    def until(self, asked: Asked) -> int | None:
        times = [
            numpy(one(rows[SLICE])) if SLICE in rows.column_names else self._times(rows)
            for rows in (read.piece.rows for read in asked.reads)
            if rows.num_rows
        ]
        return None if not times else window_release(self._window, times, asked.clock)

    def is_open(self, stores: Stores) -> bool:
        store = stores.get(self._STORE)
        return store is not None and store.scan(b"", OPEN_END, 1).num_rows > 0

    def wake(self, stores: Stores) -> int | None:
        shard = self._shards.get(stores)
        return None if shard is None else shard.wake()

    def _plan(self, asked: Asked) -> Answer:
        shard = self._shard(asked)
        if shard is None:
            return Answer(pa.table({}))
        planned = shard.plan([read.piece for read in asked.reads], asked.clock, self._most, asked.now)
        late = planned.late
        kept = [] if self._window.late == "drop" or not late.num_rows else self._kept(late, asked.reads)
        late_rows = late_in(late, [read.piece.rows for read in asked.reads])
        return Answer(planned.results, {self._STORE: planned.changes}, planned.more, late_rows, kept)

    def _shard(self, asked: Asked) -> WindowShard | None:
        """None: the shard has nothing, and never had a row. The first rows say which columns its store has.

        Of a checkpoint (:mod:`peer.shard_checkpoints`) rows of later times may have made the store, which is then empty.
        """
        store = asked.stores.get(self._STORE)
        if not asked.reads and (store is None or not store.scan(b"", None, 1).num_rows):
            return None
        known = store
        for read in asked.reads:
            store = self._roomy(asked.stores, store, read.piece.rows)
        assert store is not None  # noqa: S101 (for the type checker: there is a store, or there are rows)
        shard = self._shards.get(asked.stores)
        if shard is None or store is not known:
            same = all(link.same_bounds for link in self._links)
            shard = self._shards[asked.stores] = WindowShard(self._window, self._keys, store, self._times, same=same)
        return shard

    def _roomy(self, stores: Stores, store: Store | None, rows: pa.Table) -> Store:
        """A store with types that hold what comes of these rows, too. Types that do not go together stay as they are: the shard
        refuses such rows. So do all types of entries in a database, where they are not written anew.
        """
        if store is None:
            return stores.open(self._STORE, self._entries(rows.schema))
        if not rows.num_rows or self.store == "sql" or self._entries(rows.schema) == store.schema:
            return store
        return stores.open(self._STORE, roomy(store, self._entries(shown(rows))))

    def _entries(self, rows: pa.Schema) -> pa.Schema:
        found = self._known.get(rows)
        if found is None:
            if len(self._known) > _MOST_KNOWN:
                self._known.clear()
            found = self._known[rows] = entry_schema(self._window, self._keys, rows)
        return found

    def _kept(self, late: pa.Table, reads: Sequence[Read]) -> list[tuple[Any, pa.Table]]:
        """The late rows of a shard as they were given, with the window that each is too late for."""
        found: list[tuple[Any, pa.Table]] = []
        for index, read in enumerate(reads):
            here = late.filter(pc.equal(late["piece"], index))
            if not here.num_rows:
                continue
            rows = read.piece.rows.take(here["row"])
            if SLICE in rows.column_names:  # combined: such rows are dropped and counted
                continue
            for name in ("window_start", "window_end"):
                rows = rows.append_column(LATE_PREFIX + name, self._instants(here[name]))
            found.append((read.message, rows.append_column(LATE_PREFIX + "late_by", here["late_by"])))
        return found

    def _instants(self, times: pa.ChunkedArray) -> pa.ChunkedArray:
        return times if ordinal(self._window) else times.cast(INSTANT)

    def _times(self, rows: pa.Table) -> Times | None:
        where = next((link.row_time for link in self._links if link.row_time is not None), None)
        return None if where is None else row_times(rows, where, self._links[0].source)
