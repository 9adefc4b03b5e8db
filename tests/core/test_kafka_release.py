"""How a broker's release is recognised from the bytes of its answer."""

from __future__ import annotations

import struct

import pytest

from queues.kafka_release import _supported, metadata_version


def varied(text: str) -> bytes:
    return bytes([len(text) + 1]) + text.encode()


def answer(**features: int) -> bytes:
    """As KIP-584 lays it out: two requests that are known, one of them with a tag, a tag to be skipped, the features, another."""
    requests = struct.pack("!hhh", 0, 3, 13) + b"\0" + struct.pack("!hhh", 18, 0, 4) + b"\x01\x07\x02ab"
    told = bytes([len(features) + 1]) + b"".join(
        varied(name) + struct.pack("!hh", 1, newest) + b"\0" for name, newest in features.items()
    )
    tags = b"\x03" + b"\x09\x81\x01" + bytes(129) + b"\0" + bytes([len(told)]) + told + b"\x01\x01x"
    return struct.pack("!ih", 1, 0) + b"\x03" + requests + struct.pack("!i", 0) + tags


def test_features_are_read_whatever_stands_around_them() -> None:
    """Each with its newest version; a broker that is older than such features tells none."""
    assert _supported(answer(**{"kraft.version": 1, "metadata.version": 29})) == {
        "kraft.version": 1,
        "metadata.version": 29,
    }
    assert _supported(struct.pack("!ih", 1, 35) + b"\x01" + struct.pack("!i", 0) + b"\0") == {}


@pytest.mark.parametrize("servers", ["", "nowhere", "127.0.0.1:0", "127.0.0.1:1,[::1]:1"])
def test_who_does_not_answer_says_nothing(servers: str) -> None:
    """No error: the doctor has asked by the client's own way before, which says what is wrong."""
    assert metadata_version({"bootstrap.servers": servers}, 0.2) is None
    assert metadata_version({"bootstrap.servers": servers, "security.protocol": "sasl_ssl"}, 0.2) is None
