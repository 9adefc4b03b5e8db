"""``sardonyx web``."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sardonyx.cli.call import LOG, Call, connected
from sardonyx.cli.log_commands import entry_data, opened_log
from sardonyx.core.errors import SardonyxError, SetupError

if TYPE_CHECKING:
    from coordinator.history.replay import Change, Decided
    from coordinator.history.timeline import TimelineEvent
    from sardonyx.web.book import Words
    from sardonyx.web.source import Source

PORT = 8484


def register(app: typer.Typer) -> None:
    """Put the command where it belongs."""
    connected(app, "web", kafka=True)(web)


def web(
    call: Call,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="N", help="Port; if it is taken, the next free one.")
    ] = PORT,
    host: Annotated[
        str,
        typer.Option(
            "--host", metavar="ADDRESS", help="Address to listen on; others than loopback need --behind-proxy."
        ),
    ] = "127.0.0.1",
    behind_proxy: Annotated[
        bool,
        typer.Option(
            "--behind-proxy", help="A proxy in front of the pages has TLS, and without --tokens also a login."
        ),
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host", metavar="NAME", help="Another name by which browsers ask for the pages. Repeatable."
        ),
    ] = None,
    rows: Annotated[
        bool | None,
        typer.Option(
            "--rows/--no-rows",
            help="Whether rows of links and dead letters are shown; default: yes, and no behind a proxy.",
        ),
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(
            "--tokens",
            metavar="FILE",
            help="Ask for a token, and let operators act. A line for each person: name, viewer or operator, token.",
        ),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option("--replay", metavar="FILE", help="Show a file that `log export` wrote; needs no services."),
    ] = None,
) -> None:
    """Show the deployment in a browser: its jobs, what needs attention, and any past moment.

    It changes nothing, unless --tokens names operators.
    """
    require_installed()
    call.role = "web"
    if not _is_loopback(host) and not behind_proxy:
        raise SardonyxError(
            "SX-WEB-OPEN",
            f"the pages would be open to everyone who reaches {host}",
            cause="they have no TLS, and without --tokens no login",
            fix="leave out --host; or put a proxy with TLS in front, and say so with --behind-proxy",
        )
    from sardonyx.web.access import Access, read_tokens
    from sardonyx.web.app import bound, serve

    access = Access() if tokens is None else read_tokens(tokens)

    source = _source(call, replay, not behind_proxy if rows is None else rows)
    try:
        with bound(host, port) as listener:
            address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}/"
            if call.json:
                call.put_json({"web": address})
            else:
                call.put(address)
            serve(source, listener, allow_host or (), access)
    finally:
        source.close()


def require_installed() -> None:
    """Raises ``SX-WEB-MISSING`` if what serves the pages is not installed."""
    from importlib.util import find_spec

    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise SetupError(
            "SX-WEB-MISSING",
            "the packages that serve the pages are not installed",
            cause="they come with the extra `web`",
            fix="pip install 'sardonyx[web]'",
        )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _source(call: Call, replay: Path | None, rows: bool) -> Source:
    if replay is None:
        call.settings.require("zookeeper")
        from sardonyx.web.live import LiveSource

        with call.patience(f"{LOG}, at {call.settings.zookeeper.hosts}"):
            return LiveSource(call.settings, words(), rows=rows)
    from coordinator.history.export import LogFile
    from sardonyx.web.source import FileSource

    with opened_log(str(replay)) as file, call.patience("the whole file to be read: the pages show any moment of it"):
        return FileSource(LogFile(file, str(replay)), str(replay), words())


def words() -> Words:
    """Entries as ``log show`` and ``job show`` tell them."""
    from sardonyx.cli.event_text import summary
    from sardonyx.cli.history_text import change_data, change_lines, difference_line, timeline_line
    from sardonyx.web.book import Words

    def told(event: TimelineEvent, ended: bool) -> str:  # noqa: FBT001, RUF100
        return timeline_line(event, ended=ended)

    def line(decided: Decided) -> str:
        return summary(decided.event, decided.held)

    def entry(decided: Decided, request: str) -> dict[str, Any]:
        return entry_data(decided, request)

    def change(found: Change) -> tuple[dict[str, Any], str]:
        return change_data(found), difference_line(found)

    return Words(line, entry, change_lines, told, change)
