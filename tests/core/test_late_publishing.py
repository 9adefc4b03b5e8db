"""What becomes of rows whose peer died, or whose connector raised, after their commit and before they were published."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pyarrow as pa
import pytest
import structlog

from peer import batch_commit
from peer.batch_result import BatchDropped
from peer.connector_sink import ConnectorSink, PartsList, Staging
from peer.late_publishing import LatePublisher
from peer.positioned_sink import PositionedSink
from queues.messages import Outgoing
from sardonyx.connectors.files.output import FilesOutput
from sardonyx.connectors.files.roll import Roll
from sardonyx.connectors.files.rolling import RollingFiles
from sardonyx.core.errors import OutputError
from sardonyx.core.positions import Partition, Position

FIRST, SECOND = Partition("rows", 0), Partition("rows", 1)


class Reader:
    """What a peer holds."""

    member = True

    def __init__(self) -> None:
        self.held: dict[Partition, Position | None] = {}
        self.incarnations: dict[Partition, int] = {}

    def give(self, partition: Partition, position: Position | None, number: int) -> None:
        self.held[partition], self.incarnations[partition] = position, number

    def holds(self, _batch: Any) -> bool:
        return self.member


class Session:
    """A peer of the task, and which of its work was done beside the group."""

    def __init__(self, *sinks: Any) -> None:
        self.reader = Reader()
        self.beside: list[str] = []
        self.work = SimpleNamespace(sinks=sinks)

    def meanwhile(self, work: Callable[[], Any]) -> Any:
        self.beside.append(getattr(work, "__name__", ""))
        return work()


class Ledger:
    """A connector of a user."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.calls = 0

    def stage(self, table: pa.Table) -> list[bytes]:
        return [str(table["n"][0].as_py()).encode()]

    def publish(self, entries: list[bytes]) -> None:
        self.calls += 1
        self.seen += [entry for entry in entries if entry not in self.seen]

    def seal(self, entries: list[bytes]) -> None:
        self.publish(entries)


def parts_list(listed: list[bytes]) -> PartsList:
    return PartsList("parts", lambda: list(listed), lambda start: (listed[start:], len(listed)))


def sink_of(output: Any, listed: list[bytes], left: Callable[[Any], None]) -> ConnectorSink:
    return ConnectorSink(Staging(output, left), parts_list(listed))


def committed(sink: ConnectorSink, listed: list[bytes], number: int) -> None:
    """A batch of one row, up to its commit."""
    for message in sink.messages(pa.table({"n": [number]})):
        assert isinstance(message, Outgoing)
        listed.append(message.value or b"")


def test_a_peer_publishes_what_the_one_before_it_has_only_committed():
    """A connector's rows are seen when another peer has the partition, and not only when the task is sealed."""
    listed: list[bytes] = []
    ledger = Ledger()
    dead = sink_of(ledger, listed, ledger.publish)
    committed(dead, listed, 1)
    dead.committed()
    committed(dead, listed, 2)  # and here it dies
    session = Session(sink_of(ledger, listed, ledger.publish))
    publisher = LatePublisher(cast("Any", session))
    session.reader.give(FIRST, None, 1)  # a partition that no peer has worked on
    publisher.look()
    assert ledger.seen == [b"1"]
    session.reader.give(SECOND, Position(7), 2)
    publisher.look()
    assert ledger.seen == [b"1", b"2"]


def test_the_list_is_read_once_for_each_peer_that_is_gone():
    """And each time only from where it was read before."""
    listed = [b"1"]
    ledger = Ledger()
    session = Session(sink_of(ledger, listed, ledger.publish))
    publisher = LatePublisher(cast("Any", session))
    session.reader.give(FIRST, Position(1), 1)
    for _ in range(3):
        publisher.look()
    assert ledger.calls == 1
    session.reader.give(SECOND, Position(1), 2)
    publisher.look()
    assert (ledger.calls, ledger.seen) == (1, [b"1"])  # nothing new is listed
    listed.append(b"2")
    session.reader.give(SECOND, Position(2), 3)
    publisher.look()
    assert (ledger.calls, ledger.seen) == (2, [b"1", b"2"])


def test_what_fails_is_published_at_the_next_attempt():
    """A connector that raises has published nothing, as far as one knows."""
    listed = [b"1"]
    ledger = Ledger()
    raised = [ValueError("away")]

    def publish(entries: list[bytes]) -> None:
        if raised:
            raise raised.pop()
        ledger.publish(entries)

    session = Session(sink_of(ledger, listed, publish))
    publisher = LatePublisher(cast("Any", session))
    session.reader.give(FIRST, Position(1), 1)
    with pytest.raises(ValueError, match="away"):
        publisher.look()
    publisher.look()
    assert ledger.seen == [b"1"]


def test_files_that_are_still_staged_are_put_in_place(tmp_path: Path):
    """And those that are not are left alone: readers may have moved them."""
    listed: list[bytes] = []
    output = FilesOutput({"path": str(tmp_path), "format": "json"}, "job-1", "out")
    dead = sink_of(output, listed, output.publish_left)
    committed(dead, listed, 1)
    dead.committed()
    (moved,) = tmp_path.glob("part-*")
    moved.unlink()
    committed(dead, listed, 2)
    session = Session(sink_of(output, listed, output.publish_left))
    session.reader.give(FIRST, Position(1), 1)
    LatePublisher(cast("Any", session)).look()
    assert [msgspec.json.decode(path.read_bytes()) for path in tmp_path.glob("part-*")] == [{"n": 2}]


@pytest.mark.parametrize("mode", ["error", "overwrite"])
def test_a_share_that_is_not_mounted_is_no_output_that_was_sealed(tmp_path: Path, mode: str):
    """A peer that takes over waits for it. Else it would write to the disk below the mount point."""
    options = {"path": str(tmp_path / "share"), "format": "json", "mode": mode}
    listed: list[bytes] = []
    dead, taker = (FilesOutput(options, "job-1", "out") for _ in range(2))
    committed(sink_of(dead, listed, dead.publish_left), listed, 1)
    session = Session(sink_of(taker, listed, taker.publish_left))
    session.reader.give(FIRST, Position(1), 1)
    publisher = LatePublisher(cast("Any", session))
    (tmp_path / "share").rename(tmp_path / "away")
    (tmp_path / "share").mkdir()
    for attempt in (publisher.look, lambda: dead.stage(pa.table({"n": [2]}))):
        with pytest.raises(OutputError) as caught:
            attempt()
        assert caught.value.code == "SX-OUTPUT-AWAY"
        assert list((tmp_path / "share").iterdir()) == []
    (tmp_path / "share").rmdir()
    (tmp_path / "away").rename(tmp_path / "share")
    publisher.look()
    assert len(list((tmp_path / "share").glob("part-*"))) == (mode == "error")
    assert dead.stage(pa.table({"n": [2]}))


@pytest.mark.parametrize("mode", ["error", "overwrite"])
def test_an_output_whose_sealer_died_is_not_waited_for(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch):
    """It may have removed the folder of staged files already. The next one seals again."""
    options = {"path": str(tmp_path), "format": "json", "mode": mode}
    listed: list[bytes] = []
    dead, taker = (FilesOutput(options, "job-1", "out") for _ in range(2))
    committed(sink_of(dead, listed, dead.publish_left), listed, 1)
    monkeypatch.setattr(dead, "_succeed", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        dead.seal(listed)
    assert not (tmp_path / "_sardonyx").exists()
    session = Session(sink_of(taker, listed, taker.publish_left))
    session.reader.give(FIRST, Position(1), 1)
    LatePublisher(cast("Any", session)).look()
    taker.seal(listed)
    assert (tmp_path / "_SUCCESS").exists()


@pytest.mark.parametrize("mode", ["error", "overwrite"])
def test_a_sealed_output_is_not_waited_for_though_its_files_were_moved(tmp_path: Path, mode: str):
    """Readers may move the files once they see `_SUCCESS`. If the sealer dies before the coordinator hears of it, another peer
    seals, and finds that it is done.
    """
    options = {"path": str(tmp_path), "format": "json", "mode": mode}
    listed: list[bytes] = []
    dead, taker = (FilesOutput(options, "job-1", "out") for _ in range(2))
    committed(sink_of(dead, listed, dead.publish_left), listed, 1)
    dead.seal(listed)
    (moved,) = tmp_path.glob("part-*")
    moved.unlink()
    session = Session(sink_of(taker, listed, taker.publish_left))
    session.reader.give(FIRST, Position(1), 1)
    LatePublisher(cast("Any", session)).look()
    taker.seal(listed)


@pytest.mark.parametrize("roll", [None, Roll(1000, 60.0)])
def test_files_of_a_batch_that_is_refused_do_not_stay(tmp_path: Path, roll: Roll | None):
    """A batch may be tried again and again while brokers are away: the disk must not fill by that."""
    options = {"path": str(tmp_path), "format": "json"}
    listed: list[bytes] = []
    output = FilesOutput(options, "job-1", "out") if roll is None else RollingFiles(options, "job-1", "out", roll)
    sink = ConnectorSink(Staging(output, unstage=output.unstage), parts_list([]))
    for _ in range(3):
        committed(sink, listed, 1)
        sink.refused()
    staging = tmp_path / "_sardonyx" / "job-1" / "out"
    assert list(staging.iterdir()) == []
    committed(sink, listed, 1)
    sink.committed()
    sink.refused()  # of another batch, before it has staged anything
    committed(sink, listed, 2)
    output.settle(listed[-2:])
    assert len(list(tmp_path.glob("part-*"))) == 2


def test_a_slow_answer_does_not_put_a_peer_out_of_its_group(monkeypatch: pytest.MonkeyPatch):
    """A commit of a database, and the publishing of what was staged, happen while the peer serves its group."""
    listed: list[bytes] = []
    ledger = Ledger()
    sink = sink_of(ledger, listed, ledger.publish)
    committed(sink, listed, 1)
    session = Session(sink)
    session.handle = SimpleNamespace(may_commit=True)  # type: ignore[attr-defined]
    begun: list[str] = []

    class Store:
        def begin(self, *_: Any) -> None:
            begun.append("begin")

        def commit(self) -> None:
            begun.append("commit")

    commit = object.__new__(batch_commit.BatchCommit)
    commit._session, commit._work = cast("Any", session), cast("Any", session.work)
    monkeypatch.setattr(commit, "check", lambda _batch: None)
    commit._commit_to_store(cast("Any", Store()), cast("Any", SimpleNamespace(started={})), {}, [])
    commit._publish()
    assert (begun, ledger.seen) == (["begin", "commit"], [b"1"])
    assert session.beside[-2:] == ["commit", "committed"]
    session.reader.member = False  # it was put out of the group while the database took its time
    with pytest.raises(BatchDropped):
        commit._commit_to_store(cast("Any", Store()), cast("Any", SimpleNamespace(started={})), {}, [])


def test_a_rollback_that_fails_hides_no_error():
    """A connector with positions of its own may have lost its connection: that is why the batch is given up."""

    def broken() -> None:
        raise OSError("the connection is closed")

    sink = PositionedSink(cast("Any", SimpleNamespace(abandon=broken)))
    with structlog.testing.capture_logs() as said:
        sink.abandon()
    assert [line["event"] for line in said] == ["rollback_failed"]
