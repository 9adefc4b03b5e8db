"""Until when a certificate is valid, as it says itself."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sardonyx.runtime.certificates import ends, valid_until
from sardonyx.runtime.settings import load_settings

KEY = ec.generate_private_key(ec.SECP256R1())
TIMES = [dt.datetime(2031, 2, 3, 4, 5, 6, tzinfo=dt.UTC), dt.datetime(2077, 12, 31, 23, 59, 59, tzinfo=dt.UTC)]
"""One in each of the two forms that certificates have for a time."""


def pem(end: dt.datetime, *, names: int = 1) -> str:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "peer")] * names)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(KEY.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(
        dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    )
    return builder.not_valid_after(end).sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


@pytest.mark.parametrize("end", TIMES)
def test_a_certificate_tells_its_end(end: dt.datetime) -> None:
    """The first of a file counts, which may hold a chain, and a key. A long issuer has a long length before it."""
    key = KEY.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    assert valid_until(pem(end).encode()) == end.timestamp()
    assert valid_until(f"Bag Attributes\n{key}{pem(end, names=40)}{pem(TIMES[0])}".encode()) == end.timestamp()


def test_what_is_not_a_certificate_has_no_end() -> None:
    """Whatever it is instead."""
    whole = pem(TIMES[0]).splitlines()
    for text in ("", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----", "\n".join([whole[0], *whole[3:]])):
        with pytest.raises(ValueError):  # noqa: PT011 - whatever the library says
            valid_until(text.encode())


def test_certificates_of_the_settings_are_read_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is renewed tells its new end; a file that cannot be read tells none."""
    mine = tmp_path / "mine.crt"
    mine.write_text(pem(TIMES[0]))
    (tmp_path / "broken.crt").write_bytes(b"\xff")
    settings = load_settings(
        **{
            "zookeeper.auth.certificate": str(mine),
            "kafka.ssl.certificate.location": str(tmp_path / "broken.crt"),
            "kafka.schema.registry.ssl.certificate.location": "/nowhere.crt",
        }
    )
    assert ends(settings) == {("zookeeper.auth.certificate",): TIMES[0].timestamp()}
    mine.write_text(pem(TIMES[1]))
    assert ends(settings) == {("zookeeper.auth.certificate",): TIMES[1].timestamp()}
    assert ends(load_settings()) == {}
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert ends(settings) == {}, "without the library nothing is known, and nothing breaks"
