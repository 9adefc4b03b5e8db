"""Addresses are understood as the client libraries understand them."""

from __future__ import annotations

import pytest

from sardonyx.runtime.addresses import _listed, _split


@pytest.mark.parametrize(
    ("text", "default", "wanted"),
    [
        ("a:1,b:2", 9092, [("a", 1), ("b", 2)]),
        ("SASL_SSL://host:9093", 9092, [("host", 9093)]),
        ("localhost", 9092, [("localhost", 9092)]),
        ("a:2181,b:2181/chroot/deep", 2181, [("a", 2181), ("b", 2181)]),
        ("zk1/chroot", 2181, [("zk1", 2181)]),
        ("[::1]:9092", 9092, [("::1", 9092)]),
    ],
)
def test_host_and_port(text: str, default: int, wanted: list[tuple[str, int]]) -> None:
    """A protocol in front, a path after the last address, and a missing port are all allowed."""
    assert [_split(address, default) for address in _listed(text)] == wanted
