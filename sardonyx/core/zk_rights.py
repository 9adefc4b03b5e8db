"""What each role may do with each node in ZooKeeper: the table of ``zk_layout.md``, as ACLs want it. Pure.

A right is a letter: ``r`` read the node and list its children, ``w`` write its data, ``c`` create children, ``d`` delete
children, ``a`` set its ACL. Coordinators have all of them on every node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sardonyx.core.kafka_rights import Role

ALL = "rwcda"


class Rights(NamedTuple):
    """What others than coordinators may do with a node."""

    peer: str
    client: str
    viewer: str


_LOOK = Rights("r", "r", "r")

RIGHTS: Mapping[str, Rights] = {
    "": _LOOK,
    "/election": _LOOK,
    "/epoch": _LOOK,
    "/log": _LOOK,
    "/checkpoint": _LOOK,
    "/snapshot": Rights("", "r", "r"),
    "/inbox": Rights("rc", "rc", "r"),
    "/inbox/*": Rights("", "r", "r"),
    "/pulse": Rights("rcd", "r", "r"),
    "/pulse/*": Rights("rw", "r", "r"),
    "/peer-state": _LOOK,
    "/job": _LOOK,
    "/sentinel": _LOOK,
    "/sentinel/*": Rights("rc", "r", "r"),
    "/sentinel/*/*": _LOOK,
    "/code": Rights("r", "rc", ""),
    "/code/*": Rights("r", "rw", ""),
    "/redo": Rights("", "rc", "r"),
    "/redo/*": Rights("", "rw", "r"),
    "/restore": Rights("", "r", "r"),
}
"""By path below the deployment's root; a star is any name. What is not here has the rights of the node above it, without those to
create and delete."""


def rights_of(path: str) -> Rights:
    """The rights on a node, by its path below the deployment's root."""
    top, *names = path.split("/")[1:] or [""]
    pattern = f"/{top}" if top else ""
    found = RIGHTS.get(pattern, Rights("", "", ""))
    for _ in names:
        pattern += "/*"
        found = RIGHTS.get(pattern) or Rights(*("r" if "r" in each else "" for each in found))
    return found


def entries_of(path: str, identities: Mapping[Role, str]) -> Iterator[tuple[str, str]]:
    """(identity, rights) of a node. An identity with several roles has the rights of all of them.

    Args:
        path: below the deployment's root.
        identities: by role, ``scheme:id``.
    """
    found: dict[str, str] = {}
    rights = rights_of(path)
    for role, identity in identities.items():
        letters = ALL if role == "coordinator" else getattr(rights, role)
        found[identity] = found.get(identity, "") + letters
    for identity, letters in found.items():
        if letters:
            yield identity, "".join(letter for letter in ALL if letter in letters)
