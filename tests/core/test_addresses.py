"""Addresses are understood as the client libraries understand them."""

from __future__ import annotations

import pytest

from sardonyx.core.addresses import is_loopback, reachable_place, reached_at
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


@pytest.mark.parametrize(
    ("listens", "advertised", "wanted"),
    [
        (("10.0.0.7", 9484), "", "10.0.0.7:9484"),
        (("peer-1", 9484), "", "peer-1:9484"),
        (("0.0.0.0", 9484), "", "machine:9484"),  # noqa: S104 - it stands for all addresses
        (("::", 9484), "", "machine:9484"),
        (("fd00::7", 9484), "", "[fd00::7]:9484"),
        (("0.0.0.0", 9484), "peer-1.example.com", "peer-1.example.com:9484"),  # noqa: S104
        (("127.0.0.1", 41233), "gate:80", "gate:80"),
        (("0.0.0.0", 9484), "fd00::7", "[fd00::7]:9484"),  # noqa: S104
        (("0.0.0.0", 9484), "[fd00::7]:80", "[fd00::7]:80"),  # noqa: S104
    ],
)
def test_where_others_reach_a_daemon(listens: tuple[str, int], advertised: str, wanted: str) -> None:
    """As it listens, by the machine's name if it listens everywhere, or as a setting says."""
    assert reached_at(listens, "machine", advertised) == wanted


@pytest.mark.parametrize("text", ["http://a", "a:b", "a:", ":1", "a b", "a:70000", "a/b", "", "[::1"])
def test_what_is_no_place_is_refused(text: str) -> None:
    """Neither a host nor a host with a port."""
    assert reachable_place(text) is None


def test_a_place_that_leads_to_who_uses_it() -> None:
    """Such a place says nothing to other machines."""
    assert [is_loopback(place) for place in ("localhost:1", "127.0.0.3:1", "[::1]:1", "peer-1:1", "10.0.0.7:1")] == [
        True,
        True,
        True,
        False,
        False,
    ]
