"""Entries of the log as they are shown: without the secrets of the jobs that they concern."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from sardonyx.core.secrets import masked

if TYPE_CHECKING:
    from coordinator.history.replay import Decided
    from sardonyx.zookeeper.session import ZooKeeperSession


class Masks:
    """Knows the secrets of the jobs of entries that were shown, from the entries and from the jobs' nodes.

    Args:
        zk: the deployment.
    """

    def __init__(self, zk: ZooKeeperSession) -> None:
        from coordinator.history.export import Mask

        self._zk = zk
        self._mask = Mask()
        self._known: set[str] = set()

    def data(self, decided: Decided, data: Any) -> Any:
        """Return the data of an entry without the secrets that it holds."""
        self._learn(decided)
        return self._mask.plain(masked(msgspec.json.decode(msgspec.json.encode(data))))

    def text(self, decided: Decided, text: str) -> str:
        """Return a text about an entry without the secrets that it holds."""
        self._learn(decided)
        shown: str = self._mask.plain(text)
        return shown

    def _learn(self, decided: Decided) -> None:
        from coordinator.history.replay import concerned_jobs
        from sardonyx.core import node_paths
        from sardonyx.core.events import WithSpec, happened
        from sardonyx.core.spec import decode_spec

        event = happened(decided.event)
        if isinstance(event, WithSpec):
            self._mask.learn(event.spec)
        for job in concerned_jobs(decided) - self._known:
            self._known.add(job)
            spec = self._zk.read(node_paths.job_spec(job))
            if spec is not None:
                self._mask.learn(decode_spec(spec))
