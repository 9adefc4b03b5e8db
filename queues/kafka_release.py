"""Tells whether a broker is of a release that loses the ends of transactions (see ``docs/guarantees.md``).

No Kafka client reports the release of a broker. But a broker's answer to an ApiVersions request holds the newest
``metadata.version`` that it supports (KIP-35, KIP-584). It answers this request before any login. So this module sends
one on a connection of its own. It is used as a hint only. Over TLS it checks no certificate, since it says nothing secret.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from collections.abc import Mapping
from typing import Any

LOSES_ENDS = 30
"""The ``metadata.version`` of Kafka 4.3.0. This release and 4.4.0 leave out the ends of transactions in partitions that have no
leader while the broker starts. In November 2026 there was no later release. When one fixes this, distinguish it here."""

_API_VERSIONS, _VERSION, _REQUEST = 18, 3, 1
_SUPPORTED_FEATURES = 0
_MOST = 1 << 20


def loses_ends(client: Mapping[str, Any], timeout: float) -> bool | None:
    """Whether the brokers are of such a release; None if they do not tell. Arguments as of :func:`metadata_version`."""
    level = metadata_version(client, timeout)
    return None if level is None else level >= LOSES_ENDS


def metadata_version(client: Mapping[str, Any], timeout: float) -> int | None:
    """The newest ``metadata.version`` that a broker supports.

    Args:
        client: librdkafka settings. The ``bootstrap.servers`` are tried in turn, until one answers.
        timeout: seconds to wait for each.

    Returns: None if it is unknown: no broker answers, or the broker is older than KIP-584.
    """
    context: ssl.SSLContext | None = None
    if str(client.get("security.protocol", "")).upper() in ("SSL", "SASL_SSL"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for server in str(client.get("bootstrap.servers", "")).split(","):
        host, _, port = server.strip().rpartition(":")
        try:
            return _supported(_answer(host, int(port), timeout, context)).get("metadata.version")
        except (OSError, ValueError, IndexError, struct.error):
            continue
    return None


def _answer(host: str, port: int, timeout: float, context: ssl.SSLContext | None) -> bytes:
    software = b"".join(bytes([len(word) + 1]) + word for word in (b"sardonyx", b"1"))
    request = struct.pack("!hhih", _API_VERSIONS, _VERSION, _REQUEST, -1) + b"\0" + software + b"\0"
    with contextlib.ExitStack() as stack:
        link: socket.socket = stack.enter_context(socket.create_connection((host.strip("[]"), port), timeout))
        if context is not None:
            link = stack.enter_context(context.wrap_socket(link))
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
    at = 4 + 2  # the id of the request, and an error code; the rest follows even if there is an error
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
