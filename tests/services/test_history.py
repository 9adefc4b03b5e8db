"""Past moments read from a real ZooKeeper: shown, verified, exported and replayed, and what people ask about jobs and peers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import Result

from coordinator.core.projection import project
from coordinator.core.stored_state import encode_state
from coordinator.history import reader
from coordinator.loop import event_log, snapshots
from coordinator.loop.election import Leadership, identity
from coordinator.loop.leader import Leader
from coordinator.loop.log_writer import PendingEntry, append
from sardonyx.client.client import Client
from sardonyx.core import node_paths
from sardonyx.core.effects import Create, Delete, Set
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import JobSubmitted, PeerBorn
from sardonyx.core.secrets import MASK
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.runtime.settings import Settings
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.services.conftest import Sardonyx
from tests.services.coordination import (
    FakeLinks,
    coordinator,
    decided_nodes,
    peers,
    status,
    submit,
    with_timers,
)
from tests.waiting import until

SECRET = JobSpec(
    name="secret",
    workflow=[("read", "write")],
    catalog=[
        TaskSpec(
            name="read", type="input", connector="generator", options={"count": 10, "sasl.password": "open sesame"}
        ),
        TaskSpec(
            name="write", type="output", connector="blackhole", fn="jobs:write", params={"api_token": "t0psecret"}
        ),
    ],
)


def lines(result: Result) -> list[dict[str, object]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def completed(zk: ZooKeeperSession, job: str) -> None:
    until(lambda: (note := status(zk, job)) and note.links == "gone", what=f"{job} to be over")


@pytest.fixture
def lived(settings: Settings, zk: ZooKeeperSession) -> Iterator[None]:
    """Two jobs that two peers have completed, and a coordinator that still leads."""
    with coordinator(settings), peers(settings, "peer-a", "peer-b"):
        until(lambda: len(zk.children(node_paths.PEER_STATE)) == 2, what="two peers")
        for job in ("one-aaaaaa", "two-bbbbbb"):
            submit(zk, job)
            completed(zk, job)
        yield


@pytest.mark.usefixtures("lived")
def test_commands_show_what_lies_in_zookeeper(sardonyx: Sardonyx) -> None:
    """Lists, one entry, a moment and a life; what they say of any log stands in ``tests/core/test_cli_history.py``."""
    everything = lines(sardonyx("log", "show", "--json"))
    assert [entry["n"] for entry in everything] == list(range(1, len(everything) + 1))
    of_two = lines(sardonyx("log", "show", "--job", "two", "--json"))
    assert [entry["kind"] for entry in of_two][:2] == ["submit", "links-created"]
    assert not any("one-aaaaaa" in str(entry["event"]) for entry in of_two)
    (last,) = lines(sardonyx("log", "tail", "-n", "1", "--json"))
    assert (last["n"], last["kind"]) == (len(everything), "links-deleted")
    planned = next(entry["n"] for entry in everything if entry["kind"] == "links-created")
    assert "job one-aaaaaa: planning -> running, links made" in sardonyx("log", "show", str(planned)).stdout
    then = json.loads(sardonyx("log", "at", str(planned), "--json").stdout)
    assert (then["n"], [job["id"] for job in then["jobs"]]) == (planned, ["one-aaaaaa"])
    assert "SX-LOG-RANGE" in sardonyx("log", "at", "5000", code=1).stderr
    life = json.loads(sardonyx("peers", "show", "peer-a", "--json").stdout)
    assert life["life"][0]["text"] == "born, on here, process 1, daemon fake"


def test_a_moment_that_was_compacted_away_is_refused_with_what_is_kept(leader: Leadership, sardonyx: Sardonyx) -> None:
    """Whatever is kept can be shown, from the state that the log begins with; nothing before that."""
    zk = leader.zk
    state = reader.present(zk)
    append(leader, 1, [PendingEntry(PeerBorn(at=float(n), peer=f"p{n}")) for n in range(1, 31)])
    for n in (10, 20, 30):
        state = reader.at(zk, n)
        zk.commit([Create(path, data) for path, data in project(state).items() if zk.read(path) is None])
        snapshots.write(leader, n, encode_state(state))
    zk.commit([Set(node_paths.CHECKPOINT, b"30"), Set(node_paths.LOG, b"21")])  # as a compaction begins
    assert reader.kept(zk) == (21, 30)
    assert reader.at(zk, 25).peers.keys() == {f"p{n}" for n in range(1, 26)}
    assert len(json.loads(sardonyx("log", "at", "20", "--json").stdout)["peers"]) == 20
    assert [reader.until(zk, time) for time in (5.0, 20.9, 21.0, 25.5, 99.0)] == [20, 20, 21, 25, 30]
    assert json.loads(sardonyx("log", "at", "1970-01-01T00:00:25.500+00:00", "--json").stdout)["n"] == 25
    between = ("--from", "1970-01-01T00:00:27+00:00", "--to", "1970-01-01T00:00:29+00:00")
    assert [entry["n"] for entry in lines(sardonyx("log", "show", *between, "--json"))] == [28, 29]
    refused = sardonyx("log", "at", "19", code=1).stderr
    assert "entries 21 to 30" in refused
    assert "compacted" in refused
    assert [entry["n"] for entry in lines(sardonyx("log", "show", "--peer", "p2", "--json"))] == [*range(21, 30)]
    verdict = json.loads(sardonyx("log", "verify", "--json").stdout)
    assert (verdict["ok"], verdict["first"], verdict["events"], verdict["snapshots"]) == (True, 21, 10, 1)


@pytest.mark.gate
@pytest.mark.usefixtures("lived")
def test_a_sound_deployment_is_verified(sardonyx: Sardonyx, zk: ZooKeeperSession) -> None:
    """Exit code 0, how many events a second, and what was compared."""
    verdict = json.loads(sardonyx("log", "verify", "--json").stdout)
    assert verdict["ok"]
    assert verdict["events"] == verdict["last"] == event_log.last(zk)
    assert verdict["nodes"] == len(decided_nodes(zk))
    assert verdict["events_per_second"] > 0
    assert "everything is consistent" in sardonyx("log", "verify", "--thorough").stdout


@pytest.mark.usefixtures("lived")
@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (Set("/peer-state/peer-a", b'{"state":"idle","n":0}'), "/peer-state/peer-a differs from what was decided"),
        (Delete("/job/one-aaaaaa/task/work"), "/job/one-aaaaaa/task/work is missing in ZooKeeper"),
        (Create("/peer-state/ghost", b"{}"), "/peer-state/ghost exists in ZooKeeper, but no decision created it"),
        (Delete("/job/one-aaaaaa/links"), "/job/one-aaaaaa/links is missing in ZooKeeper"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_node_that_was_edited_is_found(sardonyx: Sardonyx, zk: ZooKeeperSession, edit: Set, told: str) -> None:
    """Missing, extra and differing nodes are each named; exit code 1."""
    zk.commit([edit])
    assert told in sardonyx("log", "verify", code=1).stdout


def test_a_busy_deployment_raises_no_false_alarm(settings: Settings, zk: ZooKeeperSession) -> None:
    """While jobs come and go, snapshots are taken and the log is cut off, every verification finds it sound."""
    busy = with_timers(settings, snapshot_every=25, keep_log=0)
    stop = threading.Event()
    done: list[str] = []

    def work() -> None:
        own = ZooKeeperSession.connect(settings)
        number = 0
        while not stop.is_set():
            number += 1
            job = f"busy{number}-x"
            submit(own, job)
            completed(own, job)
            done.append(job)
        own.close()

    with coordinator(busy), peers(settings, "peer-a", "peer-b", "peer-c"):
        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        verdicts = []
        while len(done) < 12 or len(verdicts) < 5:
            verdicts.append(reader.verify(zk))
            lines = list(reader.export(zk, "test"))
            assert json.loads(lines[-1])["line"] == "end"
        stop.set()
        worker.join(60)
    assert not worker.is_alive()
    assert [verdict.findings for verdict in verdicts if not verdict.ok] == []
    assert verdicts[-1].events > verdicts[0].events or verdicts[-1].first > verdicts[0].first


@pytest.mark.usefixtures("lived")
def test_a_log_is_exported_and_replayed_without_services(
    sardonyx: Sardonyx, tmp_path: Path, zk: ZooKeeperSession
) -> None:
    """The whole log, or from any entry on; the file needs no services, and shows the cluster at any of its moments."""
    told = sardonyx("log", "export", "-o", "all.jsonl").stdout
    assert f"entries 1 to {event_log.last(zk)}" in told
    assert "everything is consistent" in sardonyx("log", "replay", "all.jsonl").stdout
    sardonyx("log", "export", "--from", "7", "-o", "some.jsonl")
    verdict = json.loads(sardonyx("log", "replay", "some.jsonl", "--json").stdout)
    assert (verdict["ok"], verdict["first"], verdict["nodes"]) == (True, 7, len(decided_nodes(zk)))
    there = json.loads(sardonyx("log", "at", "9", "--json").stdout)
    for file in ("all.jsonl", "some.jsonl"):
        assert json.loads(sardonyx("log", "replay", file, "--at", "9", "--json").stdout) == there
    assert "SX-LOG-RANGE" in sardonyx("log", "replay", "some.jsonl", "--at", "3", code=1).stderr
    assert sardonyx("log", "export").stdout == (tmp_path / "all.jsonl").read_text()
    assert "SX-LOG-RANGE" in sardonyx("log", "export", "--from", "9999", code=1).stderr
    assert not list(tmp_path.glob("*.part"))


def test_secrets_are_not_shown(settings: Settings, zk: ZooKeeperSession, sardonyx: Sardonyx) -> None:
    """Neither by an entry, nor by the state that a file begins with, nor by the tree; and the file still replays. No command
    that shows entries shows them.
    """
    with coordinator(settings), peers(settings, "peer-a"):
        zk.request(JobSubmitted(job="secret-aaaaaa", spec=SECRET))
        completed(zk, "secret-aaaaaa")
    (submitted,) = (line["n"] for line in lines(sardonyx("log", "show", "--kind", "submit", "--json")))
    for command in (["show", str(submitted)], ["show"], ["tail", "-n", "99"]):
        for form in ([], ["--json"]):
            text = sardonyx("log", *command, *form).stdout
            assert "open sesame" not in text
            assert "t0psecret" not in text
            assert (MASK in text) is ("--json" in form or len(command) == 2)
    for first in ("1", "5"):
        sardonyx("log", "export", "--from", first, "-o", "log.jsonl")
        text = Path("log.jsonl").read_text()
        assert "open sesame" not in text
        assert "t0psecret" not in text
        assert MASK in text
        sardonyx("log", "replay", "log.jsonl")


def test_a_peer_is_evicted_and_its_task_accounted_for(
    settings: Settings, zk: ZooKeeperSession, sardonyx: Sardonyx
) -> None:
    """One at work is revoked, and the output names the peer that has its task now; an idle one goes. Each has the time since
    when.
    """
    with coordinator(settings), peers(settings, "mute-a", "mute-b", answers=False):
        until(lambda: len(zk.children(node_paths.PEER_STATE)) == 2, what="two peers")
        submit(zk, "one-aaaaaa")
        until(lambda: (note := status(zk, "one-aaaaaa")) and note.status == "running", what="the job to run")
        listed = json.loads(sardonyx("peers", "list", "--json").stdout)
        assert all(peer["since"] for peer in listed)
        at_work = [peer["id"] for peer in listed if peer["state"] == "acking"]
        gone = json.loads(sardonyx("peers", "evict", at_work[0], "--json").stdout)
        assert (gone["state"], gone["task"]) == ("revoked", "one-aaaaaa/read")
        assert "SX-PEER-REVOKED" in sardonyx("peers", "evict", at_work[0], code=1).stderr
        told = sardonyx("peers", "evict", at_work[1] if len(at_work) > 1 else "mute-b").stdout
        assert "no peer works on its task one-aaaaaa/read until one is free" in told
        assert "a user evicted it; had one-aaaaaa/" in sardonyx("peers", "show", at_work[0]).stdout
        assert "SX-PEER-UNKNOWN" in sardonyx("peers", "evict", "nobody", code=1).stderr


def test_a_drained_peer_gets_no_task_until_it_is_taken_in_again(
    settings: Settings, zk: ZooKeeperSession, sardonyx: Sardonyx
) -> None:
    """The commands say what they did, the list shows it, and a job says that it waits for this peer."""
    with coordinator(settings), peers(settings, "peer-a"):
        until(lambda: zk.children(node_paths.PEER_STATE), what="a peer")
        assert "gets no further task" in sardonyx("peers", "drain", "peer-a").stdout
        assert "idle, drained" in sardonyx("peers", "list").stdout
        submit(zk, "one-aaaaaa")
        until(lambda: (note := status(zk, "one-aaaaaa")) and note.status == "running", what="the job to run")
        assert "a user has drained the only virtual peer" in sardonyx("job", "explain", "one").stdout
        taken = json.loads(sardonyx("peers", "undrain", "peer-a", "--json").stdout)
        assert taken == {"host": "", "peers": ["peer-a"]}
        completed(zk, "one-aaaaaa")
        assert "taken in again; offered one-aaaaaa/" in sardonyx("peers", "show", "peer-a").stdout


def test_why_a_job_does_not_run(settings: Settings, zk: ZooKeeperSession, sardonyx: Sardonyx) -> None:
    """No coordinator leads, peers are missing, others hold them: `explain` says all of it, `show` the weightiest in a line."""
    submit(zk, "one-aaaaaa")
    unled = sardonyx("job", "explain", "one").stdout
    assert "one-aaaaaa is submitted" in unled
    assert "no coordinator leads" in unled
    assert "no coordinator has taken it in yet" in unled
    with coordinator(settings):
        until(lambda: (note := status(zk, "one-aaaaaa")) and note.status == "running", what="the job to run")
        alone = json.loads(sardonyx("job", "explain", "one", "--json").stdout)
        assert (alone["status"], alone["outside"]) == ("running", [])
        assert alone["reasons"][0]["code"] == "no-live-peers"
        assert "no virtual peer" in sardonyx("job", "show", "one").stdout
        with peers(settings, "peer-a"):
            completed(zk, "one-aaaaaa")
        assert "all its tasks are complete" in sardonyx("job", "explain", "one").stdout
        away = ("--kafka", "127.0.0.1:1")
        submit(zk, "two-bbbbbb")
        until(lambda: (note := status(zk, "two-bbbbbb")) and note.status == "running", what="the job to run")
        (outside,) = lines(sardonyx("job", "explain", "two", "--json", *away))[0]["outside"]
        assert outside["code"] == "kafka-away"
        assert ".:" not in outside["text"]


def test_a_coordinator_that_stands_and_does_nothing_is_told(
    settings: Settings, leader: Leadership, sardonyx: Sardonyx, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`explain` says how many requests it has not taken in, and where it runs; not of requests that came just now."""
    submit(leader.zk, "one-aaaaaa")

    def codes() -> list[str]:
        why = json.loads(sardonyx("job", "explain", "one", "--json").stdout)
        return [reason["code"] for reason in why["outside"]]

    assert codes() == ["submitted"]
    monkeypatch.setattr("sardonyx.client.why.LATE", 0.0)
    assert codes() == ["backlog", "submitted"]
    told = sardonyx("job", "explain", "one").stdout
    assert "1 request is not processed" in told
    assert f"the log of the coordinator on {identity()}" in told


def test_who_looks_at_deployments_leaves_nothing_in_them(
    settings: Settings, zk: ZooKeeperSession, sardonyx: Sardonyx
) -> None:
    """`deployments` makes no nodes: neither in the one that the settings name, nor in those that it finds."""
    bare = f"{settings.deployment}-bare"
    zk.client.create(f"/sardonyx/{bare}")
    unknown = f"{settings.deployment}-unknown"
    sardonyx("deployments", "--deployment", unknown)
    assert zk.client.get_children(f"/sardonyx/{bare}") == []
    assert unknown not in zk.deployments()
    zk.client.delete(f"/sardonyx/{bare}")


def test_a_damaged_deployment_hides_no_other(settings: Settings, zk: ZooKeeperSession, sardonyx: Sardonyx) -> None:
    """It is listed with that its nodes cannot be read."""
    zk.client.set(zk.path(node_paths.EPOCH), b"not json")
    notes = {view["name"]: view["note"] for view in json.loads(sardonyx("deployments", "--json").stdout)}
    assert "cannot be read" in notes[settings.deployment]
    zk.client.set(zk.path(node_paths.EPOCH), b"")


def test_what_nobody_carries_out_is_said(settings: Settings, zk: ZooKeeperSession) -> None:
    """Without a coordinator an eviction or a purge is asked for, and says after its time that it is still to be done."""
    with coordinator(settings), peers(settings, "peer-a"):
        submit(zk, "one-aaaaaa")
        completed(zk, "one-aaaaaa")
    with Client(settings=settings) as client:
        with pytest.raises(SardonyxError) as caught:
            client.job("one").purge("50 ms")
        assert caught.value.code == "SX-JOB-PURGE-PENDING"
        assert "no coordinator leads" in caught.value.cause
        zk.create(node_paths.peer_state("old"), b'{"state":"idle","n":1}')
        with pytest.raises(SardonyxError) as caught:
            client.evict("old", "50 ms")
        assert caught.value.code == "SX-PEER-EVICT-PENDING"


def test_two_deployments_share_an_ensemble(settings: Settings, sardonyx: Sardonyx) -> None:
    """The same job ids and peer names in both at the same time: each goes its own way, and both are listed."""
    other = settings.model_copy(update={"deployment": f"{settings.deployment}-b"})
    links, other_links = FakeLinks(), FakeLinks()
    here, there = ZooKeeperSession.connect(settings), ZooKeeperSession.connect(other)
    with coordinator(settings, links), coordinator(other, other_links), peers(settings, "peer-a"):
        for zk in (here, there):
            submit(zk, "same-aaaaaa")
        completed(here, "same-aaaaaa")
        until(lambda: (note := status(there, "same-aaaaaa")) and note.waits_for == 1, what="the other to wait")
        with Client(settings=other) as client:
            client.job("same").kill()
        until(lambda: (note := status(there, "same-aaaaaa")) and note.links == "gone", what="the other to be killed")
        with peers(other, "peer-a"):
            until(lambda: there.children(node_paths.PEER_STATE) == ["peer-a"], what="its peer")
            found = json.loads(sardonyx("deployments", "--json").stdout)
            mine = {view["name"]: view for view in found if view["name"].startswith(settings.deployment)}
            assert {(view["jobs"], view["running"], view["peers"], view["epoch"]) for view in mine.values()} == {
                (1, 0, 1, 1)
            }
            assert all(view["leader"] for view in mine.values())
    assert [note.status for zk in (here, there) if (note := status(zk, "same-aaaaaa"))] == ["completed", "killed"]
    assert links.asked == other_links.asked == [("create", "same-aaaaaa"), ("delete", "same-aaaaaa")]
    for each in (here, there):
        assert reader.verify(each).ok
        each.close()
    assert settings.deployment in sardonyx("deployments").stdout


def test_a_leader_that_dies_between_log_and_tree_is_no_false_alarm(settings: Settings, leader: Leadership) -> None:
    """Entries whose effects are not applied yet do not count as damage of the tree, whichever of them are there."""
    zk = leader.zk
    leading = Leader(leader, settings, FakeLinks(), wake=threading.Event())
    leading.take_over()
    leading.handle([PendingEntry(PeerBorn(at=1.0, peer=f"p{n}")) for n in range(5)])
    leading.settle()
    append(leader, 6, [PendingEntry(PeerBorn(at=2.0, peer="late")), PendingEntry(PeerBorn(at=2.0, peer="later"))])
    assert reader.verify(zk).ok
    zk.commit([Create(node_paths.peer_state("late"), project(reader.at(zk, 6))[node_paths.peer_state("late")])])
    verdict = reader.verify(zk)
    assert (verdict.ok, verdict.last, verdict.moving) == (True, 7, 2)
    zk.commit([Set(node_paths.peer_state("late"), b"{}")])
    assert not reader.verify(zk).ok
    leading.close()
