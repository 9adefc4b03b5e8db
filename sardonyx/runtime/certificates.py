"""Until when the certificates are valid with which a process logs in. The extra ``signed`` brings the library that reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sardonyx.runtime.settings import Settings

SETTINGS = (
    "zookeeper.auth.certificate",
    "kafka.ssl.certificate.location",
    "kafka.schema.registry.ssl.certificate.location",
)
"""The settings that name the file of a certificate of this process."""


def ends(settings: Settings) -> Mapping[tuple[str, ...], float]:
    """When each certificate ends, in seconds since 1970, by its setting; those that can be read."""
    known = settings.flat()
    found: dict[tuple[str, ...], float] = {}
    for key in SETTINGS:
        if path := known.get(key):
            try:
                found[key,] = valid_until(Path(str(path)).read_bytes())
            except (OSError, ValueError, ImportError):  # the client that logs in with it says so
                continue
    return found


def valid_until(pem: bytes) -> float:
    """When the first certificate of a PEM file ends, in seconds since 1970. A chain begins with the one that is one's own.

    Raises:
        ValueError: there is none, or it cannot be read.
        ImportError: the package cryptography is not installed.
    """
    from cryptography import x509

    return x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()
