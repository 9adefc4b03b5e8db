"""Functions with keyed state as an operator: what :mod:`sardonyx.state.keyed` prepares goes to Spark's workers and comes back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import pyarrow as pa

from peer.operators import Answer, Asked, Read, Stores
from peer.provenance import Provenance
from peer.window_split import row_times
from sardonyx.core.graph import Stage
from sardonyx.core.stores import kind_of
from sardonyx.state.keyed import KeyedShard
from sardonyx.state.keyed_entries import keyed_schema
from sardonyx.state.keyed_run import KeyedFunction
from sardonyx.state.keyed_work import Done, Due, Failed, KeyedPiece, Work
from sardonyx.state.signature import Signature

if TYPE_CHECKING:
    from peer.failed_records import Failed as FailedRecord

Run = Callable[[Sequence[Work]], Sequence[Done]]
"""Runs the user's functions on work, of which there may be none. The results of each are a table."""

Tell = Callable[[Failed, pa.Table, Any, int | None], "FailedRecord"]
"""Makes a failed record: of what failed, with its record as a row, the message that it came with, and its place in it."""


class KeyedOperator:
    """The state of keys: see :class:`sardonyx.state.keyed.KeyedShard`.

    Args:
        stage: a task with keyed state.
        signature: what its functions take.
        run: runs them.
        tell: makes failed records.
        most: the most timers that fire at the end of a batch, for each shard.
    """

    by_rows: Collection[str] = ()
    entries = (
        "each value of a state is an entry for each key, each element of a list or a map is one, and each timer is two"
    )
    _STORE = "keyed"

    def __init__(self, stage: Stage, signature: Signature, run: Run, tell: Tell, most: int) -> None:
        assert stage.task.keyed is not None  # noqa: S101 (for the type checker: the caller asks)
        self._keys = list(stage.task.group_by or ())
        self._links = stage.ingress
        self._signature = signature
        self._run = run
        self._tell = tell
        self._most = most
        self._shards: WeakKeyDictionary[Stores, KeyedShard] = WeakKeyDictionary()
        self.store = kind_of(stage.task.keyed.store)
        self.state_limit = stage.task.keyed.state_limit

    def schemas(self) -> Mapping[str, pa.Schema]:
        return {self._STORE: keyed_schema(self._signature.declared)}

    def until(self, asked: Asked) -> int | None:  # noqa: ARG002
        return None

    def is_open(self, stores: Stores) -> bool:
        return len(stores) > 0

    def wake(self, stores: Stores) -> int | None:
        shard = self._shards.get(stores)
        return None if shard is None else shard.next_wall()

    def plan(self, asked: Sequence[Asked]) -> Sequence[Answer]:
        shards = [self._shard(each.stores) for each in asked]
        works = [self._prepared(shard, each) for shard, each in zip(shards, asked, strict=True)]
        busy = [number for number, work in enumerate(works) if work.keys]
        dones = dict(zip(busy, self._run([works[number] for number in busy]), strict=True))
        answers: list[Answer] = []
        for number, (shard, each, work) in enumerate(zip(shards, asked, works, strict=True)):
            done = dones[number] if number in dones else self._nothing(work)
            planned = shard.finish(work, done)
            assert isinstance(planned.results, pa.Table)  # noqa: S101 (for the type checker: it was run so)
            failed = self._failed(planned.failed, each, work) if planned.failed else ()
            answers.append(Answer(planned.results, {self._STORE: planned.changes}, planned.more, failed=failed))
        return answers

    def _shard(self, stores: Stores) -> KeyedShard:
        shard = self._shards.get(stores)
        if shard is None:
            store = stores.open(self._STORE, keyed_schema(self._signature.declared))
            shard = self._shards[stores] = KeyedShard(self._signature, self._keys, store)
        return shard

    def _prepared(self, shard: KeyedShard, asked: Asked) -> Work:
        pieces = [
            KeyedPiece(piece.rows, piece.in_force if piece.clocks is None else piece.clocks, self._times(read))
            for read, piece in ((read, read.piece) for read in asked.reads)
        ]
        return shard.prepare(pieces, asked.clock, before=asked.before_end, wall=asked.now, limit=self._most)

    def _times(self, read: Read) -> Any:
        link = self._links[read.link]
        if link.row_time is None or not read.piece.rows.num_rows:
            return None
        return row_times(read.piece.rows, link.row_time, link.source)

    def _nothing(self, work: Work) -> Done:
        """What functions make of no rows and no timers: they are not called."""
        done = KeyedFunction(self._signature, lambda *_: None).run(work)
        return done._replace(results=pa.table({}))

    def _failed(self, failed: Sequence[Failed], asked: Asked, work: Work) -> list[FailedRecord]:
        """Failed records, with the message of each. A timer came with no message."""
        provenance = Provenance()
        for read in asked.reads:
            provenance.add([read.message], [read.piece.rows.num_rows])
        found: list[FailedRecord] = []
        for each in failed:
            if each.row is not None:
                found.append(self._tell(each, work.rows.slice(each.row, 1), *provenance.message(each.row)))
            elif each.timer is not None:
                found.append(self._tell(each, _timer_row(work, each.timer), asked.origin, None))
        return found


def _timer_row(work: Work, due: Due) -> pa.Table:
    """A timer as a row: the key, its name, and when it was due."""
    key = dict(zip(work.key_columns, work.values[due.code], strict=True))
    at = pa.array([due.setting.at], pa.timestamp("us", "UTC"))
    return pa.Table.from_pylist([{**key, "timer": due.name}]).append_column("timer_at", at)
