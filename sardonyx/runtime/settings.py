"""All settings of Sardonyx as one typed object, and where each value came from.

Precedence: defaults < ``sardonyx.toml`` (found upwards from the working directory) < environment
(``SARDONYX__ZOOKEEPER__HOSTS``) < flags. In each of them a setting has the same dotted key, ``zookeeper.hosts``;
in the environment the dots are written ``__``. An unknown key is an error that names the nearest known one.

A value may stand in a file of its own, such as a secret of Docker or Kubernetes: the variable then ends in ``_FILE`` and holds
the file's path. In ``sardonyx.toml`` it is a reference as in jobs: ``{"$file" = PATH}``, or ``{"$env" = NAME}``.

Settings of the Kafka client pass through unchanged: every key below ``kafka.`` that has a dot of its own, such as
``kafka.security.protocol`` or ``SARDONYX__KAFKA__SASL__PASSWORD``, goes to librdkafka as it is. What is below
``kafka.schema.registry.`` goes to the client of the schema registry instead.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from sardonyx.core import units
from sardonyx.core.errors import Failure, SetupError
from sardonyx.core.names import NAME_RULE, is_name
from sardonyx.core.secrets import MASK, Secret, is_secret, passwords, reference, without_passwords
from sardonyx.core.text import nearest
from sardonyx.core.units import seconds
from sardonyx.runtime.settings_sections import (
    ClientSettings,
    CoordinatorSettings,
    KafkaSettings,
    LogSettings,
    MetricsSettings,
    PeerSettings,
    SparkSettings,
    ZookeeperSettings,
)

FILE_NAME = "sardonyx.toml"
ENV_PREFIX = "SARDONYX__"
FILE_SUFFIX = "_FILE"
"""With what the name of a variable ends that holds the path of a file with the value."""


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
    client: ClientSettings = ClientSettings()
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
            return units.written(value) if key in _DURATIONS and value is not None else without_passwords(_text(value))

        return [(key, text(key, value), self.origins.get(key, "default")) for key, value in self.flat().items()]

    def environment(self) -> dict[str, str]:
        """Environment variables that give another process these settings, without secrets on its command line.

        What was given is in them even where it is the default: it may overrule a variable that the process inherits. So does
        an empty variable, if the inherited one has another name, such as ``..._FILE``.
        """
        defaults = dict(_leaves(type(self).model_construct()))
        values = {
            variable(key): _text(value)
            for key, value in self.flat().items()
            if value is not None and (key in self.origins or defaults.get(key) != value)
        }
        inherited = {name: _of_variable(name, "")[0] for name in os.environ if name.startswith(ENV_PREFIX)}
        return {name: "" for name, key in inherited.items() if variable(_ALIASES.get(key, key)) in values} | values


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


def file_warnings() -> list[Failure]:
    """What users probably do not mean about ``sardonyx.toml``: that every user of the machine can read passwords in it."""
    path = find_file()
    if path is None or not path.stat().st_mode & stat.S_IROTH:
        return []
    layer = _from_file()
    read = [key for key, origin in layer.origins.items() if origin == str(path) and _is_told(key, layer.values[key])]
    if not read:
        return []
    error = SetupError(
        "SX-WARN-SETTINGS-READABLE",
        f"every user of this machine can read {path}, which holds {', '.join(read)}",
        fix=f"chmod o-r {path}; or keep it in a file of its own: "
        f'{variable(read[0])}{FILE_SUFFIX}=PATH in the environment, or {{"$file" = "PATH"}} in place of the value',
        where={"path": path},
    )
    return [error.to_failure()]


def _is_told(key: str, value: Any) -> bool:
    """Whether who reads this knows a secret: not by the name of a user or a mechanism, nor by where a key lies."""
    named = is_secret(key.replace("sasl", "")) and not key.endswith(".location")
    return named or (isinstance(value, str) and bool(passwords(value)))


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
            key = _ALIASES.get(written, written)
            if not is_known(key):
                unknown.append((key, origin))
            elif key in self.values:
                raise _twice(key, self.origins[key], origin)
            elif isinstance(value, Secret):
                self.values[key] = _content(value, key, origin)
                self.origins[key] = f"{value.kind} {value.name}, which {origin} names"
            else:
                self.values[key] = value
                self.origins[key] = origin
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
        (*_of_variable(name, value), f"environment {name}")
        for name, value in sorted(os.environ.items())
        if name.startswith(ENV_PREFIX) and value != ""
    )


def _of_variable(name: str, value: str) -> tuple[str, str | Secret]:
    """The setting that a variable sets, and its value or where that stands. (``...__FILE`` is a setting that is called file.)"""
    if name.endswith(FILE_SUFFIX) and not name.endswith(f"_{FILE_SUFFIX}"):
        return _key_of(name.removesuffix(FILE_SUFFIX)), Secret.file(value)
    return _key_of(name), value


def _content(named: Secret, key: str, origin: str) -> str:
    """The value of a setting that stands elsewhere; the newline at the end of a file is no part of it."""
    try:
        return os.environ[named.name] if named.kind == "env" else Path(named.name).read_text("utf-8").removesuffix("\n")
    except (KeyError, OSError, ValueError) as error:
        unset = isinstance(error, KeyError)
        raise SetupError(
            "SX-CONFIG-FILE",
            f"{key} stands in the {'variable' if unset else 'file'} {named.name}, which cannot be read",
            cause=f"{origin} names it, and {'it is not set' if unset else error}",
            fix="correct the name, or let the user of this process read it",
            where={"setting": key, "origin": origin},
        ) from None


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
    return prefix is not None and "$" not in key and (prefix != "kafka." or "." in key.removeprefix(prefix))


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
    """(dotted key, value) of everything inside; a reference is a value."""
    for key, inner in _members(value):
        if (named := reference(inner)) is not None:
            yield prefix + key, named
        elif isinstance(inner, (BaseModel, Mapping)):
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
_ALIASES = {
    "kafka.bootstrap.servers": "kafka.bootstrap_servers",
    "kafka.schema.registry.url": "kafka.schema_registry",
}
"""What the clients call settings for which we have a name."""
_DURATIONS = frozenset(
    key
    for key, field in _declared(Settings)
    if any(isinstance(each, BeforeValidator) and each.func is seconds for each in field.metadata)
)


def _twice(key: str, first: str, second: str) -> SetupError:
    return SetupError(
        "SX-CONFIG-VALUE",
        f"{key} is set twice: by {first} and by {second}",
        fix="remove one of them",
        where={"setting": key, "origin": second},
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
            value = MASK if is_secret(key) else without_passwords(repr(problem["input"]))
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
