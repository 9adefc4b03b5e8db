"""Messages that a database keeps until Kafka has them, as bytes."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from queues.messages import Outgoing, Records


def pack(messages: Iterable[Outgoing | Records]) -> bytes | None:
    """Encode messages as bytes. Return None if there are none."""
    single: list[Outgoing] = []
    for message in messages:
        if isinstance(message, Outgoing):
            single.append(message)
        else:
            topic, headers = message.topic, message.headers
            single += [Outgoing(topic, value, key=key, headers=headers) for key, value in message.records]
    return msgspec.msgpack.encode(single) if single else None


def unpack(data: bytes | None) -> list[Outgoing]:
    """The reverse of :func:`pack`."""
    return [] if data is None else msgspec.msgpack.decode(data, type=list[Outgoing])
