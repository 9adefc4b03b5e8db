"""``sardonyx doctor``: what this machine and the cluster have and lack for Sardonyx, and how to fix it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from queues.client import client_config
from queues.connectivity import check_reachable, librdkafka_version, reach_kafka
from queues.kafka_release import loses_ends
from sardonyx.core.errors import SetupError
from sardonyx.dev import kafka_jars
from sardonyx.runtime.java import find_java
from sardonyx.runtime.settings import Settings
from sardonyx.zookeeper.connectivity import reach_zookeeper

__all__ = ["Finding", "check_reachable", "examine"]

PYTHON = (3, 11)
FLOORS = {"pyspark": "4.3", "confluent-kafka": "2.15.0", "kazoo": "2.11", "pyarrow": "22", "pandas": "2.3"}
"""The oldest versions that Sardonyx runs with. Exactly once depends on fixes in those of kazoo and librdkafka."""
LIBRDKAFKA = "2.15.0"
ZOOKEEPER_SERVER = ("3.8.6", "3.9.5")
"""The oldest good server of each release line. Older ones let clients read names of nodes, or skip authentication."""


@dataclass(frozen=True)
class Finding:
    """One thing that was examined."""

    name: str
    ok: bool | None
    """None: unknown, or not needed here."""
    detail: str
    fix: str = ""


def examine(settings: Settings) -> list[Finding]:
    """All findings, in the order in which to fix them. Starts nothing and changes nothing."""
    return [
        _python(),
        _found("Java", _java),
        *(_package(name, floor) for name, floor in FLOORS.items()),
        _librdkafka(),
        _found("ZooKeeper and Ivy in PySpark's jars", _pyspark_jars),
        _kafka_jars(),
        _zookeeper(settings),
        _kafka(settings),
    ]


def _found(name: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(name, True, look())
    except SetupError as error:
        return Finding(name, False, f"{error.opening} ({error.code}): {error.cause}", error.fix)


def _python() -> Finding:
    have = ".".join(map(str, sys.version_info[:3]))
    needed = ".".join(map(str, PYTHON))
    ok = sys.version_info[:2] >= PYTHON
    return Finding("Python", ok, f"{have} ({sys.executable})", "" if ok else f"install Python {needed} or newer")


def _java() -> str:
    java = find_java()
    return f"{java.version} ({java.path})"


def _package(name: str, floor: str) -> Finding:
    fix = f"pip install '{name}>={floor}'"
    try:
        have = version(name)
    except PackageNotFoundError:
        return Finding(name, False, "not installed", fix)
    ok = _at_least(have, floor)
    return Finding(name, ok, have, "" if ok else fix)


def _librdkafka() -> Finding:
    have = librdkafka_version()
    ok = _at_least(have, LIBRDKAFKA)
    fix = f"pip install 'confluent-kafka>={LIBRDKAFKA}' (its wheels contain librdkafka)"
    return Finding("librdkafka", ok, have, "" if ok else fix)


def _pyspark_jars() -> str:
    return str(kafka_jars.pyspark_jars())


def _kafka_jars() -> Finding:
    name = f"embedded Kafka {kafka_jars.KAFKA_VERSION}"
    if kafka_jars.cached():
        return _found(name, _verified_jars)
    return Finding(name, None, "not downloaded yet (44 MB, once)", "`sardonyx dev` and `sardonyx run` download it")


def _verified_jars() -> str:
    kafka_jars.verify(kafka_jars.jars_dir())
    return f"{kafka_jars.jars_dir()}, all digests are right"


def _zookeeper(settings: Settings) -> Finding:
    if not settings.zookeeper.hosts:
        return Finding("ZooKeeper", None, "no address is set, so `run` and `dev` start embedded services")

    found = _found("ZooKeeper", lambda: reach_zookeeper(settings))
    if not found.ok:
        return found
    server = found.detail
    if not server:
        return Finding("ZooKeeper", True, f"{settings.zookeeper.hosts} answers, but does not tell its version")
    line = next((floor for floor in ZOOKEEPER_SERVER if server.startswith(floor.rpartition(".")[0])), "3.8.6")
    ok = _at_least(server, line)
    fix = "" if ok else f"upgrade the server to {' or '.join(ZOOKEEPER_SERVER)}: older ones have known security holes"
    return Finding("ZooKeeper", ok, f"{settings.zookeeper.hosts} answers, version {server}", fix)


def _kafka(settings: Settings) -> Finding:
    servers = settings.kafka.bootstrap_servers
    if not servers:
        return Finding("Kafka", None, "no address is set, so `run` and `dev` start embedded services")
    found = _found("Kafka", lambda: f"{servers} answers, brokers: {reach_kafka(settings)}")
    if not (found.ok and loses_ends(client_config(settings), settings.kafka.connect_timeout)):
        return found
    return Finding(
        "Kafka",
        False,
        f"{found.detail}; it is 4.3.0 or later, which loses the ends of transactions when a broker restarts",
        "run brokers of 4.2.1 until a release fixes this; docs/guarantees.md says more under what is not promised",
    )


def _at_least(have: str, floor: str) -> bool:
    return _numbers(have) >= _numbers(floor)


def _numbers(text: str) -> tuple[int, ...]:
    numbers = []
    for part in text.split("."):
        digits = "".join(c for c in part if c.isdigit())
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)
