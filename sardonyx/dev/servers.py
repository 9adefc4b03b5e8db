"""The server processes of the embedded services: how they are started, and how a ZooKeeper server is configured.

A server is started alone, or as a member of a cluster: three ZooKeeper servers, or three brokers. The members know each
other's ports from the beginning, so :func:`start_together` chooses the ports of all before it starts one.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
import uuid
from abc import ABC, abstractmethod
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil
import structlog

from sardonyx.core.errors import SetupError
from sardonyx.dev import kafka_jars
from sardonyx.dev.class_archive import ClassArchive
from sardonyx.dev.secured import Login
from sardonyx.runtime.child_process import ChildProcess, start_child
from sardonyx.runtime.java import Java

START_TIMEOUT = 90.0
"""Seconds that a service may take until it answers. On a busy machine the first start takes about ten."""
KNOCK = 0.5
"""Seconds that a process of this machine may take to accept a connection."""
PORT_TRIES = 5
_PORTS = "ports"
"""The file beside a server's data that holds its ports."""

log = structlog.get_logger()


class Server(ABC):
    """One server process: configures and starts it, and waits until it answers.

    Args:
        java: runs it.
        folder: holds its data and its log.
        number: its place in a cluster, from 1; 0 if it is alone.
        login: what it asks of its clients; None: every client may do anything.
    """

    kind: str
    wanted_ports: int
    """How many ports it listens on, including the one for its clients, which is the first."""

    def __init__(self, java: Java, folder: Path, number: int = 0, login: Login | None = None) -> None:
        self.java = java
        self.number = number
        self.login = login
        self.name = f"{self.kind}{number or ''}"
        self.home = folder / self.name
        self.log_path = folder / f"{self.name}.log"
        self.ports: list[int] = []
        self.members: list[Server] = [self]
        """All servers of its cluster, with itself."""
        self.child: ChildProcess | None = None
        self.abandoned = False
        """Whether it is not to start any more. Another thread sets it, then stops the server."""
        self.has_served = False
        self.archive: ClassArchive | None = None
        """Of the classes of its JVM; known once it has been started."""

    @property
    def tls(self) -> bool:
        """Whether it speaks TLS with its clients."""
        return self.login is not None and self.login.tls

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

    def archived(self, class_path: str) -> list[str]:
        """Options of a JVM with this class path: it uses an archive of its classes, or makes one."""
        self.archive = ClassArchive(self.java, self.kind, class_path, self.home)
        return self.archive.options()

    @property
    def makes_archive(self) -> bool:
        """Whether its JVM will write an archive, if it ends in order."""
        return self.archive is not None and not self.archive.exists

    @abstractmethod
    def prepare(self) -> list[str]:
        """Write the configuration for ``ports``. Returns the command that starts the server."""

    @abstractmethod
    def serves(self) -> bool:
        """Whether it answers a real request. A member of a cluster does so once most of them run."""

    def launch(self) -> None:
        """Start the process on ``ports``."""
        self.home.mkdir(parents=True, exist_ok=True)
        command = self.prepare()
        if self.abandoned:
            raise self.error("SX-EMBEDDED-DIED", "was stopped while starting")
        self.child = start_child(command, name=self.name, log_path=self.log_path)

    def wait(self) -> bool:
        """Wait until it answers. Returns False if another process took one of its ports first."""
        child = self.child
        if child is None:
            raise RuntimeError(f"{self.name} is not running")
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline and not self.abandoned:
            code = child.poll()
            if code is not None:
                if "already in use" in child.log_tail(200):
                    return False
                if self.archive is not None:
                    self.archive.drop()
                raise self.error("SX-EMBEDDED-DIED", f"ended with exit code {code} while starting")
            # The order matters: before it listens itself, another process could answer on that port. To ask who listens costs
            # more than to knock.
            if knock(self.port) and listens(child.pid, self.port) and self.serves():
                self.has_served = True
                return True
            time.sleep(0.02)
        raise self.error("SX-EMBEDDED-SLOW", f"did not answer within {START_TIMEOUT:g} s")

    def kept_ports(self) -> list[int]:
        """Its ports of an earlier time, so that addresses in other terminals stay right. Empty if there are none of use."""
        try:
            found = [int(port) for port in (self.home / _PORTS).read_text("utf-8").split()]
        except (OSError, ValueError):
            return []
        return found if len(found) == self.wanted_ports else []

    def keep_ports(self) -> None:
        """Write them beside its data."""
        (self.home / _PORTS).write_text(" ".join(map(str, self.ports)), "utf-8")

    def error(self, code: str, what: str) -> SetupError:
        """The error that says what happened to this server, with the end of its log."""
        tail = self.child.log_tail() if self.child else ""
        return SetupError(
            code,
            f"the embedded {self.name} {what}",
            cause=f"the last lines of its log are:\n{tail}" if tail else "it logged nothing",
            fix="check free memory and disk space, and run `sardonyx doctor`; give --data DIR to keep the whole log there",
            where={"log": self.log_path},
        )

    def stop(self, *, kill: bool = False) -> None:
        """Stop the process, with SIGKILL if ``kill``."""
        if self.child is not None:
            if kill:
                self.child.kill()
            else:
                self.child.stop(grace=10)
                if self.archive is not None:
                    self.archive.keep()


def start_together(servers: Sequence[Server], *, again: bool = False) -> None:
    """Start servers of one cluster, ``again`` or on data of an earlier time on the same ports as before, otherwise on free ones.
    Returns when all answer.

    Takes other ports if another process has taken one meanwhile.

    Raises:
        SetupError: ``SX-EMBEDDED-DIED``, ``SX-EMBEDDED-SLOW``.
    """
    for attempt in range(PORT_TRIES):
        if not again:
            ports = iter(free_ports(sum(server.wanted_ports for server in servers)))
            kept = {} if attempt else {server.name: server.kept_ports() for server in servers}
            for server in servers:
                chosen = [next(ports) for _ in range(server.wanted_ports)]
                server.ports = kept[server.name] if all(kept.values()) and kept else chosen
                server.log_path.unlink(missing_ok=True)
        with ThreadPoolExecutor(len(servers), thread_name_prefix="start") as pool:
            list(pool.map(Server.launch, servers))
            if all(list(pool.map(Server.wait, servers))):
                for server in servers:
                    server.keep_ports()
                return
        for server in servers:
            server.stop(kill=True)
        log.info("embedded_port_in_use", service=servers[0].kind, port=servers[0].port)
    raise servers[0].error(
        "SX-EMBEDDED-DIED", f"did not start: in {PORT_TRIES} tries, another process took its port each time"
    )


def stop_together(servers: Sequence[Server], *, kill: bool = False) -> None:
    """Stop servers. The last broker of a cluster would wait for the others, so all are asked at the same time."""
    with ThreadPoolExecutor(len(servers), thread_name_prefix="stop") as pool:
        list(pool.map(partial(Server.stop, kill=kill), servers))


class ZooKeeperServer(Server):
    """Ports: for clients; in a cluster also for the other servers and for the election of their leader."""

    kind = "zookeeper"

    def __init__(self, java: Java, folder: Path, number: int = 0, login: Login | None = None) -> None:
        super().__init__(java, folder, number, login)
        self.wanted_ports = 3 if number else 1

    def prepare(self) -> list[str]:
        config = self.home / "zoo.cfg"
        config.write_text(
            f"dataDir={self.home}/data\n"
            f"{'secureClientPort' if self.tls else 'clientPort'}={self.port}\n"
            f"{'secureClientPortAddress' if self.tls else 'clientPortAddress'}=127.0.0.1\n"
            "tickTime=500\n"
            "minSessionTimeout=1000\n"
            "maxSessionTimeout=120000\n"
            "maxClientCnxns=0\n"
            "admin.enableServer=false\n"
            "4lw.commands.whitelist=srvr\n"
            "autopurge.purgeInterval=1\n"
            + self._cluster()
            + (self.login.zookeeper_options(self.home) if self.login else ""),
            "utf-8",
        )
        users = self.login.zookeeper_java(self.home) if self.login else []
        logging = write_log4j(self.home)
        path = f"{kafka_jars.pyspark_jars()}/*"
        return [
            str(self.java.path),
            *self.archived(path),
            # ZooKeeper keeps the last 500 transactions in memory. Those of a busy coordinator have up to 512 KiB each.
            *("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            f"-Dlog4j2.configurationFile={logging}",
            *users,
            "-Dzookeeper.preAllocSize=4096",  # KiB; the default of 64 MiB a log file is too much for a temporary directory
            *("-cp", path),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(config),
        ]

    def _cluster(self) -> str:
        """What a member of a cluster must know about the others. It also keeps its own number beside its data."""
        if not self.number:
            return ""
        data = self.home / "data"
        data.mkdir(exist_ok=True)
        (data / "myid").write_text(f"{self.number}\n", "utf-8")
        members = (f"server.{other.number}=127.0.0.1:{other.ports[1]}:{other.ports[2]}\n" for other in self.members)
        return "initLimit=20\nsyncLimit=10\n" + "".join(members)  # in ticks

    def serves(self) -> bool:
        """A server that does not know a leader yet says that it does not serve."""
        return "Mode: " in four_letters(self.address, "srvr", tls=self.tls)


def free_ports(count: int) -> list[int]:
    """Different loopback ports on which no process listens now."""
    with contextlib.ExitStack() as probes:
        # All are held at once, because the kernel may give the port of a closed socket to the next caller.
        held = [probes.enter_context(socket.socket()) for _ in range(count)]
        for probe in held:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in held]


def knock(port: int) -> bool:
    """Whether any process of this machine takes connections at this port.

    One that takes none, as many as wait, leaves us waiting for minutes, so that counts as no.
    """
    with socket.socket() as link:
        link.settimeout(KNOCK)
        return link.connect_ex(("127.0.0.1", port)) == 0


def listens(pid: int, port: int) -> bool:
    """Whether the process with this id listens on this port."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return False
    return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections)


def four_letters(address: str, word: str, timeout: float = 2.0, *, tls: bool = False) -> str:
    """ZooKeeper's answer to one of its four-letter words; empty if it does not answer within ``timeout`` seconds.

    ``tls``: it speaks TLS. Its certificate is not checked: the request holds nothing secret.
    """
    host, _, port = address.rpartition(":")
    answer = b""
    try:
        with contextlib.ExitStack() as stack:
            link = stack.enter_context(socket.create_connection((host, int(port)), timeout))
            if tls:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                link = stack.enter_context(context.wrap_socket(link))
            link.sendall(word.encode())
            while part := link.recv(4096):
                answer += part
    except OSError:
        return ""
    return answer.decode("utf-8", "replace")


def new_cluster_id() -> str:
    """A random cluster id in Kafka's form: 16 bytes in URL-safe base64, not beginning with a dash."""
    return "s" + urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]


def write_log4j(folder: Path) -> Path:
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
