"""Whether the daemon on this host is at work, for health checks of containers: ``python -m sardonyx.client.health peer``.

A daemon is at work when its node exists in ZooKeeper: a coordinator's in the election, a peer daemon's pulse. The check only
reads, and only nodes that may be this daemon's: their data must name exactly this host.
"""

from __future__ import annotations

import re
import socket
import sys
from typing import TYPE_CHECKING

from sardonyx.core import node_paths
from sardonyx.core.errors import SardonyxError
from sardonyx.core.notes import CandidateNote, PulseNote
from sardonyx.runtime.settings import Settings, load_settings

if TYPE_CHECKING:
    from sardonyx.zookeeper.session import ZooKeeperSession

KINDS = ("coordinator", "peer")


def at_work(settings: Settings, kind: str, host: str) -> bool:
    """Whether a daemon of this kind on this host has its node in ZooKeeper.

    Args:
        settings: of the deployment. A deployment that does not exist is not created.
        kind: ``coordinator`` or ``peer``.
        host: the host's name, as the daemon knows it.

    Raises:
        SardonyxError: ZooKeeper does not answer.
    """
    from sardonyx.zookeeper.session import ZooKeeperSession

    zk = ZooKeeperSession.connect(settings, make_top=False)
    try:
        return _coordinates(zk, host) if kind == "coordinator" else _has_pulse(zk, host)
    finally:
        zk.close()


def _coordinates(zk: ZooKeeperSession, host: str) -> bool:
    """Each candidate's node names ``host:pid``; there are as many as coordinators."""
    nodes = zk.read_many(f"{node_paths.ELECTION}/{name}" for name in zk.children(node_paths.ELECTION))
    return any(CandidateNote.read(data).name.rpartition(":")[0] == host for data in nodes.values())


def _has_pulse(zk: ZooKeeperSession, host: str) -> bool:
    """A virtual peer's id begins with its host's short name, so most pulses of other hosts are not read."""
    prefix = re.sub(r"[^\w-]|_", "-", host.split(".", maxsplit=1)[0]) + "-"
    names = [name for name in zk.children(node_paths.PULSE) if name.startswith(prefix)]
    return any(_host(data) == host for data in zk.read_many(map(node_paths.pulse, names)).values())


def _host(data: bytes) -> str | None:
    note = PulseNote.read(data)
    return None if note is None else note.host


def main(arguments: list[str]) -> int:
    """0: at work; 1: not (yet), or ZooKeeper does not answer; 2: wrong arguments."""
    if len(arguments) != 1 or arguments[0] not in KINDS:
        sys.stderr.write(f"usage: python -m sardonyx.client.health {'|'.join(KINDS)}\n")
        return 2
    try:
        found = at_work(load_settings(), arguments[0], socket.gethostname())
    except SardonyxError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
