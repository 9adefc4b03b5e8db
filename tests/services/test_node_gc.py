"""Code that no job uses goes from the tree, on a real ZooKeeper."""

from __future__ import annotations

import pytest

from coordinator.loop import node_gc
from sardonyx.core import node_paths
from sardonyx.core.events import Set
from sardonyx.runtime.settings import Settings
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.services.coordination import leadership


def test_only_old_code_that_nobody_uses_is_removed(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a job names stays, and what was written within the hour: its job may be on its way."""
    with leadership(settings) as won:
        for name in ("used", "left"):
            won.zk.create(node_paths.code(name), b"zip")
        assert node_gc.remove_unused_code(won, ["left", "used"], {"used"}) == 0
        monkeypatch.setattr(node_gc, "YOUNG", -60.0)  # as if an hour had passed
        assert node_gc.remove_unused_code(won, ["left", "used"], {"used"}) == 1
        assert won.zk.children(node_paths.CODE) == ["used"]


def test_code_that_is_touched_meanwhile_stays(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that writes it again between the look and the removal wins."""
    monkeypatch.setattr(node_gc, "YOUNG", -60.0)
    looked = ZooKeeperSession.last_change

    def touched_right_after(zk: ZooKeeperSession, path: str) -> tuple[int, float] | None:
        found = looked(zk, path)
        zk.commit([Set(path, b"zip")])
        return found

    with leadership(settings) as won:
        won.zk.create(node_paths.code("wanted"), b"zip")
        with monkeypatch.context() as patch:
            patch.setattr(ZooKeeperSession, "last_change", touched_right_after)
            assert node_gc.remove_unused_code(won, ["wanted"], set()) == 0
        assert won.zk.children(node_paths.CODE) == ["wanted"]
