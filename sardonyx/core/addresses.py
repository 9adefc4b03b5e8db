"""Where a daemon listens, and where others reach it. Pure."""

from __future__ import annotations

import ipaddress
import re

_PLACE = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:\[\]/]+)):([0-9]{1,5})")
_LAST_PORT = 65_535


def listening_place(text: str) -> tuple[str, int] | None:
    """Host and port of ``host:port``, where an IPv6 address stands in brackets; None if the text is not of that form."""
    found = _PLACE.fullmatch(text)
    if found is None or int(found[3]) > _LAST_PORT:
        return None
    return found[1] or found[2], int(found[3])


def reachable_place(text: str) -> tuple[str, int] | None:
    """Host and port of ``host`` or ``host:port``, where the port is 0 if there is none; None if the text is neither.

    An IPv6 address with a port stands in brackets; one without may.
    """
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if is_ip(bare):
        return bare, 0
    found = listening_place(text if ":" in text else f"{text}:0")
    return None if found is None or (":" in text and not found[1]) else found


def reached_at(listens: tuple[str, int], name: str, advertised: str = "") -> str:
    """``host:port`` for others, of a process that listens there.

    Args:
        listens: host and port where it listens; the port is not 0.
        name: of its machine. It stands for an address that means all of them, such as ``0.0.0.0``.
        advertised: what others are to use instead: a host, or ``host:port``. Empty: as it listens.
    """
    host, port = reachable_place(advertised) or ("", 0)
    host = host or (name if is_ip(listens[0]) and ipaddress.ip_address(listens[0]).is_unspecified else listens[0])
    return f"{f'[{host}]' if ':' in host else host}:{port or listens[1]}"


def is_loopback(place: str) -> bool:
    """Whether ``host:port`` leads to the machine that uses it."""
    host = place.rpartition(":")[0].strip("[]")
    return host == "localhost" or (is_ip(host) and ipaddress.ip_address(host).is_loopback)


def is_ip(host: str) -> bool:
    """Whether this is an IP address, and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
