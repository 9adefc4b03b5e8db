"""The state of the keys of one shard: what a function is given of it, and what becomes of it.

A batch takes three steps. :meth:`KeyedShard.prepare` reads what the function may see. The function works on it, perhaps in
another process (:mod:`sardonyx.state.keyed_run`). :meth:`KeyedShard.finish` makes a table of changes, for the state log and the
store. No step changes the store.

A state with a ttl is looked at in time by an entry that names it. That entry is written when the state is, and again when it was
looked at and the state was written meanwhile: so a write costs no second entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from queues.shown_values import shown_values
from sardonyx.core.clocks import END, NEVER
from sardonyx.core.column_types import together
from sardonyx.core.errors import InputError
from sardonyx.state.base import GONE, KEY, Store
from sardonyx.state.combine import keys_of
from sardonyx.state.groups import Numbers
from sardonyx.state.handles import Cell
from sardonyx.state.keyed_entries import (
    AT,
    COLUMN,
    DUE,
    ENDED,
    EXPIRES,
    SHAPE,
    VALUE,
    WALL,
    after,
    due_key,
    expires_key,
    read_due_key,
    read_state_key,
    read_time,
    state_key,
    timer_key,
)
from sardonyx.state.keyed_work import Done, Due, Failed, KeyedPiece, Work, pack_key, unpack_key
from sardonyx.state.signature import TABLE, Signature, differences
from sardonyx.state.timers import Setting

_EXPIRED = 10_000
"""So many entries are looked at in a batch to see whether they have expired."""

Changes = dict[bytes, Cell | None]


class KeyedPlanned(NamedTuple):
    """What a batch makes of a shard."""

    results: list[dict[str, Any]] | pa.Table
    origins: list[int]
    """See :attr:`~sardonyx.state.keyed_work.Done.origins`."""
    changes: pa.Table
    """For :meth:`~sardonyx.state.base.Store.apply`."""
    failed: list[Failed]
    fired: int
    """How many timers have fired."""
    more: bool
    """Timers are still due, or entries have still to go: work without pieces and with the same clock must follow before anything
    else."""


class KeyedShard:
    """The state of the keys of one shard.

    Args:
        signature: what the task's functions take.
        key_columns: the columns of the key; none: all rows have one key.
        store: the entries.

    Raises:
        InputError: ``SX-STATE-SHAPE``, the states were written with other types.
    """

    def __init__(self, signature: Signature, key_columns: Sequence[str], store: Store) -> None:
        self._signature = signature
        self._columns = list(key_columns)
        self._store = store
        self._schema = store.schema.append(pa.field(GONE, pa.bool_(), nullable=False))
        self._new_shape()

    def prepare(
        self,
        pieces: Sequence[KeyedPiece],
        clock: int,
        *,
        before: int | None = None,
        wall: int | None = None,
        limit: int,
    ) -> Work:
        """What the function is given in a batch.

        Args:
            pieces: of the batch, in the order of the log.
            clock: of the shard, after the batch.
            before: at the end of the input (``clock`` is :data:`~sardonyx.core.clocks.END`) the last clock before it.
            wall: the clock of the machine; None: no timers fire by it. At the end of the input all of them do.
            limit: the most timers that fire at the end of the batch.

        Raises:
            FunctionError: ``SX-KEY-TYPE``, ``SX-KEY-COLUMN``.
        """
        pieces = [piece for piece in pieces if piece.rows.num_rows]
        rows = together([piece.rows for piece in pieces]) if pieces else pa.table({})
        clocks = [np.broadcast_to(piece.in_force, piece.rows.num_rows) for piece in pieces]
        in_force = np.concatenate([np.zeros(0, np.int64), *clocks])
        greatest = int(in_force.max(initial=NEVER))
        clock = max(clock, greatest)  # what rows say goes on before it is stated
        timed = [piece.times for piece in pieces if piece.times is not None]
        codes, keys, values = self._keys(rows)
        due, bound = self._due(clock, greatest, keys, limit)
        due += self._due_by_wall(END if clock >= END else wall, limit)
        timers = _timers_of(due, keys, values)  # before the entries: these are also of the keys of timers
        return Work(
            rows=rows,
            codes=codes,
            in_force=in_force,
            times=np.concatenate(timed) if pieces and len(timed) == len(pieces) else None,
            keys=keys,
            values=values,
            key_columns=self._columns,
            entries=self._entries(keys),
            due=timers,
            clock=clock,
            before=clock if clock < END else self._before(before, greatest),
            bound=bound,
            most=limit,
        )

    def finish(self, work: Work, done: Done) -> KeyedPlanned:
        """What becomes of the shard.

        Args:
            work: as :meth:`prepare` gave it.
            done: what the function made of it.
        """
        changes: Changes = {}
        table = None
        if self._signature.tables:
            table = self._of_tables(work, done, changes)
        else:
            self._of_states(work, done, changes)
            self._of_timers(work, done, changes)
        more = self._still_due(work, changes)
        if not more:  # a timer that is due still sees what has expired since
            table, more = self._expired(min(work.clock, work.before), changes, table)
        self._end_clock(work, changes, more=more)
        if changes or (table is not None and table.num_rows):
            shape = self._new_shape()
            if shape is not None:
                changes[SHAPE] = Cell(shape)
        found = self._table(changes)
        if table is not None:
            found = pa.concat_tables([found, table]).combine_chunks()
        return KeyedPlanned(done.results, done.origins, found, done.failed, len(done.fired), more)

    def next_wall(self) -> int | None:
        """When the next timer by the clock of the machine is due, in microseconds; None: there is none."""
        entries = self._store.scan(WALL, EXPIRES, 1)
        return read_time(entries[KEY][0].as_py()) if entries.num_rows else None

    # --- Reading ---

    def _keys(self, rows: pa.Table) -> tuple[Numbers, list[bytes], list[tuple[Any, ...]]]:
        """The number of each row's key, the keys, and the values of their columns."""
        if not rows.num_rows:
            return np.zeros(0, np.int64), [], []
        codes, canonical = keys_of(rows, self._columns)
        distinct, heads = np.unique(codes, return_index=True)
        taken = pa.array(heads[np.argsort(distinct)])
        columns = [shown_values(rows[name].take(taken)) for name in self._columns]
        values = list(zip(*columns, strict=True)) if columns else [()] * len(canonical)
        return codes, canonical.to_pylist(), values

    def _due(
        self, clock: int, in_force: int, keys: list[bytes], limit: int
    ) -> tuple[list[tuple[bytes, bytes]], tuple[int, bytes, str] | None]:
        """Timers that may fire: those that are due after the batch, at most ``limit``; and of keys that have rows, all that are
        due before their last rows. And the last one of the former, if there are more.
        """
        entries = self._store.scan(DUE, after(DUE, clock), limit + 1)
        found = _pairs(entries)
        if len(found) <= limit:
            return found, None
        found = found[:limit]
        bound = found[-1]
        if in_force > NEVER and keys:
            wanted = set(keys)
            further = _pairs(self._store.scan(bound[0] + b"\0", after(DUE, in_force)))
            found += [each for each in further if read_due_key(each[0])[1] in wanted]
        at, key, name = read_due_key(bound[0])
        return found, (at, key, name)

    def _due_by_wall(self, wall: int | None, limit: int) -> list[tuple[bytes, bytes]]:
        return [] if wall is None else _pairs(self._store.scan(WALL, after(WALL, wall), limit))

    def _entries(self, keys: list[bytes]) -> pa.Table:
        """All entries of the states of these keys."""
        if self._signature.tables:
            return self._read([state_key(key, TABLE) for key in keys])
        states = self._signature.states.values()
        heads = {state_key(key, state.name): state for key in keys for state in states}
        first = self._read(list(heads))
        further: list[bytes] = []
        tables = [first]
        for entry, value in zip(first[KEY].to_pylist(), first[VALUE].to_pylist(), strict=True):
            kind = heads[entry].kind
            if kind == "list":
                begin, end = msgspec.msgpack.decode(value)
                further += [entry + number.to_bytes(8, "big") for number in range(begin, end)]
            elif kind == "map":
                tables.append(self._store.scan(entry + b"\0", entry + b"\xff"))
        if further:
            tables.append(self._read(further))
        return pa.concat_tables(tables) if len(tables) > 1 else first

    def _read(self, entries: Sequence[bytes]) -> pa.Table:
        return self._store.read(pa.array(entries, pa.binary()))[1]

    def _before(self, before: int | None, in_force: int) -> int:
        """The last clock before the end of the input."""
        stored = self._stored_end()
        return max(NEVER if before is None or before >= END else before, in_force) if stored is None else stored

    # --- Changes ---

    def _of_states(self, work: Work, done: Done, changes: Changes) -> None:
        known = self._known(work)
        for entry, cell in done.writes.items():
            if cell is None:
                if entry in known:
                    changes[entry] = None
                continue
            changes[entry] = cell
            ttl = None if cell.at is None else self._ttl(entry)
            if cell.at is not None and ttl is not None and known.get(entry) is None:
                changes[expires_key(cell.at + ttl, entry)] = Cell(b"")

    def _known(self, work: Work) -> dict[bytes, int | None]:
        """The entries that the store has of the keys of the work, with when they were written last."""
        return dict(zip(work.entries[KEY].to_pylist(), work.entries[AT].to_pylist(), strict=True))

    def _of_timers(self, work: Work, done: Done, changes: Changes) -> None:
        if not done.timers:
            return
        entries = {timer_key(work.keys[code], name): (code, name) for code, name in done.timers}
        found = self._read(list(entries))
        before = dict(zip(found[KEY].to_pylist(), found[VALUE].to_pylist(), strict=True))
        for entry, (code, name) in entries.items():
            key, setting = work.keys[code], done.timers[code, name]
            if entry in before:
                at, wall = msgspec.msgpack.decode(before[entry])
                changes[due_key(WALL if wall else DUE, at, key, name)] = None
                changes[entry] = None
            if setting is not None:
                value = msgspec.msgpack.encode((setting.set_at, pack_key(work.values[code])))
                changes[due_key(WALL if setting.wall else DUE, setting.at, key, name)] = Cell(value)
                changes[entry] = Cell(msgspec.msgpack.encode((setting.at, setting.wall)))

    def _of_tables(self, work: Work, done: Done, changes: Changes) -> pa.Table:
        """The changes of the states of a function of tables."""
        state = done.state
        assert state is not None  # noqa: S101 (for the type checker: the function is of tables)
        replaced = set(done.replaced)
        codes = state["code"].to_pylist()
        rows = [row for row, code in enumerate(codes) if code in replaced]
        new = [codes[row] for row in rows]
        taken = state.take(pa.array(rows, pa.int64()))
        keys = [state_key(work.keys[code], TABLE) for code in new]
        known, ttl = self._known(work), self._signature.ttl
        for entry in (state_key(work.keys[code], TABLE) for code in sorted(replaced.difference(new))):
            if entry in known:
                changes[entry] = None
        if ttl is not None:
            for entry, at in zip(keys, taken[AT].to_pylist(), strict=True):
                if known.get(entry) is None:
                    changes[expires_key(at + ttl, entry)] = Cell(b"")
        count = len(rows)
        at_column = taken[AT] if ttl is not None else pa.nulls(count, pa.int64())
        declared = [taken[field.name.removeprefix(COLUMN)] for field in list(self._store.schema)[3:]]
        columns = [pa.array(keys, pa.binary()), pa.nulls(count, pa.binary()), at_column, *declared]
        return pa.table([*columns, pa.array(np.zeros(count, np.bool_))], schema=self._schema)

    def _still_due(self, work: Work, changes: Changes) -> bool:
        """Whether timers remain that are due by the clocks of the work."""
        for kind, clock in ((DUE, work.clock), (WALL, END if work.ended else None)):
            if clock is None:
                continue
            last = after(kind, clock)
            mine = {entry: cell for entry, cell in changes.items() if kind <= entry < last}
            if any(cell is not None for cell in mine.values()):
                return True
            left = self._store.scan(kind, last, len(mine) + 1)[KEY].to_pylist()
            if any(entry not in mine for entry in left):
                return True
        return False

    def _expired(self, clock: int, changes: Changes, table: pa.Table | None) -> tuple[pa.Table | None, bool]:
        """Let states go that have expired. States that were written since they were named are named again.

        Returns:
            The changes of the states of a function of tables, without those; and whether there are more to look at.
        """
        last = after(EXPIRES, clock)
        named = self._store.scan(EXPIRES, last, _EXPIRED + 1)[KEY].to_pylist()
        more = len(named) > _EXPIRED
        named = named[:_EXPIRED]
        new = [entry for entry, cell in changes.items() if EXPIRES <= entry < last and cell is not None]
        entries = list(dict.fromkeys(each[9:] for each in (*named, *new)))
        if not entries:
            return table, False
        for each in new:
            del changes[each]
        changes.update(dict.fromkeys(named))
        found = self._read(entries)
        stored: dict[bytes, int | None] = dict(zip(found[KEY].to_pylist(), found[AT].to_pylist(), strict=True))
        written = {} if table is None else dict(zip(table[KEY].to_pylist(), table[AT].to_pylist(), strict=True))
        gone: list[bytes] = []
        for entry in entries:
            cell = changes.get(entry, _UNCHANGED)
            at = written.get(entry, stored.get(entry)) if cell is _UNCHANGED else cell and cell.at
            ttl = self._ttl(entry)
            if at is None or ttl is None:
                continue
            if at + ttl > clock:
                changes[expires_key(at + ttl, entry)] = Cell(b"")
                continue
            gone.append(entry)
            changes.pop(entry, None)
            if entry in stored:
                changes[entry] = None
        if table is not None and gone:
            table = table.filter(pc.invert(pc.is_in(table[KEY], pa.array(gone, pa.binary()))))
        return table, more

    def _ttl(self, entry: bytes) -> int | None:
        """After how long an entry expires; None: it does so no more, since the task was changed."""
        if self._signature.tables:
            return self._signature.ttl
        state = self._signature.states.get(read_state_key(entry).name)
        return None if state is None else state.ttl

    def _end_clock(self, work: Work, changes: Changes, *, more: bool) -> None:
        """At the end of the input, keep the last clock before it as long as timers are left: another peer may go on."""
        stored = self._stored_end()
        if work.ended and more and stored is None:
            changes[ENDED] = Cell(msgspec.msgpack.encode(work.before))
        elif not more and stored is not None:
            changes[ENDED] = None

    def _stored_end(self) -> int | None:
        found = self._read([ENDED])[VALUE].to_pylist()
        return msgspec.msgpack.decode(found[0], type=int) if found else None

    def _table(self, changes: Changes) -> pa.Table:
        count = len(changes)
        columns: list[Any] = [
            pa.array(list(changes), pa.binary()),
            pa.array([cell and cell.value for cell in changes.values()], pa.binary()),
            pa.array([cell and cell.at for cell in changes.values()], pa.int64()),
            *(pa.nulls(count, field.type) for field in list(self._store.schema)[3:]),
            pa.array([cell is None for cell in changes.values()], pa.bool_()),
        ]
        return pa.table(columns, schema=self._schema)

    # --- The shape ---

    def _new_shape(self) -> bytes | None:
        """The types of the states to write; None: those that are written are the same.

        Raises:
            InputError: ``SX-STATE-SHAPE``.
        """
        shape = self._signature.shape()
        new = {path: text for path, (text, _) in sorted(shape.items())}
        found = self._read([SHAPE])[VALUE].to_pylist()
        old = msgspec.msgpack.decode(found[0], type=dict[str, str]) if found else None
        if old == new:
            return None
        changed = list(differences(old or {}, shape))
        if changed:
            raise InputError(
                "SX-STATE-SHAPE",
                "the states of a task have changed since they were written",
                cause="; ".join(changed),
                fix="give the states their names and types back, let what is new have a default, or submit the job under another "
                "name, so that it begins without state",
            )
        return msgspec.msgpack.encode(new)


_UNCHANGED = Cell(b"")


def _timers_of(due: Sequence[tuple[bytes, bytes]], keys: list[bytes], values: list[tuple[Any, ...]]) -> list[Due]:
    """Read the entries of timers that are due. A key that is not among ``keys`` yet is added, with the values of its columns."""
    code_of = {key: code for code, key in enumerate(keys)}
    found: list[Due] = []
    for entry, value in due:
        at, key, name = read_due_key(entry)
        set_at, packed = msgspec.msgpack.decode(value)
        code = code_of.setdefault(key, len(keys))
        if code == len(keys):
            keys.append(key)
            values.append(unpack_key(packed))
        found.append(Due(code, name, Setting(at, entry[:1] == WALL, set_at)))
    return found


def _pairs(entries: pa.Table) -> list[tuple[bytes, bytes]]:
    return list(zip(entries[KEY].to_pylist(), entries[VALUE].to_pylist(), strict=True))
