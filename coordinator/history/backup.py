"""A deployment as one file, from which it can be restored: all that ZooKeeper holds of it and that cannot be made again.

The file holds JSON lines, compressed with gzip: a header; the first state, if the log does not begin at its first entry; the
entries up to entry ``n``; code, claims on dead letters and votes on sentinels; and an end line with the number of lines and
the hash of all before it. Unlike an export (:mod:`coordinator.history.export`) it holds secrets, since the jobs need them.

It may be taken while the deployment runs. State and nodes of jobs and peers follow from the log, so all of it is of one
moment: the end of entry ``n``. The nodes that no log holds are read after that entry. A vote never changes. Code never
changes. A claim that is newer than ``n`` says that letters were taken, which is true.

Not in it: requests that no coordinator has logged yet, pulses, and places in the election.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import os
import time
import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO

import msgspec

from coordinator.core.decide import decide
from coordinator.core.state import State, new_state
from coordinator.core.stored_state import decode_state, encode_state
from coordinator.history import reader
from coordinator.history.export import BaseLine
from coordinator.history.replay import missing_entry
from coordinator.loop import event_log
from coordinator.loop.event_log import Entry
from sardonyx.core import node_paths
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import FORMAT, OLDEST, OLDEST_RULES, RULES
from sardonyx.core.notes import EpochNote
from sardonyx.zookeeper.session import ZooKeeperSession

BACKUP_FORMAT = 1
"""Version of the file itself. What it quotes has the version of the log."""

_MODE = 0o600


class BackupHeader(msgspec.Struct, frozen=True, tag="backup", tag_field="line"):
    """The first line."""

    format: int
    log_format: int
    deployment: str
    first: int
    """The first entry that it holds."""
    n: int
    """The last one."""
    at: float
    """When it was taken, seconds since 1970."""
    version: str
    """Of Sardonyx."""
    epoch: int
    epoch_version: int
    """How often ``/epoch`` had been set."""
    rules: int = 0
    """The rules by which its first entry was decided."""


class LoggedLine(msgspec.Struct, frozen=True, omit_defaults=True, tag="entry", tag_field="line"):
    n: int
    entry: Entry


class StoredLine(msgspec.Struct, frozen=True, tag="node", tag_field="line"):
    path: str
    data: str
    """In base64."""


class DigestLine(msgspec.Struct, frozen=True, tag="end", tag_field="line"):
    lines: int
    sha256: str


_lines: msgspec.json.Decoder[BaseLine | LoggedLine | StoredLine | DigestLine] = msgspec.json.Decoder(
    BaseLine | LoggedLine | StoredLine | DigestLine
)
_headers = msgspec.json.Decoder(BackupHeader)


# Writing


def write(zk: ZooKeeperSession, file: Path, version: str) -> BackupHeader:
    """Write a backup. Only its owner can read the file, and a file of that name is always whole.

    Args:
        zk: the deployment.
        file: its name.
        version: of Sardonyx, for the header.

    Raises:
        SardonyxError: ``SX-RESTORE-UNFINISHED``; ``SX-BACKUP-EMPTY``, there is no log; ``SX-BACKUP-FILE``, the file cannot be
            written; ``SX-LOG-FORMAT``.
    """
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        while True:
            try:
                with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _MODE), "wb") as out:
                    header = _write(zk, out, version)
                    out.flush()
                    os.fsync(out.fileno())
                break
            except SardonyxError as error:
                if error.code not in ("SX-LOG-COMPACTED", "SX-LOG-RANGE"):  # the log was compacted while it was read
                    raise
        part.replace(file)
    except OSError as error:
        raise SardonyxError(
            "SX-BACKUP-FILE", f"{file} cannot be written", cause=str(error), fix="name a file on a disk with room"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    return header


def _write(zk: ZooKeeperSession, out: IO[bytes], version: str) -> BackupHeader:
    digest, count = hashlib.sha256(), 0
    with gzip.GzipFile(fileobj=out, mode="wb", filename="", mtime=0) as packed:
        header, lines = _lines_of(zk, version)
        for line in chain([header], lines):
            data = msgspec.json.encode(line, order="deterministic") + b"\n"
            digest.update(data)
            count += 1
            packed.write(data)
        packed.write(msgspec.json.encode(DigestLine(count, digest.hexdigest())) + b"\n")
    return header


def _lines_of(zk: ZooKeeperSession, version: str) -> tuple[BackupHeader, Iterator[BaseLine | LoggedLine | StoredLine]]:
    zk.sync()
    deployment = zk.root.rpartition("/")[2]
    if zk.read(node_paths.RESTORE) is not None:
        raise event_log.restore_unfinished(deployment)
    first, n = reader.kept(zk)
    if n < event_log.FIRST:
        raise SardonyxError(
            "SX-BACKUP-EMPTY",
            f"deployment {deployment} has no log, so there is nothing to back up",
            cause="nothing has happened in this deployment yet",
            fix="check the deployment (--deployment); a coordinator must have led it",
        )
    data, epoch_version = zk.read_version(node_paths.EPOCH) or (b"", 0)
    epoch = msgspec.json.decode(data, type=EpochNote).epoch if data else 0
    rules = event_log.first_rules(zk) or RULES
    state = reader.at(zk, first - 1) if first > event_log.FIRST else new_state(deployment, rules)
    header = BackupHeader(
        BACKUP_FORMAT, FORMAT, deployment, first, n, time.time(), version, epoch, epoch_version, state.rules
    )
    return header, _body_of(zk, state, first, n)


def _body_of(zk: ZooKeeperSession, state: State, first: int, n: int) -> Iterator[BaseLine | LoggedLine | StoredLine]:
    if first > event_log.FIRST:
        yield BaseLine(msgspec.Raw(encode_state(state)))
    for number, entry in event_log.read_entries(zk, first):
        if number > n:
            break
        if number != state.n + 1:  # a compaction removed the entry before this read
            raise event_log.compacted(state.n + 1, event_log.begins(zk))
        decide(state, number, entry.event)
        yield LoggedLine(number, entry)
    yield from _stored(zk, state)


def _stored(zk: ZooKeeperSession, state: State) -> Iterator[StoredLine]:
    """The nodes that do not follow from the log, of the jobs in a state."""
    code = {node_paths.code(job.spec.code) for job in state.jobs.values() if job.spec.code is not None}
    redo = [node_paths.redo(name, task) for name, job in state.jobs.items() for task in job.tasks]
    votes = [
        f"{path}/{link}"
        for path, links in zk.children_of(map(node_paths.sentinels, state.plans)).items()
        for link in links
    ]
    for path, data in sorted(zk.read_many([*sorted(code), *redo, *votes]).items()):
        yield StoredLine(path, base64.b64encode(data).decode())


# Reading


class BackupFile:
    """A backup that was read to its end once, and found whole.

    Args:
        file: its name.

    Raises:
        SardonyxError: ``SX-BACKUP-FILE``: damaged, cut short, or not a backup. ``SX-LOG-FORMAT``: of another version.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._number = 0
        self.nodes: dict[str, bytes] = {}
        """Code, claims and votes, by path."""
        self.base: bytes | None = None
        """The state before the first entry, encoded; None if the log begins at its first entry."""
        self.header = self._read_header()
        self.state = self._check()
        """The state after the last entry. Do not change it."""

    def entries(self) -> Iterator[tuple[int, Entry]]:
        """The entries, in order; read again each time."""
        for line in self._body():
            if isinstance(line, LoggedLine):
                yield line.n, line.entry

    def _check(self) -> State:
        header = self.header
        if header.first > event_log.FIRST:
            base = next(self._body(), None)
            if not isinstance(base, BaseLine):
                raise self._damaged("the state before the first entry is missing")
            self.base = bytes(base.state)
        state = new_state(header.deployment, header.rules) if self.base is None else decode_state(self.base)
        for line in self._body():
            if isinstance(line, LoggedLine):
                if line.n != state.n + 1:
                    raise missing_entry(state.n + 1)
                decide(state, line.n, line.entry.event)
            elif isinstance(line, StoredLine):
                self.nodes[line.path] = base64.b64decode(line.data)
        if state.n != header.n:
            raise self._damaged(f"it ends at entry {state.n}, and should at entry {header.n}")
        return state

    def _read_header(self) -> BackupHeader:
        data = next(self._raw(), b"")
        try:
            header = _headers.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._damaged(str(error)) from None
        known = OLDEST <= header.log_format <= FORMAT and header.rules >= OLDEST_RULES
        if header.format != BACKUP_FORMAT or not known:
            raise SardonyxError(
                "SX-LOG-FORMAT",
                f"{self._file} has format {header.format} with a log of format {header.log_format} and rules {header.rules}, and "
                f"this version of Sardonyx restores format {BACKUP_FORMAT} with a log of formats {OLDEST} to {FORMAT} and rules "
                f"from {OLDEST_RULES} on",
                cause=f"Sardonyx {header.version} made it",
                fix="restore it with that version",
            )
        return header

    def _body(self) -> Iterator[BaseLine | LoggedLine | StoredLine]:
        """The lines after the header. Raises ``SX-BACKUP-FILE`` at the end, if they are not those that were written."""
        raw = self._raw()
        digest = hashlib.sha256(next(raw, b""))
        for count, data in enumerate(raw, 1):
            try:
                line = _lines.decode(data)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise self._damaged(str(error)) from None
            if isinstance(line, DigestLine):
                if (line.lines, line.sha256) != (count, digest.hexdigest()):
                    raise self._damaged("its digest is not that of its lines")
                return
            digest.update(data)
            yield line
        raise self._damaged("its end is missing")

    def _raw(self) -> Iterator[bytes]:
        self._number = 0
        try:
            with gzip.open(self._file, "rb") as source:
                for data in source:
                    self._number += 1
                    yield data
        except (OSError, EOFError, zlib.error) as error:
            raise self._damaged(str(error)) from None

    def _damaged(self, why: str) -> SardonyxError:
        return SardonyxError(
            "SX-BACKUP-FILE",
            f"{self._file} cannot be restored: it is missing, damaged, or not a backup (line {self._number})",
            cause=why,
            fix="take another file that `sardonyx backup FILE` wrote, as it was written",
            where={"file": str(self._file), "line": self._number},
        )
