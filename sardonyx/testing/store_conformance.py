"""The conformance suite of stores of state: a pytest test class that every store must pass, ours and your own.

Subclass it, say how your store is made, and let pytest collect it::

    class TestMine(StoreSuite):
        def make(self, schema):
            return MyStore(schema)
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from sardonyx.state.base import GONE, KEY, Store


class StoreSuite:
    """For a store of state. Override :meth:`make`."""

    histories = 60
    """Random histories, of up to 40 changes each. The numbers are the seeds."""

    schema = pa.schema([pa.field(KEY, pa.binary(), nullable=False), ("n", pa.int64()), ("text", pa.string())])

    def make(self, schema: pa.Schema) -> Store:
        """A store without entries."""
        raise NotImplementedError

    def test_what_is_put_is_read(self) -> None:
        """In the order in which it is asked for, with its place there. What is not there is left out."""
        store = self.make(self.schema)
        self._apply(store, {b"b": (2, "two"), b"a": (1, None), b"c": None})
        places, entries = store.read(pa.array([b"x", b"b", b"", b"a", b"c"], pa.binary()))
        _same((places.type, places.to_pylist()), (pa.int64(), [1, 3]), "places of entries that were found")
        _same(_entries(entries), [(b"b", 2, "two"), (b"a", 1, None)], "what was read")
        _same(entries.schema.names, self.schema.names, "columns")
        _same(len(store), 2, "entries")

    def test_an_empty_store_gives_empty_tables(self) -> None:
        """With all columns. Changes without rows change nothing."""
        store = self.make(self.schema)
        self._apply(store, {})
        places, entries = store.read(pa.array([b"x"], pa.binary()))
        _same(
            (len(places), entries, store.scan(), len(store)), (0, *[self.schema.empty_table()] * 2, 0), "an empty store"
        )
        _same(len(store.read(pa.array([], pa.binary()))[0]), 0, "what was found of no key")

    def test_entries_are_replaced_removed_and_put_again(self) -> None:
        """To remove what is not there changes nothing."""
        store = self.make(self.schema)
        self._apply(store, {b"a": (1, "one"), b"b": (2, "two")})
        self._apply(store, {b"a": (3, None), b"b": None, b"c": None})
        self._holds(store, {b"a": (3, None)})
        self._apply(store, {b"a": None, b"b": (4, "four")})
        self._holds(store, {b"b": (4, "four")})
        self._apply(store, {b"a": (5, "")})
        self._holds(store, {b"a": (5, ""), b"b": (4, "four")})

    def test_a_scan_has_the_order_of_bytes_and_its_bounds(self) -> None:
        """The first key is in it, the last one is not. A key comes before those that it begins."""
        keys = [b"", b"\0", b"\0\0", b"\1", b"a", b"a\0", b"aa", b"b", b"\x7f", b"\x80", b"\xff", b"\xff\xff"]
        store = self.make(self.schema)
        self._apply(store, {key: (number, None) for number, key in reversed(list(enumerate(keys)))})
        _same(_keys(store.scan()), keys, "all keys")
        for low, first in enumerate(keys):
            for high, before in [*enumerate(keys), (len(keys), None)]:
                for limit in (None, 0, 1, 3, 100):
                    wanted = keys[low:high][: len(keys) if limit is None else limit]
                    _same(_keys(store.scan(first, before, limit)), wanted, f"scan({first!r}, {before!r}, {limit})")
        _same(_keys(store.scan(b"a\0\0", b"aaa")), [b"aa"], "bounds that are not keys")

    def test_a_scan_knows_what_has_changed(self) -> None:
        """Also if the least keys go and new ones come between two scans."""
        store, held = self.make(self.schema), dict[bytes, Any]()
        for number in range(60):
            changes: dict[bytes, Any] = {b"%05d" % (number * 10 + digit): (digit, "x") for digit in range(10)}
            changes |= dict.fromkeys(_keys(store.scan(limit=7)))
            changes[b"%05d" % (number // 2)] = (number, "again")
            self._apply(store, changes)
            held = _after(held, changes)
            _same(_keys(store.scan(limit=3)), sorted(held)[:3], f"the least keys after change {number}")
        self._holds(store, held)

    def test_all_types_of_columns_are_given_back_equal(self) -> None:
        """With nulls in each of them."""
        columns = _of_all_types()
        schema = pa.schema(
            [pa.field(KEY, pa.binary(), nullable=False), *((name, a.type) for name, a in columns.items())]
        )
        keys = pa.array([b"%d" % number for number in range(3)], pa.binary())
        store = self.make(schema)
        table = pa.table([keys, *columns.values()], schema=schema)
        store.apply(table.append_column(_GONE, pa.array([False] * 3)))
        for found in (store.scan(), store.read(keys)[1]):
            _same(found.schema.types, schema.types, "types")
            for name in schema.names:
                _same(repr(found.column(name).to_pylist()), repr(table.column(name).to_pylist()), f"column {name}")

    def test_what_was_read_stays_as_it_was(self) -> None:
        """A plan is made from tables that were read before the store changes."""
        store, held = self.make(self.schema), {b"%d" % number: (number, "old") for number in range(50)}
        self._apply(store, held)
        read, scanned = store.read(pa.array(held, pa.binary()))[1], store.scan()
        for number in range(50):
            self._apply(store, dict.fromkeys(held, (number, "new")))
        self._apply(store, dict.fromkeys(held))
        _same(_entries(read), [(key, *value) for key, value in held.items()], "what was read before")
        _same(_entries(scanned), _entries(read.sort_by(KEY)), "what was scanned before")

    def test_tables_in_pieces_are_taken(self) -> None:
        """Changes may be a slice of a larger table, and in several chunks."""
        store = self.make(self.schema)
        table = self._table({b"%02d" % number: (number, str(number)) for number in range(20)})
        store.apply(pa.concat_tables([table.slice(10, 5), table.slice(3, 2)]))
        self._holds(store, {b"%02d" % number: (number, str(number)) for number in (3, 4, 10, 11, 12, 13, 14)})

    def test_a_store_that_was_cleared_is_empty(self) -> None:
        """It takes changes as before."""
        store = self.make(self.schema)
        self._apply(store, {b"a": (1, "one"), b"b": (2, "two")})
        store.clear()
        self._holds(store, {})
        self._apply(store, {b"c": (3, "three")})
        self._holds(store, {b"c": (3, "three")})

    def test_it_is_an_ordered_dictionary(self) -> None:
        """Random histories of few keys, compared with a dictionary after each change."""
        for seed in range(self.histories):
            chance = random.Random(seed)  # noqa: S311 - a seeded choice of tests
            store, held = self.make(self.schema), dict[bytes, Any]()
            keys = [chance.randbytes(chance.randint(0, 3)) for _ in range(chance.choice([3, 30, 300]))]
            for number in range(chance.randint(1, 40)):
                changes = {
                    key: None if chance.random() < 0.4 else (chance.randrange(9), chance.choice([None, "", "text"]))
                    for key in chance.sample(keys, chance.randint(0, len(keys)))
                }
                self._apply(store, changes)
                held = _after(held, changes)
                first, before = sorted(chance.choices([*keys, b""], k=2))
                wanted = [key for key in sorted(held) if first <= key < before][:5]
                _same(_keys(store.scan(first, before, 5)), wanted, f"a scan after change {number} of seed {seed}")
                if chance.random() < 0.3:
                    self._holds(store, held, f"seed {seed}, change {number}")
            self._holds(store, held, f"seed {seed}")
            store.close()

    def _apply(self, store: Store, changes: Mapping[bytes, Any]) -> None:
        store.apply(self._table(changes))

    def _table(self, changes: Mapping[bytes, Any]) -> pa.Table:
        rows = [(key, *(value or (None, None)), value is None) for key, value in changes.items()]
        columns = zip(*rows, strict=True) if rows else [()] * 4
        schema = self.schema.append(_GONE)
        return pa.table([pa.array(c, kind) for c, kind in zip(columns, schema.types, strict=True)], schema=schema)

    def _holds(self, store: Store, wanted: Mapping[bytes, Any], when: str = "the store") -> None:
        entries = [(key, *wanted[key]) for key in sorted(wanted)]
        _same(_entries(store.scan()), entries, f"{when}: a scan of everything")
        _same(len(store), len(wanted), f"{when}: number of entries")
        places, found = store.read(pa.array([*reversed(list(wanted)), b"none of them"], pa.binary()))
        _same(places.to_pylist(), list(range(len(wanted))), f"{when}: places of all entries")
        _same(_entries(found), [(key, *wanted[key]) for key in reversed(list(wanted))], f"{when}: all entries by key")


_GONE = pa.field(GONE, pa.bool_(), nullable=False)


def _after(held: Mapping[bytes, Any], changes: Mapping[bytes, Any]) -> dict[bytes, Any]:
    return {key: value for key, value in {**held, **changes}.items() if value is not None}


def _entries(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _keys(table: pa.Table) -> list[bytes]:
    keys: list[bytes] = table.column(KEY).to_pylist()
    return keys


def _of_all_types() -> dict[str, pa.Array]:
    moment = datetime(1969, 12, 31, 23, 59, 59, 123456, tzinfo=UTC)
    plain = moment.replace(tzinfo=None)
    values: list[tuple[pa.DataType, list[Any]]] = [
        (pa.bool_(), [True, False]),
        *((kind, [-1, 7]) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
        (pa.uint64(), [2**64 - 1, 0]),
        *((kind, [float("nan"), -0.0]) for kind in (pa.float32(), pa.float64())),
        (pa.float64(), [float("-inf"), 0.1]),
        (pa.float16(), [np.float16(1.5), np.float16(-0.1)]),
        (pa.string(), ["", "ö\0x"]),
        (pa.large_string(), ["a", "b"]),
        (pa.binary(), [b"", b"\xff\0"]),
        (pa.binary(2), [b"ab", b"\0\0"]),
        (pa.decimal128(38, 9), [Decimal("-12345678901234567890.123456789"), Decimal(0)]),
        (pa.date32(), [moment.date(), plain.date()]),
        (pa.timestamp("us"), [plain, plain]),
        (pa.timestamp("ms", "UTC"), [moment.replace(microsecond=5000), moment.replace(microsecond=0)]),
        (pa.timestamp("us", "Europe/Berlin"), [moment, moment]),
        (pa.time64("us"), [plain.time(), plain.time()]),
        (pa.duration("us"), [timedelta(microseconds=-1), timedelta(days=400)]),
        (pa.list_(pa.int64()), [[], [1, None]]),
        (pa.list_(pa.timestamp("us", "UTC")), [[moment], [None]]),
        (pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))]), [{"a": 1, "b": ["x"]}, {"a": None, "b": None}]),
        (pa.map_(pa.string(), pa.float64()), [[], [("x", 1.5), ("y", None)]]),
        (
            pa.list_(pa.struct([("m", pa.map_(pa.int32(), pa.date32()))])),
            [[{"m": [(1, moment.date())]}, None], [{"m": None}]],
        ),
        (pa.null(), [None, None]),
    ]
    return {f"c{number} {kind}": pa.array([*two, None], kind) for number, (kind, two) in enumerate(values)}


def _same(found: Any, wanted: Any, what: str) -> None:
    if found != wanted:
        raise AssertionError(f"{what}: found {found!r}, not {wanted!r}")
