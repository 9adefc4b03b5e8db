"""``sardonyx peers list|show|evict|drain|undrain``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from sardonyx.cli.call import LOG, Call, connected
from sardonyx.cli.event_text import clock
from sardonyx.cli.log_commands import tree_of
from sardonyx.core.text import counted
from sardonyx.core.units import duration

if TYPE_CHECKING:
    from sardonyx.zookeeper.session import ZooKeeperSession

Wanted = Annotated[str, typer.Argument(metavar="HOST|PEER", help="A host, or a peer's id or the beginning of it.")]
PeerId = Annotated[str, typer.Argument(metavar="ID", help="A peer's id, or the beginning of it.")]


def register(peers_app: typer.Typer) -> None:
    """Put the commands where they belong."""
    connected(peers_app, "list")(list_peers)
    connected(peers_app, "show")(show)
    connected(peers_app, "evict")(evict)
    connected(peers_app, "drain")(drain)
    connected(peers_app, "undrain")(undrain)


def list_peers(call: Call) -> None:
    """List the virtual peers: their state, since when, and what they work on."""
    with call.client() as client:
        peers = [peer for peer in client.peers(since=True) if peer.state != "dead"]
    if call.json:
        call.put_json(peers)
    elif peers:
        from sardonyx.cli.tables import peers_table

        call.console.print(peers_table(peers, time.time()))
    else:
        call.put(f"no peers in deployment {call.settings.deployment}; start some with `sardonyx peer`")


def show(call: Call, peer: PeerId) -> None:
    """Show the history of a peer from the log: when it registered, what it was offered, what it did, and how that ended."""
    from sardonyx.cli.history_text import life
    from sardonyx.client.ids import find_peer

    with tree_of(call) as zk:
        from coordinator.history import reader

        with call.patience(LOG):
            name = find_peer(peer, _peers_ever(zk))
        moments = life(name, reader.decided(zk, reader.kept(zk).first))
        if call.json:
            call.put_json({"id": name, "life": list(moments)})
            return
        call.put(f"peer {name}")
        before = None
        for moment in moments:
            lasted = "" if before is None else f"after {duration(moment.at - before)}"
            before = moment.at
            state = moment.state or ""
            call.put(f"{moment.n:>7}  {clock(moment.at)}  {lasted:<14}  {state:<8}  {moment.text}")
        if before is None:
            call.say("it registered before the oldest entry that is kept, and nothing has happened to it since")


def _peers_ever(zk: ZooKeeperSession) -> set[str]:
    """Every peer that the log still knows of."""
    from coordinator.history import reader
    from coordinator.loop.event_log import read_log
    from sardonyx.core.events import PeerBorn

    first = reader.kept(zk).first
    known = set(reader.at(zk, first - 1).peers)
    return known | {event.peer for _, event in read_log(zk, first) if isinstance(event, PeerBorn)}


def evict(call: Call, peer: PeerId) -> None:
    """Evict a peer: it drops its open batch and leaves its task. Its daemon starts a peer with a new id in its place: it comes
    back. `sardonyx peers drain` takes peers out for good.
    """
    from sardonyx.cli.history_text import change_data, eviction

    with call.client() as client, call.patience("the coordinator to evict the peer"):
        decided = client.evict(peer)
    found = eviction(decided)
    if call.json:
        changes = [change_data(change) for change in decided.changes]
        call.put_json({"id": found.peer, "state": found.state, "n": decided.n, "task": found.task, "changes": changes})
        return
    for line in found.lines:
        call.put(line)


def drain(call: Call, wanted: Wanted) -> None:
    """Take peers out for good: they finish their batches and get no further task. Of a host also those that join there later."""
    _drain(call, wanted, back=False)


def undrain(call: Call, wanted: Wanted) -> None:
    """Take drained peers in again: they get tasks as all others do."""
    _drain(call, wanted, back=True)


def _drain(call: Call, wanted: str, *, back: bool) -> None:
    with call.client() as client, call.patience("the coordinator to take that in"):
        found = client.drain(wanted, back=back)
    if call.json:
        call.put_json(found)
        return
    who = (
        f"{counted(len(found.peers), 'peer')} of host {found.host}" if found.host else f"peer {', '.join(found.peers)}"
    )
    if back:
        call.put(f"{who} may get tasks again")
        return
    call.put(f"{who} {'get' if len(found.peers) != 1 else 'gets'} no further task after the batch in hand")
    if found.host:
        call.put("a peer that joins there later gets none either")
    call.put(f"`sardonyx peers undrain {found.host or found.peers[0]}` takes that back")
