"""ZooKeeper loses a deployment. It is restored from a backup: its jobs end exact, or fail with the reason."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import Result

from coordinator.core.decide import replay
from coordinator.core.state import new_state
from coordinator.core.stored_state import encode_state
from coordinator.history import reader
from coordinator.history.backup import BackupFile, write
from coordinator.history.restore import plan
from coordinator.history.restore import restore as carry_out
from coordinator.loop import snapshots
from coordinator.loop.log_writer import PendingEntry, append
from coordinator.loop.snapshots import compact
from sardonyx.client.job_handle import JobHandle
from sardonyx.core import node_paths
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import OLDEST, OLDEST_RULES, RULES, PeerBorn, PeerDied
from sardonyx.runtime.failpoints import VARIABLE
from sardonyx.runtime.settings import Settings, load_settings
from sardonyx.testing import Addresses
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.services.coordination import coordinator, leadership
from tests.services.crew import Crew
from tests.services.house import House, told, written
from tests.waiting import until

JOB = """
from sardonyx import Job, kafka

def same(row: dict) -> dict:
    return row

def even(row: dict) -> dict:
    if row["n"] % 10 == 7:
        raise ValueError("seven")
    return row

job = Job("copy", partitions=2)
read = job.input("read", kafka("{topic}", schema="n long", start="earliest", end={end!r}))
first = job.task("first", {function}, after=read, batch_size=20, on_error="{on_error}")
job.output("out", kafka("{topic}-out"), after=job.task("second", same, after=first, batch_size=20), batch_size=20)
"""


def text(topic: str, end: str | None = "latest", function: str = "same", on_error: str = "fail") -> str:
    return JOB.format(topic=topic, end=end, function=function, on_error=on_error)


def numbers(*span: int) -> list[bytes]:
    return [b'{"n": %d}' % n for n in range(*span)]


@pytest.fixture
def lost(services: Addresses, settings: Settings, tmp_path: Path) -> Iterator[House]:
    """A deployment of its own, whose processes and nodes a test may take away."""
    quick = load_settings(
        deployment=settings.deployment,
        zookeeper={"hosts": services.zookeeper, "session_timeout": 2},
        kafka={"bootstrap_servers": services.kafka},
        peer={"session_timeout": 3, "transaction_timeout": 6},
    )
    with Crew(quick, tmp_path) as crew:
        crew.coordinator()
        yield House(quick, crew)


def start(house: House) -> None:
    """New processes after a restore, and their peers. Until a coordinator leads, those of the backup seem to be there, too."""
    house.crew.coordinator()
    house.crew.peers(2, wait=False)
    with zookeeper(house) as zk:
        house.crew.until(lambda: len(zk.children(node_paths.PULSE)) == 2, "the new peers to register")


def stop(house: House) -> None:
    """Kill every process, and wait until no session of theirs is left."""
    for process in house.crew.processes:
        process.kill()
    with zookeeper(house) as zk:
        until(
            lambda: not zk.children(node_paths.ELECTION) and not zk.children(node_paths.PULSE),
            what="all sessions to end",
        )


def zookeeper(house: House) -> contextlib.closing[ZooKeeperSession]:
    """A session of the test's own, which lives longer than those of the house."""
    lasting = house.settings.zookeeper.model_copy(update={"session_timeout": 30.0})
    return contextlib.closing(ZooKeeperSession.connect(house.settings.model_copy(update={"zookeeper": lasting})))


def wipe(house: House) -> None:
    """Take the deployment's root out of ZooKeeper with all below it."""
    with zookeeper(house) as zk:
        zk.client.delete(zk.root, recursive=True)


def backup(house: House, file: Path) -> Path:
    taken = house.call("backup", str(file))
    assert taken.exit_code == 0, taken.output
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "secrets" in taken.stderr
    return file


def restore(house: House, file: Path, *flags: str) -> dict:
    result = house.call("restore", str(file), "--json", *flags)
    assert result.exit_code == 0, result.output + result.stderr
    return json.loads(result.stdout)


def out(house: House, topic: str) -> list[int]:
    return sorted(record["n"] for record in house.records(f"{topic}-out"))


def submitted(house: House, folder: Path, spec: str, topic: str, results: int) -> JobHandle:
    """A job that has so many results."""
    handle = house.submit(folder, spec)
    house.crew.until(lambda: len(house.records(f"{topic}-out")) >= results, "results")
    return handle


def planned(house: House, folder: Path, topic: str) -> JobHandle:
    """A job that runs, without peers."""
    handle = house.submit(folder, text(topic))
    until(lambda: handle.status(live=False).status == "running", what="the job to be planned")
    return handle


def verified(house: House) -> None:
    with zookeeper(house) as zk:
        verdict = reader.verify(zk)
    assert verdict.ok, verdict.findings


def failure(handle: JobHandle) -> str:
    error = handle.status(live=False).error
    assert error is not None
    assert error.code == "SX-RESTORE-PAST"
    return error.message


def test_a_job_ends_exact_after_zookeeper_lost_it(lost: House, tmp_path: Path) -> None:
    """A backup is taken while a job runs. The job goes on for a while, then ZooKeeper loses everything. Restored, the job goes on
    from what Kafka holds: each record once.
    """
    topic = lost.make_topic("in")
    lost.fill(topic, *numbers(3_000))
    lost.crew.peers(2)
    handle = submitted(lost, tmp_path / "job", text(topic), topic, 60)
    file = backup(lost, tmp_path / "backup")
    lost.crew.until(lambda: len(lost.records(f"{topic}-out")) >= 400, "more results")
    stop(lost)
    wipe(lost)
    done = restore(lost, file)
    assert [(job["job"], job["was"], job["becomes"]) for job in done["jobs"]] == [(handle.id, "running", "goes on")]
    assert (done["unknown_jobs"], done["refused"]) == ([], None)
    start(lost)
    lost.completed(handle, 300)
    assert out(lost, topic) == list(range(3_000))
    verified(lost)


def test_what_has_ended_since_the_backup_fails_with_the_reason(lost: House, tmp_path: Path) -> None:
    """Of a job that has completed since, nothing is left in Kafka: it is not run again. One that was submitted since is
    reported. One that had ended before cannot be resumed.
    """
    topic, later = lost.make_topic("in"), lost.make_topic("later")
    lost.crew.peers(2)
    lost.fill(topic, *numbers(500))
    day = lost.submit(tmp_path / "day", text(topic).replace('"copy"', '"day"'))
    lost.completed(day)
    lost.fill(topic, *numbers(500, 1_000))
    handle = submitted(lost, tmp_path / "job", text(topic), topic, 520)
    file = backup(lost, tmp_path / "backup")
    lost.completed(handle)
    handle.await_resumable(300)
    after = out(lost, topic)
    lost.fill(later, *numbers(100))
    unknown = submitted(lost, tmp_path / "later", text(later, end=None).replace('"copy"', '"later"'), later, 100)
    stop(lost)
    wipe(lost)
    before = restore(lost, file, "--dry-run")
    with zookeeper(lost) as zk:
        assert zk.read(node_paths.CHECKPOINT) in (None, b""), "a dry run changes nothing"
    done = restore(lost, file)
    assert done["jobs"] == before["jobs"]
    assert {job["job"]: job["becomes"] for job in done["jobs"]} == {handle.id: "fails", day.id: "stays ended"}
    assert done["unknown_jobs"] == [unknown.id]
    lost.crew.coordinator()
    lost.crew.until(lambda: handle.status(live=False).ended, "the job to fail")
    assert "is gone" in failure(handle)
    refused = lost.call("job", "submit", written(tmp_path / "again", text(topic)), "--resume", day.id)
    told(refused, "SX-JOB-RESUME", "restored from a backup")
    assert out(lost, topic) == after
    verified(lost)


def test_a_job_that_was_stopped_since_is_stopped(lost: House, tmp_path: Path) -> None:
    """Its inputs have ended, and the log does not know: it ends again where they ended, each record once."""
    topic = lost.make_topic("in")
    lost.fill(topic, *numbers(1_000))
    armed = tmp_path / "failpoints"
    armed.mkdir()
    peers = lost.crew.peers(2, failpoint=str(armed))
    handle = submitted(lost, tmp_path / "job", text(topic, end=None), topic, 60)
    file = backup(lost, tmp_path / "backup")
    (armed / "seal").write_text("kill")
    handle.stop()
    lost.crew.until(lambda: peers.poll() is not None, "the peers to die before they seal")
    stop(lost)
    wipe(lost)
    done = restore(lost, file)
    assert [job["becomes"] for job in done["jobs"]] == ["is stopped"]
    start(lost)
    assert handle.await_completion(300).status == "stopped"
    ((reached,),) = (task.values() for task in handle.positions().values())
    assert out(lost, topic) == [n for n in range(1_000) if n // 2 < reached[n % 2]]


def test_letters_that_were_redone_since_are_not_redone_again(lost: House, tmp_path: Path) -> None:
    """What a redo after the backup has claimed looks open after the restore. It is handed out only to a user who says so."""
    topic = lost.make_topic("in")
    lost.fill(topic, *numbers(100))
    lost.crew.peers(2)
    handle = lost.submit(tmp_path / "job", text(topic, function="even", on_error="dead_letter"))
    lost.completed(handle)
    handle.await_resumable(300)
    file = backup(lost, tmp_path / "backup")
    corrected = written(tmp_path / "corrected", text(topic, function="same", on_error="dead_letter"))
    redone = lost.call("dlq", "redo", handle.id, "--spec", corrected, "--json")
    lost.completed(lost.client.job(json.loads(redone.stdout)["jobs"][0]["id"]))
    assert out(lost, topic) == list(range(100))
    stop(lost)
    wipe(lost)
    assert restore(lost, file)["letters"] == [{"job": handle.id, "task": "first"}]
    lost.crew.coordinator()
    told(lost.call("dlq", "redo", handle.id, "--spec", corrected), "SX-DLQ-RESTORED")
    again = lost.call("dlq", "redo", handle.id, "--spec", corrected, "--restored", "--json")
    assert (again.exit_code, len(json.loads(again.stdout)["jobs"])) == (0, 1), again.output


def test_what_cannot_be_restored_is_refused(lost: House, tmp_path: Path) -> None:
    """A deployment that lives or has jobs, another deployment, a damaged file, one that is cut short."""
    topic = lost.make_topic("in")
    lost.fill(topic, *numbers(100))
    planned(lost, tmp_path / "job", topic)
    file = backup(lost, tmp_path / "backup")

    def refused(path: Path, code: str, *words: str) -> Result:
        result = lost.call("restore", str(path))
        told(result, code, *words)
        return result

    refused(file, "SX-RESTORE-REFUSED", "a coordinator runs")
    trial = restore(lost, file, "--dry-run")
    assert "a coordinator runs" in trial["refused"]
    stop(lost)
    refused(file, "SX-RESTORE-REFUSED", "has 1 job")
    wipe(lost)

    lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    damaged = tmp_path / "damaged"
    damaged.write_bytes(file.read_bytes()[:-20])
    refused(damaged, "SX-BACKUP-FILE")
    damaged.write_bytes(gzip.compress(b"".join(lines[:-1])))
    refused(damaged, "SX-BACKUP-FILE", "end is missing")
    changed = [line.replace(b'"partitions":2', b'"partitions":3') for line in lines]
    assert changed != lines
    damaged.write_bytes(gzip.compress(b"".join(changed)))
    refused(damaged, "SX-BACKUP-FILE", "its digest is not")
    refused(tmp_path / "nowhere", "SX-BACKUP-FILE", "No such file")
    damaged.write_bytes(gzip.compress(b"".join(lines).replace(b'"log_format":', b'"log_format":9', 1)))
    refused(damaged, "SX-LOG-FORMAT")
    older = lines[0].replace(b'"rules":%d' % RULES, b'"rules":%d' % (OLDEST_RULES - 1))
    assert older != lines[0]
    damaged.write_bytes(gzip.compress(b"".join([older, *lines[1:]])))
    refused(damaged, "SX-LOG-FORMAT", f"rules {OLDEST_RULES - 1}")
    other = lost.call("restore", str(file), "--deployment", "another")
    told(other, "SX-RESTORE-REFUSED", f"it is a backup of deployment {lost.settings.deployment}")


@pytest.mark.parametrize(
    "point",
    [
        "before-restore:1",
        pytest.param("after-restore:1", marks=pytest.mark.gate),
        "before-snapshot:1",
        "after-snapshot:2",
    ],
)
def test_a_restore_that_was_interrupted_is_noticed_and_begins_anew(point: str, lost: House, tmp_path: Path) -> None:
    """It dies in the middle. No coordinator leads then, and no backup is taken. Restored again, the deployment is whole."""
    topic = lost.make_topic("in")
    handle = planned(lost, tmp_path / "job", topic)
    file = backup(lost, tmp_path / "backup")
    stop(lost)
    wipe(lost)
    command = [sys.executable, "-m", "sardonyx", "restore", str(file)]
    env = {**os.environ, **lost.settings.environment(), VARIABLE: f"{point}:kill"}
    assert subprocess.run(command, env=env, check=False, capture_output=True).returncode == -9
    with zookeeper(lost) as zk:
        until(lambda: not zk.children(node_paths.ELECTION), what="the session of the restore to end")
    told(lost.call("backup", str(tmp_path / "another")), "SX-RESTORE-UNFINISHED")
    waits = lost.crew.coordinator()
    lost.crew.until(lambda: "waiting_for_restore" in waits.log_tail(50), "the coordinator to wait")
    assert [job["becomes"] for job in restore(lost, file)["jobs"]] == ["goes on"]
    lost.crew.until(lambda: "took_over" in waits.log_tail(50), "the coordinator to lead")
    assert handle.status(live=False).status == "running"
    verified(lost)


def test_what_cannot_be_backed_up_is_refused(settings: Settings, tmp_path: Path) -> None:
    """A deployment that no coordinator has led, and a file that cannot be written. The log of the first is not awaited."""
    with contextlib.closing(ZooKeeperSession.connect(settings)) as zk:
        with pytest.raises(SardonyxError) as caught:
            write(zk, tmp_path / "file", "0")
        assert caught.value.code == "SX-BACKUP-EMPTY"
        assert not list(tmp_path.iterdir())
        (tmp_path / "a file").touch()
        with pytest.raises(SardonyxError) as caught:
            write(zk, tmp_path / "a file" / "below", "0")
        assert caught.value.code == "SX-BACKUP-FILE"


def rewrite_header(file: Path, **fields: object) -> None:
    """Change fields of the first line of a backup, and the digest in the last."""
    lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    lines[0] = json.dumps({**json.loads(lines[0]), **fields}).encode() + b"\n"
    digest = {**json.loads(lines[-1]), "sha256": hashlib.sha256(b"".join(lines[:-1])).hexdigest()}
    file.write_bytes(gzip.compress(b"".join([*lines[:-1], json.dumps(digest).encode()])))


@pytest.mark.usefixtures("small_log")
def test_a_compacted_log_is_restored_as_it_was(settings: Settings, tmp_path: Path) -> None:
    """Its oldest entries are gone, and the state before them is in the file. Every moment that was kept can be shown again. The
    file may have a log of any format that this release reads.
    """
    with leadership(settings) as won:
        state = new_state(settings.deployment)
        for first in range(1, 121, 10):
            events = [PeerBorn(peer=f"P{n}") if n % 3 else PeerDied(peer=f"P{n - 1}") for n in range(first, first + 10)]
            append(won, first, map(PendingEntry, events))
            replay(enumerate(events, first), state)
            snapshots.write(won, state.n, encode_state(state))
        compact(won, keep=10)
        kept = reader.kept(won.zk)
        assert kept.first > 1
        moments = {n: encode_state(reader.at(won.zk, n)) for n in range(kept.first - 1, kept.last + 1)}
    with contextlib.closing(ZooKeeperSession.connect(settings)) as zk:
        write(zk, tmp_path / "backup", "test")
        zk.client.delete(zk.root, recursive=True)
    rewrite_header(tmp_path / "backup", log_format=OLDEST)
    with contextlib.closing(ZooKeeperSession.connect(settings)) as zk:
        file = BackupFile(tmp_path / "backup")
        carry_out(zk, file, plan(file, {}, {}, at=1.0))
    with contextlib.closing(ZooKeeperSession.connect(settings)) as zk:
        assert reader.kept(zk) == kept
        assert {n: encode_state(reader.at(zk, n)) for n in moments} == moments
        assert reader.verify(zk).findings == []
        with coordinator(settings):
            until(lambda: not zk.children(node_paths.PEER_STATE), what="the peers of the backup to be found dead")
        assert reader.verify(zk).findings == []
