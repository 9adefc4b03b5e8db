"""Hands many records to librdkafka in one call, from columns.

confluent-kafka makes a call for each record. Of each it also hears what became of it, for which it takes Python's lock once more.
Together that is most of what it costs to write a record. ``rd_kafka_produce_batch`` takes an array of messages. Here numpy fills
that array, with pointers into the columns. Of these records nobody hears what becomes of them: if one is refused, the transaction
fails without saying which.

The client behind a Python producer is no part of confluent-kafka's interface. It is the first field of the object, and has been
since the first release. :func:`is_known` makes sure of it without trusting it: it reads what the field points to in a way that
cannot crash, and looks for the name that librdkafka gives to each producer. A producer that does not look like that is not used
here; its records go one by one.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import Producer, cimpl

Codes = npt.NDArray[np.int32]
"""0 for each record that the client has taken, or why it has not: the code of a :class:`confluent_kafka.KafkaError`."""

_MESSAGE = np.dtype(
    [
        ("err", np.int32),
        ("rkt", np.uintp),
        ("partition", np.int32),
        ("payload", np.uintp),
        ("len", np.uintp),
        ("key", np.uintp),
        ("key_len", np.uintp),
        ("offset", np.int64),
        ("_private", np.uintp),
    ],
    align=True,
)
"""``rd_kafka_message_t`` of rdkafka.h. Its layout is part of librdkafka's binary interface."""
_COPY = 0x2
"""A flag of the call: the bytes are copied."""
_ANY = -1
"""In place of a partition: the partitioner chooses it. Messages that name their own may hang here: if the topic is not known yet,
librdkafka 2.16 adds a partition to the transaction that does not exist."""
_NAME = b"#producer-"
"""Stands in the name of each producer, within its first bytes."""
_FIRST = 1 << 14


def _library() -> Any:
    """The librdkafka that confluent-kafka uses; None if it lacks a call, or numbers are not as wide as we expect."""
    try:
        found = ctypes.CDLL(cimpl.__file__)  # looks into the libraries that it is linked to, too
        found.rd_kafka_topic_new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        found.rd_kafka_topic_new.restype = ctypes.c_void_p
        found.rd_kafka_topic_destroy.argtypes = (ctypes.c_void_p,)
        found.rd_kafka_topic_destroy.restype = None
        found.rd_kafka_produce_batch.argtypes = (
            ctypes.c_void_p,
            ctypes.c_int32,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_int,
        )
    except (OSError, AttributeError):
        return None
    return found if _MESSAGE.itemsize == 72 and ctypes.sizeof(ctypes.c_void_p) == 8 else None


_LIBRARY = _library()


def _handle(client: object) -> int:
    """What stands in the first field of a Python object."""
    return ctypes.c_size_t.from_address(id(client) + object.__basicsize__).value


def is_known(client: object) -> bool:
    """Whether :func:`produce` can be used with a producer."""
    if _LIBRARY is None or not isinstance(client, Producer):
        return False
    try:
        with open("/proc/self/mem", "rb", buffering=0) as memory:  # noqa: PTH123 - no path that could be anywhere else
            memory.seek(_handle(client))
            return _NAME in memory.read(_FIRST)
    except (OSError, ValueError, OverflowError):  # no such system, no right, or no address
        return False


def produce(client: Producer, topic: str, keys: pa.Array | None, values: pa.Array) -> Codes:
    """Hand records to a producer that :func:`is_known`. The client keeps a copy of each that it takes. Its partitioner chooses
    the partitions by the keys.

    It does not raise, because its frame refers to the client: see :mod:`queues.guarded_producer`.

    Args:
        client: the producer.
        topic: of the records.
        keys: of the records, binary or large binary; None: they have none.
        values: the same.
    """
    messages = np.zeros(len(values), _MESSAGE)
    messages["payload"], messages["len"] = _pointers(values, messages.ctypes.data)
    if keys is not None:
        messages["key"], messages["key_len"] = _pointers(keys, messages.ctypes.data)
    handle = _LIBRARY.rd_kafka_topic_new(_handle(client), topic.encode(), None)
    if not handle:
        return np.full(len(values), -1, np.int32)  # each by itself is told why
    _LIBRARY.rd_kafka_produce_batch(handle, _ANY, _COPY, messages.ctypes.data, len(messages))
    _LIBRARY.rd_kafka_topic_destroy(handle)
    return messages["err"].copy()


def _pointers(column: pa.Array, somewhere: int) -> tuple[npt.NDArray[np.uintp], npt.NDArray[np.uintp]]:
    """Where the bytes of each value are, and how many; 0 of nulls. ``somewhere``: where none are, if all are empty."""
    _, ends, data = column.buffers()
    wide = np.int64 if pa.types.is_large_binary(column.type) else np.int32
    if not len(column):
        return np.zeros(0, np.uintp), np.zeros(0, np.uintp)
    offsets = np.frombuffer(ends, wide)[column.offset :][: len(column) + 1].astype(np.uintp)
    where: npt.NDArray[np.uintp] = offsets[:-1] + np.uintp(
        data.address if data is not None and data.address else somewhere
    )
    sizes: npt.NDArray[np.uintp] = np.diff(offsets)
    if column.null_count:
        nothing = column.is_null().to_numpy(zero_copy_only=False)
        where[nothing] = sizes[nothing] = 0
    return where, sizes


__all__ = ["Codes", "is_known", "produce"]
