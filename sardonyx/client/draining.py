"""Takes virtual peers out so that they get no further task, and in again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from coordinator.core.state import LIVE, State
from sardonyx.client.ids import asker, find_peer, unknown_peer
from sardonyx.core.errors import Interrupted, SardonyxError
from sardonyx.core.events import Drained

if TYPE_CHECKING:
    from sardonyx.zookeeper.session import ZooKeeperSession

_RULES = 4
"""The first rules by which a coordinator knows of it."""


class Draining(msgspec.Struct, frozen=True, kw_only=True):
    """The peers that a user has drained, or taken in again."""

    host: str
    """The host whose peers are drained, with all that join there; empty: only one peer is."""
    peers: list[str]
    """Those that are alive."""


def drain(zk: ZooKeeperSession, wanted: str, timeout: float, *, back: bool) -> Draining:
    """Ask for it, and wait until a coordinator has taken that in.

    Args:
        zk: the deployment.
        wanted: a host, or a peer's id or the beginning of it.
        timeout: seconds.
        back: take them in again.

    Raises:
        SardonyxError: as :func:`request`.
        Interrupted: ``SX-PEER-DRAIN-PENDING``: none has within ``timeout`` seconds.
    """
    from coordinator.history import reader
    from sardonyx.client.shares import LOOK_EVERY

    state = reader.present(zk)
    asked = request(state, wanted, back=back)
    zk.request(asked)
    deadline = time.monotonic() + timeout
    while not any(_same(asked, event) for event in reader.advance(zk, state)):
        if time.monotonic() > deadline:
            raise Interrupted(
                "SX-PEER-DRAIN-PENDING",
                f"{'Undraining' if back else 'Draining'} {wanted} was requested, but no coordinator has processed that yet.",
                fix="start a coordinator (`sardonyx coordinator`) if none leads; it then does it",
                where={"wanted": wanted},
            )
        time.sleep(LOOK_EVERY)
    return concerned(state, asked)


def request(state: State, wanted: str, *, back: bool) -> Drained:
    """What to ask for. Pure.

    Raises:
        SardonyxError: ``SX-PEER-UNKNOWN``, ``SX-PEER-AMBIGUOUS``. ``SX-PEER-DRAIN-RULES``: a coordinator of the release before
            may lead, and it does not know of this.
    """
    if state.rules < _RULES:
        raise SardonyxError(
            "SX-PEER-DRAIN-RULES",
            "peers cannot be drained in this deployment yet",
            cause=f"it is decided by rules {state.rules}, since a coordinator of the release before stands for election, or did "
            f"so a moment ago; draining needs rules {_RULES}",
            fix="upgrade all coordinators, and try again; `sardonyx upgrade --check` shows who runs which release",
        )
    alive = {name: peer.host for name, peer in state.peers.items() if peer.state in LIVE}
    if wanted and wanted in {*alive.values(), *state.drained}:
        return Drained(host=wanted, back=back, by=asker())
    return Drained(peer=find_peer(wanted, alive), back=back, by=asker())


def concerned(state: State, asked: Drained) -> Draining:
    """The peers that are meant and alive. Pure.

    Raises:
        SardonyxError: ``SX-PEER-UNKNOWN``: the one that is meant has died meanwhile.
    """
    peers = [
        name
        for name, peer in sorted(state.peers.items())
        if peer.state in LIVE and (name == asked.peer or (asked.host and peer.host == asked.host))
    ]
    if asked.peer and not peers:
        raise unknown_peer(asked.peer, ())
    return Draining(host=asked.host, peers=peers)


def _same(asked: Drained, event: object) -> bool:
    return isinstance(event, Drained) and msgspec.structs.replace(event, at=asked.at) == asked
