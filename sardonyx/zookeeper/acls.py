"""Whether the ACLs of a whole deployment are as they should be."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from kazoo.exceptions import NoNodeError
from kazoo.security import CREATOR_ALL_ACL

from sardonyx.zookeeper.node_acls import NodeAcls, texts
from sardonyx.zookeeper.session import ZooKeeperSession


class Differs(NamedTuple):
    """A node whose ACL is not as it should be."""

    path: str
    has: list[str]
    """``scheme:id letters`` of each entry."""
    should: list[str]


def differing(zk: ZooKeeperSession, acls: NodeAcls, *, apply: bool = False) -> Iterator[Differs]:
    """Walk all nodes of a deployment, its root first. Nodes that vanish meanwhile are left out.

    Args:
        zk: a session of the deployment.
        acls: what each node should have.
        apply: set it.

    Raises:
        SetupError: ``SX-ZOOKEEPER-DENIED``.
    """
    waiting = [""]
    while waiting:
        path = waiting.pop()
        whole = zk.path(path)
        wanted = acls.of(whole)
        try:
            below = zk.children(path)  # first: the new ACL may be another identity's
            has, stat = zk.call(partial(zk.client.get_acls_async, whole))
            if set(has) != set(wanted):
                if apply:
                    zk.call(partial(zk.client.set_acls_async, whole, wanted, stat.aversion))
                yield Differs(whole, texts(has), texts(wanted))
            waiting += [f"{path}/{name}" for name in reversed(below)]
        except NoNodeError:
            continue


def own_root(zk: ZooKeeperSession) -> None:
    """Allow only this session's identity to make nodes at the top of the server.

    Raises:
        SetupError: ``SX-ZOOKEEPER-DENIED``: another identity owns it.
    """
    zk.call(partial(zk.client.set_acls_async, "/", CREATOR_ALL_ACL))
