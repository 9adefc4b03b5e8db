"""The sections of the settings: what each setting is for, its default, and what it may be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, field_validator, model_validator

from sardonyx.core.addresses import listening_place, reachable_place
from sardonyx.core.kafka_rights import ROLES, Role
from sardonyx.core.names import TAG_RULE, is_public_key, is_tag
from sardonyx.core.secrets import MASK, is_secret, masked
from sardonyx.core.units import seconds

Seconds = Annotated[float, BeforeValidator(seconds)]
"""A duration; written as "250 ms" or "10 s", held as seconds."""
KafkaValue = str | int | float | bool


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for key, value in super().__repr_args__():
            yield key, MASK if key and value and is_secret(key) else masked(value)


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
    """Whether the server's certificate is checked: who signed it, and that it is for the host name of ``zookeeper.hosts``."""

    @property
    def principal(self) -> str:
        """Who this client is to ZooKeeper, as ACLs name it."""
        names = []
        if self.sasl:
            names.append(f"sasl:{self.sasl.get('username', self.sasl.get('mechanism', ''))}")
        if self.digest:
            names.append(f"digest:{self.digest.partition(':')[0]}")
        if self.tls and self.certificate:
            names.append(f"x509, the certificate in {self.certificate}")
        return " and ".join(names) or "anyone (zookeeper.auth is not set)"


def _identity(value: Any) -> str | None:
    if value is None:
        return None
    scheme, colon, name = str(value).partition(":")
    if not (scheme and colon and name):
        raise ValueError("must be SCHEME:ID, such as sasl:sardonyx-peer or x509:CN=peer")
    return str(value)


Identity = Annotated[str | None, BeforeValidator(_identity)]
"""As ZooKeeper's ACLs name a user: ``scheme:id``."""


class ZookeeperAcl(_Section):
    """Who takes which role. If ``coordinator`` is set, each node is given the rights of :mod:`sardonyx.core.zk_rights`. All
    processes of a deployment must have the same values here, because each sets the rights of what it creates.
    """

    coordinator: Identity = None
    peer: Identity = None
    client: Identity = None
    """People and programs that submit jobs, and change them."""
    viewer: Identity = None
    """Those that only look."""

    @model_validator(mode="after")
    def _coordinator_first(self) -> ZookeeperAcl:
        if self.coordinator is None and (self.peer or self.client or self.viewer):
            raise ValueError("zookeeper.acl.coordinator must be set, too: without it no coordinator could lead")
        return self

    @property
    def identities(self) -> dict[Role, str]:
        """By role, those that are set."""
        return {role: identity for role in ROLES if (identity := getattr(self, role)) is not None}


class ZookeeperSettings(_Section):
    """Where ZooKeeper is, and how long to wait for it."""

    hosts: str | None = None
    """``host:port,host:port``."""
    session_timeout: Seconds = 8.0
    """How long a peer may be silent before it counts as dead and its work goes to other peers."""
    connect_timeout: Seconds = 15.0
    auth: ZookeeperAuth = ZookeeperAuth()
    acl: ZookeeperAcl = ZookeeperAcl()

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
                "check_hostname": auth.verify,
            }
        return arguments


class SchemaRegistry(NamedTuple):
    """Where a schema registry is, and the options of its client."""

    url: str | None = None
    options: tuple[tuple[str, KafkaValue], ...] = ()
    """``basic.auth.user.info``, ``ssl.ca.location`` and the like."""

    def at(self, url: str | None) -> SchemaRegistry:
        """The registry that a job names; None: this one. The login goes to no other address than the one of the settings: who
        submits a job could have it sent anywhere.
        """
        if url is None or url == self.url:
            return self
        return SchemaRegistry(url, tuple(each for each in self.options if each[0].startswith("ssl.")))


_OF_REGISTRY = "schema.registry."
"""With what the keys begin that are options of the schema registry's client, and not of Kafka's."""


class KafkaSettings(_Section):
    """Where Kafka is, and the options of its client."""

    model_config = ConfigDict(extra="allow", frozen=True)

    bootstrap_servers: str | None = None
    """``host:port,host:port``."""
    connect_timeout: Seconds = 15.0
    replication_factor: int = -1
    """The replication factor of the topics we create; -1 leaves it to the broker."""
    schema_registry: str | None = None
    """Address of the schema registry for topics in Avro: ``http://HOST:PORT``. Options of its client, such as its login, are
    below ``kafka.schema.registry.``.
    """

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
        return where | {k: v for k, v in (self.model_extra or {}).items() if not k.startswith(_OF_REGISTRY)}

    @property
    def registry(self) -> SchemaRegistry:
        """The schema registry of jobs that name none."""
        extra = (self.model_extra or {}).items()
        options = ((key.removeprefix(_OF_REGISTRY), value) for key, value in extra if key.startswith(_OF_REGISTRY))
        return SchemaRegistry(self.schema_registry, tuple(sorted(options)))

    @property
    def principal(self) -> str:
        """Who this client is to Kafka."""
        extra = self.model_extra or {}
        if user := extra.get("sasl.username"):
            return f"User:{user}"
        if mechanism := extra.get("sasl.mechanism", extra.get("sasl.mechanisms")):
            return f"the user of {mechanism}"
        certificate = extra.get("ssl.certificate.location", extra.get("ssl.keystore.location"))
        return f"the owner of the certificate in {certificate}" if certificate else "User:ANONYMOUS"


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
    max_backlog: int | None = Field(default=None, ge=1)
    """How many rows of a queue between two tasks may be unread before the task that writes it pauses, where the job says nothing;
    for queues that are made from then on. None: any number."""
    max_partitions: int = Field(default=10_000, ge=1)
    """How many partitions the topics that are created for one job may have together."""
    max_all_partitions: int = Field(default=100_000, ge=1)
    """How many partitions the topics of all jobs of the deployment may have together. A job beyond that fails."""
    max_tasks: int = Field(default=500, ge=1)
    """How many tasks one job may have."""
    trim_every: Seconds = 60.0
    """How often records that every reader has processed are deleted from the queues of running jobs."""
    audit_every: Seconds = 60.0
    """How often the leader audits a link of a job without end, one after the other; 0: never."""
    snapshot_every: int = Field(default=1000, ge=1)
    keep_log: int = Field(default=100_000, ge=0)
    log_archive: Path | None = None
    """A folder that all coordinators see, to which the leader writes the entries of the log before it removes them. It must
    exist. While it cannot be written, no entry is removed. ``sardonyx log at`` and ``log show`` read it."""


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


def _listed(value: Any) -> list[Any]:
    """A list, or a text with commas."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else list(value)


def _tags(value: Any) -> list[str]:
    tags = _listed(value)
    for tag in tags:
        if not isinstance(tag, str) or not is_tag(tag):
            raise ValueError(f"{tag!r} cannot be a tag: a tag is {TAG_RULE}")
    return sorted(set(tags))


def _some(value: Any) -> list[Any]:
    """Not an empty list: a variable that holds nothing counts as not set, and then everything is allowed."""
    found = _listed(value)
    if not found:
        raise ValueError("must have at least one entry; leave it out to allow everything")
    return found


ALL_MODULES = "*"
"""The pattern of ``peer.allow`` for every module, those that jobs bring along included."""
ALL_FILES = "/"
"""The root of ``peer.files`` below which everything lies."""


def _patterns(value: Any) -> list[str]:
    patterns = _some(value)
    for pattern in patterns:
        if not isinstance(pattern, str) or not all(
            part.replace("*", "x").isidentifier() for part in pattern.split(".")
        ):
            raise ValueError(f"{pattern!r} is not a name of a module, such as shop.tasks, shop_* or *")
    return patterns


def _roots(value: Any) -> list[str]:
    roots = _some(value)
    for root in roots:
        if not isinstance(root, str) or not Path(root).is_absolute():
            raise ValueError(f"{root!r} is not an absolute path")
    return roots


def _signers(value: Any) -> list[str]:
    signers = _some(value)
    for signer in signers:
        if not isinstance(signer, str) or not (is_public_key(signer) or Path(signer).is_absolute()):
            raise ValueError(f"{signer!r} is not a public key (ed25519:...), nor an absolute path of a file of them")
    return signers


class ClientSettings(_Section):
    """A client: what it does to the jobs that it submits and changes."""

    signer: Path | None = None
    """The file of the private key with which it signs the code of jobs, for peers with ``peer.signers``. None: it signs none."""


class PeerSettings(_Section):
    """A peer daemon: how many virtual peers, and the timers of their Kafka group and transactions."""

    virtual_peers: Annotated[int | Literal["auto"], PlainValidator(_number_or_auto)] = "auto"
    """``auto``: four, and more while jobs wait for them, up to a number that the machine bears."""
    tags: Annotated[list[str], BeforeValidator(_tags)] = []
    """What the daemon's virtual peers offer, such as ``gpu``: tasks and jobs with tags go only to peers that have them."""
    session_timeout: Seconds = 12.0
    """After how long the task's group gives a member up by itself. With more than ``zookeeper.session_timeout`` a slot whose
    holder died goes over, partitions and all, before that; with less the others share them first, and again when it is taken."""
    allow: Annotated[list[str], BeforeValidator(_patterns)] = [ALL_MODULES]
    """The modules whose functions and classes jobs may name, each with all modules below it; ``*`` in a name stands for any
    characters. Without ``*`` alone, modules that a job brings along are not used: only those that are installed here."""
    signers: Annotated[list[str], BeforeValidator(_signers)] = []
    """Public keys, and files of them. If there are any, the modules that a job brings along are used only if one of these has
    signed them, and of those that are installed here only what ``allow`` names otherwise than by ``*`` alone."""
    files: Annotated[list[str], BeforeValidator(_roots)] = [ALL_FILES]
    """The folders below which connectors read and write files, and databases in files are kept."""
    quote_records: bool = True
    """Whether errors, the errors of dead letters, and lines of the log may quote records. If not, they have a code, places, and
    of a traceback the frames."""
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
    listen: str | None = None
    """``host:port`` where each daemon serves ``/metrics``, ``/livez`` and ``/readyz``; port 0 is any free one, which the log
    tells. None, or ``off``: nowhere."""
    advertise: str | None = None
    """The host, or ``host:port``, by which others reach that place, for Prometheus' service discovery. None: the host of
    ``metrics.listen``, or this machine's name if that is ``0.0.0.0`` or ``[::]``."""
    telemetry: bool = False
    """Whether peers tell about each batch on the topic ``<deployment>.telemetry``, for those who look at the pages.
    ``dev``, and ``run --web``, turn it on."""
    traces: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of committed batches that peers trace with OpenTelemetry, such as 0.01. If there is any, all batches that were
    not committed are traced, too. Needs the extra ``otel``."""

    @field_validator("listen")
    @classmethod
    def _a_place(cls, value: str | None) -> str | None:
        if value is None or value == "off":
            return None
        if listening_place(value) is None:
            raise ValueError("must be HOST:PORT, such as 127.0.0.1:0 (any free port) or 0.0.0.0:9484, or off")
        return value

    @field_validator("advertise")
    @classmethod
    def _reachable(cls, value: str | None) -> str | None:
        if value and reachable_place(value) is None:
            raise ValueError("must be HOST or HOST:PORT, such as peer-1.example.com or 10.0.0.7:9484")
        return value or None
