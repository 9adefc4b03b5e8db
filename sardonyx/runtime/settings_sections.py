"""The sections of the settings: what each setting is for, its default, and what it may be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, field_validator, model_validator

from sardonyx.core.names import TAG_RULE, is_tag
from sardonyx.core.units import seconds

MASK = "******"
"""What is shown in place of a secret."""

_SECRET = re.compile(r"password|secret|sasl|digest|token|credential|ssl\.key", re.IGNORECASE)

Seconds = Annotated[float, BeforeValidator(seconds)]
"""A duration; written as "250 ms" or "10 s", held as seconds."""
KafkaValue = str | int | float | bool


def is_secret(key: str) -> bool:
    """Whether the value of this key must never be shown."""
    return _SECRET.search(key) is not None


def masked(value: Any) -> Any:
    """Plain data with the mask in place of each secret in it."""
    if isinstance(value, dict):
        return {key: MASK if inner and is_secret(key) else masked(inner) for key, inner in value.items()}
    return [masked(inner) for inner in value] if isinstance(value, list) else value


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for key, value in super().__repr_args__():
            yield key, MASK if key and value and is_secret(key) else value


class ZookeeperAuth(_Section):
    """How to prove who we are to ZooKeeper. Whatever is created is then readable by its creator only."""

    digest: str | None = None
    """``user:password``; travels in clear text, so use it with ``tls``."""
    sasl: dict[str, str] = {}
    """kazoo's ``sasl_options``: mechanism, username, password ..."""
    tls: bool = False
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    key_password: str | None = None
    verify: bool = True
    """Whether the server's certificate is checked."""


class ZookeeperSettings(_Section):
    """Where ZooKeeper is, and how long to wait for it."""

    hosts: str | None = None
    """``host:port,host:port``."""
    session_timeout: Seconds = 8.0
    """How long a peer may be silent before it counts as dead and its work goes to other peers."""
    connect_timeout: Seconds = 15.0
    auth: ZookeeperAuth = ZookeeperAuth()

    def client(self) -> dict[str, Any]:
        """The arguments of a ``KazooClient``, except access rights: :func:`sardonyx.zookeeper.connectivity.client_arguments`."""
        auth = self.auth
        arguments: dict[str, Any] = {"hosts": self.hosts, "timeout": self.session_timeout}
        if auth.digest:
            arguments["auth_data"] = [("digest", auth.digest)]
        if auth.sasl:
            arguments["sasl_options"] = dict(auth.sasl)
        if auth.tls:
            arguments |= {
                "use_ssl": True,
                "ca": auth.ca and str(auth.ca),
                "certfile": auth.certificate and str(auth.certificate),
                "keyfile": auth.key and str(auth.key),
                "keyfile_password": auth.key_password,
                "verify_certs": auth.verify,
            }
        return arguments


class KafkaSettings(_Section):
    """Where Kafka is, and the options of its client."""

    model_config = ConfigDict(extra="allow", frozen=True)

    bootstrap_servers: str | None = None
    """``host:port,host:port``."""
    connect_timeout: Seconds = 15.0
    replication_factor: int = -1
    """Of the topics we create; -1 leaves it to the broker."""
    schema_registry: str | None = None
    """Address of the schema registry for topics in Avro: ``http://HOST:PORT``."""

    @field_validator("replication_factor")
    @classmethod
    def _positive_or_default(cls, value: int) -> int:
        if value < 1 and value != -1:
            raise ValueError("must be 1 or more, or -1 for the broker's default")
        return value

    @model_validator(mode="after")
    def _plain_values(self) -> KafkaSettings:
        for key, value in (self.model_extra or {}).items():
            if not isinstance(value, (str, int, float)):
                raise ValueError(f"{key} must be a text, a number or true/false")  # noqa: TRY004 (pydantic reads it)
        return self

    def client(self) -> dict[str, KafkaValue]:
        """The configuration of a librdkafka client for these settings; add to it, it is a new dict."""
        where = {"bootstrap.servers": self.bootstrap_servers} if self.bootstrap_servers else {}
        return {**where, **(self.model_extra or {})}


class SparkSettings(_Section):
    """How to get a Spark session."""

    master: str = "local[*]"
    conf: dict[str, str] = {}

    @field_validator("conf", mode="before")
    @classmethod
    def _as_spark_writes_it(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {key: str(v).lower() if isinstance(v, bool) else str(v) for key, v in value.items()}


class CoordinatorSettings(_Section):
    """The coordinator's timers, how often it takes a snapshot and how much of the log it keeps (in log entries)."""

    ack_timeout: Seconds = 15.0
    revoke_grace: Seconds = 10.0
    failure_backoff: Seconds = 1.0
    """How long a task rests after its first failure; twice as long after each further one, at most a minute."""
    quantum: Seconds = 5.0
    """How long a peer works on a task of an unbounded job while another task of the job has no peer. A peer needs about half a
    second to take a task over, so much less than some seconds costs throughput."""
    rebalance_after: Seconds = 60.0
    """A job that has given peers to others gives no more for so long, except those without which another job cannot go on."""
    keep_jobs: int = Field(default=1000, ge=0)
    """How many ended jobs are kept in ZooKeeper; of more, those are forgotten that ended first."""
    max_partitions: int = Field(default=10_000, ge=1)
    """How many partitions the topics that are created for one job may have together."""
    max_all_partitions: int = Field(default=100_000, ge=1)
    """How many partitions the topics of all jobs of the deployment may have together. A job beyond that fails."""
    max_tasks: int = Field(default=500, ge=1)
    """How many tasks one job may have."""
    trim_every: Seconds = 60.0
    """How often records that every reader has processed are deleted from the queues of running jobs."""
    snapshot_every: int = Field(default=1000, ge=1)
    keep_log: int = Field(default=100_000, ge=0)


def _number_or_auto(value: Any) -> int | Literal["auto"]:
    if value == "auto":
        return "auto"
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = 0
    if number < 1:
        raise ValueError("must be a number from 1 on, or 'auto'")
    return number


def _tags(value: Any) -> list[str]:
    """A list, or a text with commas."""
    tags = [tag.strip() for tag in value.split(",")] if isinstance(value, str) else list(value)
    for tag in tags:
        if not isinstance(tag, str) or not is_tag(tag):
            raise ValueError(f"{tag!r} cannot be a tag: a tag is {TAG_RULE}")
    return sorted(set(tags))


class PeerSettings(_Section):
    """A peer daemon: how many virtual peers, and the timers of their Kafka group and transactions."""

    virtual_peers: Annotated[int | Literal["auto"], PlainValidator(_number_or_auto)] = "auto"
    """``auto``: four, and more while jobs wait for them, up to a number that the machine bears."""
    tags: Annotated[list[str], BeforeValidator(_tags)] = []
    """What the daemon's virtual peers offer, such as ``gpu``: tasks and jobs with tags go only to peers that have them."""
    session_timeout: Seconds = 12.0
    """After how long the task's group gives a member up by itself. With more than ``zookeeper.session_timeout`` a slot whose
    holder died goes over, partitions and all, before that; with less the others share them first, and again when it is taken."""
    heartbeat: Seconds = 1.0
    """How often each member of a group reports to its broker. A member that joins or leaves waits about two of these until the
    others have handed partitions over; the next holder of a slot waits for none."""
    transaction_timeout: Seconds = 30.0

    @property
    def patience(self) -> float:
        """Seconds after which Kafka has got over a lost peer by itself, whatever it left there."""
        return max(self.transaction_timeout, self.session_timeout)


class LogSettings(_Section):
    """What is logged, and how it looks."""

    format: Literal["console", "json"] = "console"
    level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("level", mode="before")
    @classmethod
    def _any_case(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value


class MetricsSettings(_Section):
    """Where metrics go."""

    file: Path | None = None
    """A file in which a peer daemon writes its metrics as JSON, each second and when it ends. Each daemon needs its own."""
