"""How embedded services are secured: who may log in, and by which certificate the servers prove who they are.

:class:`Secured`: Kafka asks for SCRAM, its authorizer lets in the first user for everything, and the others for what ACLs allow
them. ZooKeeper asks for SASL (DIGEST-MD5) or a client's certificate, and its nodes belong to whom their ACLs say.

:class:`OwnUser`: one password, which only the user who started the services can read. Other users of the machine reach the ports,
and get no further.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MECHANISM = "SCRAM-SHA-512"


class Login(ABC):
    """What servers ask of their clients."""

    tls: bool
    """Whether they speak TLS with their clients."""

    @abstractmethod
    def zookeeper_options(self, folder: Path) -> str:
        """Lines of ``zoo.cfg``. Writes what they name."""

    @abstractmethod
    def zookeeper_java(self, folder: Path) -> list[str]:
        """Options of ZooKeeper's JVM. Writes what they name."""

    @abstractmethod
    def kafka_client(self, user: str | None = None) -> dict[str, str]:
        """The options of a Kafka client that logs in as this user; None: the one who may do everything."""

    @abstractmethod
    def kafka_options(self, folder: Path, listeners: Sequence[str]) -> str:
        """Lines of ``server.properties`` for these listeners of clients. Writes what they name."""

    @abstractmethod
    def scram_arguments(self) -> list[str]:
        """Arguments of Kafka's ``StorageTool`` that make users."""


@dataclass(frozen=True)
class OwnUser(Login):
    """The user who starts the services: who does not know the password gets nothing from Kafka, and cannot read or write what
    that user has made in ZooKeeper. It travels on loopback only, so there is no TLS.
    """

    password: str
    name: str = "sardonyx"
    tls = False

    @classmethod
    def of(cls, folder: Path) -> OwnUser:
        """The one whose password lies in this folder; makes one if there is none."""
        path = folder / "own-user"
        if not path.exists():
            path.touch(0o600)
            path.write_text(secrets.token_hex(24), "utf-8")
        return cls(path.read_text("utf-8"))

    def settings(self) -> dict[str, Any]:
        """How Sardonyx logs in, by dotted key."""
        return {
            "zookeeper.auth.digest": f"{self.name}:{self.password}",
            **{f"kafka.{key}": value for key, value in self.kafka_client().items()},
        }

    def zookeeper_options(self, folder: Path) -> str:  # noqa: ARG002 - each client names itself; the nodes' ACLs decide
        return ""

    def zookeeper_java(self, folder: Path) -> list[str]:  # noqa: ARG002
        return []

    def kafka_client(self, user: str | None = None) -> dict[str, str]:
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user or self.name,
            "sasl.password": self.password,
        }

    def kafka_options(self, folder: Path, listeners: Sequence[str]) -> str:  # noqa: ARG002
        login = _plain(self.name, self.password)
        return (
            "sasl.enabled.mechanisms=PLAIN\n"
            "sasl.mechanism.inter.broker.protocol=PLAIN\n"
            "sasl.mechanism.controller.protocol=PLAIN\n"
        ) + "".join(
            f"listener.name.{listener.lower()}.plain.sasl.jaas.config={login}\n"
            for listener in ("CONTROLLER", *listeners)
        )

    def scram_arguments(self) -> list[str]:
        return []


def _plain(name: str, password: str) -> str:
    """How a listener logs in and whom it lets in, by SASL PLAIN."""
    login = f'required username="{name}" password="{password}" user_{name}="{password}"'
    return f"org.apache.kafka.common.security.plain.PlainLoginModule {login};"


@dataclass(frozen=True)
class Secured(Login):
    """Users and certificates of embedded services.

    Args:
        users: their passwords, by name. The first one administers Kafka; the brokers themselves log in as this user.
        certificate: PEM file of the servers' certificate.
        key: PEM file of its private key, not encrypted.
        ca: PEM file of the authority that has signed it, and the certificates of clients.
    """

    users: Mapping[str, str]
    certificate: Path
    key: Path
    ca: Path
    tls = True

    @property
    def administrator(self) -> str:
        return next(iter(self.users))

    def kafka_client(self, user: str | None = None) -> dict[str, str]:
        name = user or self.administrator
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.username": name,
            "sasl.password": self.users[name],
            "ssl.ca.location": str(self.ca),
        }

    def store(self, folder: Path) -> Path:
        """The servers' certificate and key in one file, as Java wants them."""
        path = folder / "server.pem"
        path.touch(0o600)
        path.write_bytes(self.key.read_bytes() + self.certificate.read_bytes())
        return path

    # ZooKeeper

    def zookeeper_options(self, folder: Path) -> str:
        return (
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
            "authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n"
            "authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider\n"
            "enforce.auth.enabled=true\n"
            "enforce.auth.schemes=sasl,x509\n"
            f"ssl.keyStore.location={self.store(folder)}\n"
            "ssl.keyStore.type=PEM\n"
            f"ssl.trustStore.location={self.ca}\n"
            "ssl.trustStore.type=PEM\n"
            "ssl.clientAuth=want\n"
        )

    def zookeeper_java(self, folder: Path) -> list[str]:
        path = folder / "jaas.conf"
        path.touch(0o600)
        users = "\n".join(f'  user_{name}="{password}"' for name, password in self.users.items())
        module = "org.apache.zookeeper.server.auth.DigestLoginModule"
        path.write_text(f"Server {{\n  {module} required\n{users};\n}};\n", "utf-8")
        return [f"-Djava.security.auth.login.config={path}"]

    # Kafka

    def kafka_options(self, folder: Path, listeners: Sequence[str]) -> str:
        name = self.administrator
        password = self.users[name]
        login = f'required username="{name}" password="{password}"'
        scram = f"org.apache.kafka.common.security.scram.ScramLoginModule {login};"
        return (
            f"sasl.enabled.mechanisms={MECHANISM}\n"
            f"sasl.mechanism.inter.broker.protocol={MECHANISM}\n"
            "sasl.mechanism.controller.protocol=PLAIN\n"
            "listener.name.controller.sasl.enabled.mechanisms=PLAIN\n"
            f"listener.name.controller.plain.sasl.jaas.config={_plain(name, password)}\n"
            + "".join(
                f"listener.name.{listener.lower()}.{MECHANISM.lower()}.sasl.jaas.config={scram}\n"
                for listener in listeners
            )
            + f"ssl.keystore.location={self.store(folder)}\n"
            "ssl.keystore.type=PEM\n"
            f"ssl.truststore.location={self.ca}\n"
            "ssl.truststore.type=PEM\n"
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
            f"super.users=User:{name}\n"
        )

    def scram_arguments(self) -> list[str]:
        return [
            argument
            for name, password in self.users.items()
            for argument in ("--add-scram", f"{MECHANISM}=[name={name},password={password}]")
        ]
