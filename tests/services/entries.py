"""What tests of the log and its snapshots share: entries that can be told apart, and a writer that breaks off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from coordinator.loop import event_log
from coordinator.loop.election import Leadership
from coordinator.loop.limits import Limits
from coordinator.loop.log_writer import PendingEntry
from sardonyx.core.events import AckTimedOut
from sardonyx.runtime.settings import Settings
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.services.coordination import leadership

SMALL = Limits(log_node=300)
"""Nodes of the log that hold a few entries."""


def events(first: int, last: int) -> list[PendingEntry]:
    return [PendingEntry(AckTimedOut(at=float(n), peer=f"p{n}", assignment=n)) for n in range(first, last + 1)]


def numbers(zk: ZooKeeperSession, first: int = 0) -> list[int]:
    """Of the entries that are read; each must be the one that was appended under its number."""
    found = list(event_log.read_log(zk, first))
    assert all(event == AckTimedOut(at=float(n), peer=f"p{n}", assignment=n) for n, event in found)
    return [n for n, _ in found]


def batches(zk: ZooKeeperSession) -> dict[int, bytes]:
    """Every node of the log, by the number in its name."""
    paths = [f"/log/{bucket}/{name}" for bucket in zk.children("/log") for name in zk.children(f"/log/{bucket}")]
    return {int(path[-10:]): data for path, data in zk.read_many(paths).items()}


class Broke(Exception):
    """The writer is gone."""


class Breaking(Leadership):
    """A leader that dies before its transaction number ``after + 1``."""

    def __init__(self, whole: Leadership, after: int) -> None:
        self.__dict__.update(whole.__dict__)
        self.left = after

    def begin(self, operations: object) -> Callable[[], None]:
        if self.left == 0:
            raise Broke
        self.left -= 1
        return super().begin(operations)


@contextmanager
def breaking(settings: Settings, after: int) -> Iterator[tuple[Leadership, Breaking]]:
    """In a deployment of its own: a leader, and the same one as it dies after so many transactions."""
    own = settings.model_copy(update={"deployment": f"{settings.deployment}-{after}"})
    with leadership(own) as won:
        yield won, Breaking(won, after)
