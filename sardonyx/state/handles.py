"""What a function with keyed state is given besides a row: its states and the key. Timers: :mod:`sardonyx.state.timers`.

A handle shows the state of the key of the row at hand. A function changes it freely. Once it has returned, the changes of all
handles are written together. If it raises, they are undone. Values are decoded when they are first asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, MutableMapping
from datetime import datetime
from itertools import chain, islice
from typing import Any, Generic, NamedTuple, TypeVar, overload

from queues.keys import canonical
from sardonyx.core.clocks import NEVER
from sardonyx.state.codec import Codec

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

_SCALARS = (int, float, str, bytes, bool, type(None), datetime)
"""Types whose values cannot be changed in place."""


class Cell(NamedTuple):
    """An entry of a state."""

    value: bytes
    at: int | None = None
    """When it was written last, if the state has a ttl."""


Cells = dict[bytes, Cell]
"""The entries of one state of one key, by their part."""


class Write(NamedTuple):
    """A change of one entry."""

    part: bytes
    value: bytes | None
    """None: it goes."""


class Key:
    """Annotates a parameter that is given the key: its value; of several columns a tuple; None without ``group_by``."""


class Handle(ABC):
    """What all states share.

    Args:
        codec: of its values.
        cells: its entries.
        ttl: how long an entry is kept after it was last written, in microseconds.
    """

    def __init__(self, codec: Codec[Any], cells: Cells, ttl: int | None) -> None:
        self._codec = codec
        self._cells = cells
        self._ttl = ttl
        self._now = NEVER

    def begin(self, now: int) -> None:
        """A call of the function begins, at this time by the clock."""
        self._now = now

    @abstractmethod
    def writes(self) -> list[Write]:
        """What the call has changed.

        Raises:
            FunctionError: ``SX-STATE-VALUE``.
        """

    @abstractmethod
    def undo(self) -> None:
        """Forget what the call has done, and what was decoded."""

    def _cell(self, part: bytes) -> Cell | None:
        cell = self._cells.get(part)
        return None if cell is None or self._expired(cell) else cell

    def _expired(self, cell: Cell) -> bool:
        return self._ttl is not None and cell.at is not None and cell.at + self._ttl <= self._now


class _Held(Generic[T]):
    """A value as the user may have changed it, and the bytes that it was decoded from."""

    __slots__ = ("changed", "data", "value")

    def __init__(self, data: bytes, value: T, *, changed: bool) -> None:
        self.data, self.value, self.changed = data, value, changed

    def encoded(self, codec: Codec[T]) -> bytes | None:
        """Its bytes if they must be written."""
        if not self.changed and isinstance(self.value, _SCALARS):
            return None
        data, back = codec.encode(self.value)
        self.value = back  # a result may hold the value itself, which later calls must not change
        if data == self.data and not self.changed:
            return None
        self.data, self.changed = data, False
        return data


class State(Handle, Generic[T]):
    """One value for each key: annotate a parameter as ``State[T]``.

    ``T`` is a number, a text, bytes, a time, a ``Decimal``, a list, a dict, a ``msgspec.Struct``, a dataclass, or a union of such
    types. The name of the parameter is the name of the state.
    """

    def __init__(self, codec: Codec[T], cells: Cells, ttl: int | None) -> None:
        super().__init__(codec, cells, ttl)
        self._held: _Held[T | None] | None = None
        self._gone = False

    def begin(self, now: int) -> None:
        super().begin(now)
        if self._ttl is not None:  # the value may have gone since the call before
            self._held = None

    @property
    def value(self) -> T:
        """The value, which may be changed in place or set. Before it is first set, what ``T()`` gives: 0, an empty list, a struct
        with its defaults; None if ``T`` has none.
        """
        held = self._held
        if held is None:
            held = self._held = self._load()
        return held.value  # type: ignore[return-value]  # None only where T has nothing to begin with

    @value.setter
    def value(self, value: T) -> None:
        held = self._held
        if held is None:
            self._held, self._gone = _Held(b"", value, changed=True), False
        else:
            held.value, held.changed = value, True

    @property
    def exists(self) -> bool:
        """Whether a value was set, and has not gone since."""
        if self._held is not None and self._held.changed:
            return True
        return not self._gone and self._cell(b"") is not None

    @overload
    def get(self) -> T | None: ...
    @overload
    def get(self, default: D) -> T | D: ...
    def get(self, default: Any = None) -> Any:
        """The value, or ``default`` if there is none."""
        return self.value if self.exists else default

    def set(self, value: T) -> None:
        """The same as ``state.value = value``."""
        self.value = value

    def clear(self) -> None:
        """Remove the value."""
        self._held, self._gone = None, True

    def _load(self) -> _Held[T | None]:
        cell = None if self._gone else self._cell(b"")
        if cell is not None:
            return _Held(cell.value, self._codec.decode(cell.value), changed=False)
        value = self._codec.fresh()
        return _Held(b"" if value is None else self._codec.encode(value)[0], value, changed=False)

    def writes(self) -> list[Write]:
        data, held = None, self._held
        if held is not None and (held.changed or held.value is not None):
            data = held.encoded(self._codec)
        gone, self._gone = self._gone, False
        if data is not None:
            return [Write(b"", data)]
        return [Write(b"", None)] if gone and b"" in self._cells else []

    def undo(self) -> None:
        self._held, self._gone = None, False


class ListState(Handle, Generic[T]):
    """A list for each key, of which each element is kept by itself: a long list is not written again for each addition.

    Annotate a parameter as ``ListState[T]``. With a ttl, each element goes by itself. Indexes are of what is there.
    """

    def __init__(self, codec: Codec[T], cells: Cells, ttl: int | None) -> None:
        super().__init__(codec, cells, ttl)
        self._items: dict[int, _Held[T] | None] | None = None
        """By number; None: not decoded."""
        self._next = 0
        self._touched: set[int] = set()
        """What the call has set, or was given: only these may have changed, so a call costs what it touches."""
        self._removed: set[int] = set()
        self._changed = False

    def append(self, value: T) -> None:
        """Add an element at the end."""
        items = self._all()
        items[self._next] = _Held(b"", value, changed=True)
        self._touched.add(self._next)
        self._next += 1
        self._changed = True

    def extend(self, values: Iterable[T]) -> None:
        """Add elements at the end."""
        for value in values:
            self.append(value)

    def set(self, values: Iterable[T]) -> None:
        """Replace all elements."""
        values = list(values)
        self.clear()
        self.extend(values)

    def remove_first(self, n: int = 1) -> None:
        """Remove the first ``n`` elements, or as many as there are."""
        for number in list(islice(self._all(), n)):
            self._remove(number)

    def clear(self) -> None:
        """Remove all elements."""
        for number in list(self._all()):
            self._remove(number)

    def __len__(self) -> int:
        return len(self._all())

    def __iter__(self) -> Iterator[T]:
        for number in list(self._all()):
            yield self._at(number)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self._at(number) for number in list(self._all())[index]]
        return self._at(self._number(index))

    def __setitem__(self, index: int, value: T) -> None:
        number = self._number(index)
        self._all()[number] = _Held(b"", value, changed=True)
        self._touched.add(number)
        self._changed = True

    def __delitem__(self, index: int | slice) -> None:
        for number in list(self._all())[index] if isinstance(index, slice) else [self._number(index)]:
            self._remove(number)

    def begin(self, now: int) -> None:
        super().begin(now)
        if self._ttl is not None:  # elements may have gone since the call before
            self._items = None

    def _all(self) -> dict[int, _Held[T] | None]:
        if self._items is None:
            head = self._cell(b"")
            first, self._next = (0, 0) if head is None else _RANGE.decode(head.value)
            numbers = sorted(int.from_bytes(part, "big") for part in self._cells if part)
            there = (number for number in numbers if first <= number < self._next)
            self._items = {number: None for number in there if self._cell(number.to_bytes(8, "big")) is not None}
        return self._items

    def _number(self, index: int) -> int:
        """Of the element at an index. The first and the last one are found without a look at the others."""
        if isinstance(index, slice):
            raise TypeError(
                "a slice of a ListState cannot be replaced; set its elements one by one, or all with set(...)"
            )
        items = self._all()
        if items and index in (0, -1):
            return next(iter(items) if index == 0 else reversed(items))
        return list(items)[index]

    def _at(self, number: int) -> T:
        items = self._all()
        held = items[number]
        if held is None:
            data = self._cells[number.to_bytes(8, "big")].value
            held = items[number] = _Held(data, self._codec.decode(data), changed=False)
        self._touched.add(number)
        return held.value

    def _remove(self, number: int) -> None:
        del self._all()[number]
        self._removed.add(number)
        self._changed = True

    def writes(self) -> list[Write]:
        if self._items is None:
            return []
        found: list[Write] = []
        for number in sorted(self._touched):
            held = self._items.get(number)
            data = None if held is None else held.encoded(self._codec)
            if data is not None:
                found.append(Write(number.to_bytes(8, "big"), data))
        for number in sorted(self._removed):
            part = number.to_bytes(8, "big")
            if part in self._cells:
                found.append(Write(part, None))
        if self._changed or found:
            first = next(iter(self._items), self._next)
            whole = _RANGE.encode((first, self._next))[0] if self._items else None
            if whole is not None or b"" in self._cells:
                found.append(Write(b"", whole))
        self._touched, self._removed, self._changed = set(), set(), False
        if not self._items:
            self._next = 0  # as it would be read from an empty store
        return found

    def undo(self) -> None:
        self._items, self._changed = None, False
        self._touched, self._removed = set(), set()


_RANGE: Codec[tuple[int, int]] = Codec(tuple[int, int], "")


class MapState(Handle, MutableMapping[K, V], Generic[K, V]):
    """A mapping for each key, of which each item is kept by itself. Annotate a parameter as ``MapState[K, V]``.

    ``K`` is a text, a number, bytes, a bool, a date, a time, a UUID, or a tuple of a fixed length of them. Items come in an order
    that is always the same. With a ttl, each item goes by itself.
    """

    def __init__(self, codec: Codec[tuple[K, V]], cells: Cells, ttl: int | None) -> None:
        super().__init__(codec, cells, ttl)
        self._items: dict[bytes, _Held[tuple[K, V]] | None] = {}
        """What was decoded, set or removed (None) since the batch began."""
        self._touched: set[bytes] = set()
        """What the call has set or removed, or was given: only these may have changed, so a call costs what it touches."""

    def begin(self, now: int) -> None:
        super().begin(now)
        if self._ttl is not None:
            self._items = {}

    def __getitem__(self, key: K) -> V:
        held = self._item(_part(key))
        if held is None:
            raise KeyError(key)
        return held.value[1]

    def __setitem__(self, key: K, value: V) -> None:
        part = _part(key)
        self._items[part] = _Held(b"", (key, value), changed=True)
        self._touched.add(part)

    def __delitem__(self, key: K) -> None:
        part = _part(key)
        if self._item(part) is None:
            raise KeyError(key)
        self._items[part] = None

    def __contains__(self, key: object) -> bool:
        return self._there(_part(key))

    def __iter__(self) -> Iterator[K]:
        for part in self._parts():
            held = self._item(part)
            if held is not None:
                yield held.value[0]

    def __len__(self) -> int:
        return len(self._parts())

    def clear(self) -> None:
        """Remove all items."""
        self._items = dict.fromkeys([*self._items, *(part for part in self._cells if part)])
        self._touched.update(self._items)

    def _there(self, part: bytes) -> bool:
        return self._items[part] is not None if part in self._items else self._cell(part) is not None

    def _parts(self) -> list[bytes]:
        return sorted(part for part in {*self._cells, *self._items} if part and self._there(part))

    def _item(self, part: bytes) -> _Held[tuple[K, V]] | None:
        if part not in self._items:
            cell = self._cell(part)
            if cell is None:
                return None
            self._items[part] = _Held(cell.value, self._codec.decode(cell.value), changed=False)
        self._touched.add(part)
        return self._items[part]

    def writes(self) -> list[Write]:
        found: list[Write] = []
        for part in sorted(self._touched):
            held = self._items[part]
            if held is None:
                found += [Write(part, None)] * (part in self._cells)
                continue
            data = None if isinstance(held.value[1], _SCALARS) and not held.changed else held.encoded(self._codec)
            if data is not None:
                found.append(Write(part, data))
        self._touched = set()
        if not found:
            return []
        if not any(part and self._there(part) for part in chain(self._cells, self._items)):
            return [*found, *[Write(b"", None)] * (b"" in self._cells)]
        if b"" not in self._cells or self._ttl is not None:
            found.append(Write(b"", b"\xc3"))
        return found

    def undo(self) -> None:
        self._items, self._touched = {}, set()


def _part(key: object) -> bytes:
    return canonical(*key) if isinstance(key, tuple) else canonical(key)
