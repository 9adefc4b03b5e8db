"""Until when the certificates are valid with which a process logs in."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from sardonyx.runtime.settings import Settings

SETTINGS = (
    "zookeeper.auth.certificate",
    "kafka.ssl.certificate.location",
    "kafka.schema.registry.ssl.certificate.location",
)
"""The settings that name the file of a certificate of this process."""

_FIRST = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _UTC_TIME, _TIME, _VERSION = 0x30, 0x17, 0x18, 0xA0


def ends(settings: Settings) -> Mapping[tuple[str, ...], float]:
    """When each certificate ends, in seconds since 1970, by its setting; those that can be read."""
    known = settings.flat()
    found: dict[tuple[str, ...], float] = {}
    for key in SETTINGS:
        if path := known.get(key):
            try:
                found[key,] = valid_until(Path(str(path)).read_text("ascii"))
            except (OSError, ValueError, IndexError):  # whoever logs in with it says so
                continue
    return found


def valid_until(pem: str) -> float:
    """When the first certificate of a PEM file ends, in seconds since 1970. A chain begins with the one that is one's own.

    Raises:
        ValueError, IndexError: there is none, or it cannot be read.
    """
    first = _FIRST.search(pem)
    if first is None:
        raise ValueError("there is no certificate")
    certificate = _inside(ssl.PEM_cert_to_DER_cert(first[0]), 0, _SEQUENCE)
    body = _inside(certificate, 0, _SEQUENCE)
    at = 0
    for _ in range(4 if body[0] == _VERSION else 3):  # its version, serial number, algorithm and issuer
        _, at = _next(body, at)
    validity = _inside(body, at, _SEQUENCE)
    _, at = _next(validity, 0)
    (start, end), kind = _next(validity, at)[0], validity[at]
    text = validity[start:end].decode("ascii")
    if kind == _UTC_TIME:  # RFC 5280: two digits, of the years 1950 to 2049
        text = f"{'19' if int(text[:2]) >= 50 else '20'}{text}"
    elif kind != _TIME:
        raise ValueError("its end is not a time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _next(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Where the content of the element at a place of DER begins and ends; and where the next element is."""
    size, begin = data[at + 1], at + 2
    if size & 0x80:
        begin += size & 0x7F
        size = int.from_bytes(data[at + 2 : begin])
    if begin + size > len(data):
        raise ValueError("it is cut off")
    return (begin, begin + size), begin + size


def _inside(data: bytes, at: int, kind: int) -> bytes:
    """The content of the element at a place, which must be of this kind."""
    if data[at] != kind:
        raise ValueError("it is not a certificate")
    (begin, end), _ = _next(data, at)
    return data[begin:end]
