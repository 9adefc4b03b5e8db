"""Conformance suites: pytest test classes that every connector must pass, ours and your own.

Subclass one, say how your connector is made and what it should hold, and let pytest collect it::

    class TestOrders(InputSuite):
        def make(self):
            return Orders(path="orders.bin")

        def expected(self):
            return [{"id": 1}, {"id": 2}]

An autouse fixture of the subclass may use pytest's fixtures. Nothing here needs a cluster.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from sardonyx.connectors.base import DivisibleInput, Output, PositionedOutput, PositionsMoved, Split, SplitInput
from sardonyx.connectors.custom import CustomInput
from sardonyx.core.chains import Heard
from sardonyx.core.events import Counts
from sardonyx.core.positions import Partition, Position

Rows = list[dict[str, Any]]

_OURS = "sardonyx.connectors."
"""Modules of our own connectors, which are tested as they are. Any other is called as Sardonyx calls it in a job."""

LARGEST_SPLIT = 16_384
"""Bytes: a split travels as one message, and thousands of them in one transaction."""

ROWS = [{"id": number, "text": None if number % 5 == 0 else f"text {number}"} for number in range(40)]
"""What the suites of outputs write."""


class InputSuite:
    """For an input: ``splits`` and ``read``. Override :meth:`make` and :meth:`expected`."""

    ordered = True
    """Whether the connector promises the order of the rows within a split."""

    def make(self) -> Any:
        """The connector, made anew on the same data."""
        raise NotImplementedError

    def expected(self) -> Rows:
        """Every row that there is, in any order."""
        raise NotImplementedError

    def test_the_splits_together_are_everything(self) -> None:
        """Every row is in one split and in no other."""
        connector = self._connector()
        _same(_bag(_rows(connector.read(split.data) for split in self._splits())), _bag(self.expected()), "all splits")

    def test_a_split_reads_the_same_every_time(self) -> None:
        """A second read, in another order and by another instance, gives the same rows."""
        splits = self._splits()
        first = [self._seen(self._connector().read(split.data)) for split in splits]
        again = [self._seen(self._connector().read(split.data)) for split in reversed(splits)]
        for split, one, other in zip(splits, first, reversed(again), strict=True):
            _same(other, one, f"split {split.data}")

    def test_the_same_splits_are_listed_every_time(self) -> None:
        """Another peer lists the splits again if the first one dies while it lists them."""
        _same(self._splits(), self._splits(), "the list of splits")

    def test_a_split_is_small_plain_data(self) -> None:
        """A split travels over a topic: it survives JSON unchanged and is small enough for a message."""
        for split in self._splits():
            text = json.dumps(split.data)
            _same(json.loads(text), split.data, "a split after its way through JSON")
            _check(len(text) <= LARGEST_SPLIT, f"a split of {len(text)} bytes; the most is {LARGEST_SPLIT}")

    def test_sizes_that_are_told_are_true(self) -> None:
        """A split that says how many rows it holds, holds that many."""
        connector = self._connector()
        for split in self._splits():
            if split.rows is not None:
                _same(connector.read(split.data).num_rows, split.rows, f"rows of split {split.data}")

    def test_the_parts_of_a_split_are_the_split(self) -> None:
        """An input may divide a split for several workers. The parts in their order hold the rows of the split."""
        connector = self._connector()
        if not isinstance(connector, DivisibleInput):
            return
        for split in self._splits():
            for most in (2, 3, 7):
                parts = connector.divide(split.data, most)
                if parts is None:
                    continue
                _check(
                    0 < len(parts) <= most,
                    f"split {split.data} was divided into {len(parts)} parts; the most was {most}",
                )
                read = [row for part in parts for row in connector.read(dict(part)).to_pylist()]
                whole = connector.read(split.data).to_pylist()
                ordered = self.ordered
                _same(
                    read if ordered else _bag(read), whole if ordered else _bag(whole), f"parts of split {split.data}"
                )

    def test_all_splits_have_the_same_columns(self) -> None:
        """The types do not depend on the values in a split."""
        connector = self._connector()
        schemas = {str(connector.read(split.data).schema) for split in self._splits()}
        _check(len(schemas) <= 1, "splits of different columns:\n" + "\n\n".join(sorted(schemas)))

    def test_it_travels_to_workers(self) -> None:
        """After pickling and unpickling, the connector reads the same rows."""
        for split in self._splits()[:2]:
            copy = pickle.loads(pickle.dumps(self._connector()))  # noqa: S301 - just made here
            _same(self._seen(copy.read(split.data)), self._seen(self._connector().read(split.data)), "a copy's rows")

    def _connector(self) -> SplitInput:
        made = self.make()
        return made if type(made).__module__.startswith(_OURS) else CustomInput(type(made).__name__, made)

    def _splits(self) -> list[Split]:
        return list(self._connector().splits())

    def _seen(self, table: pa.Table) -> Any:
        return table.to_pylist() if self.ordered else _bag(table.to_pylist())


class OutputSuite:
    """For an output: ``stage``, ``publish``, ``seal``. Override :meth:`make` and :meth:`visible`."""

    published = True
    """Whether rows are visible once they are published; False: only when the task is sealed."""
    forgets = False
    """Whether the output discards everything."""

    def make(self) -> Output:
        """A new instance for the same task of the same job, as a successor of a dead peer makes one."""
        raise NotImplementedError

    def visible(self) -> Iterable[dict[str, Any]]:
        """The rows that a reader sees now."""
        raise NotImplementedError

    def test_what_is_staged_is_invisible(self) -> None:
        """Rows of a transaction that is not committed are invisible."""
        self.make().stage(_table(ROWS))
        self._sees([])

    def test_what_is_published_is_visible_once(self) -> None:
        """Publishing again, also by another instance, changes nothing."""
        first = self.make()
        entries = first.stage(_table(ROWS))
        first.publish(entries)
        first.publish(entries)
        self.make().publish(entries)
        self._sees(ROWS if self.published else [])
        self.make().seal(entries)
        self._sees(ROWS)

    def test_a_seal_publishes_what_is_not_yet_published(self) -> None:
        """A peer may die between its commit and the publishing."""
        entries = [*self.make().stage(_table(ROWS[:10])), *self.make().stage(_table(ROWS[10:]))]
        self.make().seal(entries)
        self._sees(ROWS)

    def test_a_seal_removes_what_was_never_committed(self) -> None:
        """Rows of an aborted batch are removed, and committed rows stay."""
        entries = self.make().stage(_table(ROWS[:10]))
        self.make().stage(_table(ROWS[10:]))
        self.make().seal(entries)
        self._sees(ROWS[:10])

    def test_a_seal_can_be_done_again(self) -> None:
        """A successor that does not know of the first seal may seal again."""
        entries = self.make().stage(_table(ROWS))
        for _ in range(3):
            self.make().seal(entries)
        self._sees(ROWS)

    def test_a_task_without_rows_can_be_sealed(self) -> None:
        """Sealing without entries works, and nothing is visible."""
        self.make().seal([])
        self._sees([])

    def test_entries_are_bytes_and_small(self) -> None:
        """Entries are messages of the transaction that commits the batch."""
        for entry in self.make().stage(_table(ROWS)):
            _check(isinstance(entry, bytes), f"an entry is bytes, not {type(entry).__name__}")
            _check(len(entry) <= LARGEST_SPLIT, f"an entry of {len(entry)} bytes; the most is {LARGEST_SPLIT}")

    def _sees(self, rows: Rows) -> None:
        _same(_bag(self.visible()), _bag([] if self.forgets else rows), "what a reader sees")


class PositionedOutputSuite:
    """For an output that keeps positions itself. Override :meth:`make` and :meth:`visible`."""

    here = Partition("link", 0)
    there = Partition("link", 1)

    def make(self) -> PositionedOutput:
        """A new instance for the same task of the same job, as a successor or a rival makes one."""
        raise NotImplementedError

    def visible(self) -> Iterable[dict[str, Any]]:
        """The rows that a reader of the connector sees now."""
        raise NotImplementedError

    def test_rows_and_positions_come_together(self) -> None:
        """Before the commit neither is there; after it both are, and a successor reads the position."""
        output = self.make()
        _same(self._held(), {}, "positions before anything was committed")
        output.begin(_table(ROWS), {self.here: None}, {self.here: Position(7)}, b"outbox")
        output.commit()
        self._sees(ROWS)
        held = self.make().positions([self.here, self.there])
        _same(set(held), {self.here}, "partitions with a position")
        _same((held[self.here].position, held[self.here].outbox), (Position(7), b"outbox"), "what is held")

    def test_what_is_abandoned_leaves_no_trace(self) -> None:
        """After a rollback there are neither rows nor positions, and the batch can begin again."""
        output = self.make()
        output.begin(_table(ROWS), {self.here: None}, {self.here: Position(7)}, None)
        output.abandon()
        output.abandon()
        self._sees([])
        _same(self._held(), {}, "positions after a rollback")
        output.begin(_table(ROWS), {self.here: None}, {self.here: Position(7)}, None)
        output.commit()
        self._sees(ROWS)

    def test_a_batch_that_began_elsewhere_is_refused(self) -> None:
        """Of two peers that process the same batch only one commits. The other writes nothing, whatever position it expects."""
        self._commit(ROWS[:10], None, 7)
        for started in (None, 3, 8):
            self._is_refused(started)
        self._commit(ROWS[10:], 7, 9)
        self._is_refused(7)
        self._sees(ROWS)

    def test_one_partition_that_moved_refuses_the_whole_batch(self) -> None:
        """Half a batch is never written."""
        self._commit(ROWS, None, 7)
        late = self.make()
        try:
            late.begin(
                _table(ROWS), {self.here: 7, self.there: 2}, {self.here: Position(8), self.there: Position(3)}, None
            )
        except PositionsMoved:
            late.abandon()
        else:
            raise AssertionError("a batch was accepted although one of its partitions had moved")
        self._sees(ROWS)
        _same(self._held(), {self.here: Position(7)}, "positions")

    def test_a_batch_without_rows_moves_positions(self) -> None:
        """All its rows were skipped. The positions move, and the outbox of the batch before is cleared."""
        self._commit(ROWS, None, 7)
        output = self.make()
        whole = Position(9, Counts(5, 3, 1), "end", heard=Heard({"812.0.1.9f3a": 311}), told=(3, 0))
        output.begin(pa.table({}), {self.here: 7}, {self.here: whole}, None)
        output.commit()
        held = self.make().positions([self.here])[self.here]
        _same((held.position, held.outbox), (whole, None), "what is held")

    def test_a_peer_that_wakes_up_after_the_seal_is_refused(self) -> None:
        """Also a peer that was stopped in its very first batch."""
        self._commit(ROWS, None, 7)
        self.make().seal()
        self.make().seal()
        self._is_refused(None)
        self._is_refused(3)
        self._sees(ROWS)

    def _commit(self, rows: Rows, started: int | None, end: int) -> None:
        output = self.make()
        output.begin(_table(rows), {self.here: started}, {self.here: Position(end)}, None)
        output.commit()

    def _is_refused(self, started: int | None) -> None:
        late = self.make()
        try:
            late.begin(_table(ROWS), {self.here: started}, {self.here: Position(99)}, None)
            late.commit()
        except PositionsMoved:
            late.abandon()
        else:
            raise AssertionError(f"a batch that began at {started} was accepted")

    def _held(self) -> dict[Partition, Position]:
        return {partition: kept.position for partition, kept in self.make().positions([self.here, self.there]).items()}

    def _sees(self, rows: Rows) -> None:
        _same(_bag(self.visible()), _bag(rows), "what a reader sees")


def _rows(tables: Iterable[pa.Table]) -> Rows:
    return [row for table in tables for row in table.to_pylist()]


def _bag(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Rows without their order, in a form that can be compared."""
    return sorted(repr(sorted((name, _moment(value)) for name, value in row.items())) for row in rows)


def _moment(value: Any) -> Any:
    """A moment in UTC: the same moment may be written in several zones."""
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value


def _table(rows: Rows) -> pa.Table:
    return pa.Table.from_pylist(rows, pa.schema([("id", pa.int64()), ("text", pa.string())]))


def _same(found: Any, wanted: Any, what: str) -> None:
    _check(found == wanted, f"{what}: found {found!r}, not {wanted!r}")


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)
