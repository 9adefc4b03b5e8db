"""The entries of a shard of keyed state: what their keys look like.

The first byte says what an entry is. What belongs to one key is side by side, as a key begins with its length. A time is eight
bytes that sort as numbers do, so what is due at a time stands before everything that is not.

===================== ===================================================== ==============================================
kind                  key                                                   value
===================== ===================================================== ==============================================
:data:`STATE`         the key, the name of the state, the part in it        MessagePack; of tables the declared columns
:data:`TIMER`         the key, the name of the timer                        when it is due, and by which clock
:data:`DUE`           when it is due, the key, the name                     the clock when it was set, the values of the key
:data:`WALL`          the same for timers by the clock of the machine       the same
:data:`EXPIRES`       when to look at an entry of a state, the key of it    nothing
:data:`ENDED`         nothing                                               at the end of the input: the last clock before
:data:`SHAPE`         nothing                                               the types of the states
===================== ===================================================== ==============================================

The part is empty for a value. Of a list it is the number of the element, of a map the canonical bytes of its key; the entry
without a part then says where the list begins and ends, or that the map has elements.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import pyarrow as pa

from sardonyx.state.base import KEY
from sardonyx.state.entry_keys import ordered

VALUE, AT = "v", "at"
"""Columns of entries: MessagePack; of the entries of states with a ttl, when they were written last."""
COLUMN = "s:"
"""The names of declared columns begin with this in entries."""
STATE, TIMER, DUE, WALL, EXPIRES, ENDED, SHAPE = b"\1", b"\2", b"\3", b"\4", b"\5", b"\xfe", b"\xff"
_LENGTH = struct.Struct(">I")
_FLIP = 1 << 63


class Entry(NamedTuple):
    """What the key of an entry of a state says."""

    key: bytes
    name: str
    part: bytes


def keyed_schema(declared: pa.Schema | None = None) -> pa.Schema:
    """The columns of the entries of a task's shards.

    Args:
        declared: of a function of tables: the columns of its state.
    """
    schema = pa.schema([pa.field(KEY, pa.binary(), nullable=False), (VALUE, pa.binary()), (AT, pa.int64())])
    for field in declared or ():
        schema = schema.append(pa.field(COLUMN + field.name, field.type))
    return schema


def sized(key: bytes) -> bytes:
    """A key behind its length: none then begins with another."""
    return _LENGTH.pack(len(key)) + key


def state_key(key: bytes, name: str) -> bytes:
    """The entry of a state of a key; what follows it is the part."""
    text = name.encode()
    return STATE + sized(key) + bytes([len(text)]) + text


def read_state_key(entry: bytes) -> Entry:
    """The opposite of :func:`state_key`."""
    end = 5 + int.from_bytes(entry[1:5], "big")
    name_end = end + 1 + entry[end]
    return Entry(entry[5:end], entry[end + 1 : name_end].decode(), entry[name_end:])


def timer_key(key: bytes, name: str) -> bytes:
    return TIMER + sized(key) + name.encode()


def due_key(kind: bytes, at: int, key: bytes, name: str) -> bytes:
    return kind + ordered(at) + sized(key) + name.encode()


def read_due_key(entry: bytes) -> tuple[int, bytes, str]:
    """When a timer is due, its key and its name."""
    end = 13 + int.from_bytes(entry[9:13], "big")
    return read_time(entry), entry[13:end], entry[end:].decode()


def expires_key(at: int, entry: bytes) -> bytes:
    return EXPIRES + ordered(at) + entry


def read_time(entry: bytes) -> int:
    """The time in the key of what is due or expires."""
    return int.from_bytes(entry[1:9], "big") - _FLIP


def after(kind: bytes, time: int) -> bytes:
    """A key after all of this kind that have this time."""
    return kind + ordered(time) + b"\xff" * 5
