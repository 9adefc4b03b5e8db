"""Embedded services: real ZooKeeper and real Kafka on free loopback ports. They need Python and Java and nothing else.

ZooKeeper's server is among the jars that come with PySpark. The Kafka broker is downloaded once (see ``kafka_jars``). The
services end with the process that started them, even if it is killed (see ``sardonyx.runtime.child_process``). They are for
trying, developing and testing: one node each, no replication. Kafka does not create topics by itself, so that a mistyped
name is an error; ``sardonyx topic create`` makes them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import uuid
from abc import ABC, abstractmethod
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import InitVar, dataclass
from pathlib import Path

import psutil
import structlog

from sardonyx.core.errors import SetupError
from sardonyx.dev import kafka_jars
from sardonyx.runtime.child_process import ChildProcess, start_child
from sardonyx.runtime.java import Java, find_java
from sardonyx.runtime.temp_dirs import locked, temp_dir

START_TIMEOUT = 90.0
"""Seconds that a service may take until it answers. On a busy machine the first start takes about ten."""
PORT_TRIES = 5
TEMP_PREFIX = "sardonyx-embedded-"
"""How the names of temporary data directories begin."""

log = structlog.get_logger()


@dataclass
class Services:
    """Running services: their addresses, their processes, and where their data is."""

    zookeeper: str
    """``host:port``."""
    kafka: str
    """``host:port``."""
    data_dir: Path
    kept: bool
    """Whether the data stays when the services end."""
    pids: dict[str, int]
    """Process id of each service by its name, ``zookeeper`` and ``kafka``."""
    listeners: tuple[str, ...] = ()
    """Further addresses of Kafka, one for each of ``advertised``, in the same order."""
    running: InitVar[Mapping[str, _Service] | None] = None

    def __post_init__(self, running: Mapping[str, _Service] | None) -> None:
        self._running = dict(running or {})  # not a field: the fields are plain data, for JSON

    def stop(self, name: str, *, kill: bool = False) -> None:
        """Stop ``zookeeper`` or ``kafka``, with SIGKILL if ``kill``. :meth:`start` starts it again. For tests."""
        child = self._running[name].child
        if child is not None:
            (child.kill if kill else child.stop)()

    def start(self, name: str) -> None:
        """Start a stopped service again, at the same address and with the same data. Returns when it answers.

        Raises:
            SetupError: ``SX-EMBEDDED-DIED``, ``SX-EMBEDDED-SLOW``.
        """
        service = self._running[name]
        service.start(again=True)
        self.pids[name] = service.pid


@contextlib.contextmanager
def embedded_services(
    data_dir: Path | str | None = None,
    *,
    progress: kafka_jars.Progress | None = None,
    advertised: Sequence[str] = (),
) -> Iterator[Services]:
    """ZooKeeper and Kafka for as long as the block runs.

    Args:
        data_dir: where they keep their data; data that is there is used again. None: a temporary directory, removed at the end.
        progress: called while Kafka is downloaded, if it is. None: shows a bar or plain lines.
        advertised: ``host:port`` of proxies in front of Kafka. For each, Kafka gets one more listener
            (:attr:`Services.listeners`) that advertises the proxy's address to its clients.

    Raises:
        SetupError: ``SX-JAVA-MISSING``, ``SX-JAVA-OLD``, ``SX-KAFKA-FETCH``, ``SX-KAFKA-JAR``, ``SX-EMBEDDED-DIED``,
            ``SX-EMBEDDED-SLOW``, ``SX-EMBEDDED-DATA``.
    """
    java = find_java()
    if progress is None:
        with kafka_jars.shown_progress() as shown:
            jars = kafka_jars.ensure_kafka(java, shown)
    else:
        jars = kafka_jars.ensure_kafka(java, progress)
    with _data_directory(data_dir) as folder, contextlib.ExitStack() as stack:
        log.info("embedded_services_starting", data_dir=str(folder), kept=data_dir is not None)
        broker = _Kafka(java, folder, jars, advertised)
        both: tuple[_Service, ...] = (_Zookeeper(java, folder), broker)
        for service in both:
            stack.callback(service.stop)
        with ThreadPoolExecutor(len(both), thread_name_prefix="start") as pool:
            for started in [pool.submit(service.start) for service in both]:
                started.result()
        zookeeper, kafka = both
        pids = {service.name: service.pid for service in both}
        log.info("embedded_services_ready", zookeeper=zookeeper.address, kafka=kafka.address)
        yield Services(
            zookeeper=zookeeper.address,
            kafka=kafka.address,
            data_dir=folder,
            kept=data_dir is not None,
            pids=pids,
            listeners=tuple(f"127.0.0.1:{port}" for port in broker.proxied_ports),
            running={service.name: service for service in both},
        )
        log.info("embedded_services_stopping", data_dir=str(folder))


class _Service(ABC):
    """One server process: configures and starts it, and waits until it answers. Takes other ports if one is in use."""

    name: str
    wanted_ports = 1
    """How many ports it listens on, including the one for its clients, which is the first."""

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
            raise RuntimeError(f"{self.name} is not running")
        return self.child.pid

    @abstractmethod
    def prepare(self) -> list[str]:
        """Write the configuration for ``ports``. Returns the command that starts the server."""

    @abstractmethod
    def serves(self) -> bool:
        """Whether it answers a real request."""

    def start(self, *, again: bool = False) -> None:
        """Start it on free ports, or ``again`` on the same ports as before."""
        self.home.mkdir(parents=True, exist_ok=True)
        for _ in range(PORT_TRIES):
            if not again:
                self.ports = free_ports(self.wanted_ports)
                self.log_path.unlink(missing_ok=True)
            self.child = start_child(self.prepare(), name=self.name, log_path=self.log_path)
            if self._wait(self.child):
                return
            self.child.kill()
            log.info("embedded_port_in_use", service=self.name, port=self.port)
        raise self._error(
            "SX-EMBEDDED-DIED", f"did not start: in {PORT_TRIES} tries, another process took its port each time"
        )

    def _wait(self, child: ChildProcess) -> bool:
        """Wait until it answers. Returns False if another process took one of its ports first."""
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            code = child.poll()
            if code is not None:
                if "already in use" in child.log_tail(200):
                    return False
                raise self._error("SX-EMBEDDED-DIED", f"ended with exit code {code} while starting")
            # The order matters: before it listens itself, another process could answer on that port.
            if listens(child.pid, self.port) and self.serves():
                return True
            time.sleep(0.05)
        raise self._error("SX-EMBEDDED-SLOW", f"did not answer within {START_TIMEOUT:g} s")

    def _error(self, code: str, what: str) -> SetupError:
        tail = self.child.log_tail() if self.child else ""
        return SetupError(
            code,
            f"the embedded {self.name} {what}",
            cause=f"the last lines of its log are:\n{tail}" if tail else "it logged nothing",
            fix="check free memory and disk space, and run `sardonyx doctor`; give --data DIR to keep the whole log there",
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
            # ZooKeeper keeps the last 500 transactions in memory. Those of a busy coordinator have up to 512 KiB each.
            *("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            f"-Dlog4j2.configurationFile={logging}",
            "-Dzookeeper.preAllocSize=4096",  # KiB; the default of 64 MiB a log file is too much for a temporary directory
            *("-cp", f"{kafka_jars.pyspark_jars()}/*"),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(config),
        ]

    def serves(self) -> bool:
        return "Mode: standalone" in four_letters(self.address, "srvr")


class _Kafka(_Service):
    name = "kafka"

    def __init__(self, java: Java, folder: Path, jars: Path, advertised: Sequence[str] = ()) -> None:
        super().__init__(java, folder)
        self.jars = jars
        self.advertised = list(advertised)
        self.wanted_ports = 2 + len(self.advertised)

    @property
    def proxied_ports(self) -> list[int]:
        return self.ports[2:]

    def prepare(self) -> list[str]:
        config = self.home / "server.properties"
        names = [f"PROXIED{number}" for number in range(len(self.advertised))]
        config.write_text(
            _BROKER.format(
                port=self.port,
                controller=self.ports[1],
                data=self.home / "data",
                listeners="".join(
                    f",{n}://127.0.0.1:{port}" for n, port in zip(names, self.proxied_ports, strict=True)
                ),
                advertised="".join(f",{n}://{address}" for n, address in zip(names, self.advertised, strict=True)),
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
        # Kafka's jars hold no logging backend. PySpark's log4j binding is of the same version, so Kafka logs through that.
        spark = kafka_jars.pyspark_jars()
        binding = [*spark.glob("slf4j-api-2*.jar"), *spark.glob("log4j-slf4j2-impl-*.jar")]
        path = os.pathsep.join([*map(str, binding), f"{self.jars}/*"])
        # The JVM's second compiler takes half of the processor in a broker's first minutes. Most embedded brokers live no longer.
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
        from queues.connectivity import answers  # here, because `sardonyx --help` needs no Kafka client

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
# A broker that was killed may register again when its old session has ended. With these timeouts that is about as soon as it has
# started, instead of nine seconds later. The last block keeps the broker small.


def free_ports(count: int) -> list[int]:
    """Different loopback ports on which no process listens now."""
    with contextlib.ExitStack() as probes:
        # All are held at once, because the kernel may give the port of a closed socket to the next caller.
        held = [probes.enter_context(socket.socket()) for _ in range(count)]
        for probe in held:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in held]


def listens(pid: int, port: int) -> bool:
    """Whether the process with this id listens on this port."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return False
    return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections)


def four_letters(address: str, word: str, timeout: float = 2.0) -> str:
    """ZooKeeper's answer to one of its four-letter words; empty if it does not answer within ``timeout`` seconds."""
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
    """A random cluster id in Kafka's form: 16 bytes in URL-safe base64, not beginning with a dash."""
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
    """The directory for the services' data. A lock makes sure that no two of them use one at the same time."""
    if given is None:
        with temp_dir(TEMP_PREFIX) as folder:
            yield folder
        return
    folder = Path(given).expanduser().resolve()
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            is_ours = stack.enter_context(locked(folder))
        except OSError as error:
            cause = f"{type(error).__name__}: {error}"
            raise _unusable(folder, cause, "give a directory in which you may write") from None
        if not is_ours:
            raise _unusable(folder, "other embedded services are using it", "stop them, or give another directory")
        yield folder


def _unusable(folder: Path, cause: str, fix: str) -> SetupError:
    return SetupError(
        "SX-EMBEDDED-DATA", f"{folder} cannot hold the services' data", cause=cause, fix=fix, where={"path": folder}
    )
