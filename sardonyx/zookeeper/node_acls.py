"""The rights of nodes as ZooKeeper's ACLs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kazoo.security import ACL, Id

from sardonyx.core.kafka_rights import Role
from sardonyx.core.zk_rights import entries_of

_BITS = {"r": 1, "w": 2, "c": 4, "d": 8, "a": 16}


class NodeAcls:
    """The ACL of each node, from its path. Equal ones are the same object.

    Args:
        identities: by role, ``scheme:id``.
    """

    def __init__(self, identities: Mapping[Role, str]) -> None:
        self._identities = dict(identities)
        self._known: dict[tuple[tuple[str, str], ...], list[ACL]] = {}

    def of(self, path: str) -> list[ACL]:
        """The ACL of a node, by its whole path: ``/sardonyx/<deployment>/inbox``."""
        parts = path.split("/", 3)
        below = f"/{parts[3]}" if len(parts) == 4 else ""
        entries = tuple(entries_of(below, self._identities))
        found = self._known.get(entries)
        if found is None:
            found = self._known[entries] = [_entry(identity, letters) for identity, letters in entries]
        return found


def texts(entries: Sequence[ACL]) -> list[str]:
    """For people: ``sasl:peer rc``."""
    return sorted(
        f"{entry.id.scheme}:{entry.id.id} " + "".join(letter for letter, bit in _BITS.items() if entry.perms & bit)
        for entry in entries
    )


def _entry(identity: str, letters: str) -> ACL:
    scheme, _, name = identity.partition(":")
    return ACL(sum(_BITS[letter] for letter in letters), Id(scheme, name))
