"""``sardonyx log tail|show|at|verify|export|replay``."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, cast

import msgspec
import typer

from sardonyx.cli import report
from sardonyx.cli.arguments import place_in_log
from sardonyx.cli.call import LOG, SILENCE, Call, connected, local, our_version
from sardonyx.cli.event_text import clock, summary
from sardonyx.cli.files import opened, write_lines
from sardonyx.cli.masks import Masks
from sardonyx.core.errors import SardonyxError
from sardonyx.core.text import counted, near

if TYPE_CHECKING:
    from coordinator.core.state import State
    from coordinator.history.archive import Archive
    from coordinator.history.replay import Decided, Verdict
    from sardonyx.zookeeper.session import ZooKeeperSession

REREAD = 5.0
"""Seconds after which `log tail --follow` reads again even if no watch has fired."""
FEW = 20
"""Findings that are shown as text; --json has all."""

N = Annotated[
    str,
    typer.Argument(
        metavar="N|TIME", help='Number of an entry; or a time, such as 23:40 or "10 min ago": the last before it.'
    ),
]
FileName = Annotated[str, typer.Argument(metavar="FILE", help="A file that `log export` wrote; - for standard input.")]
Thorough = Annotated[
    bool, typer.Option("--thorough", help="Check every rule after every entry, however many peers there are.")
]


def register(log_app: typer.Typer) -> None:
    """Put the commands where they belong."""
    connected(log_app, "tail")(tail)
    connected(log_app, "show")(show)
    connected(log_app, "at")(at)
    connected(log_app, "verify")(verify)
    connected(log_app, "export")(export)
    local(log_app, "replay")(replay)


@contextlib.contextmanager
def tree_of(call: Call) -> Iterator[ZooKeeperSession]:
    """A session with the deployment while the block runs. Raises ``SX-CONFIG-MISSING``."""
    call.settings.require("zookeeper")
    from sardonyx.zookeeper.session import ZooKeeperSession

    with call.patience(f"ZooKeeper at {call.settings.zookeeper.hosts}"):
        zk = ZooKeeperSession.connect(call.settings, survive_expiry=True)
    try:
        yield zk
    finally:
        zk.close()


# Looking at entries


def tail(
    call: Call,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="How many of the last entries to show.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new entries as they come.")] = False,
    job: Annotated[
        str | None,
        typer.Option("--job", metavar="ID", help="Only entries about this job: an id, its beginning, or a name."),
    ] = None,
) -> None:
    """Show the last entries of the coordinator's log: number, time, kind, and what happened."""
    with tree_of(call) as zk:
        from coordinator.history import reader
        from coordinator.history.replay import Decided
        from sardonyx.core import node_paths

        fits = wanted(job, None, None)
        there = reader.kept(zk)
        first = there.first if job is not None else max(there.first, there.last - lines + 1)
        last_fits = deque[Decided](maxlen=lines)
        with call.patience(LOG):
            following = reader.Following(zk, first)
            last_fits.extend(decided for decided in following.new() if fits(decided))
        masks = Masks(zk)
        for decided in last_fits:
            _put_entry(call, decided, masks)
        if not follow:
            return
        changed = threading.Event()

        def wake(_event: object) -> None:
            changed.set()

        while True:
            changed.clear()
            zk.read(node_paths.CHECKPOINT, watch=wake)  # it moves after every batch of entries
            for decided in following.new():
                if fits(decided):
                    _put_entry(call, decided, masks)
            changed.wait(REREAD)


def show(
    call: Call,
    n: Annotated[
        str | None,
        typer.Argument(
            metavar="[N|TIME]", help="Number of one entry, or a time: the last entry before it. Shows it whole."
        ),
    ] = None,
    first: Annotated[str | None, typer.Option("--from", metavar="A", help="From this entry or time on.")] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="B", help="Up to this entry or time.")] = None,
    job: Annotated[str | None, typer.Option("--job", metavar="ID", help="Only what concerns this job.")] = None,
    peer: Annotated[str | None, typer.Option("--peer", metavar="ID", help="Only what concerns this peer.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", metavar="KIND", help="Only this kind, e.g. failed.")] = None,
) -> None:
    """Show one entry and what the coordinator decided about it; without N, list entries. Ids may be shortened."""
    if n is not None and any(given is not None for given in (first, last, job, peer, kind)):
        raise SardonyxError("SX-USAGE", "N and filters cannot be combined", fix="leave out N, or leave out the filters")
    if kind is not None:
        _check_kind(kind)
    with tree_of(call) as zk:
        if n is not None:
            _show_one(call, zk, _number(call, zk, n))
            return
        begin = None if first is None else _number(call, zk, first, later=True)
        end = None if last is None else _number(call, zk, last)
        _show_many(call, zk, begin, end, wanted(job, peer, kind), replayed=bool(job or peer))


def _archive(call: Call) -> Archive | None:
    """What compactions have removed from the log; None if no archive is configured."""
    folder = call.settings.coordinator.log_archive
    if folder is None:
        return None
    from coordinator.history.archive import Archive

    return Archive(folder, call.settings.deployment)


def _number(call: Call, zk: ZooKeeperSession, text: str, *, later: bool = False) -> int:
    """The number of the entry that a user means. Of a time: of the last entry at or before it, or of the first after it."""
    return _entry(call, zk, place_in_log(call, text), later=later)


def _entry(call: Call, zk: ZooKeeperSession, where: float, *, later: bool = False) -> int:
    from coordinator.history import reader

    if isinstance(where, int):
        return where
    found, archive = reader.until(zk, where), _archive(call)
    if archive is not None and found < reader.kept(zk).first:
        found = archive.until(where) or 0
    return found + later


def _show_one(call: Call, zk: ZooKeeperSession, n: int) -> None:
    from coordinator.history import reader
    from coordinator.loop.event_log import read_entries
    from sardonyx.cli.history_text import change_lines

    archive = _archive(call) if n < reader.kept(zk).first else None
    archived = None if archive is None else next(archive.decided(n, n), None)
    if archived is not None:
        decided, request = archived
    else:
        live = next(reader.decided(zk, n, n), None)
        if live is None:
            raise SardonyxError("SX-LOG-RANGE", f"the log has no entry {n} any more", fix="name a later one")
        decided, request = live, next(entry.request for _, entry in read_entries(zk, n))
    masks = Masks(zk)
    if call.json:
        call.put_json(masks.data(decided, entry_data(decided, request)))
        return
    _put_entry(call, decided, masks)
    for key, value in _fields(masks.data(decided, decided.event)):
        call.put(f"  {key}: {value}")
    if request:
        call.put(f"  request: {request}")
    lines = change_lines(decided)
    call.put("it changed" if lines else "it changed nothing")
    for line in lines:
        call.put(f"  {masks.text(decided, line)}")


def entry_data(decided: Decided, request: str) -> dict[str, Any]:
    """One entry whole: with the request that it came from, the decision's effects, and what they changed."""
    from sardonyx.cli.history_text import change_data, effect_data

    return {
        **_entry_data(decided),
        "request": request or None,
        "effects": [effect_data(effect) for effect in decided.effects],
        "changes": [change_data(change) for change in decided.changes],
    }


def _fields(plain: dict[str, Any]) -> Iterable[tuple[str, str]]:
    """The event's own fields, each as a line of JSON."""
    return ((key, report.to_json(value)) for key, value in plain.items() if key not in ("kind", "at"))


def wanted(job: str | None, peer: str | None, kind: str | None) -> Callable[[Decided], bool]:
    """Whether an entry is to be listed. Pure.

    Args:
        job: it must concern a job of this id, name, or beginning of an id.
        peer: it must be about, or change, a peer of this id or beginning of an id.
        kind: it must be of this kind.
    """
    from coordinator.history.replay import concerned_jobs, concerned_peers
    from sardonyx.core.events import kind_of

    def fits(decided: Decided) -> bool:
        if kind is not None and kind_of(decided.event) != kind:
            return False
        if job is not None and not any(each.startswith(job) for each in concerned_jobs(decided)):
            return False
        return peer is None or any(each.startswith(peer) for each in concerned_peers(decided))

    return fits


def _show_many(
    call: Call,
    zk: ZooKeeperSession,
    first: int | None,
    last: int | None,
    fits: Callable[[Decided], bool],
    *,
    replayed: bool,
) -> None:
    """Print the entries as they are read. Which jobs and peers an entry concerns is known only if they are ``replayed``."""
    from coordinator.history import reader
    from coordinator.history.replay import Decided
    from coordinator.loop.event_log import read_log

    there, archive = reader.kept(zk), _archive(call)
    begin = max(first or 0, there.first)
    past: Iterable[Decided]
    older: Iterable[Decided] = ()
    if archive is not None and first is not None and first < there.first:
        before = there.first - 1
        older = (decided for decided, _ in archive.decided(first, before if last is None else min(last, before)))
    if replayed and begin <= there.last:
        past = reader.decided(zk, begin, last)
    else:
        past = (Decided(n, event, [], []) for n, event in read_log(zk, begin))
    found, masks = 0, Masks(zk)
    for decided in itertools.chain(older, past):
        if last is not None and decided.n > last:
            break
        if fits(decided):
            found += 1
            _put_entry(call, decided, masks)
    if not found:
        held = f"holds entries {there.first} to {there.last}" if there.last >= there.first else "is empty"
        call.say(f"no such entry; the log {held}")


def _check_kind(kind: str) -> None:
    from typing import get_args

    from sardonyx.core.events import AnyEvent

    known = sorted(str(each.__struct_config__.tag) for each in get_args(AnyEvent))
    if kind not in known:
        raise SardonyxError(
            "SX-USAGE",
            f"there is no kind of entry {kind!r}{near(kind, known, cutoff=0.4)}",
            fix=f"one of {', '.join(known)}",
        )


def _entry_data(decided: Decided) -> dict[str, Any]:
    from sardonyx.core.events import kind_of

    event, held = decided.event, decided.held
    data = {"n": decided.n, "kind": kind_of(event), "summary": summary(event, held), "event": event}
    if held is not None and held.id == getattr(event, "assignment", None):
        data |= {"job": held.job, "task": held.task}
    return data


def _put_entry(call: Call, decided: Decided, masks: Masks) -> None:
    from sardonyx.core.events import kind_of

    if call.json:
        call.put_json(masks.data(decided, _entry_data(decided)))
    else:
        event = decided.event
        told = masks.text(decided, summary(event, decided.held))
        call.put(f"{decided.n:>7}  {clock(event.at)}  {kind_of(event):<15}  {told}")


# Past moments


def at(call: Call, n: N) -> None:
    """Show the cluster as it was after entry N, or at a time: its peers and what they worked on, its jobs and their tasks."""
    with tree_of(call) as zk:
        from coordinator.history import reader
        from coordinator.loop.event_log import read_log

        with call.patience(LOG):
            where = place_in_log(call, n)
            number = _entry(call, zk, where)
            oldest, archive = reader.kept(zk).first, _archive(call)
            if number < oldest and archive is not None and archive.holds(number):
                state, when = archive.at(number)
            else:
                state = reader.at(zk, number)
                held = number >= oldest  # what was before the oldest entry is known, not when that was
                found = next(read_log(zk, number), None) if held else None
                when = found[1].at if found and found[0] == number else None
    _put_cluster(call, state, when, _asked(where))


def _asked(where: float) -> float | None:
    """The moment that a user means, and none that is yet to come; None: an entry is meant."""
    return None if isinstance(where, int) else min(where, time.time())


def _put_cluster(call: Call, state: State, when: float | None, asked: float | None = None) -> None:
    """Show the deployment after an entry. ``asked``: the moment that a user asked for, which may be long after the entry; for how
    long a peer had been in its state is as of that. None: as of the entry.
    """
    from sardonyx.cli.tables import job_headline, peers_table, tasks_table
    from sardonyx.client.cluster_views import cluster_view

    view = cluster_view(state, when, asked)
    if call.json:
        call.put_json(view)
        return
    call.put(
        f"deployment {view.deployment} after entry {view.n}"
        + (f", {clock(when)}" if when else "")
        + (f", as of {clock(asked)[:-4]}" if asked else "")
    )
    if view.peers:
        call.console.print(peers_table(view.peers, asked or when))
    else:
        call.put("no peers")
    for job in view.jobs:
        call.put("")
        call.console.print(job_headline(job))
        if job.tasks and not job.ended:
            call.console.print(tasks_table(job.tasks))
    if not view.jobs:
        call.put("no jobs")


# Is it sound?


def verify(call: Call, thorough: Thorough = False) -> int:
    """Replay the log and compare it with the rules, the snapshots and the nodes in ZooKeeper. Exit code 1: something differs."""
    with tree_of(call) as zk:
        from coordinator.history import reader

        began = time.monotonic()
        verdict = reader.verify(zk, thorough=thorough, told=_Told(call))
    return _put_verdict(call, verdict, time.monotonic() - began)


class _Told:
    """Says how far a replay has come, every few seconds."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._began = self._said = time.monotonic()

    def __call__(self, n: int, last: int) -> None:
        now = time.monotonic()
        if now - self._said >= SILENCE:
            self._said = now
            self._call.say(f"at entry {n:,} of {last:,} after {now - self._began:.0f} s")


def _put_verdict(call: Call, verdict: Verdict, took: float) -> int:
    rate = verdict.events / took if took > 0 else 0.0
    code = report.COMPLETED if verdict.ok else report.FAILED
    if call.json:
        call.put_json({"ok": verdict.ok, **report.as_data(verdict), "seconds": took, "events_per_second": rate})
        return code
    if verdict.events:
        call.put(
            f"entries {verdict.first:,} to {verdict.last:,} replayed in {took:.1f} s, {rate:,.0f} events/s; "
            f"compared with {counted(verdict.snapshots, 'snapshot')} and {counted(verdict.nodes, 'node')} in ZooKeeper"
            + (f", {verdict.moving:,} of them changed meanwhile" if verdict.moving else "")
        )
    elif verdict.ok:
        call.put(f"no entries to replay; compared with {counted(verdict.nodes, 'node')} in ZooKeeper")
    for finding in verdict.findings[:FEW]:
        call.put(f"broken after entry {finding.n:,}: {finding.message}")
    if len(verdict.findings) > FEW:
        call.put(f"and {len(verdict.findings) - FEW:,} more; --json gives all")
    call.put("everything is consistent" if verdict.ok else f"{counted(len(verdict.findings), 'thing')} broken")
    return code


# Files


def export(
    call: Call,
    first: Annotated[str | None, typer.Option("--from", metavar="N|TIME", help="From this entry or time on.")] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="File to write; default: standard output.")
    ] = None,
) -> None:
    """Write the log and the nodes into one file, without secrets. `log replay` replays it on any machine."""
    with tree_of(call) as zk:
        from coordinator.history import reader

        lines = reader.export(zk, our_version(), None if first is None else _first(call, zk, first))
        head = next(lines)
        write_lines(out, itertools.chain([head], lines))
    if out is None:
        return
    header = msgspec.json.decode(head)
    if call.json:
        call.put_json({"file": str(out), **{key: header[key] for key in ("deployment", "first", "last", "version")}})
    else:
        call.put(f"{out}: entries {header['first']:,} to {header['last']:,} of deployment {header['deployment']}")


def _first(call: Call, zk: ZooKeeperSession, text: str) -> int:
    """The entry with which an export begins, of what ZooKeeper holds: of a time, the first after it."""
    from coordinator.history import reader

    where = place_in_log(call, text)
    return max(where, 1) if isinstance(where, int) else reader.until(zk, where) + 1


def replay(
    call: Call,
    file: FileName,
    n: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="N|TIME", help="Show the cluster after this entry, or the last one before this time."
        ),
    ] = None,
    thorough: Thorough = False,
) -> int:
    """Replay an exported log without any service, and check it like `log verify`. Exit code 1: something differs."""
    where = None if n is None else place_in_log(call, n)
    with opened_log(file) as source:
        from coordinator.history.export import LogFile
        from coordinator.history.replay import Replay, Verifier

        log = LogFile(source, file)
        if log.header.version != our_version():
            call.say(f"made by Sardonyx {log.header.version}, replayed by {our_version()}: some decisions may differ")
        if where is not None:
            if isinstance(where, int):
                log.check_holds(where)
            past = Replay(log.begin())
            when = None
            for entry in log.entries():
                if (entry.n if isinstance(where, int) else entry.event.at) > where:
                    break
                past.step(entry.n, entry.event)
                when = entry.event.at
            _put_cluster(call, past.state, when, _asked(where))
            return report.COMPLETED
        began = time.monotonic()
        told = _Told(call)
        verifier = Verifier(log.begin(), log.stand, thorough=thorough)
        for number in verifier.run((entry.n, entry.event) for entry in log.entries()):
            told(number, log.header.last)
        return _put_verdict(call, verifier.end(), time.monotonic() - began)


@contextlib.contextmanager
def opened_log(file: str) -> Iterator[IO[bytes]]:
    """A file that ``log export`` wrote, or standard input, while the block runs. Raises ``SX-LOG-FILE``."""
    with opened(file, "SX-LOG-FILE", "name a file that `sardonyx log export -o FILE` wrote") as source:
        if file.endswith(".gz"):
            with gzip.open(source) as unpacked:
                yield cast("IO[bytes]", unpacked)
        else:
            yield source
