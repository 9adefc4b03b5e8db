"""Embedded services: real ZooKeeper and real Kafka on free loopback ports. They need Python and Java and nothing else.

ZooKeeper's server is among the jars that come with PySpark. The Kafka broker is downloaded once (see ``kafka_jars``). The
services end with the process that started them, even if it is killed (see ``sardonyx.runtime.child_process``). They are for
trying, developing and testing: one server of each, or clusters of three, all on this machine. Kafka does not create topics
by itself, so that a mistyped name is an error; ``sardonyx topic create`` makes them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import ParamSpec

import structlog

from sardonyx.core.errors import SetupError
from sardonyx.core.text import counted
from sardonyx.dev import kafka_jars
from sardonyx.dev.broker import KafkaBroker
from sardonyx.dev.secured import Login, OwnUser, Secured
from sardonyx.dev.servers import Server, ZooKeeperServer, new_cluster_id, start_together, stop_together
from sardonyx.runtime.child_process import revived
from sardonyx.runtime.java import Java, find_java
from sardonyx.runtime.temp_dirs import locked, temp_dir

TEMP_PREFIX = "sardonyx-embedded-"
"""How the names of temporary data directories begin."""

log = structlog.get_logger()
P = ParamSpec("P")


@dataclass
class Services:
    """Running services: their addresses, their processes, and where their data is."""

    zookeeper: str
    """``host:port``; of a cluster, those of all servers, with commas."""
    kafka: str
    """``host:port``; of a cluster, those of all brokers, with commas."""
    data_dir: Path
    kept: bool
    """Whether the data stays when the services end."""
    pids: dict[str, int]
    """Process id of each server by its name: ``zookeeper`` and ``kafka``, or ``zookeeper1`` to ``kafka3``."""
    listeners: tuple[tuple[str, ...], ...] = ()
    """Further addresses of Kafka: for each of ``advertised``, one of each broker, in the same order."""
    login: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings by dotted key with which clients log in; empty unless the services are private."""
    running: InitVar[Mapping[str, Server] | None] = None

    def __post_init__(self, running: Mapping[str, Server] | None) -> None:
        self._running = dict(running or {})  # not a field: the fields are plain data, for JSON

    def stop(self, *names: str, kill: bool = False) -> None:
        """Stop servers, with SIGKILL if ``kill``. :meth:`start` starts them again. For tests."""
        for name in names:
            self._running[name].stop(kill=kill)

    def start(self, *names: str) -> None:
        """Start stopped servers of one kind again, at the same addresses and with the same data. Returns when they answer.

        A member of a cluster answers once most members run, so start those together that are needed for that.

        Raises:
            SetupError: ``SX-EMBEDDED-DIED``, ``SX-EMBEDDED-SLOW``.
        """
        servers = [self._running[name] for name in names]
        start_together(servers, again=True)
        self.pids |= {server.name: server.pid for server in servers}

    def revive(self) -> list[str]:
        """Start servers again that have ended, at the same addresses and with the same data, and give the words for it.

        Raises:
            SetupError: ``SX-EMBEDDED-DIED``, ``SX-EMBEDDED-SLOW``.
        """
        found = []
        for name, server in self._running.items():
            dead = server.child
            if dead is not None and dead.poll() is not None:
                self.start(name)
                found.append(revived(dead, server.child or dead))
        return found


class Starting:
    """Services that start in the background, until :meth:`ready` returns them. Made by :func:`starting_services`."""

    def __init__(self, data_dir: Path, start: Callable[[], Services], expect: Callable[[], Mapping[str, str]]) -> None:
        self.data_dir = data_dir
        self.since = time.monotonic()
        self._start = start
        self._expect = expect

    def ready(self) -> Services:
        """Wait until both answer.

        Raises:
            SetupError: ``SX-EMBEDDED-DIED``, ``SX-EMBEDDED-SLOW``.
        """
        return self._start()

    def expected(self) -> Mapping[str, str]:
        """Wait until ZooKeeper answers. Settings by dotted key with which clients will reach both: those of :meth:`ready`, unless
        Kafka finds that another process has taken its port meanwhile.

        Raises:
            SetupError: ``SX-EMBEDDED-DIED``, ``SX-EMBEDDED-SLOW``.
        """
        return self._expect()


@contextlib.contextmanager
def starting_services(
    data_dir: Path | str | None = None,
    *,
    servers: int = 1,
    progress: kafka_jars.Progress | None = None,
    advertised: Sequence[Sequence[str]] = (),
    secured: Secured | None = None,
    private: bool = False,
) -> Iterator[Starting]:
    """ZooKeeper and Kafka for as long as the block runs, for a caller that has other things to do while they start. They end with
    the block, also if they have not started yet.

    Args:
        data_dir: where they keep their data; data that is there is used again. None: a temporary directory, removed at the end.
        servers: of each kind. Three are the fewest that go on when one is gone. Topics then have three copies, of which two
            must be in sync (``min.insync.replicas``), unless they are created otherwise.
        progress: called while Kafka is downloaded, if it is. None: shows a bar or plain lines.
        advertised: for each client that goes through proxies, the proxies' ``host:port``, one for each broker. The broker gets
            one more listener (:attr:`Services.listeners`) that advertises the proxy's address to its clients.
        secured: who may log in, and the servers' certificate. None: every user of this machine may do anything, without TLS.
        private: only who can read the data may log in (:attr:`Services.login`), without TLS. The password stays with the data.

    Raises:
        SetupError: ``SX-JAVA-MISSING``, ``SX-JAVA-OLD``, ``SX-KAFKA-FETCH``, ``SX-KAFKA-JAR``, ``SX-EMBEDDED-DIED``,
            ``SX-EMBEDDED-SLOW``, ``SX-EMBEDDED-DATA``.
    """
    java = find_java()
    jars = _jars(java, progress)
    with data_directory(data_dir) as folder, contextlib.ExitStack() as stack:
        _check_size(folder, servers)
        log.info("embedded_services_starting", data_dir=str(folder), kept=data_dir is not None)
        own = OwnUser.of(folder) if private else None
        login: Login | None = secured or own
        numbers = range(1, servers + 1) if servers > 1 else (0,)
        zookeepers = [ZooKeeperServer(java, folder, number, login) for number in numbers]
        brokers = _brokers(java, folder, jars, numbers, advertised, login)
        every: list[Server] = [*zookeepers, *brokers]
        for server in every:
            server.members = [other for other in every if other.kind == server.kind]
        pool = ThreadPoolExecutor(3, thread_name_prefix="start")
        stack.callback(_stop, every, pool, in_order=data_dir is not None)

        def zookeeper() -> str:
            start_together(zookeepers)
            addresses = ",".join(server.address for server in zookeepers)
            if own is not None:
                _close(addresses, own)
            return addresses

        def kafka() -> str:
            start_together(brokers)
            pool.submit(brokers[0].make_own_topics)
            return ",".join(server.address for server in brokers)

        def expect() -> Mapping[str, str]:
            zookeeper_at = began[1].result()
            if not all(server.ports for server in brokers):  # they are chosen before a server is started
                began[0].result()
            kafka_at = ",".join(server.address for server in brokers)
            logs_in = {} if own is None else own.settings()
            return {"zookeeper.hosts": zookeeper_at, "kafka.bootstrap_servers": kafka_at, **logs_in}

        began = [pool.submit(kafka), pool.submit(zookeeper)]
        # What those two import when a server answers, here and meanwhile: two threads that import at once may each see half.
        import queues.topics  # noqa: F401
        import sardonyx.zookeeper.session  # noqa: F401

        def ready() -> Services:
            for each in as_completed(began):
                each.result()  # whichever fails first is the error that the user gets
            kafka_at, zookeeper_at = (each.result() for each in began)
            log.info("embedded_services_ready", zookeeper=zookeeper_at, kafka=kafka_at)
            return Services(
                zookeeper=zookeeper_at,
                kafka=kafka_at,
                data_dir=folder,
                kept=data_dir is not None,
                pids={server.name: server.pid for server in every},
                listeners=tuple(
                    tuple(f"127.0.0.1:{broker.proxied_ports[client]}" for broker in brokers)
                    for client in range(len(advertised))
                ),
                login={} if own is None else own.settings(),
                running={server.name: server for server in every},
            )

        yield Starting(folder, ready, expect)
        log.info("embedded_services_stopping", data_dir=str(folder))


def _when_ready(
    begin: Callable[P, contextlib.AbstractContextManager[Starting]],
) -> Callable[P, contextlib.AbstractContextManager[Services]]:
    @contextlib.contextmanager
    def ready(*args: P.args, **kwargs: P.kwargs) -> Iterator[Services]:
        with begin(*args, **kwargs) as starting:
            yield starting.ready()

    return ready


embedded_services = _when_ready(starting_services)
"""ZooKeeper and Kafka for as long as the block runs, which begins when both answer. Takes what :func:`starting_services` does."""


def _jars(java: Java, progress: kafka_jars.Progress | None) -> Path:
    if progress is not None:
        return kafka_jars.ensure_kafka(java, progress)
    with kafka_jars.shown_progress() as shown:
        return kafka_jars.ensure_kafka(java, shown)


def _brokers(
    java: Java,
    folder: Path,
    jars: Path,
    numbers: Sequence[int],
    advertised: Sequence[Sequence[str]],
    login: Login | None,
) -> list[KafkaBroker]:
    cluster_id = new_cluster_id()
    return [
        KafkaBroker(java, folder, jars, cluster_id, [addresses[place] for addresses in advertised], number, login)
        for place, number in enumerate(numbers)
    ]


def _stop(servers: Sequence[Server], pool: ThreadPoolExecutor, *, in_order: bool) -> None:
    """Stop servers, also those that are about to start: nothing of them outlives the folder of their data. They end in order,
    which takes a second or two, only if their data is kept; and only when they have started, since a broker cannot before.
    """
    for server in servers:
        server.abandoned = True
    if any(server.makes_archive for server in servers):  # once: it spares all later ones a second or two
        in_order = True
    kill = not (in_order and all(server.has_served for server in servers))
    stop_together(servers, kill=kill)
    pool.shutdown(cancel_futures=True)
    stop_together(servers, kill=kill)  # what a thread of the pool has started meanwhile


def _close(zookeeper: str, own: OwnUser) -> None:
    """Allow only this user to make nodes in ZooKeeper. The nodes that this user makes have ACLs of their own."""
    from sardonyx.runtime.settings import load_settings  # here, because `sardonyx --help` needs no client of ZooKeeper
    from sardonyx.zookeeper.acls import own_root
    from sardonyx.zookeeper.session import ZooKeeperSession

    settings = load_settings(**{"zookeeper.hosts": zookeeper, **own.settings()})
    with contextlib.closing(ZooKeeperSession.connect(settings, make_top=False)) as zk:
        own_root(zk)


def _check_size(folder: Path, servers: int) -> None:
    """The data of one server is of no use to three, nor the other way round."""
    before = 1 if (folder / "kafka").exists() else len([*folder.glob("kafka[1-9]")])
    if before not in (0, servers):
        cause = f"it holds the data of {counted(before, 'broker')}, not of {servers}"
        raise _unusable(folder, cause, f"start {counted(before, 'server')} of each kind, or give another directory")


@contextlib.contextmanager
def data_directory(
    given: Path | str | None, what: str = "the services' data", prefix: str = TEMP_PREFIX
) -> Iterator[Path]:
    """The directory of one `dev` or `run`, for as long as the block runs. A lock makes sure that no two of them use one at the
    same time.

    Args:
        given: where it is; made if it is missing. None: a temporary one, removed at the end.
        what: it holds, for the error.
        prefix: of the name of a temporary one.

    Raises:
        SetupError: ``SX-EMBEDDED-DATA``.
    """
    if given is None:
        with temp_dir(prefix) as folder:
            yield folder
        return
    folder = Path(given).expanduser().resolve()
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(0o700, parents=True, exist_ok=True)  # the mode of one that exists stays
            is_ours = stack.enter_context(locked(folder))
        except OSError as error:
            cause = f"{type(error).__name__}: {error}"
            raise _unusable(folder, cause, "give a directory in which you may write", what) from None
        if not is_ours:
            cause = "another `dev` or `run`, or a local environment, is using it"
            raise _unusable(folder, cause, "stop that one, or give another directory", what)
        yield folder


def _unusable(folder: Path, cause: str, fix: str, what: str = "the services' data") -> SetupError:
    return SetupError("SX-EMBEDDED-DATA", f"{folder} cannot hold {what}", cause=cause, fix=fix, where={"path": folder})
