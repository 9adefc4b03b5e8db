"""Jobs that were purged, or never accepted: what commands that purge them, show them and wait for them say."""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec
import pytest

from coordinator.core import job_changes
from coordinator.loop.election import Leadership
from coordinator.loop.log_writer import PendingEntry, append
from sardonyx.client.client import Client
from sardonyx.client.job_handle import JobHandle
from sardonyx.client.views import JobView
from sardonyx.client.waiting import await_node
from sardonyx.core import node_paths
from sardonyx.core.errors import Interrupted, SardonyxError
from sardonyx.core.events import JobKilled, JobPurged, JobSubmitted
from sardonyx.core.redoing import redo_spec
from sardonyx.core.spec import decode_spec
from sardonyx.runtime.settings import Settings
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.services.conftest import Sardonyx
from tests.services.coordination import SPEC, FakeLinks, coordinator, peers, status, submit
from tests.waiting import until


def completed(zk: ZooKeeperSession, job: str) -> None:
    until(lambda: (note := status(zk, job)) and note.links == "gone", what=f"{job} to be over")


def code_of(call: Callable[[], object]) -> str:
    """The code of the error that a call raises."""
    with pytest.raises(SardonyxError) as caught:
        call()
    return caught.value.code


def test_ended_jobs_are_forgotten(settings: Settings, zk: ZooKeeperSession, sardonyx: Sardonyx) -> None:
    """By name or by age; one that runs is refused, and then none is asked for; the nodes are gone when the command returns."""
    with coordinator(settings), peers(settings, "peer-a"):
        for job in ("one-aaaaaa", "two-bbbbbb", "three-cccccc"):
            submit(zk, job)
            completed(zk, job)
        needy = [msgspec.structs.replace(task, min_peers=2) for task in SPEC.catalog]
        zk.request(JobSubmitted(job="needy-dddddd", spec=msgspec.structs.replace(SPEC, name="needy", catalog=needy)))
        until(lambda: (note := status(zk, "needy-dddddd")) and note.waits_for, what="the job to wait for peers")
        refused = sardonyx("job", "purge", "one", "needy", code=1).stderr
        assert "SX-JOB-NOT-ENDED" in refused
        assert status(zk, "one-aaaaaa") is not None
        assert "one-aaaaaa is purged" in sardonyx("job", "purge", "one").stdout
        assert zk.children(node_paths.JOB) == ["needy-dddddd", "three-cccccc", "two-bbbbbb"]
        assert json.loads(sardonyx("job", "purge", "--older-than", "7 days", "--json").stdout)["purged"] == []
        assert "SX-DLQ-TASK" in sardonyx("dlq", "redo", "three", "--task", "wrok", code=1).stderr
        assert sardonyx("dlq", "redo", "three").stdout == "job three has no dead letters\n"
        would = json.loads(sardonyx("job", "purge", "--older-than", "0 s", "--dry-run", "--json").stdout)
        assert would == {"purged": ["two-bbbbbb", "three-cccccc"], "kept": [], "warnings": [], "dry_run": True}
        assert status(zk, "two-bbbbbb") is not None
        purged = json.loads(sardonyx("job", "purge", "--older-than", "0 s", "--json").stdout)["purged"]
        assert purged == ["two-bbbbbb", "three-cccccc"]
        assert "keep_jobs" in sardonyx("job", "show", "one", code=1).stderr
        told = sardonyx("job", "explain", "one-aaaaaa").stdout
        assert told.splitlines() == ["one-aaaaaa is purged", "  it had ended, and was purged"]
        assert "SX-JOB-UNKNOWN" in sardonyx("job", "explain", "one-zzzzzz", code=1).stderr
        assert "SX-USAGE" in sardonyx("job", "purge", code=2).stderr
    assert json.loads(sardonyx("log", "verify", "--json").stdout)["ok"]


def test_a_running_job_is_told_to_keep_records(settings: Settings, zk: ZooKeeperSession, sardonyx: Sardonyx) -> None:
    """``link keep`` changes what the leader trims by, at once and for its successors; a job that has ended is refused."""
    side_effects = FakeLinks()
    with coordinator(settings, side_effects):
        submit(zk, "one-aaaaaa")
        until(lambda: (note := status(zk, "one-aaaaaa")) and note.status == "running", what="the job to run")
        assert sardonyx("link", "keep", "one", "90 min").stdout == "one-aaaaaa keeps records for at least 90 min\n"
        assert decode_spec(zk.read(node_paths.job_spec("one-aaaaaa")) or b"").keep == "90 min"
        assert "SX-USAGE" in sardonyx("link", "keep", "one", "soon", code=2).stderr
    trims = settings.coordinator.model_copy(update={"trim_every": 0.05})
    side_effects = FakeLinks()
    with coordinator(settings.model_copy(update={"coordinator": trims}), side_effects):
        until(lambda: "90 min" in side_effects.kept, what="the successor to trim by it")
        assert json.loads(sardonyx("link", "keep", "one", "0", "--json").stdout) == {"job": "one-aaaaaa", "keep": None}
        until(lambda: side_effects.kept[-1] is None, what="the leader to trim by the new one")
        zk.request(JobKilled(job="one-aaaaaa"))
        completed(zk, "one-aaaaaa")
        assert "SX-JOB-ENDED" in sardonyx("link", "keep", "one", "1 h", code=1).stderr
    assert json.loads(sardonyx("log", "verify", "--json").stdout)["ok"]


def test_dead_letters_outlive_their_job_while_a_redo_reads_them(
    settings: Settings, zk: ZooKeeperSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a job that waits for peers is about to read goes when that has ended; what other jobs left goes at once, of every
    one of them, also of more than are remembered.
    """
    monkeypatch.setattr(job_changes, "REMEMBERED_PURGED", 1)
    side_effects = FakeLinks()
    jobs = [f"job{number}-aaaaaa" for number in range(4)]
    with coordinator(settings, side_effects), peers(settings, "peer-a"):
        for job in jobs:
            submit(zk, job)
            completed(zk, job)
        spec = redo_spec(SPEC, "work", "redo", f"{settings.deployment}.{jobs[0]}.work.dead", 0, 1)
        needy = [msgspec.structs.replace(task, min_peers=2) for task in spec.catalog]
        zk.request(JobSubmitted(job="redo-bbbbbb", spec=msgspec.structs.replace(spec, catalog=needy)))
        until(lambda: (note := status(zk, "redo-bbbbbb")) and note.waits_for, what="the redo to wait for peers")
        for job in jobs:
            zk.request(JobPurged(job=job))
        until(
            lambda: {job for what, job in side_effects.asked if what == "forget"} == set(jobs[1:]),
            what="what is left to go",
        )
        zk.request(JobKilled(job="redo-bbbbbb"))
        until(lambda: ("forget", jobs[0]) in side_effects.asked, what="the letters to go with their reader")


def test_a_purge_goes_on_past_jobs_that_others_purged(
    settings: Settings, zk: ZooKeeperSession, sardonyx: Sardonyx, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that ended some are forgotten while they are being asked for: that counts as done, and the rest goes too."""
    listing = Client.jobs

    def and_then_one_goes(client: Client) -> list[JobView]:
        views = listing(client)
        client.job("one").purge()
        return views

    with coordinator(settings), peers(settings, "peer-a"):
        for job in ("one-aaaaaa", "two-bbbbbb"):
            submit(zk, job)
            completed(zk, job)
        with monkeypatch.context() as patched:
            patched.setattr(Client, "jobs", and_then_one_goes)
            told = sardonyx("job", "purge", "--older-than", "0 s", "--json").stdout
        assert json.loads(told)["purged"] == ["one-aaaaaa", "two-bbbbbb"]
        assert zk.children(node_paths.JOB) == []
        submit(zk, "three-cccccc")
        completed(zk, "three-cccccc")
        purged = sardonyx("job", "purge", "three", "three-cccccc", "--json").stdout
        assert json.loads(purged)["purged"] == ["three-cccccc"]


def test_waiting_for_a_job_that_was_forgotten_ends(
    settings: Settings, zk: ZooKeeperSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every method of a handle says at once that the job is gone, also one that waits without a time limit."""
    with coordinator(settings), peers(settings, "peer-a"), Client(settings=settings) as client:
        submit(zk, "one-aaaaaa")
        completed(zk, "one-aaaaaa")
        kept, fresh = client.job("one"), client.job("one")
        assert kept.status().ended
        client.job("one").purge()
        monkeypatch.setattr("sardonyx.client.waiting.REREAD", 0.2)
        asked: list[Callable[[], object]] = [
            kept.status,
            kept.await_completion,
            lambda: list(kept.follow()),
            lambda: kept.await_completion("1 ms"),
            kept.require_ended,
            kept.purge,
            fresh.spec,
            fresh.await_completion,
        ]
        assert [code_of(each) for each in asked] == ["SX-JOB-GONE"] * len(asked)


def test_waiting_for_a_submission_that_cannot_be_read_ends(
    settings: Settings, zk: ZooKeeperSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While no coordinator leads, the job may still begin; a leader leaves it out, and then there is nothing to wait for."""
    monkeypatch.setattr("sardonyx.client.waiting.REREAD", 0.2)
    with Client(settings=settings) as client:
        waiting = JobHandle(client, "bad-aaaaaa", SPEC)
        zk.create(f"{node_paths.INBOX}/submit-{'0' * 32}-0000000000", b"not json")
        with coordinator(settings):
            until(lambda: not zk.children(node_paths.INBOX), what="the submission to be left out")
            assert code_of(waiting.await_completion) == "SX-JOB-GONE"


def test_a_job_between_log_and_tree_is_not_gone(settings: Settings, leader: Leadership) -> None:
    """Its leader died after it had logged the job: it is out of the inbox and has no node yet, and is waited for."""
    append(leader, 1, [PendingEntry(JobSubmitted(at=1.0, job="one-aaaaaa", spec=SPEC))])
    with Client(settings=settings) as client:
        waiting = client.job("one-aaaaaa")
        assert waiting.status().status == "submitted"
        assert code_of(lambda: waiting.await_completion("1 ms")) == "SX-JOB-TIMEOUT"
        assert code_of(waiting.require_ended) == "SX-JOB-NOT-ENDED"


def test_waiting_for_a_node_leaves_one_watch(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is read again meanwhile: kazoo keeps each watch that is another one until it fires."""
    monkeypatch.setattr("sardonyx.client.waiting.REREAD", 0.01)
    with Client(settings=settings) as client:
        late = Interrupted("SX-JOB-PURGE-PENDING", "late")
        with pytest.raises(Interrupted):
            await_node(client.zk, node_paths.EPOCH, lambda _: False, "200 ms", late)
        (watches,) = client.zk.client._data_watchers.values()
        assert len(watches) == 1
