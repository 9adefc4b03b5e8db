"""The archive of a log: the entries that compactions have removed from ZooKeeper, in files of a folder.

Each file is what ``sardonyx log export`` writes, compressed by gzip: the state before its first entry, its entries without
secrets, and the nodes that follow from them. It ends with an entry after which a snapshot is stored and a compaction may begin.
So the next leader writes the same files. A file is whole, or not there.

A restore may bring an earlier moment back, from which the log goes on otherwise. So the name of a file says of which state it is,
and of two files with the same entries the one that was written last counts.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import re
import zlib
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import IO, NamedTuple, cast

from coordinator.core.projection import project
from coordinator.core.state import State
from coordinator.core.stored_state import decode_state
from coordinator.history import reader
from coordinator.history.export import EntryLine, LogFile
from coordinator.history.replay import Decided, Replay, Stand
from coordinator.loop import snapshots
from sardonyx.core.errors import SardonyxError
from sardonyx.core.version import VERSION
from sardonyx.zookeeper.session import ZooKeeperSession

_NAME = re.compile(r"log-(\d{12})-(\d{12})-[0-9a-f]{8}\.jsonl\.gz")
_DIGITS = 12


def write(folder: Path, deployment: str, zk: ZooKeeperSession, first: int, last: int) -> bool:
    """Write entries to a file, unless it exists. A :data:`coordinator.loop.log_archive.Write`.

    Args:
        folder: of all deployments; it must exist, since one that is not mounted would swallow the past.
        deployment: its files get a folder in that one.
        zk: a session with it.
        first: the first entry.
        last: the last one, after which a snapshot is stored.

    Raises:
        SardonyxError: ``SX-LOG-ARCHIVE``: the folder is not there, or the file cannot be written.
    """
    found = snapshots.base(zk, last)
    if found is None or found[0] != last:
        return False
    mark = hashlib.sha256(found[1]).hexdigest()[:8]
    place = folder / deployment
    file = place / f"log-{first:0{_DIGITS}}-{last:0{_DIGITS}}-{mark}.jsonl.gz"
    part = place / f".{file.name}.{zk.runtime.token()}.part"
    try:
        if not folder.is_dir():
            raise FileNotFoundError(f"there is no folder {folder}")
        place.mkdir(exist_ok=True)
        if file.exists():
            return True
        standing = Stand(last, last, project(decode_state(found[1])))
        with part.open("wb") as out:
            with gzip.GzipFile(fileobj=out, mode="wb", filename="", compresslevel=6, mtime=0) as packed:
                packed.writelines(reader.file_of(zk, VERSION, first, standing))
            out.flush()
            os.fsync(out.fileno())
        part.replace(file)
        for left in place.glob(f".{file.name}.*.part"):  # by a leader that died
            left.unlink(missing_ok=True)
    except OSError as error:
        raise SardonyxError(
            "SX-LOG-ARCHIVE",
            f"entries {first} to {last} of the log cannot be written to {folder}",
            cause=str(error),
            fix="make the folder of coordinator.log_archive writable for the coordinators; until then they remove no entries",
            where={"path": folder, "n": first},
        ) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    return True


class Held(NamedTuple):
    """A file of an archive: the entries ``first`` to ``last``."""

    first: int
    last: int
    file: Path


class Archive:
    """The past of a deployment, as far as it was archived.

    Args:
        folder: the setting ``coordinator.log_archive``.
        deployment: its name.
    """

    def __init__(self, folder: Path, deployment: str) -> None:
        self._place = folder / deployment

    def files(self) -> list[Held]:
        """Its files, in the order of their entries; of several with the same ones, that which was written last comes last.

        Raises:
            SardonyxError: ``SX-LOG-ARCHIVE``, the folder cannot be read.
        """
        try:
            found = (
                [(path, _NAME.fullmatch(path.name)) for path in self._place.iterdir()] if self._place.exists() else []
            )
            held = [Held(int(match[1]), int(match[2]), path) for path, match in found if match]
            return sorted(held, key=lambda each: (each.first, each.last, each.file.stat().st_mtime))
        except OSError as error:
            raise SardonyxError(
                "SX-LOG-ARCHIVE",
                f"the archive of the log in {self._place} cannot be read",
                cause=str(error),
                fix="run the command as a user who can read the folder of coordinator.log_archive",
                where={"path": self._place},
            ) from error

    def holds(self, n: int) -> bool:
        """Whether it can show the state after an entry."""
        return self._file(n) is not None

    def at(self, n: int) -> tuple[State, float | None]:
        """The state after an entry that it holds, and when that was; None: of the state before its first entry.

        Raises:
            SardonyxError: ``SX-LOG-FILE``, ``SX-LOG-FORMAT``.
        """
        held = self._file(n)
        assert held is not None  # noqa: S101 - :meth:`holds`
        when: float | None = None
        with _opened(held) as log:
            replay = Replay(log.begin())
            for entry in takewhile(lambda entry: entry.n <= n, log.entries()):
                replay.step(entry.n, entry.event)
                when = entry.event.at
            return replay.state, when

    def decided(self, first: int, last: int) -> Iterator[tuple[Decided, str]]:
        """The decisions on the entries from one number to another, as far as it holds them, each with the uuid of its request.
        Raises as :meth:`at`.
        """
        while first <= last and (held := self._file(first) or self._next(first)) is not None:
            with _opened(held) as log:
                replay = Replay(log.begin())
                for entry in takewhile(lambda entry: entry.n <= last, log.entries()):
                    decided = replay.step(entry.n, entry.event)
                    if entry.n >= first:
                        yield decided, entry.request
            first = held.last + 1

    def until(self, time: float) -> int | None:
        """The number of the last entry that it holds that was taken in at or before a time; None: it holds none."""
        for held in reversed(self.files()):
            with _opened(held) as log:
                before: EntryLine | None = None
                for entry in takewhile(lambda entry: entry.event.at <= time, log.entries()):
                    before = entry
                if before is not None:
                    return before.n
        return None

    def _file(self, n: int) -> Held | None:
        return next((each for each in reversed(self.files()) if each.first - 1 <= n <= each.last), None)

    def _next(self, n: int) -> Held | None:
        """The first file after a gap."""
        return next((each for each in self.files() if each.first > n), None)


@contextlib.contextmanager
def _opened(held: Held) -> Iterator[LogFile]:
    try:
        with gzip.open(held.file, "rb") as source:
            yield LogFile(cast("IO[bytes]", source), str(held.file))
    except (OSError, EOFError, zlib.error) as error:
        raise SardonyxError(
            "SX-LOG-FILE",
            f"{held.file} cannot be read",
            cause=str(error),
            fix="bring the file back from a backup of the archive, or name an entry that another file holds",
            where={"file": held.file},
        ) from error


__all__ = ["Archive", "Held", "write"]
