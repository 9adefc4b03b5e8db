"""The archive of the log: what is removed from ZooKeeper was written before, in order, and can be shown as if it were there."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
from typer.testing import CliRunner

from coordinator.core import decide, job_changes, peer_changes
from coordinator.core.projection import project
from coordinator.core.stored_state import encode_state
from coordinator.history import reader
from coordinator.history.archive import Archive
from coordinator.history.export import EntryLine, Header, LogFile, Mask, lines_of
from coordinator.history.reader import Kept
from coordinator.history.replay import Verifier
from coordinator.loop import event_log, snapshots
from sardonyx.cli import log_commands
from sardonyx.cli.app import app
from sardonyx.core.events import FORMAT, RULES, AnyEvent, PeerBorn
from tests.simulation.plans import random_plan
from tests.simulation.world import World
from tests.sizes import histories

HISTORIES = histories(6, whole=100)
SHARES = histories(1, whole=4)
"""Tests over which they are spread: several processes run them."""
SPARSE = 5


class ArchivingWorld(World):
    """A history that removes nearly all of its log, and leaders that die as they please.

    Args:
        seed: of the plan.
        folder: of the archive.
    """

    def __init__(self, seed: str, folder: Path) -> None:
        # The archive is read when the history is over: decisions must be by the limits that hold then.
        limits = {"forgiven": job_changes.FORGIVEN, "memory": peer_changes.REMEMBERED_DEAD}
        super().__init__(msgspec.structs.replace(random_plan(seed), snapshot_every=3, keep_log=0, **limits))
        coordinators = self.settings.coordinator.model_copy(update={"log_archive": folder})
        self.settings = self.settings.model_copy(update={"coordinator": coordinators})
        self.kept = 0

    def _settle(self) -> None:
        super()._settle()
        self.user.spawn("looks", self._look)
        self._until("is looked at", lambda _: [] if self.kept else ["the beginning of the log"])

    def _look(self) -> None:
        assert self._user_tree is not None
        self.kept = event_log.begins(self._user_tree)


@pytest.mark.parametrize("share", range(SHARES))
def test_what_is_removed_was_written(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: int) -> None:
    """Each entry once, in their order, in files that replay by themselves; the state after any of them is the one that was.
    Without the folder nothing is removed.
    """
    monkeypatch.setattr(snapshots, "SPARSE", SPARSE)
    archived = 0
    numbers = range(share * HISTORIES // SHARES, (share + 1) * HISTORIES // SHARES)
    for number in numbers:
        name = f"archive/{seed}/{number}"
        folder = tmp_path / str(number)
        missing = number % 3 == 2
        if not missing:
            folder.mkdir()
        world = ArchivingWorld(name, folder)
        world.play()
        if missing:
            assert world.kept == event_log.FIRST, name
            continue
        archive = Archive(folder, "sim")
        found = [(decided.n, decided.event) for decided, _ in archive.decided(1, world.kept - 1)]
        assert found == list(enumerate(world.oracle.events[: world.kept - 1], 1)), name
        chance = random.Random(name)
        for n in chance.sample(range(world.kept), min(world.kept, 5)) if world.kept > 1 else []:
            wanted = decide.replay(enumerate(world.oracle.events[:n], 1), deployment="sim")
            state, when = archive.at(n)
            assert encode_state(state) == encode_state(wanted), f"{name}: after entry {n}"
            assert n == 0 or when in (None, world.oracle.events[n - 1].at)
        for held in archive.files():
            with gzip.open(held.file) as source:
                log = LogFile(source, held.file.name)
                verifier = Verifier(log.begin(), log.stand)
                list(verifier.run((entry.n, entry.event) for entry in log.entries()))
                assert verifier.end().ok, f"{name}: {held.file.name}: {verifier.verdict.findings}"
        archived += world.kept - 1
    assert archived > 2 * len(numbers)


def test_commands_read_what_is_no_longer_in_zookeeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By number and by time, one entry or many; a gap in the archive is an error like an entry that the log does not hold."""
    events: list[AnyEvent] = [PeerBorn(at=1000.0 + n, peer=f"p{n}", host="h", pid=n, daemon="d") for n in range(1, 31)]
    entries = list(enumerate(events, 1))
    for first, last in ((1, 8), (9, 12), (17, 20)):  # 13 to 16 are missing
        archived(tmp_path / "default", entries, first, last)

    @contextlib.contextmanager
    def tree(_call: object) -> Iterator[Mock]:
        yield Mock(root="/sardonyx/default", read=lambda *_, **__: None, children=lambda *_: [])

    monkeypatch.setattr(log_commands, "tree_of", tree)
    monkeypatch.setattr(reader, "kept", lambda _zk: Kept(21, 30))
    monkeypatch.setattr(reader, "until", lambda _zk, time: max(20, min(30, int(time) - 1000)))
    monkeypatch.setattr(event_log, "read_log", lambda _zk, n=0: iter(entries[max(n, 21) - 1 :]))

    def told(*arguments: str, code: int = 0) -> str:
        env = {"SARDONYX__COORDINATOR__LOG_ARCHIVE": str(tmp_path), "TZ": "UTC"}
        found = CliRunner().invoke(app, ["log", *arguments], env=env)
        assert found.exit_code == code, found.output
        return found.output

    assert "p10" in told("show", "10")
    assert "after entry 10" in told("at", "10")
    assert len(json.loads(told("at", "10", "--json"))["peers"]) == 10
    assert "after entry 5" in told("at", "1970-01-01T00:16:45+00:00")
    shown = told("show", "--from", "7", "--to", "22")
    assert [int(line.split()[0]) for line in shown.splitlines()] == [*range(7, 13), *range(17, 23)]
    assert "SX-LOG-RANGE" in told("at", "14", code=1)
    assert "entries 9 to 12 replayed" in told("replay", str(Archive(tmp_path, "default").files()[1].file))


def archived(place: Path, entries: list[tuple[int, AnyEvent]], first: int, last: int) -> None:
    place.mkdir(exist_ok=True)
    header = Header(FORMAT, "default", first, last, last, "0", RULES)
    base = decide.replay(entries[: first - 1]) if first > 1 else None
    nodes = project(decide.replay(entries[:last]))
    lines = lines_of(header, base, (EntryLine(n, event) for n, event in entries[first - 1 : last]), nodes, Mask())
    with gzip.open(place / f"log-{first:012}-{last:012}-00000000.jsonl.gz", "wb") as out:
        out.writelines(lines)
