"""The deployments that share one ZooKeeper, each looked at in short."""

from __future__ import annotations

import msgspec

from sardonyx.core import node_paths
from sardonyx.core.errors import SetupError
from sardonyx.core.events import ENDED
from sardonyx.core.notes import UNREADABLE, JobNote
from sardonyx.runtime.settings import Settings


class DeploymentView(msgspec.Struct, frozen=True, kw_only=True):
    """One deployment."""

    name: str
    leader: str | None = None
    """``host:pid`` of the coordinator that leads; None if none does."""
    epoch: int = 0
    """How many leaderships there have been."""
    standbys: int = 0
    jobs: int = 0
    """Jobs that are kept, ended or not."""
    running: int = 0
    """Those that have not ended."""
    peers: int = 0
    """Virtual peers that live."""
    note: str = ""
    """Why nothing is known of it."""


def look(settings: Settings) -> list[DeploymentView]:
    """Every deployment in this ZooKeeper in which anything has ever happened, by name.

    Raises:
        SetupError: ``SX-CONFIG-MISSING``, ``SX-ZOOKEEPER-UNREACHABLE``.
    """
    from sardonyx.zookeeper.session import ZooKeeperSession

    zk = ZooKeeperSession.connect(settings, survive_expiry=True, make_top=False)  # a look creates nothing
    try:
        names = zk.deployments()
    finally:
        zk.close()
    views = (_look(settings.model_copy(update={"deployment": name})) for name in names)
    return [view for view in views if view is not None]


def _look(settings: Settings) -> DeploymentView | None:
    from sardonyx.core.notes import EpochNote
    from sardonyx.zookeeper.session import ZooKeeperSession

    name = settings.deployment
    zk = ZooKeeperSession.connect(settings, survive_expiry=True, make_top=False)
    try:
        found = zk.read(node_paths.EPOCH)
        candidates = zk.children(node_paths.ELECTION)
        jobs = zk.children(node_paths.JOB)
        if not found and not candidates and not jobs and not zk.children(node_paths.INBOX):
            return None  # it has top nodes at most: a client looked for a job in it
        epoch = msgspec.json.decode(found, type=EpochNote) if found else None
        leads = epoch is not None and any(node.startswith(f"{epoch.token}-") for node in candidates)
        notes = zk.read_many(map(node_paths.job_status, jobs)).values()
        return DeploymentView(
            name=name,
            leader=epoch.leader if epoch is not None and leads else None,
            epoch=epoch.epoch if epoch is not None else 0,
            standbys=len(candidates) - leads,
            jobs=len(jobs),
            running=sum(msgspec.json.decode(note, type=JobNote).status not in ENDED for note in notes),
            peers=len(zk.children(node_paths.PEER_STATE)),
        )
    except SetupError as error:
        denied = error.code == "SX-ZOOKEEPER-DENIED"
        return DeploymentView(name=name, note="access is denied with these credentials" if denied else error.message)
    except UNREADABLE:  # one that is damaged hides no other
        return DeploymentView(name=name, note="its nodes cannot be read: edited, or written by another version")
    finally:
        zk.close()
