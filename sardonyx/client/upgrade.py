"""Who runs which release in a deployment, and what stands in the way of an upgrade."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sardonyx.core import node_paths
from sardonyx.core.events import FORMAT, OLDEST, OLDEST_RULES, RULES
from sardonyx.core.notes import CandidateNote, PulseNote
from sardonyx.core.text import counted, plural
from sardonyx.core.version import VERSION

if TYPE_CHECKING:
    from sardonyx.zookeeper.session import ZooKeeperSession


class Daemons(msgspec.Struct, frozen=True):
    """Peer daemons of one release. ``format``: the newest that they read; 0: their release does not say so."""

    version: str
    format: int
    daemons: int
    peers: int


class UpgradeView(msgspec.Struct, frozen=True, kw_only=True):
    """What runs, what is in force, and what is in the way. ``format`` and ``rules`` are 0 while the log is empty."""

    version: str
    """The release of this client."""
    reads_format: int
    knows_rules: int
    format: int
    rules: int
    coordinators: list[CandidateNote]
    """In the order in which they lead."""
    peers: list[Daemons]
    problems: list[str]


def look(zk: ZooKeeperSession) -> UpgradeView:
    """Read who runs which release."""
    from coordinator.loop.event_log import in_force

    queue = sorted(zk.children(node_paths.ELECTION), key=lambda name: name[-10:])
    found = zk.read_many(f"{node_paths.ELECTION}/{name}" for name in queue)
    coordinators = [CandidateNote.read(data) for data in found.values()]
    pulses = zk.read_many(map(node_paths.pulse, zk.children(node_paths.PULSE)))
    force = in_force(zk)
    peers = daemons([_pulse(data) for data in pulses.values()])
    return UpgradeView(
        version=VERSION,
        reads_format=FORMAT,
        knows_rules=RULES,
        format=force.format,
        rules=force.rules,
        coordinators=coordinators,
        peers=peers,
        problems=problems(force.format, force.rules, coordinators, peers),
    )


def problems(log: int, rules: int, coordinators: list[CandidateNote], peers: list[Daemons]) -> list[str]:
    """What stands in the way of an upgrade to this release, or keeps it from being complete. Pure.

    Args:
        log: the format in force; 0 if the log is empty.
        rules: those in force; 0 if the log is empty.
        coordinators: that stand for election.
        peers: by release.
    """
    found = []
    if log > FORMAT or rules > RULES:
        found.append(
            f"the deployment has format {log} and rules {rules}; this release reads {FORMAT} and knows {RULES}"
        )
    if log and (log < OLDEST or rules < OLDEST_RULES):
        found.append(
            f"the deployment has format {log} and rules {rules}; this release reads formats from {OLDEST} on, and knows rules "
            f"from {OLDEST_RULES} on: start a new deployment under another name"
        )
    if not coordinators:
        found.append("no coordinator stands for election")
    found += [
        f"coordinator {note.name} is of release {note.version or '?'}: upgrade it"
        for note in coordinators
        if note.format < FORMAT or note.rules < RULES
    ]
    found += [
        f"{counted(each.daemons, 'peer daemon')} {plural(each.daemons, 'is', 'are')} of release {each.version or '?'}: upgrade "
        + plural(each.daemons, "it", "them")
        for each in peers
        if each.format < FORMAT
    ]
    if not found and 0 < rules < RULES:
        found.append(f"rules {rules} are in force: the coordinator that leads is about to raise them to {RULES}")
    return found


def daemons(pulses: list[PulseNote]) -> list[Daemons]:
    """Count daemons and peers by release. Pure."""
    by: dict[tuple[str, int], list[PulseNote]] = {}
    for pulse in pulses:
        by.setdefault((pulse.version, pulse.format), []).append(pulse)
    return [
        Daemons(version, reads, len({pulse.daemon for pulse in its}), len(its))
        for (version, reads), its in sorted(by.items())
    ]


def _pulse(data: bytes) -> PulseNote:
    return PulseNote.read(data) or PulseNote()
