"""One call of the command line: its common flags, its settings and its output. Results go to stdout, all else to stderr."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
import os
import sys
import threading
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec

import typer

from sardonyx.cli import report
from sardonyx.core.errors import SardonyxError
from sardonyx.core.text import printable

if TYPE_CHECKING:
    from rich.console import Console

    from sardonyx.client.client import Client, JobHandle
    from sardonyx.core.errors import Failure
    from sardonyx.runtime.settings import Settings
    from sardonyx.runtime.this_process import Role

P = ParamSpec("P")

SILENCE = 3.0
"""Seconds after which a command says what it waits for."""

LOG = "ZooKeeper, which holds the log of what the coordinator has decided"
"""What a command waits for that reads the whole log, in words."""
LOG_AND_KAFKA = f"{LOG}, and for Kafka, which knows how far each task is"

Zookeeper = Annotated[str | None, typer.Option("--zookeeper", metavar="HOST:PORT", help="Address of ZooKeeper.")]
Kafka = Annotated[str | None, typer.Option("--kafka", metavar="HOST:PORT", help="Address of Kafka.")]
Deployment = Annotated[
    str | None, typer.Option("--deployment", metavar="NAME", help="Name of the deployment; default: default.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="More detail: debug log, full tracebacks.")]

_LOCAL: dict[str, Any] = {"json": AsJson, "verbose": Verbose}
_KAFKA: dict[str, Any] = {"kafka": Kafka}
_DEPLOYMENT: dict[str, Any] = {"zookeeper": Zookeeper, "deployment": Deployment}


def our_version() -> str:
    """The installed version."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    try:
        return version_of("sardonyx")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"


@dataclasses.dataclass
class Call:
    """The first argument of every command."""

    zookeeper: str | None = None
    kafka: str | None = None
    deployment: str | None = None
    json: bool = False
    verbose: bool = False
    flags: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Settings by dotted key, from the command's own flags. Fill it before ``settings`` is read."""
    _said: set[str] = dataclasses.field(default_factory=set)
    role: Role = "client"
    """What this process is. The daemons log as the settings say; other commands log errors only, unless ``-v`` is given."""

    @cached_property
    def settings(self) -> Settings:
        """The settings of this call. Reading them also configures logging."""
        from sardonyx.runtime.logging import configure_logging
        from sardonyx.runtime.settings import file_warnings, load_settings
        from sardonyx.runtime.settings_sections import LogSettings
        from sardonyx.runtime.this_process import THIS

        given = {
            "zookeeper.hosts": self.zookeeper,
            "kafka.bootstrap_servers": self.kafka,
            "deployment": self.deployment,
            "log.level": "debug" if self.verbose else None,
            **self.flags,
        }
        settings = load_settings(**given)
        THIS.role = self.role
        quiet = LogSettings(level="error", format=settings.log.format)
        loud = self.role in ("coordinator", "peer") or self.verbose
        configure_logging(settings if loud else settings.model_copy(update={"log": quiet}))
        if not loud:  # our own error says once what kazoo warns of at each attempt
            logging.getLogger().setLevel(logging.ERROR)
        self._tell_of_file(file_warnings())
        return settings

    def _tell_of_file(self, warnings: Iterable[Failure]) -> None:
        """Show warnings about the file of settings. A daemon writes them into its log, as all its lines: the log may be JSON."""
        if self.role not in ("coordinator", "peer"):
            self.warn(warnings)
            return
        import structlog

        for each in warnings:
            structlog.get_logger().warning("settings_readable", code=each.code, error=each.message, fix=each.fix)

    def client(self) -> Client:
        """A client for this call's settings. Raises ``SX-CONFIG-MISSING`` without an address of ZooKeeper."""
        from sardonyx.client.client import Client

        with self.patience(f"ZooKeeper at {self.settings.zookeeper.hosts}"):
            return Client(settings=self.settings)

    def job(self, client: Client, job: str) -> JobHandle:
        """The job that the user means. If a name means another job than the newest attempt of that name, it says so.

        Raises:
            SardonyxError: ``SX-JOB-UNKNOWN``, ``SX-JOB-AMBIGUOUS``.
        """
        handle = client.job(job)
        later = client.later_attempt(job, handle.id)
        if later is not None:
            from sardonyx.cli.event_text import clock

            self.say(
                f"{job} means job {handle.id}: a later attempt, {later.id}, was refused {clock(later.submitted_at)} "
                f"({later.code}); `sardonyx job show {later.id}` shows why"
            )
        return handle

    @contextlib.contextmanager
    def patience(self, what: str) -> Iterator[None]:
        """While the block runs: say what it waits for, if that takes longer than a few seconds."""
        timer = threading.Timer(SILENCE, self.say, [f"waiting for {what}"])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    @cached_property
    def console(self) -> Console:
        """stdout, for tables."""
        return _console(sys.stdout)

    @cached_property
    def error_console(self) -> Console:
        """stderr, for progress."""
        return _console(sys.stderr)

    def put(self, line: str) -> None:
        """Print a line of the result to stdout."""
        typer.echo(printable(line))

    def put_json(self, value: Any) -> None:
        """Print a result as one line of JSON to stdout."""
        typer.echo(report.to_json(value))

    def say(self, line: str) -> None:
        """Print a remark to stderr."""
        typer.echo(printable(line), err=True)

    def warn(self, warnings: Iterable[Failure]) -> None:
        """Show what is probably not meant, on stderr."""
        for warning in warnings:
            self.say(f"warning: {SardonyxError.from_failure(warning)}")

    def say_once(self, failure: Failure, before: str = "") -> None:
        """Say an error on stderr that does not end the command, with a text ``before`` it. One of the same code is said once."""
        if failure.code not in self._said:
            self._said.add(failure.code)
            self.say(f"{before}{SardonyxError.from_failure(failure)}")

    def tell(self, error: SardonyxError, about: Mapping[str, Any] | None = None) -> None:
        """Show an error: as text on stderr, and with ``--json`` also as an object on stdout, with ``about`` added to it."""
        self.say(report.error_text(error))
        if self.json:
            self.put_json({**(about or {}), **report.error_json(error)})


def local(
    app: typer.Typer, name: str
) -> Callable[[Callable[Concatenate[Call, P], int | None]], Callable[P, int | None]]:
    """Register a command that talks to no service. It gets ``--json`` and ``-v`` in addition to its own parameters."""
    return _register(app, name, _LOCAL)


def connected(
    app: typer.Typer, name: str, *, kafka: bool = False
) -> Callable[[Callable[Concatenate[Call, P], int | None]], Callable[P, int | None]]:
    """Register a command that talks to a deployment. It gets ``--zookeeper`` and ``--deployment`` as well.

    Args:
        app: the group that the command belongs to.
        name: what users type.
        kafka: whether the command uses Kafka. Only then it has ``--kafka``, so an address is never silently ignored.
    """
    return _register(app, name, {**_DEPLOYMENT, **(_KAFKA if kafka else {}), **_LOCAL})


def on_kafka(
    app: typer.Typer, name: str
) -> Callable[[Callable[Concatenate[Call, P], int | None]], Callable[P, int | None]]:
    """Register a command that talks to Kafka alone. It gets ``--kafka`` as well."""
    return _register(app, name, {**_KAFKA, **_LOCAL})


def _register(
    app: typer.Typer, name: str, common: dict[str, Any]
) -> Callable[[Callable[Concatenate[Call, P], int | None]], Callable[P, int | None]]:
    """Register a function of a :class:`Call` and its own parameters that returns its exit code (None: 0)."""

    def register(function: Callable[Concatenate[Call, P], int | None]) -> Callable[P, int | None]:
        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> int | None:
            call = Call(**{key: kwargs.pop(key) for key in common})  # type: ignore[arg-type]
            raise typer.Exit(guarded(call, lambda: function(call, *args, **kwargs)))

        own = list(inspect.signature(function).parameters.values())[1:]
        hints = typing.get_type_hints(function, include_extras=True)
        parameters = [parameter.replace(annotation=hints[parameter.name]) for parameter in own] + [
            inspect.Parameter(
                key,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=kind,
                default=False if typing.get_args(kind)[0] is bool else None,
            )
            for key, kind in common.items()
        ]
        # Typer reads the signature; it must see the common flags and not the Call.
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        app.command(name)(run)
        return run

    return register


def guarded(call: Call, work: Callable[[], int | None]) -> int:
    """Run a command and return its exit code. Errors are shown, never raised."""
    try:
        code = work() or 0
        sys.stdout.flush()
        return code
    except SardonyxError as error:
        call.tell(error)
        if call.verbose:
            call.error_console.print_exception()
        return report.exit_code(error)
    except BrokenPipeError:  # the reader of our output has gone (`| head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except typer.Exit as end:  # an exit code of the command's own; it has said why
        return end.exit_code
    except (KeyboardInterrupt, typer.Abort):  # the latter: Ctrl-C, or the end of the input, in place of an answer
        return 130
    except Exception as error:  # noqa: BLE001 - the outermost frame: users never see a bare traceback
        from sardonyx.core.errors import failure_of

        call.tell(SardonyxError.from_failure(failure_of(error)))
        return report.FAILED


def _console(stream: typing.TextIO) -> Console:
    from rich.console import Console
    from rich.text import Text

    class Printable(Console):
        """Lines, and cells of tables, without control characters."""

        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(printable(text), **options)

    # In a pipe or a log file, lines are not folded at 80 columns.
    return Printable(file=stream, highlight=False, width=None if stream.isatty() else 160, soft_wrap=False)
