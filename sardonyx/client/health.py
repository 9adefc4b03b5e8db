"""Whether the daemon on this host is at work, for health checks of containers: ``python -m sardonyx.client.health peer``.

A daemon is at work when it stands in ZooKeeper: a coordinator in the election, a peer daemon with a pulse.
"""

from __future__ import annotations

import socket
import sys

from sardonyx.core.errors import SardonyxError
from sardonyx.runtime.settings import Settings, load_settings

KINDS = ("coordinator", "peer")


def at_work(settings: Settings, kind: str, host: str) -> bool:
    """Whether a daemon of this kind on this host has its node in ZooKeeper.

    Raises:
        SardonyxError: when ZooKeeper cannot be asked.
    """
    from sardonyx.core import node_paths
    from sardonyx.zookeeper.session import ZooKeeperSession

    folder = node_paths.ELECTION if kind == "coordinator" else node_paths.PULSE
    zk = ZooKeeperSession.connect(settings)
    try:
        nodes = zk.read_many(f"{folder}/{name}" for name in zk.children(folder))
        return any(host.encode() in data for data in nodes.values())
    finally:
        zk.close()


def main(arguments: list[str]) -> int:
    """0: at work; 1: not (yet), or ZooKeeper does not answer; 2: asked wrongly."""
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
