"""Real ZooKeeper and real Kafka on free loopback ports, with nothing to install but Python and Java.

ZooKeeper's server is in the jars that PySpark brings; the Kafka broker is fetched once (see ``kafka_jars``). They die
with us, whatever ends us (see ``keeper``). They are for trying, developing and testing: one node each, no replication.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import IO

import psutil
import structlog

from sardonyx.core.errors import SetupError
from sardonyx.dev import kafka_jars
from sardonyx.runtime.child_process import ChildProcess, start_child
from sardonyx.runtime.java import Java, find_java

START_TIMEOUT = 90.0
"""Seconds that a service may take to serve; a cold one on a busy machine takes about ten."""
PORT_TRIES = 5
_PREFIX = "sardonyx-embedded-"
_LOCK = ".in-use"
_STALE = 60.0  # a temporary directory younger than this may just be being made

log = structlog.get_logger()


@dataclass(frozen=True)
class Services:
    """Running services: their addresses, their processes, and where their data is."""

    zookeeper: str
    kafka: str
    data_dir: Path
    kept: bool
    """Whether the data outlives the services."""
    pids: dict[str, int]
    """Process id of each service by its name, ``zookeeper`` and ``kafka``."""
    doors: tuple[str, ...] = ()
    """Further addresses of Kafka, in the order in which they were asked for; it tells clients there to come another way."""
    running: InitVar[Mapping[str, _Service] | None] = None

    def __post_init__(self, running: Mapping[str, _Service] | None) -> None:
        object.__setattr__(self, "_running", dict(running or {}))  # no field: the others are plain data

    def end(self, name: str, *, kill: bool = False) -> None:
        """Stop one of the services, with SIGKILL if ``kill``; :meth:`begin` starts it again. For tests of what happens then."""
        child = self._service(name).child
        if child is not None:
            (child.kill if kill else child.stop)()

    def begin(self, name: str) -> None:
        """Start a service again that was ended: same address, same data. Returns when it serves.

        Raises:
            SetupError: ``SX-EMBEDDED-DIED``, ``SX-EMBEDDED-SLOW``.
        """
        service = self._service(name)
        service.start(again=True)
        self.pids[name] = service.pid

    def _service(self, name: str) -> _Service:
        services: dict[str, _Service] = self.__dict__["_running"]
        return services[name]


@contextlib.contextmanager
def embedded_services(
    data_dir: Path | str | None = None,
    *,
    progress: kafka_jars.Progress | None = None,
    doors: Sequence[str] = (),
) -> Iterator[Services]:
    """ZooKeeper and Kafka for as long as the block runs.

    Args:
        data_dir: where they keep their data; what is there is used again. None: a temporary directory, removed after.
        progress: told about the download of Kafka, if there is one; none given shows a bar or plain lines.
        doors: ``host:port`` of what stands in front of Kafka, such as a proxy: for each it gets one more address of its own
            (:attr:`Services.doors`), where it tells clients to come by that way.

    Raises:
        SetupError: ``SX-JAVA-MISSING``, ``SX-JAVA-OLD``, ``SX-KAFKA-FETCH``, ``SX-EMBEDDED-DIED``,
            ``SX-EMBEDDED-SLOW``, ``SX-EMBEDDED-DATA``.
    """
    java = find_java()
    if progress is None:
        with kafka_jars.shown_progress() as shown:
            jars = kafka_jars.ensure_kafka(java, shown)
    else:
        jars = kafka_jars.ensure_kafka(java, progress)
    with _data_directory(data_dir) as folder, contextlib.ExitStack() as stack:
        log.info("embedded services keep their data in a directory", data_dir=str(folder), kept=data_dir is not None)
        broker = _Kafka(java, folder, jars, doors)
        both: tuple[_Service, ...] = (_Zookeeper(java, folder), broker)
        for service in both:
            stack.callback(service.stop)
        with ThreadPoolExecutor(len(both), thread_name_prefix="start") as pool:
            for started in [pool.submit(service.start) for service in both]:
                started.result()
        zookeeper, kafka = both
        pids = {service.name: service.pid for service in both}
        log.info("embedded services serve", zookeeper=zookeeper.address, kafka=kafka.address)
        yield Services(
            zookeeper=zookeeper.address,
            kafka=kafka.address,
            data_dir=folder,
            kept=data_dir is not None,
            pids=pids,
            doors=tuple(f"127.0.0.1:{port}" for port in broker.door_ports),
            running={service.name: service for service in both},
        )
        log.info("stopping embedded services", data_dir=str(folder))


class _Service(ABC):
    """One server process: configure, start, wait until it serves; other ports if these were taken meanwhile."""

    name: str
    wanted_ports = 1
    """How many ports it listens on, the one for its clients among them."""

    def __init__(self, java: Java, folder: Path) -> None:
        self.java = java
        self.home = folder / self.name
        self.log_path = folder / f"{self.name}.log"
        self.ports: list[int] = []
        self.child: ChildProcess | None = None

    @property
    def port(self) -> int:
        return self.ports[0]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        if self.child is None:
            raise RuntimeError(f"{self.name} does not run")
        return self.child.pid

    @abstractmethod
    def prepare(self) -> list[str]:
        """Write its configuration for the ports it shall have; gives the command."""

    @abstractmethod
    def serves(self) -> bool:
        """Whether it answers a real request."""

    def start(self, *, again: bool = False) -> None:
        """Start it on free ports, or ``again`` on those that it had."""
        self.home.mkdir(parents=True, exist_ok=True)
        for _ in range(PORT_TRIES):
            if not again:
                self.ports = free_ports(self.wanted_ports)
                self.log_path.unlink(missing_ok=True)
            self.child = start_child(self.prepare(), name=self.name, log_path=self.log_path)
            if self._wait(self.child):
                return
            self.child.kill()
            log.info("a port was taken meanwhile, choosing others", service=self.name, port=self.port)
        raise self._error("SX-EMBEDDED-DIED", f"found no port that stayed free in {PORT_TRIES} tries")

    def _wait(self, child: ChildProcess) -> bool:
        """True: it serves. False: somebody else took a port of ours first."""
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            code = child.poll()
            if code is not None:
                if "already in use" in child.log_tail(200):
                    return False
                raise self._error("SX-EMBEDDED-DIED", f"ended with exit code {code} while starting")
            # Only then ask: an answer could come from a stranger on that port.
            if listens(child.pid, self.port) and self.serves():
                return True
            time.sleep(0.05)
        raise self._error("SX-EMBEDDED-SLOW", f"did not serve within {START_TIMEOUT:g} s")

    def _error(self, code: str, what: str) -> SetupError:
        tail = self.child.log_tail() if self.child else ""
        return SetupError(
            code,
            f"the embedded {self.name} {what}",
            cause=f"its last lines were:\n{tail}" if tail else "it wrote nothing",
            fix="is memory or disk short? `sardonyx doctor` checks the rest; with --data DIR the whole log stays there",
            where={"log": self.log_path},
        )

    def stop(self) -> None:
        if self.child is not None:
            self.child.stop(grace=10)


class _Zookeeper(_Service):
    name = "zookeeper"

    def prepare(self) -> list[str]:
        config = self.home / "zoo.cfg"
        config.write_text(
            f"dataDir={self.home}/data\n"
            f"clientPort={self.port}\n"
            "clientPortAddress=127.0.0.1\n"
            "tickTime=500\n"
            "minSessionTimeout=1000\n"
            "maxSessionTimeout=120000\n"
            "maxClientCnxns=0\n"
            "admin.enableServer=false\n"
            "4lw.commands.whitelist=srvr\n"
            "autopurge.purgeInterval=1\n",
            "utf-8",
        )
        logging = _write_log4j(self.home)
        return [
            str(self.java.path),
            # It keeps the last 500 transactions in memory, and those of a busy coordinator have up to 512 KiB.
            *("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            f"-Dlog4j2.configurationFile={logging}",
            "-Dzookeeper.preAllocSize=4096",  # KiB; 64 MiB a log file is for big disks
            *("-cp", f"{kafka_jars.pyspark_jars()}/*"),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(config),
        ]

    def serves(self) -> bool:
        return "Mode: standalone" in four_letters(self.address, "srvr")


class _Kafka(_Service):
    name = "kafka"

    def __init__(self, java: Java, folder: Path, jars: Path, doors: Sequence[str] = ()) -> None:
        super().__init__(java, folder)
        self.jars = jars
        self.doors = list(doors)
        self.wanted_ports = 2 + len(self.doors)

    @property
    def door_ports(self) -> list[int]:
        return self.ports[2:]

    def prepare(self) -> list[str]:
        config = self.home / "server.properties"
        names = [f"DOOR{number}" for number in range(len(self.doors))]
        config.write_text(
            _BROKER.format(
                port=self.port,
                controller=self.ports[1],
                data=self.home / "data",
                listeners="".join(f",{n}://127.0.0.1:{port}" for n, port in zip(names, self.door_ports, strict=True)),
                advertised="".join(f",{n}://{door}" for n, door in zip(names, self.doors, strict=True)),
                protocols="".join(f",{name}:PLAINTEXT" for name in names),
            ),
            "utf-8",
        )
        logging = _write_log4j(self.home)
        if not (self.home / "data" / "meta.properties").exists():
            command = self._java(logging, "-XX:+UseSerialGC")  # it runs for a second
            self._run_format([*command, "kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c", str(config)])
        return [*self._java(logging, "-Xmx768m"), "kafka.Kafka", str(config)]

    def _java(self, logging: Path, *options: str) -> list[str]:
        # Kafka comes without a way to write a log; PySpark's log4j binding, of the same version, gives it one.
        spark = kafka_jars.pyspark_jars()
        binding = [*spark.glob("slf4j-api-2*.jar"), *spark.glob("log4j-slf4j2-impl-*.jar")]
        path = os.pathsep.join([*map(str, binding), f"{self.jars}/*"])
        # The JVM's second compiler takes half of the processor's time in a broker's first minutes, which are all that most have.
        options = (*options, "-XX:TieredStopAtLevel=1")
        return [str(self.java.path), *options, f"-Dlog4j2.configurationFile={logging}", "-cp", path]

    def _run_format(self, command: list[str]) -> None:
        self.child = start_child(command, name="kafka format", log_path=self.log_path)
        try:
            code = self.child.wait(START_TIMEOUT)
        except TimeoutError:
            code = self.child.kill()
        if code != 0:
            raise self._error("SX-EMBEDDED-DIED", f"could not format its data directory (exit code {code})")

    def serves(self) -> bool:
        from queues.connectivity import answers  # late: `sardonyx --help` does without a Kafka client

        return answers({"bootstrap.servers": self.address}, timeout=2.0)


_BROKER = """\
process.roles=broker,controller
broker.session.timeout.ms=6000
broker.heartbeat.interval.ms=500
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{listeners}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}{advertised}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT{protocols}
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
offsets.retention.minutes=525600
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.consumer.min.heartbeat.interval.ms=300
group.consumer.heartbeat.interval.ms=500
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
log.cleaner.dedupe.buffer.size=16777216
log.cleaner.threads=1
log.index.size.max.bytes=1048576
log.segment.delete.delay.ms=1000
num.network.threads=2
num.io.threads=4
background.threads=2
"""
# One that was killed is let in again when its old session is over: about when it has started, not after nine seconds.
# The last block keeps a broker that few use small; the two cleanups are quick because nobody waits for a disk here.


def free_ports(count: int) -> list[int]:
    """So many loopback ports that nobody listens on now, no two the same."""
    with contextlib.ExitStack() as probes:
        # All are held at once: the kernel may give the port of a closed socket again, to the very next who asks.
        held = [probes.enter_context(socket.socket()) for _ in range(count)]
        for probe in held:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in held]


def listens(pid: int, port: int) -> bool:
    """Whether the process of that id is the one that listens on that port."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return False
    return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections)


def four_letters(address: str, word: str, timeout: float = 2.0) -> str:
    """The answer of ZooKeeper to one of its four-letter words; empty if there is none."""
    host, _, port = address.rpartition(":")
    answer = b""
    try:
        with socket.create_connection((host, int(port)), timeout) as link:
            link.sendall(word.encode())
            while part := link.recv(4096):
                answer += part
    except OSError:
        return ""
    return answer.decode("utf-8", "replace")


def _cluster_id() -> str:
    """A random id as Kafka wants it: 16 bytes in URL-safe base64, not beginning with a dash."""
    return "s" + urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]


def _write_log4j(folder: Path) -> Path:
    path = folder / "log4j2.properties"
    path.write_text(
        "rootLogger.level=INFO\n"
        "rootLogger.appenderRef.console.ref=console\n"
        "appender.console.type=Console\n"
        "appender.console.name=console\n"
        "appender.console.layout.type=PatternLayout\n"
        "appender.console.layout.pattern=%d{ISO8601} %p %m (%c{1})%n\n",
        "utf-8",
    )
    return path


@contextlib.contextmanager
def _data_directory(given: Path | str | None) -> Iterator[Path]:
    """The directory, held by a lock, so that no two services ever share one."""
    if given is None:
        _sweep()
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    else:
        folder = Path(given).expanduser().resolve()
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = (folder / _LOCK).open("w")
        except OSError as error:
            raise _unusable(
                folder, f"{type(error).__name__}: {error}", "give a directory that you may write to"
            ) from None
        with lock:
            if not _hold(lock):
                raise _unusable(folder, "other embedded services use it", "stop them, or give another directory")
            yield folder
    finally:
        if given is None:
            shutil.rmtree(folder, ignore_errors=True)


def _unusable(folder: Path, cause: str, fix: str) -> SetupError:
    return SetupError(
        "SX-EMBEDDED-DATA", f"{folder} cannot hold the services' data", cause=cause, fix=fix, where={"path": folder}
    )


def _hold(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sweep() -> None:
    """Remove temporary data of services whose owner was killed: ours, with a lock that nobody holds any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            about = folder.lstat()
            if about.st_uid != os.getuid() or time.time() - about.st_mtime < _STALE:
                continue
            with (folder / _LOCK).open("r+") as lock:
                if _hold(lock):
                    shutil.rmtree(folder, ignore_errors=True)
