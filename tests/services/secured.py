"""Secured services for tests: their certificates, their users, and settings for each of these."""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from kazoo.security import OPEN_ACL_UNSAFE

from sardonyx.core.kafka_rights import ROLES, Right
from sardonyx.dev.secured import Secured
from sardonyx.dev.services import Services, embedded_services
from sardonyx.runtime.settings import Settings, load_settings
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.waiting import until

WITHIN_SECONDS = 3 * 10.0
"""Within which a daemon or a command says which right it lacks. The promise (docs/security.md) is ten seconds on a machine that
has time for it; one that runs other tests beside may take three times as long.
"""
USERS = ("admin", "coordinator", "peer", "client", "viewer", "stranger")


class Pair(NamedTuple):
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates, and keeps them as files in a folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} of a test")])
        self.path = folder / f"{name}.pem"
        whole = x509.BasicConstraints(ca=True, path_length=None)
        self._certificate = self._signed(self._name, self._key, whole, None)
        self.path.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, address: str | None = None) -> Pair:
        """A certificate for a name, and for an IP address."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        alternative = address and x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        found = self._signed(subject, key, x509.BasicConstraints(ca=False, path_length=None), alternative)
        pair = Pair(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        pair.certificate.write_bytes(found.public_bytes(serialization.Encoding.PEM))
        plain = serialization.NoEncryption()
        pair.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
        return pair

    def _signed(self, subject: x509.Name, key: Any, constraints: Any, alternative: Any) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=2))
            .add_extension(constraints, critical=True)
        )
        if alternative:
            builder = builder.add_extension(alternative, critical=False)
        return builder.sign(self._key, hashes.SHA256())


class SecuredServices(NamedTuple):
    """Running services, and what is needed to log in."""

    services: Services
    secured: Secured
    authority: Authority

    def settings(self, user: str | None = "admin", **more: Any) -> Settings:
        """Settings of one user; None: without credentials, but with TLS."""
        sasl = {"mechanism": "DIGEST-MD5", "username": user, "password": self.secured.users[user]} if user else {}
        login = (
            self.secured.kafka_client(user)
            if user
            else {"security.protocol": "SSL", "ssl.ca.location": str(self.secured.ca)}
        )
        given = {
            "zookeeper.hosts": self.services.zookeeper,
            "zookeeper.auth.tls": True,
            "zookeeper.auth.ca": str(self.secured.ca),
            **{f"zookeeper.auth.sasl.{key}": value for key, value in sasl.items()},
            "kafka.bootstrap_servers": self.services.kafka,
            **{f"kafka.{key}": value for key, value in login.items()},
        }
        return load_settings(**{**given, **more})

    def with_roles(self, deployment: str) -> dict[str, Settings]:
        """Settings of every user, for a deployment with roles, below a path of its own: this makes it, and nothing below it."""
        with contextlib.closing(ZooKeeperSession.connect(self.settings(), make_top=False)) as zk:
            zk.client.create(f"/{deployment}", acl=OPEN_ACL_UNSAFE)
        given = {f"zookeeper.acl.{role}": f"sasl:{role}" for role in ROLES}
        given |= {"deployment": deployment, "zookeeper.hosts": f"{self.services.zookeeper}/{deployment}"}
        return {user: self.settings(user, **given) for user in USERS}


@contextmanager
def secured_services(folder: Path) -> Iterator[SecuredServices]:
    """One ZooKeeper and one broker, for which this has made certificates and users."""
    authority = Authority(folder)
    server = authority.issue("server", address="127.0.0.1")
    users = {name: f"{name}-secret" for name in USERS}
    secured = Secured(users, server.certificate, server.key, authority.path)
    with embedded_services(secured=secured) as services:
        yield SecuredServices(services, secured, authority)


class Grants:
    """Gives and takes rights on Kafka, as its administrator, and returns when they hold."""

    def __init__(self, found: SecuredServices) -> None:
        self._admin = AdminClient({**found.settings().kafka.client(), "log_level": 0})

    def give(self, user: str, rights: Iterable[Right]) -> None:
        wanted = [_binding(user, right) for right in rights]
        for future in self._admin.create_acls(wanted).values():
            future.result(60)
        until(lambda: set(wanted) <= set(self._of(user)), what="the rights to be given")

    def take(self, user: str, *rights: Right) -> None:
        gone = [_binding(user, right) for right in rights]
        for future in self._admin.delete_acls([_filter(binding) for binding in gone]).values():
            future.result(60)
        until(lambda: not set(gone) & set(self._of(user)), what="the rights to be gone")

    def take_all(self, user: str) -> None:
        for future in self._admin.delete_acls([_all_of(user)]).values():
            future.result(60)
        until(lambda: not self._of(user), what="all rights to be gone")

    def _of(self, user: str) -> list[AclBinding]:
        return self._admin.describe_acls(_all_of(user)).result(60)


_KINDS = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
}


def _binding(user: str, right: Right) -> AclBinding:
    pattern = ResourcePatternType.PREFIXED if right.prefixed else ResourcePatternType.LITERAL
    operation = AclOperation[re.sub(r"(?<!^)(?=[A-Z])", "_", right.operation).upper()]
    return AclBinding(_KINDS[right.kind], right.name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)


def _filter(it: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        it.restype, it.name, it.resource_pattern_type, it.principal, it.host, it.operation, it.permission_type
    )


def _all_of(user: str) -> AclBindingFilter:
    anything = AclOperation.ANY, AclPermissionType.ANY
    return AclBindingFilter(ResourceType.ANY, None, ResourcePatternType.ANY, f"User:{user}", None, *anything)
