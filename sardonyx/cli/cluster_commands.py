"""``run``, ``dev`` and the daemons ``coordinator`` and ``peer``."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sardonyx.cli import report
from sardonyx.cli.arguments import Spec, Timeout, duration_of
from sardonyx.cli.call import Call, connected
from sardonyx.cli.job_end import Silence, end_error, upstream_of
from sardonyx.cli.web_commands import require_installed
from sardonyx.core.errors import Interrupted, SardonyxError
from sardonyx.core.text import counted

if TYPE_CHECKING:
    from sardonyx.cli.daemons import LocalPages, StopRequest
    from sardonyx.cli.profile import TaskProfile
    from sardonyx.client.client import JobHandle
    from sardonyx.client.views import JobView
    from sardonyx.dev.daemons import Daemons
    from sardonyx.dev.services import Services, Starting
    from sardonyx.job.load import LoadedJob
    from sardonyx.runtime.settings import Settings

Peers = Annotated[
    int | None, typer.Option("--peers", "-p", min=1, metavar="N", help="Number of virtual peers on this machine.")
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="DIR", help="Folder that keeps the data of the embedded services for the next time."
    ),
]

WATCH_EVERY = 0.5
"""Seconds between two looks at a job of `run`."""
KILL_PATIENCE = 15.0
"""Seconds that `run` waits for a job's end after it killed the job."""
ENVIRONMENT = "environment"
"""The file beside data and logs that the shell of another terminal reads, to reach the deployment."""
_LEADS_THERE = ("deployment", "zookeeper.", "kafka.")
"""How the names of settings begin that it holds."""


def register(app: typer.Typer) -> None:
    """Put the commands where they belong."""
    connected(app, "run", kafka=True)(run)
    connected(app, "dev", kafka=True)(dev)
    connected(app, "coordinator", kafka=True)(coordinator)
    connected(app, "peer", kafka=True)(peer)


def coordinator(call: Call) -> int:
    """Run a coordinator until SIGTERM. If several run, one leads and the others stand by."""
    call.role = "coordinator"
    call.settings.require("zookeeper", "kafka")
    from coordinator.daemon import main
    from queues.connectivity import check_reachable

    check_reachable(call.settings)  # a wrong address is an error at once; a service that goes away later is waited for
    return main(call.settings)


def peer(
    call: Call,
    virtual_peers: Annotated[
        str | None,
        typer.Option(
            "--virtual-peers",
            metavar="N|auto",
            help="Number of virtual peers; auto: as many as jobs need. Default: the setting peer.virtual_peers (auto).",
        ),
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(
            "--tag", metavar="TAG", help="What the peers offer, such as gpu; tasks may ask for it. Repeatable."
        ),
    ] = None,
) -> int:
    """Run a peer daemon: one Spark session and its virtual peers. SIGTERM lets it finish its batches, a second one stops it."""
    call.role = "peer"
    call.flags["peer.virtual_peers"] = virtual_peers
    call.flags["peer.tags"] = ",".join(tag) if tag else None
    call.settings.require("zookeeper", "kafka")
    from peer.daemon import main

    return main(call.settings)


def dev(
    call: Call,
    services_only: Annotated[
        bool, typer.Option("--services-only", help="Start only ZooKeeper and Kafka, no coordinator and no peers.")
    ] = False,
    data: Data = None,
    peers: Peers = None,
    cluster: Annotated[
        int,
        typer.Option(
            "--cluster",
            min=1,
            max=9,
            metavar="N",
            help="Number of ZooKeeper servers, and of Kafka brokers; 3 for a cluster.",
        ),
    ] = 1,
    no_web: Annotated[bool, typer.Option("--no-web", help="Do not serve the pages of `sardonyx web`.")] = False,
) -> None:
    """Run ZooKeeper, Kafka, a coordinator, peers and the pages of `web` on this machine until Ctrl-C.

    Kafka creates no topics by itself: `sardonyx topic create` does.
    """
    from sardonyx.cli.daemons import stop_request
    from sardonyx.dev.daemons import starting_daemons

    call.flags["data_dir"] = data and str(data)
    settings = call.settings
    own = services_only or not _configured(settings)
    if not own:
        _refuse_others(("dev",), settings, {"--cluster": cluster if cluster > 1 else None, "--data": data})
    with stop_request() as stop, contextlib.ExitStack() as stack:
        with stop.at_once():
            if own:
                starting = stack.enter_context(embedded(call, settings, cluster))
                folder = starting.data_dir
            else:
                _require_both(settings)
                call.say(f"starting no services, because their addresses are set: {_where_set(settings)}")
                folder = _log_folder(settings, stack)
            count = peers or settings.peer.virtual_peers
            daemons = None
            if not services_only:  # they get ready while the services start
                daemons = stack.enter_context(starting_daemons(folder, virtual_peers=count, telling=not no_web))
            services = None
            if own:
                settings, services = _ready(call, starting, None if daemons is None else daemons.connect)
            else:
                _check_reachable(call, settings)
            if daemons is not None:
                daemons.connect(settings)
                _say_daemons(call, count, folder)
            pages = None if services_only or no_web else _pages(call, settings, folder, stack)
        environment = folder / ENVIRONMENT
        if not own:
            _write_environment(environment, settings)
            stack.callback(environment.unlink, missing_ok=True)
        _put_addresses(call, settings, pages, environment)
        while not stop.wait(1.0):
            for each in (services, daemons, pages):
                for what in each.revive() if each is not None else ():
                    call.say(what)
        call.say("stopping")


def run(
    call: Call,
    spec: Spec,
    peers: Peers = None,
    timeout: Timeout = None,
    data: Data = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Show how long the batches took, by task and step.")
    ] = False,
    web: Annotated[
        bool, typer.Option("--web", help="Serve the pages of `sardonyx web` while the job runs, and say where.")
    ] = False,
) -> int:
    """Run a job and show its results. Starts its own services if none are configured, and stops them at the end."""
    from sardonyx.cli.daemons import stop_request
    from sardonyx.cli.profile import must_be_ours, profiled, read_profile
    from sardonyx.dev.daemons import starting_daemons
    from sardonyx.job.load import load

    wait = duration_of(timeout)
    call.flags["data_dir"] = data and str(data)
    settings = call.settings
    here = not _configured(settings)
    if profile:
        must_be_ours(ours=here or peers is not None)
    if web:
        require_installed()
    loaded = load(spec)  # before anything is started: most runs of a new job end here
    call.warn(loaded.warnings)
    with stop_request() as stop, contextlib.ExitStack() as stack:
        with stop.at_once():
            if here:
                starting = stack.enter_context(embedded(call, settings))
                folder = starting.data_dir
            else:
                _require_both(settings)
                logs = web or peers is not None
                _refuse_others(("run", str(spec)), settings, {"--data": None if logs else data})
                folder = _log_folder(settings, stack) if logs else Path()
            count, daemons = peers or settings.peer.virtual_peers, None
            if here or peers is not None:  # they get ready while the services start
                daemons = stack.enter_context(starting_daemons(folder, virtual_peers=count, telling=web))
            import sardonyx.client.client  # noqa: F401 - meanwhile

            measured = folder / "peer-metrics.json"

            def connect(settings: Settings) -> None:
                if daemons is not None:
                    daemons.connect(profiled(settings, measured) if profile else settings)

            if here:
                settings, _ = _ready(call, starting, connect)
            else:
                _check_reachable(call, settings)
            connect(settings)
            if daemons is not None:
                _say_daemons(call, count, folder)
            pages = _pages(call, settings, folder, stack) if web else None
        view = _Run(call, settings, loaded, stop, daemons, pages).to_end(wait)
        vanishes = here and settings.data_dir is None
        if daemons is not None:
            daemons.useless = vanishes and view.status == "completed"
        times = None
        if profile and daemons is not None:
            daemons.stop()  # its last metrics are written when it ends
            times = read_profile(measured, view.id)
        return _tell_result(call, settings, loaded, view, times, vanishes=vanishes)


_ADDRESSES = ("zookeeper.hosts", "kafka.bootstrap_servers")


@contextlib.contextmanager
def embedded(call: Call, settings: Settings, servers: int = 1) -> Iterator[Starting]:
    """Embedded services, for as long as the block runs. They start in the background."""
    from sardonyx.dev.services import starting_services

    call.say("starting embedded ZooKeeper and Kafka")
    with starting_services(settings.data_dir, servers=servers, private=True) as starting:
        yield starting


def _ready(call: Call, starting: Starting, connect: Callable[[Settings], None] | None) -> tuple[Settings, Services]:
    """Wait until the services answer, and return settings with their addresses. Daemons ``connect`` with ZooKeeper while Kafka
    still starts.
    """
    if connect is not None:
        connect(_settings_at(call, starting.expected()))
    services = starting.ready()
    kept = "kept" if services.kept else "removed at the end; keep it with --data DIR"
    took = time.monotonic() - starting.since
    call.say(f"they are ready after {took:.1f} s; their data is in {services.data_dir} ({kept})")
    addresses = {"zookeeper.hosts": services.zookeeper, "kafka.bootstrap_servers": services.kafka, **services.login}
    settings = _settings_at(call, addresses)
    _write_environment(services.data_dir / ENVIRONMENT, settings)
    return settings, services


def _settings_at(call: Call, addresses: Mapping[str, str]) -> Settings:
    """The settings of the call, with these addresses."""
    from sardonyx.runtime.settings import load_settings

    flags = {**call.flags, "deployment": call.deployment, "log.level": "debug" if call.verbose else None}
    return load_settings(**{**flags, **addresses})


class _Run:
    """One job from its submission to its end, shown meanwhile."""

    def __init__(
        self,
        call: Call,
        settings: Settings,
        loaded: LoadedJob,
        stop: StopRequest,
        daemons: Daemons | None,
        pages: LocalPages | None,
    ) -> None:
        self._call = call
        self._settings = settings
        self._loaded = loaded
        self._stop = stop
        self._daemons = daemons
        self._pages = pages

    def to_end(self, timeout: float | None) -> JobView:
        """The job's final view. Raises Interrupted ``SX-JOB-TIMEOUT`` after it was ended for taking too long."""
        from sardonyx.client.client import Client

        with Client(settings=self._settings) as client:
            handle = client.submit(self._loaded)
            self._call.say(f"job {handle.id}")
            return self._follow(handle, timeout)

    def _follow(self, handle: JobHandle, timeout: float | None) -> JobView:
        from sardonyx.cli.progress import progress

        silence = Silence(handle)
        deadline = None if timeout is None else time.monotonic() + timeout
        timed_out: Interrupted | None = None
        killed_at: float | None = None
        with progress(self._call.error_console, upstream_of(self._loaded.spec)) as shown:
            for view in handle.follow(interval=WATCH_EVERY):
                now = time.monotonic()
                shown.show(view, silence.remark(view, now))
                if view.ended:
                    break
                if self._daemons is not None:
                    self._daemons.check()
                for what in self._pages.revive() if self._pages is not None else ():
                    self._call.say(what)
                if killed_at is not None:
                    waits = handle.waiting(view)
                    if now - killed_at > KILL_PATIENCE or (waits and view.status == "submitted"):
                        self._call.say(f"job {handle.id} will be killed as soon as a coordinator leads")
                        break
                    continue
                if deadline is not None and now > deadline:
                    timed_out = self._too_long(handle, timeout or 0, silence.remark(view, now))
                if timed_out is not None or self._stop.asked:
                    why = "it takes too long" if timed_out else "stop requested; press Ctrl-C again to stop at once"
                    self._call.say(f"killing job {handle.id}: {why}")
                    handle.kill()
                    killed_at = now
        if timed_out is not None and view.status != "completed":
            raise timed_out
        return view

    def _too_long(self, handle: JobHandle, timeout: float, waits: str | None) -> Interrupted:
        return Interrupted(
            "SX-JOB-TIMEOUT",
            f"job {handle.id} had not ended within {timeout:g} s and was killed",
            cause=waits or "it was still at work",
            fix="give it more time with --timeout, or more virtual peers with --peers",
            where={"job": handle.id},
        )


def _tell_result(
    call: Call,
    settings: Settings,
    loaded: LoadedJob,
    view: JobView,
    times: Sequence[TaskProfile] | None,
    *,
    vanishes: bool,
) -> int:
    """Show where the results lie, and how the job ended."""
    from sardonyx.cli import results
    from sardonyx.cli.profile import profile_table
    from sardonyx.cli.tables import job_headline, tasks_table

    outputs = results.look_at(settings, loaded.spec, view)
    error = end_error(view)
    data = {**report.as_data(view), "outputs": outputs, **({} if times is None else {"profile": times})}
    if not call.json:
        call.console.print(job_headline(view))
        call.console.print(tasks_table(view.tasks, ended=view.ended))
        if times is not None:
            call.console.print(profile_table(times))
        if error is None or any(output.rows for output in outputs):
            results.show(call.console, outputs, vanishes=vanishes)
    elif error is None:
        call.put_json(data)
    if error is not None:
        call.tell(error, data)
    return report.exit_code_of(view.status if view.ended else "killed")


def _configured(settings: Settings) -> bool:
    """Whether any address is given: then no services are started here."""
    return bool(settings.zookeeper.hosts or settings.kafka.bootstrap_servers)


def _refuse_others(command: Sequence[str], settings: Settings, flags: Mapping[str, object]) -> None:
    """Raises ``SX-USAGE`` if a command's flag asks for embedded services, where the addresses of others are set."""
    asked = {flag: f"{flag} {shlex.quote(str(value))}" for flag, value in flags.items() if value is not None}
    if asked:
        origins = [settings.origins.get(key, "") for key in _ADDRESSES]
        unset = [f"-u {origin.split()[1]}" for origin in origins if origin.startswith("environment ")]
        again = f": `env {' '.join(unset)} sardonyx {shlex.join(command)} {' '.join(asked.values())}`" if unset else ""
        raise SardonyxError(
            "SX-USAGE",
            f"{' and '.join(asked)} asks for services that `{command[0]}` starts, and the addresses of others are set",
            cause=_where_set(settings),
            fix=f"leave out {' and '.join(asked)} to run the rest with those services, or do not set the addresses{again}",
        )


def _where_set(settings: Settings) -> str:
    """The addresses that are set, and where."""
    found = (key for key in _ADDRESSES if settings.flat()[key])
    return ", ".join(f"{key} = {settings.flat()[key]} ({settings.origins[key]})" for key in found)


def _check_reachable(call: Call, settings: Settings) -> None:
    from queues.connectivity import check_reachable

    with call.patience(f"ZooKeeper at {settings.zookeeper.hosts}, Kafka at {settings.kafka.bootstrap_servers}"):
        check_reachable(settings)


def _require_both(settings: Settings) -> None:
    """Raises ``SX-CONFIG-MISSING`` if only one of the two addresses is given."""
    try:
        settings.require("zookeeper", "kafka")
    except SardonyxError as error:
        error.cause = f"{error.cause}; give both addresses, or none to start embedded services"
        raise


def _log_folder(settings: Settings, stack: contextlib.ExitStack) -> Path:
    """Where local daemons of a configured cluster log: the data directory, or a temporary one. Raises ``SX-EMBEDDED-DATA``."""
    from sardonyx.dev.services import data_directory

    return stack.enter_context(data_directory(settings.data_dir, "the logs of the daemons", "sardonyx-logs-"))


def _say_daemons(call: Call, count: int | Literal["auto"], folder: Path) -> None:
    peers = "virtual peers" if count == "auto" else counted(count, "virtual peer")
    call.say(f"a coordinator and {peers} run here; their logs are in {folder}")


def _pages(call: Call, settings: Settings, folder: Path, stack: contextlib.ExitStack) -> LocalPages | None:
    """Serve the pages until the stack is closed, and say where; None, and why, if they are not installed."""
    from sardonyx.cli.daemons import local_pages

    try:
        require_installed()
    except SardonyxError as error:
        call.say(f"without the pages of `sardonyx web`: {error.fix}")
        return None
    pages = stack.enter_context(local_pages(settings, folder))
    call.say(f"pages at {pages.address}")
    return pages


def _write_environment(path: Path, settings: Settings) -> None:
    """Write a file for a shell to read, which only its owner may read: all that leads to the deployment, with the login."""
    from sardonyx.runtime.settings import variable

    names = tuple(variable(name) for name in _LEADS_THERE)
    given = {name: value for name, value in settings.environment().items() if name.startswith(names)}
    path.unlink(missing_ok=True)
    path.touch(0o600)
    path.write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in given.items()), "utf-8")


def _put_addresses(call: Call, settings: Settings, pages: LocalPages | None, environment: Path) -> None:
    zookeeper, kafka = settings.zookeeper.hosts, settings.kafka.bootstrap_servers
    if call.json:
        served = {} if pages is None else {"web": pages.address}
        call.put_json({"zookeeper": zookeeper, "kafka": kafka, "environment": str(environment), **served})
        return
    call.put(f"ZooKeeper {zookeeper}")
    call.put(f"Kafka     {kafka}")
    if pages is not None:
        call.put(f"pages     {pages.address}")
    call.put("for other terminals:")
    call.put(f". {shlex.quote(str(environment))}")
    call.put("Ctrl-C stops everything")
