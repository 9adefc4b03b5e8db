"""Why no server answers at an address: its name is unknown, the connection is refused, or there is silence.

Client libraries say this in log lines of their own, or not at all. So it is asked of the network itself, once a client has given
up, and only to word the error.
"""

from __future__ import annotations

import re
import socket
import time
from typing import Literal, NamedTuple

_PROBE = 1.0
"""Seconds that one connection may take; then the address counts as silent."""

_PROBED = 3
"""Addresses that are tried at most."""

Reason = Literal["unresolvable", "refused", "silent"]


class Unreachable(NamedTuple):
    """What the network says of a service that did not answer."""

    reason: Reason
    message: str
    """A full sentence."""
    cause: str
    """The operating system's own words; empty if it had none."""
    fix: str


def why_unreachable(service: str, addresses: str, setting: str, waited: float, origin: str = "default") -> Unreachable:
    """Tell why a service did not answer.

    Of several addresses the one that came furthest counts: a connection before a refusal, and a refusal before an unknown name.

    Args:
        service: what should be there, for the message: ``Kafka``.
        addresses: ``host:port,host:port``; a path behind the last is ignored.
        setting: the name of the setting that holds them.
        waited: seconds that the caller has waited for an answer.
        origin: where that setting came from.
    """
    found = [_probe(*_split(address, _PORTS.get(service, 0))) for address in _listed(addresses)[:_PROBED]]
    reason, cause = max(found, key=lambda each: _RANK.index(each[0]))
    where = f"{service} at {addresses}"
    if reason == "unresolvable":
        return Unreachable(
            reason,
            f"{where} cannot be reached: the host name is unknown (waited {waited:.1f} s).",
            cause,
            f"Correct the host name in {setting} (from {origin}), or make it known to this machine's DNS.",
        )
    if reason == "refused":
        return Unreachable(
            reason,
            f"{where} cannot be reached: the connection was refused (waited {waited:.1f} s).",
            cause,
            f"Start {service}, or correct the port in {setting} (from {origin}).",
        )
    return Unreachable(
        reason,
        f"{where} did not answer (waited {waited:.1f} s).",
        cause,
        f"Check that {service} runs, that {setting} (from {origin}) is its address, and that no firewall drops the packets.",
    )


_RANK: tuple[Reason, ...] = ("unresolvable", "refused", "silent")


_PORTS = {"Kafka": 9092, "ZooKeeper": 2181}
"""Ports that the client libraries use where an address names none."""


def _listed(addresses: str) -> list[str]:
    """The single addresses, without the protocol in front of one (Kafka) and the path after the last (ZooKeeper)."""
    return [each.partition("://")[2] or each for each in re.sub(r"(?<![:/])/[^/,].*$", "", addresses).split(",")]


def _split(address: str, default: int) -> tuple[str, int]:
    host, colon, port = address.strip().rpartition(":")
    if not colon or not port.isdigit():
        host, port = address.strip(), str(default)
    return host.strip("[]"), int(port)


def _probe(host: str, port: int) -> tuple[Reason, str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return "unresolvable", f"{host}: {error}"
    refused = ""
    until = time.monotonic() + _PROBE
    for family, kind, protocol, _, place in found:
        with socket.socket(family, kind, protocol) as probe:
            probe.settimeout(max(until - time.monotonic(), 0.05))
            try:
                probe.connect(place)
            except ConnectionRefusedError as error:
                refused = f"{host}:{port}: {error}"
            except OSError as error:  # a timeout, or no route to it
                return "silent", f"{host}:{port}: {error}"
            else:
                return "silent", f"{host}:{port} takes connections, and sends no answer"
    return "refused", refused
