"""What a book of the log keeps on disk: its entries, whole states, and what went wrong with jobs. It goes with the process."""

from __future__ import annotations

import sqlite3
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import msgspec

from coordinator.core.state import State
from coordinator.core.stored_state import decode_state, encode_state
from coordinator.history.timeline import TimelineEvent
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import AnyEvent
from sardonyx.core.graph import Graph, graph_of
from sardonyx.core.spec import JobSpec

CACHE = 16
"""MiB of the file that are kept in memory."""
AT_ONCE = 256
"""Entries that are written at once."""

GRAPHS = 1_000
"""Graphs of jobs that are remembered."""

Mark = Literal["", "incident", "leader", "user"]
"""What makes an entry stand out on the scale of the log: something went wrong, another coordinator leads, a user asked for it."""

_TABLES = """
create table entry(n integer primary key, line blob, event blob, request text);
create table state(n integer primary key, data blob);
create table request(uuid text primary key, n integer) without rowid;
create table incident(job text, n integer, event blob);
create index incident_of on incident(job, n);
"""


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of the log in a list."""

    n: int
    at: float
    """Seconds since 1970."""
    kind: str
    summary: str
    mark: Mark = ""
    leader: str = ""
    """The coordinator that leads from here on, if it is new, as ``host:pid``."""
    jobs: list[str] = []
    """The jobs that it concerns."""
    peers: list[str] = []
    """The peers that it concerns."""


class Shelf:
    """A temporary SQLite file, which the system deletes. What is put waits in memory until it is read or until there is enough of
    it. If the disk is full, it goes on waiting. Not safe for threads: the book has a lock.
    """

    def __init__(self) -> None:
        # SQLite puts a file without a name into SQLITE_TMPDIR, TMPDIR, /var/tmp or /tmp.
        self._db = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        weakref.finalize(self, self._db.close)
        self._db.execute(f"pragma cache_size = {-CACHE * 1024}")
        self._db.execute("pragma journal_mode = memory")
        self._db.executescript(_TABLES)
        self._graphs = _Graphs()
        self._waiting: dict[str, list[tuple[Any, ...]]] = {}
        self._entries = 0

    # Putting

    def put(self, line: Line, event: AnyEvent, request: str) -> None:
        """Add the next entry."""
        self._later("insert into entry values (?, ?, ?, ?)", (line.n, _pack(line), _pack(event), request))
        self._entries += 1

    def put_request(self, uuid: str, n: int) -> None:
        """Remember by which entry a request was taken in."""
        self._later("insert or ignore into request values (?, ?)", (uuid, n))

    def put_state(self, state: State) -> int:
        """Keep the state as it is now; gives how many bytes that takes."""
        data = zlib.compress(encode_state(state), 1)
        self._later("insert into state values (?, ?)", (state.n, data))
        return len(data)

    def put_incidents(self, job: str, found: Iterable[TimelineEvent]) -> None:
        """Keep what went wrong with a job."""
        for each in found:
            self._later("insert into incident values (?, ?, ?)", (job, each.n, _pack(each)))

    def drop(self, n: int) -> None:
        """Forget everything up to an entry, but the state after it."""
        self._asked("delete from state where n < ?", n)
        self._asked("delete from entry where n <= ?", n)
        self._asked("delete from request where n <= ?", n)
        self._asked("delete from incident where n <= ?", n)

    def full(self) -> bool:
        """Whether enough waits to be written."""
        return self._entries >= AT_ONCE

    def flush(self) -> None:
        """Write what waits.

        Raises:
            SardonyxError: ``SX-WEB-DISK``.
        """
        try:
            if self._waiting:
                self._db.execute("begin")
                for sql, rows in self._waiting.items():
                    self._db.executemany(sql, rows)
                self._db.execute("commit")
                self._waiting.clear()
                self._entries = 0
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("rollback")
            raise _no_disk(error) from error

    # Reading

    def line(self, n: int) -> Line:
        """One entry, which must be there."""
        return next(self.lines(n, n))

    def lines(self, first: int, last: int) -> Iterator[Line]:
        """The entries from ``first`` to ``last``, or backwards."""
        if last >= first:
            found = self._asked("select line from entry where n between ? and ? order by n", first, last)
        else:
            found = self._asked("select line from entry where n between ? and ? order by n desc", last, first)
        for (line,) in found:
            yield _line(line)

    def entries(self, first: int, last: int) -> Iterator[tuple[int, AnyEvent, str]]:
        """The events of the entries from ``first`` to ``last``, and the requests that they came from."""
        rows = self._asked("select n, event, request from entry where n between ? and ? order by n", first, last)
        for n, event, request in rows:
            yield n, _event(event), request

    def of_request(self, uuid: str) -> int | None:
        """The entry by which a request was taken in."""
        found = self._asked("select n from request where uuid = ?", uuid).fetchone()
        return None if found is None else found[0]

    def state(self, n: int) -> State:
        """The last state that was kept at or before an entry; there must be one."""
        found = self._asked("select data from state where n <= ? order by n desc limit 1", n).fetchone()
        return decode_state(zlib.decompress(found[0]), self._graphs.graph)

    def state_before(self, n: int) -> int:
        """The entry after which the last state was kept at or before entry ``n``; there must be one."""
        found: int = self._asked("select max(n) from state where n <= ?", n).fetchone()[0]
        return found

    def incidents(self, job: str, n: int, most: int) -> list[TimelineEvent]:
        """The last that went wrong with a job up to an entry, in order."""
        sql = "select event from incident where job = ? and n <= ? order by n desc, rowid desc limit ?"
        return [_incident(event) for (event,) in self._asked(sql, job, n, most)][::-1]

    # Underneath

    def _later(self, sql: str, row: tuple[Any, ...]) -> None:
        self._waiting.setdefault(sql, []).append(row)

    def _asked(self, sql: str, *values: Any) -> sqlite3.Cursor:
        self.flush()
        try:
            return self._db.execute(sql, values)
        except sqlite3.Error as error:
            raise _no_disk(error) from error


class _Graphs:
    """Remembers the graphs of jobs: they are the same in most states, and take a third of the time that unpacking one takes."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[JobSpec, Graph]] = OrderedDict()

    def graph(self, spec: JobSpec, deployment: str, job: str) -> Graph:
        known = self._known.get(job)
        if known is not None and known[0] == spec:
            self._known.move_to_end(job)
            return known[1]
        made = graph_of(spec, deployment, job)
        self._known[job] = spec, made
        if len(self._known) > GRAPHS:
            self._known.popitem(last=False)
        return made


_pack: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
_line: Callable[[bytes], Line] = msgspec.msgpack.Decoder(Line).decode
_event: Callable[[bytes], AnyEvent] = msgspec.msgpack.Decoder(AnyEvent).decode
_incident: Callable[[bytes], TimelineEvent] = msgspec.msgpack.Decoder(TimelineEvent).decode


def _no_disk(error: sqlite3.Error) -> SardonyxError:
    return SardonyxError(
        "SX-WEB-DISK",
        "the pages cannot write the temporary file in which they keep the log",
        cause=str(error),
        fix="make room on the disk of SQLITE_TMPDIR, TMPDIR or /var/tmp, or name another folder in SQLITE_TMPDIR",
    )
