"""Which features a broker knows, and by these whether it is of a release that loses the ends of transactions.

Kafka clients do not tell the release of a broker. A broker tells the newest ``metadata.version`` that it supports in its answer
to ApiVersions (KIP-35, KIP-584), to anybody, before any login; so it is asked for that on a connection of our own.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from typing import Any

LOSES_ENDS = 30
"""The ``metadata.version`` of 4.3.0: this release and 4.4.0 leave out the ends of transactions in partitions that have no leader
while the broker starts. No later release was known in November 2026; one that mends it is to be told apart here."""

_API_VERSIONS, _VERSION, _REQUEST = 18, 3, 1
_SUPPORTED_FEATURES = 0
_MOST = 1 << 20


def metadata_version(client: Mapping[str, Any], timeout: float) -> int | None:
    """The newest ``metadata.version`` that the first broker to answer supports.

    Args:
        client: librdkafka settings; of ``bootstrap.servers`` each is tried.
        timeout: seconds for each.

    Returns: None if none says it: it is older than that, does not answer, or is spoken to by TLS.
    """
    if "SSL" in str(client.get("security.protocol", "")).upper():
        return None
    for server in str(client.get("bootstrap.servers", "")).split(","):
        host, _, port = server.strip().rpartition(":")
        try:
            return _supported(_answer(host, int(port), timeout)).get("metadata.version")
        except (OSError, ValueError, IndexError, struct.error):
            continue
    return None


def _answer(host: str, port: int, timeout: float) -> bytes:
    software = b"".join(bytes([len(word) + 1]) + word for word in (b"sardonyx", b"1"))
    request = struct.pack("!hhih", _API_VERSIONS, _VERSION, _REQUEST, -1) + b"\0" + software + b"\0"
    with socket.create_connection((host.strip("[]"), port), timeout) as link:
        link.sendall(struct.pack("!i", len(request)) + request)
        (size,) = struct.unpack("!i", _exactly(link, 4))
        if not 0 < size < _MOST:
            raise ValueError("not a Kafka broker")
        return _exactly(link, size)


def _exactly(link: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = link.recv(size - len(found))
        if not part:
            raise OSError("the connection was closed")
        found += part
    return found


def _supported(answer: bytes) -> dict[str, int]:
    """By feature, the newest version, from the bytes of an ApiVersions response of version 3."""
    at = 4 + 2  # which request it answers; an error, with which the rest stands there all the same
    count, at = _number(answer, at)
    for _ in range(count - 1):
        at = _past_tags(answer, at + 6)  # key, oldest and newest version of a request
    tags, at = _number(answer, at + 4)
    found: dict[str, int] = {}
    for _ in range(tags):
        tag, at = _number(answer, at)
        size, at = _number(answer, at)
        if tag == _SUPPORTED_FEATURES:
            features, inside = _number(answer, at)
            for _ in range(features - 1):
                length, inside = _number(answer, inside)
                end = inside + length - 1
                found[answer[inside:end].decode()] = struct.unpack_from("!hh", answer, end)[1]
                inside = _past_tags(answer, end + 4)
        at += size
    return found


def _past_tags(answer: bytes, at: int) -> int:
    count, at = _number(answer, at)
    for _ in range(count):
        _, at = _number(answer, at)
        size, at = _number(answer, at)
        at += size
    return at


def _number(answer: bytes, at: int) -> tuple[int, int]:
    """An unsigned number in groups of seven bits, and where the next thing begins."""
    value = shift = 0
    while True:
        byte = answer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
