"""Code that no job uses goes from the tree, on a real ZooKeeper."""

from __future__ import annotations

import msgspec
import pytest

from coordinator.loop import job_gc, node_gc
from sardonyx.core import node_paths
from sardonyx.core.effects import Set
from sardonyx.core.events import JobKilled, JobSubmitted, LastCommits, LettersClaimed
from sardonyx.core.spec import JobSpec
from sardonyx.runtime.settings import Settings
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.services.coordination import SPEC, FakeLinks, coordinator, leadership, status
from tests.waiting import until


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


class _LossyLinks(FakeLinks):
    """Two dead letters are found on the topics of one job."""

    def delete_links(self, job: str, spec: JobSpec, *, keeps_states: bool = True) -> LastCommits:
        super().delete_links(job, spec, keeps_states=keeps_states)
        return LastCommits(letters={"work": 2} if spec.name == "lossy" else {})


@pytest.mark.gate
def test_code_goes_with_the_end_of_its_job(
    settings: Settings, zk: ZooKeeperSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that has ended and has no dead letters needs its code no more. One with dead letters keeps it, for a redo, until
    these were redone or dropped.
    """
    monkeypatch.setattr(job_gc, "SWEEP", 0.0)
    codes = {"plain": "a" * 64, "lossy": "b" * 64, "runs": "c" * 64}
    with coordinator(settings, _LossyLinks()):
        for name, code in codes.items():
            zk.create(node_paths.code(code), b"zip")
            zk.request(JobSubmitted(job=f"{name}-aaaaaa", spec=msgspec.structs.replace(SPEC, name=name, code=code)))
            until(lambda job=f"{name}-aaaaaa": status(zk, job), what=f"job {name}")
        monkeypatch.setattr(node_gc, "YOUNG", -60.0)  # as if an hour had passed
        for name in ("plain", "lossy"):
            zk.request(JobKilled(job=f"{name}-aaaaaa"))
        left = sorted({codes["lossy"], codes["runs"]})
        until(lambda: zk.children(node_paths.CODE) == left, what="the code of the job without dead letters to go")
        zk.request(LettersClaimed(job="lossy-aaaaaa", task="work", letters=2))
        until(lambda: zk.children(node_paths.CODE) == [codes["runs"]], what="the code of the other ended job to go")
