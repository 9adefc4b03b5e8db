"""How an embedded Kafka broker is configured and started."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path

from sardonyx.dev import kafka_jars
from sardonyx.dev.secured import Login
from sardonyx.dev.servers import START_TIMEOUT, Server, new_cluster_id, write_log4j
from sardonyx.runtime.child_process import start_child
from sardonyx.runtime.java import Java

_FORMATTED = "data/meta.properties"
"""The last file that is written of a new broker's data directory."""


class KafkaBroker(Server):
    """A broker that is a controller, too. Ports: for clients, for controllers, and one for each proxy in front of it.

    Args:
        jars: the folder of Kafka's jars.
        cluster_id: the same for all brokers of a cluster. Counts when its data directory is new.
        advertised: ``host:port`` of each proxy in front of this broker.
    """

    kind = "kafka"

    def __init__(
        self,
        java: Java,
        folder: Path,
        jars: Path,
        cluster_id: str,
        advertised: Sequence[str] = (),
        number: int = 0,
        login: Login | None = None,
    ) -> None:
        super().__init__(java, folder, number, login)
        self.jars = jars
        self.cluster_id = cluster_id
        self.advertised = list(advertised)
        self.wanted_ports = 2 + len(self.advertised)

    @property
    def proxied_ports(self) -> list[int]:
        return self.ports[2:]

    def prepare(self) -> list[str]:
        config = self.home / "server.properties"
        names = [f"PROXIED{number}" for number in range(len(self.advertised))]
        controllers = "SASL_PLAINTEXT" if self.login else "PLAINTEXT"
        protocol = "SASL_SSL" if self.tls else controllers
        security = self.login.kafka_options(self.home, [_CLIENTS, *names]) if self.login else ""
        config.touch(0o600)
        config.write_text(
            _BROKER.format(
                port=self.port,
                controller=self.ports[1],
                node=self.number or 1,
                voters=",".join(f"{other.number or 1}@127.0.0.1:{other.ports[1]}" for other in self.members),
                copies=min(3, len(self.members)),
                in_sync=min(2, len(self.members)),
                data=self.home / "data",
                listeners="".join(
                    f",{n}://127.0.0.1:{port}" for n, port in zip(names, self.proxied_ports, strict=True)
                ),
                advertised="".join(f",{n}://{address}" for n, address in zip(names, self.advertised, strict=True)),
                protocols=",".join(
                    [f"CONTROLLER:{controllers}", *(f"{name}:{protocol}" for name in [_CLIENTS, *names])]
                ),
                clients=_CLIENTS,
            )
            + security,
            "utf-8",
        )
        logging = write_log4j(self.home)
        if not (self.home / _FORMATTED).exists():
            self._format(config, logging)
        options = self.archived(self._class_path())
        return [*self._java(logging, "-Xmx768m", "-XX:+UseSerialGC", *options), "kafka.Kafka", str(config)]

    def _class_path(self) -> str:
        # Kafka's jars hold no logging backend. PySpark's log4j binding is of the same version, so Kafka logs through that.
        spark = kafka_jars.pyspark_jars()
        binding = [*spark.glob("slf4j-api-2*.jar"), *spark.glob("log4j-slf4j2-impl-*.jar")]
        return os.pathsep.join([*map(str, binding), f"{self.jars}/*"])

    def _java(self, logging: Path, *options: str) -> list[str]:
        # The JVM's second compiler takes half of the processor in a broker's first minutes. Most embedded brokers live no longer.
        options = (*options, "-XX:TieredStopAtLevel=1")
        return [str(self.java.path), *options, f"-Dlog4j2.configurationFile={logging}", "-cp", self._class_path()]

    def _format(self, config: Path, logging: Path) -> None:
        """Make the data directory of a new broker, as Kafka's own tool does: it takes a second, so what it wrote is kept.

        It writes which features the cluster begins with, which are the same for all brokers of this Kafka, and whose directory
        it is. If it makes users, it writes them besides.
        """
        kept = kafka_jars.cache_dir() / f"{self.jars.name}.checkpoint"
        users = self.login.scram_arguments() if self.login else []
        features = self.home / "data" / "bootstrap.checkpoint"
        if users or not (kept.is_file() and kept.stat().st_size):  # empty: the machine went down when it was written
            command = self._java(logging, "-XX:+UseSerialGC")  # it runs for a second
            tool = ["kafka.tools.StorageTool", "format", "-t", self.cluster_id, "-c", str(config), *users]
            self._run_format([*command, *tool])
            if not users:
                _keep(features, kept)
            return
        features.parent.mkdir(exist_ok=True)
        shutil.copyfile(kept, features)
        facts = {
            "version": 1,
            "cluster.id": self.cluster_id,
            "node.id": self.number or 1,
            "directory.id": new_cluster_id(),
        }
        new = self.home / "meta.properties"
        new.write_text("".join(f"{key}={value}\n" for key, value in facts.items()), "utf-8")
        new.rename(self.home / _FORMATTED)

    def _run_format(self, command: list[str]) -> None:
        self.child = start_child(command, name="kafka format", log_path=self.log_path)
        try:
            code = self.child.wait(START_TIMEOUT)
        except TimeoutError:
            code = self.child.kill()
        if code != 0:
            raise self.error("SX-EMBEDDED-DIED", f"could not format its data directory (exit code {code})")

    def serves(self) -> bool:
        from queues.connectivity import answers  # here, because `sardonyx --help` needs no Kafka client

        login = self.login.kafka_client() if self.login else {}
        return answers({"bootstrap.servers": self.address, **login}, timeout=2.0)

    def make_own_topics(self) -> None:
        """Create the topics in which Kafka keeps positions and transactions. It creates them itself when the first consumer or
        producer asks, and has that one ask again half a second later.
        """
        from queues.topics import make_quietly

        login = self.login.kafka_client() if self.login else {}
        make_quietly({"bootstrap.servers": self.address, **login}, _OWN_TOPICS, timeout=5.0)


_CLIENTS = "CLIENTS"
"""Name of the listener for clients and other brokers."""

_BROKER = """\
process.roles=broker,controller
broker.session.timeout.ms=6000
broker.heartbeat.interval.ms=500
node.id={node}
controller.quorum.voters={voters}
listeners={clients}://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{listeners}
advertised.listeners={clients}://127.0.0.1:{port}{advertised}
controller.listener.names=CONTROLLER
listener.security.protocol.map={protocols}
inter.broker.listener.name={clients}
log.dirs={data}
auto.create.topics.enable=false
default.replication.factor={copies}
min.insync.replicas={in_sync}
offsets.topic.replication.factor={copies}
offsets.topic.num.partitions=4
offsets.retention.minutes=525600
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={in_sync}
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor={copies}
share.coordinator.state.topic.min.isr={in_sync}
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
controller.quorum.append.linger.ms=0
group.min.session.timeout.ms=1000
group.consumer.min.heartbeat.interval.ms=300
group.consumer.heartbeat.interval.ms=500
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
log.cleaner.dedupe.buffer.size=16777216
log.cleaner.threads=1
log.index.size.max.bytes=1048576
log.segment.delete.delay.ms=1000
log.retention.check.interval.ms=30000
offsets.topic.segment.bytes=8388608
transaction.state.log.segment.bytes=8388608
num.network.threads=2
num.io.threads=4
background.threads=2
"""
# A broker that was killed may register again when its old session has ended. With these timeouts that is about as soon as it has
# started, instead of nine seconds later. The last block keeps the broker small.


def _keep(features: Path, kept: Path) -> None:
    """Put a copy where the next broker finds it, whole or not at all. Without one, the tool runs again."""
    new = kept.with_suffix(f".{uuid.uuid4().hex}")
    with contextlib.suppress(OSError):
        try:
            shutil.copyfile(features, new)
            new.rename(kept)
        finally:
            new.unlink(missing_ok=True)


_COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "8388608"}
_OWN_TOPICS = {
    "__consumer_offsets": (4, {**_COMPACTED, "compression.type": "producer"}),
    "__transaction_state": (
        4,
        {**_COMPACTED, "compression.type": "uncompressed", "unclean.leader.election.enable": "false"},
    ),
}
"""Partitions and settings with which the broker would create them: what the lines above say of them, and what it says itself."""
