"""Services, coordinators and peers of a fault run, each peer behind proxies of its own."""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from sardonyx.client.client import Client
from sardonyx.core import node_paths
from sardonyx.core.notes import EpochNote
from sardonyx.dev.servers import four_letters
from sardonyx.dev.services import embedded_services
from sardonyx.runtime.settings import Settings, load_settings
from tests.faults import processes
from tests.faults.armed import Armed
from tests.faults.disk import SmallDisk, can_mount
from tests.faults.processes import Process
from tests.proxy import Proxies
from tests.waiting import PATIENCE, until

SESSION = 3.0
"""Seconds that a session with ZooKeeper lives."""
GROUP = 5.0
"""Seconds after which a Kafka group gives a member up by itself: more, as it is by default."""
TRANSACTION = 6.0
"""Seconds after which the broker ends a transaction."""
DISK = 256 * 2**20
"""Bytes of the disk that jobs write files to, where it is one of its own."""
BROKER = 6.0
"""Seconds after which the other brokers of a cluster go on without one."""


@dataclass
class Seat:
    """A place for one peer daemon or coordinator; who dies there is followed by another."""

    name: str
    kind: str
    """``peer`` or ``coordinator``."""
    spark: bool = False
    kafka: Proxies | None = None
    zookeeper: Proxies | None = None
    """Peers of most runs reach their services through these."""
    spared: bool = False
    """Its process is not killed: what it holds is watched during the whole run."""
    process: Process | None = None
    busy: threading.Lock = field(default_factory=threading.Lock)
    """Held by the fault that is at it."""


class Cluster(contextlib.ExitStack):
    """Everything that runs; leaving it ends all.

    Args:
        folder: for logs and data.
        peers: daemons, each with ``virtual`` virtual peers.
        coordinators: how many.
        spark: how many of the daemons run Spark.
        servers: of ZooKeeper, and of Kafka.
        proxied: whether peers reach their services through proxies, which connections are broken with.
        spare: whether the first peer daemon and the first coordinator live through the whole run.
        log: the level of all logs.
        coordinator: settings of coordinators.
    """

    def __init__(
        self,
        folder: Path,
        *,
        peers: int,
        coordinators: int,
        virtual: int,
        spark: int = 0,
        servers: int = 1,
        proxied: bool = True,
        spare: bool = False,
        log: str = "debug",
        coordinator: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        processes.warm()
        self.folder = folder
        self.failpoints = Armed(folder / "failpoints")
        self._unarmed = Armed(folder / "unarmed")
        self._number = itertools.count()
        self._virtual = virtual
        self._log = log
        self._coordinator = coordinator or {}
        self._lock = threading.RLock()
        self._seats: dict[int, tuple[Seat, Process]] = {}
        self.started = 0
        doors = [self.enter_context(Proxies([""] * servers)) for _ in range(peers if proxied else 0)]
        self.servers = servers
        self.services = self.enter_context(
            embedded_services(folder / "services", servers=servers, advertised=[door.addresses for door in doors])
        )
        self.settings = self._settings(self.services.zookeeper, self.services.kafka, 30.0)
        for door, target in zip(doors, self.services.listeners, strict=True):
            door.lead_to(target)
        self.peers = [Seat(f"peer{n}", "peer", n < spark, spared=spare and n == 0) for n in range(peers)]
        for seat, door in zip(self.peers, doors, strict=proxied):
            seat.kafka, seat.zookeeper = door, self.enter_context(Proxies(self.services.zookeeper.split(",")))
        self.coordinators = [
            Seat(f"coordinator{n}", "coordinator", spared=spare and n == 0) for n in range(coordinators)
        ]
        disk = folder / "disk"
        disk.mkdir()
        self.disk = self.enter_context(SmallDisk(disk, DISK)) if can_mount() else None
        self.callback(self._end)
        self.mend()
        _warm(self.services.kafka)
        self.client = self.enter_context(Client(settings=self.settings))
        self.client.zk.patience = PATIENCE  # while ZooKeeper is down, other faults look for whom they strike
        until(lambda: len(self.client.peers()) >= peers * virtual, what="all peers to be registered")

    def _settings(self, zookeeper: str, kafka: str, session: float) -> Settings:
        return load_settings(
            deployment="faults",
            zookeeper={"hosts": zookeeper, "session_timeout": session},
            kafka={"bootstrap_servers": kafka},
            peer={
                "virtual_peers": self._virtual,
                "session_timeout": GROUP,
                "heartbeat": 0.3,
                "transaction_timeout": TRANSACTION,
            },
            # A peer that prepares a task while Kafka starts again is late. It would count as a failure of the task.
            coordinator={"ack_timeout": 60, **self._coordinator},
            spark={"master": "local[1]"},
            log={"format": "json", "level": self._log},
        )

    def mend(self) -> None:
        """Fill the seats of those that have died."""
        with self._lock:
            for seat in (*self.coordinators, *self.peers):
                if seat.process is None or seat.process.gone:
                    self._fill(seat)

    def _fill(self, seat: Seat) -> None:
        name = f"{seat.name}-{next(self._number)}"
        zookeeper, kafka = self.services.zookeeper, self.services.kafka
        if seat.kafka is not None and seat.zookeeper is not None:
            zookeeper, kafka = (",".join(proxies.addresses) for proxies in (seat.zookeeper, seat.kafka))
        own = self._settings(zookeeper, kafka, SESSION)
        failpoints = (self._unarmed if seat.spared else self.failpoints).folder
        if seat.kind == "coordinator":
            seat.process = processes.coordinator(name, self.folder, own, failpoints)
        else:
            seat.process = processes.peers(name, self.folder, own, failpoints, spark=seat.spark)
        self._seats[seat.process.pid] = seat, seat.process
        self.started += 1

    def whose(self, pid: int) -> tuple[Seat, Process] | None:
        """The seat of a process, which may have died since, and the process."""
        return self._seats.get(pid)

    def leader(self) -> Seat:
        """Whose coordinator leads, as the epoch says."""

        def leading() -> Seat | None:
            data = self.client.zk.read(node_paths.EPOCH)
            pid = msgspec.json.decode(data, type=EpochNote).leader.rpartition(":")[2] if data else "0"
            found = self.whose(int(pid))
            return found[0] if found and found[0].process is found[1] else None

        return until(leading, what="a coordinator that leads")

    # Servers

    def server(self, kind: str, rng: random.Random) -> str:
        """The name of any server of that kind."""
        return f"{kind}{rng.randint(1, self.servers)}" if self.servers > 1 else kind

    def zookeeper_leader(self) -> str:
        """The name of the ZooKeeper server that leads the others."""
        addresses = self.services.zookeeper.split(",")

        def leading() -> str | None:
            modes = [four_letters(address, "srvr") for address in addresses]
            return next((f"zookeeper{n}" for n, mode in enumerate(modes, 1) if "Mode: leader" in mode), None)

        return until(leading, what="a ZooKeeper server that leads")

    def kafka_controller(self) -> str:
        """The name of the broker whose controller leads the others, as they keep it beside their metadata."""

        def leading() -> str | None:
            votes = []
            for path in self.folder.glob("services/kafka?/data/__cluster_metadata-0/quorum-state"):
                with contextlib.suppress(msgspec.DecodeError, FileNotFoundError):  # it is just being written
                    vote = msgspec.json.decode(path.read_bytes())
                    votes.append((vote["leaderEpoch"], vote["leaderId"]))
            _, leader = max(votes, default=(0, -1))
            return f"kafka{leader}" if leader > 0 else None

        return until(leading, what="a controller that leads")

    # Logs

    def lines(self, name: str) -> list[dict[str, Any]]:
        """What the process of that name has logged so far."""
        found = []
        for line in (self.folder / f"{name}.log").read_text(errors="replace").splitlines():
            with contextlib.suppress(msgspec.DecodeError):
                found.append(msgspec.json.decode(line))
        return found

    def _end(self) -> None:
        with self._lock:
            for seat in (*self.peers, *self.coordinators):
                if seat.process is not None:
                    with contextlib.suppress(ProcessLookupError):
                        seat.process.send(signal.SIGCONT)
                    seat.process.end()


def _warm(kafka: str) -> None:
    """A fresh broker makes the topics of its transactions and groups when the first of each comes."""
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": "warm"})
    producer.init_transactions(180)
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "warm"})

    def answers() -> bool:
        with contextlib.suppress(KafkaException):  # it is just becoming the group's coordinator
            consumer.committed([TopicPartition("nothing", 0)], timeout=10)
            return True
        return False

    until(answers, what="Kafka to know its groups")
    consumer.close()


def now() -> float:
    """Seconds, by a clock that only goes forwards."""
    return time.monotonic()
