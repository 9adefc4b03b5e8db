"""All settings of Sardonyx as one typed object, and where each value came from.

Precedence: defaults < ``sardonyx.toml`` (found upwards from the working directory) < environment
(``SARDONYX__ZOOKEEPER__HOSTS``) < flags. In each of them a setting has the same dotted key, ``zookeeper.hosts``;
in the environment the dots are written ``__``. An unknown key is an error that names the nearest known one.

Settings of the Kafka client pass through unchanged: every key below ``kafka.`` that has a dot of its own, such as
``kafka.security.protocol`` or ``SARDONYX__KAFKA__SASL__PASSWORD``, goes to librdkafka as it is.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from sardonyx.core import units
from sardonyx.core.errors import SetupError
from sardonyx.core.names import NAME_RULE, TAG_RULE, is_name, is_tag
from sardonyx.core.text import nearest
from sardonyx.core.units import seconds

FILE_NAME = "sardonyx.toml"
ENV_PREFIX = "SARDONYX__"
MASK = "******"

_SECRET = re.compile(r"password|secret|sasl|digest|token|credential|ssl\.key", re.IGNORECASE)

Seconds = Annotated[float, BeforeValidator(seconds)]
"""A duration; written as "250 ms" or "10 s", held as seconds."""
KafkaValue = str | int | float | bool


def is_secret(key: str) -> bool:
    """Whether the value of this key must never be shown."""
    return _SECRET.search(key) is not None


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
    heartbeat: Seconds = 0.3
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


class Settings(BaseSettings):
    """All settings. ``Settings()`` reads file and environment; arguments win over both.

    Prefer :func:`load_settings`, which turns a bad value into an error that says where the value was set.
    """

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    deployment: str = "default"
    """Name of this cluster: part of every path in ZooKeeper and every name in Kafka."""
    zookeeper: ZookeeperSettings = ZookeeperSettings()
    kafka: KafkaSettings = KafkaSettings()
    spark: SparkSettings = SparkSettings()
    coordinator: CoordinatorSettings = CoordinatorSettings()
    peer: PeerSettings = PeerSettings()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings = MetricsSettings()
    data_dir: Path | None = None
    """Where embedded services keep their data; none: a temporary directory."""
    origins: dict[str, str] = Field(default={}, repr=False, exclude=True)
    """Dotted key -> where its value came from; what is not here has its default."""

    @model_validator(mode="after")
    def _timers_fit(self) -> Settings:
        if self.peer.heartbeat * 3 > self.peer.session_timeout:
            raise ValueError("peer.heartbeat must be at most a third of peer.session_timeout")
        return self

    @field_validator("deployment")
    @classmethod
    def _a_name(cls, value: str) -> str:
        if not is_name(value):
            raise ValueError(f"must be {NAME_RULE}")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Ours, in place of the library's: they refuse unknown keys and remember where each value stood."""
        del env_settings, dotenv_settings, file_secret_settings
        given = init_settings.init_kwargs if isinstance(init_settings, InitSettingsSource) else {}
        return tuple(_Source(settings_cls, layer) for layer in (_from_flags(given), _from_environment(), _from_file()))

    def require(self, *services: Literal["zookeeper", "kafka"]) -> None:
        """Raise ``SX-CONFIG-MISSING`` if the address of one of these services is not set."""
        for service in services:
            key = _ADDRESS[service]
            if not self.flat()[key]:
                raise SetupError(
                    "SX-CONFIG-MISSING",
                    f"the address of {_TITLE[service]} is not set",
                    cause=f"{key} has no value in flags, environment or {FILE_NAME}",
                    fix=f"give --{service} HOST:PORT, or set {variable(key)}=HOST:PORT, "
                    f'or write {key} = "HOST:PORT" into {FILE_NAME}',
                    where={"setting": key},
                )

    def flat(self) -> dict[str, Any]:
        """Every setting by its dotted key, secrets included; for showing them use :meth:`shown`."""
        return dict(_leaves(self))

    def shown(self) -> list[tuple[str, str, str]]:
        """(key, value, origin) of every setting: secrets masked, durations with their unit."""

        def text(key: str, value: Any) -> str:
            if value and is_secret(key):
                return MASK
            return units.written(value) if key in _DURATIONS and value is not None else _text(value)

        return [(key, text(key, value), self.origins.get(key, "default")) for key, value in self.flat().items()]

    def environment(self) -> dict[str, str]:
        """Environment variables that give another process these settings, without secrets on its command line.

        What was given is in them even where it is the default: it may overrule a variable that the process inherits.
        """
        defaults = dict(_leaves(type(self).model_construct()))
        return {
            variable(key): _text(value)
            for key, value in self.flat().items()
            if value is not None and (key in self.origins or defaults.get(key) != value)
        }


_ADDRESS = {"zookeeper": "zookeeper.hosts", "kafka": "kafka.bootstrap_servers"}
_TITLE = {"zookeeper": "ZooKeeper", "kafka": "Kafka"}


def load_settings(**flags: Any) -> Settings:
    """The settings that hold here and now.

    Args:
        flags: what the command line gives, as nested dicts (``zookeeper={"hosts": ...}``) or by dotted key
            (``**{"zookeeper.hosts": ...}``); None means not given.

    Raises:
        SetupError: ``SX-CONFIG-UNKNOWN``, ``SX-CONFIG-VALUE`` or ``SX-CONFIG-FILE``.
    """
    try:
        return Settings(**flags)
    except ValidationError as error:
        raise _bad_values(error, flags) from None


def variable(key: str) -> str:
    """The environment variable of a setting: ``zookeeper.hosts`` -> ``SARDONYX__ZOOKEEPER__HOSTS``."""
    head, conf, rest = key.partition("spark.conf.")
    if conf and not head:  # Spark's own keys have capitals that matter
        return f"{ENV_PREFIX}SPARK__CONF__{rest.replace('.', '__')}"
    return ENV_PREFIX + key.upper().replace(".", "__")


class _Layer:
    """Values by dotted key, each with where it stood."""

    def __init__(self, entries: Iterable[tuple[str, Any, str]]) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        unknown = []
        for written, value, origin in entries:
            key = "kafka.bootstrap_servers" if written == "kafka.bootstrap.servers" else written
            if is_known(key):
                self.values[key] = value
                self.origins[key] = origin
            else:
                unknown.append((key, origin))
        if unknown:
            raise _unknown(unknown)


class _Source(PydanticBaseSettingsSource):
    """Hands a layer to pydantic-settings, which merges the layers, their origins included."""

    def __init__(self, settings_cls: type[BaseSettings], layer: _Layer) -> None:
        super().__init__(settings_cls)
        self._layer = layer

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        del field
        return self()[field_name], field_name, False

    def __call__(self) -> dict[str, Any]:
        nested: dict[str, Any] = {"origins": dict(self._layer.origins)}
        for key, value in self._layer.values.items():
            *sections, name = _path(key)
            place = nested
            for section in sections:
                place = place.setdefault(section, {})
            place[name] = value
        return nested


def _from_flags(given: Mapping[str, Any]) -> _Layer:
    named = {key: value for key, value in given.items() if key != "origins"}
    return _Layer((key, value, "command line or argument") for key, value in _leaves(named) if value is not None)


def _from_environment() -> _Layer:
    """An empty variable counts as not set: compose files write them so."""
    return _Layer(
        (_key_of(name), value, f"environment {name}")
        for name, value in sorted(os.environ.items())
        if name.startswith(ENV_PREFIX) and value != ""
    )


def _from_file() -> _Layer:
    path = find_file()
    if path is None:
        return _Layer(())
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SetupError(
            "SX-CONFIG-FILE",
            f"{path} cannot be read",
            cause=str(error),
            fix='write it as TOML: [zookeeper], and in the next line hosts = "127.0.0.1:2181"; or remove the file',
            where={"path": path},
        ) from None
    return _Layer((key, value, str(path)) for key, value in _leaves(content))


def find_file(start: Path | None = None) -> Path | None:
    """The nearest ``sardonyx.toml``, from the working directory upwards."""
    here = (start or Path.cwd()).resolve()
    return next((path for folder in (here, *here.parents) if (path := folder / FILE_NAME).is_file()), None)


def is_known(key: str) -> bool:
    """Whether there is a setting of this dotted key."""
    if key in _KNOWN:
        return True
    prefix = _open_prefix(key)
    return prefix is not None and (prefix != "kafka." or "." in key.removeprefix(prefix))


def _open_prefix(key: str) -> str | None:
    return next((prefix for prefix in _OPEN if key.startswith(prefix) and key != prefix), None)


def _path(key: str) -> list[str]:
    """The dotted key as the fields it goes through; below an open prefix the rest is one name, dots and all."""
    prefix = None if key in _KNOWN else _open_prefix(key)
    return [*prefix.split(".")[:-1], key.removeprefix(prefix)] if prefix else key.split(".")


def _key_of(name: str) -> str:
    """The dotted key of an environment variable; below ``spark.conf.`` capitals are kept."""
    parts = name.removeprefix(ENV_PREFIX).split("__")
    lowered = [part.lower() for part in parts]
    return ".".join(["spark", "conf", *parts[2:]] if lowered[:2] == ["spark", "conf"] else lowered)


def _leaves(value: BaseModel | Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything inside."""
    for key, inner in _members(value):
        if isinstance(inner, (BaseModel, Mapping)):
            yield from _leaves(inner, f"{prefix}{key}.")
        elif isinstance(inner, list):
            yield prefix + key, ",".join(map(str, inner))  # hosts as a list
        else:
            yield prefix + key, inner


def _members(value: BaseModel | Mapping[str, Any]) -> list[tuple[str, Any]]:
    if isinstance(value, BaseModel):
        return [(key, inner) for key, inner in value if key != "origins"]
    return list(value.items())


def _declared(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _declared(kind, f"{prefix}{name}.")
        elif f"{prefix}{name}." not in _OPEN and name != "origins":
            yield prefix + name, field


_OPEN = ("kafka.", "spark.conf.", "zookeeper.auth.sasl.")
"""Keys below these belong to librdkafka, Spark or kazoo and pass through unchanged."""
_KNOWN = frozenset(key for key, _ in _declared(Settings))
_DURATIONS = frozenset(
    key
    for key, field in _declared(Settings)
    if any(isinstance(each, BeforeValidator) and each.func is seconds for each in field.metadata)
)


def _unknown(unknown: list[tuple[str, str]]) -> SetupError:
    sentences = []
    for key, origin in unknown:
        found = nearest(key, sorted(_KNOWN), cutoff=0.7)
        sentences.append(f"{key} ({origin})" + (f", did you mean {found}?" if found else ""))
    return SetupError(
        "SX-CONFIG-UNKNOWN",
        f"there is no setting {'; '.join(sentences)}",
        cause="a setting that does not exist would have no effect, and nothing would say so",
        fix="correct or remove it; `sardonyx config` lists every setting",
        where={"setting": unknown[0][0], "origin": unknown[0][1]},
    )


def _bad_values(error: ValidationError, flags: Mapping[str, Any]) -> SetupError:
    origins = {**_from_file().origins, **_from_environment().origins, **_from_flags(flags).origins}
    sentences = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"])
        reason = problem["msg"].removeprefix("Value error, ")
        if key in origins:
            value = MASK if is_secret(key) else repr(problem["input"])
            sentences.append(f"{key} = {value} ({origins[key]}): {MASK if is_secret(key) else reason}")
        else:  # a rule between several settings
            sentences.append(reason)
    first = ".".join(str(part) for part in error.errors()[0]["loc"])
    return SetupError(
        "SX-CONFIG-VALUE",
        f"a setting has a wrong value: {'; '.join(sentences)}",
        fix='correct it there; durations are written "250 ms" or "10 s"',
        where={"setting": first, "origin": origins.get(first, "")},
    )


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
