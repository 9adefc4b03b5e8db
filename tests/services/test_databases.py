"""A database at both ends of a job, on a real PostgreSQL and on SQLite: exactly once, whichever process dies between the two
commits.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import socket
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from sardonyx.connectors.base import PositionsMoved
from sardonyx.connectors.registry import output, split_input
from sardonyx.connectors.sql.database import Address
from sardonyx.core.errors import SardonyxError, SetupError
from sardonyx.core.positions import Position
from sardonyx.core.spec import TaskSpec
from sardonyx.runtime.settings import Settings
from sardonyx.testing.conformance import ROWS, InputSuite, PositionedOutputSuite
from tests.postgres import PASSWORD_ENV, Postgres, postgres
from tests.services.crew import Crew
from tests.services.secured import Authority
from tests.waiting import until

JOB = """
from sardonyx import Job, generator, sql, connector

def keep(row: dict) -> dict | None:
    return None if row["id"] %% 10 == 0 else {**row, "twice": row["id"] * 2}

job = Job("tables", partitions=6)
rows = job.input("read", %(source)s, batch_size=2000)
kept = job.task("keep", keep, after=rows, batch_size=500)
job.output("write", %(target)s, after=kept, batch_size=200)
"""
OWN = """
import json
import uuid
from pathlib import Path

class Ledger:
    def __init__(self, *, folder, job="", task=""):
        self.folder, self.aside = Path(folder), Path(folder) / f"{job}-{task}"

    def splits(self):
        yield from ({"name": path.name} for path in sorted(self.folder.glob("*.json")))

    def read(self, data):
        return [json.loads(line) for line in (self.folder / data["name"]).read_text().splitlines()]

    def stage(self, table):
        self.aside.mkdir(parents=True, exist_ok=True)
        name = f"{uuid.uuid4().hex}.json"
        (self.aside / name).write_text("".join(json.dumps(row) + chr(10) for row in table.to_pylist()))
        return [name.encode()]

    def publish(self, entries):
        for name in (entry.decode() for entry in entries):
            if (self.aside / name).exists():
                (self.aside / name).rename(self.folder / name)

    def seal(self, entries):
        self.publish(entries)
        for left in self.aside.glob("*"):
            left.unlink()
"""
COUNT = 20_000
KEPT = [number for number in range(COUNT) if number % 10]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[Postgres]:
    with postgres(authority.issue("database", address="127.0.0.1")) as started:
        yield started


class Rows:
    """What stands in a table of PostgreSQL's."""

    def __init__(self, server: Postgres) -> None:
        self._server = server

    def __call__(self, statement: str) -> list[tuple]:
        address = f"host=127.0.0.1 port={self._server.port} user=sx dbname=test"
        with psycopg.connect(address, password=os.environ[PASSWORD_ENV], autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


@pytest.fixture
def rows(server: Postgres) -> Rows:
    return Rows(server)


class Failpoints:
    """A directory of failpoints for the processes of a crew."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def arm(self, point: str, action: str) -> None:
        """The first process to pass that point gets ``kill`` or ``stop``."""
        for old in self.folder.glob(f"{point}.*"):
            old.unlink()
        aside = self.folder / f".{point}"
        aside.write_text(action)
        aside.rename(self.folder / point)

    def struck(self, point: str) -> int:
        """The process that was struck there; 0: none yet."""
        return next((int(path.suffix[1:]) for path in self.folder.glob(f"{point}.*")), 0)


def job_of(folder: Path, source: str, target: str) -> str:
    folder.mkdir()
    (folder / "ledger.py").write_text(OWN)
    (folder / "job.py").write_text(JOB % {"source": source, "target": target})
    return str(folder / "job.py")


@pytest.mark.long
def test_rows_come_once_through_deaths_between_the_commits(
    settings: Settings, server: Postgres, rows: Rows, tmp_path: Path
):
    """PostgreSQL to PostgreSQL: a daemon is killed when the database has a batch and Kafka does not; another is stopped just
    before the database gets its batch, past every timeout, and woken up when all is done. Then to SQLite, once more with a
    death between the commits. Every row stands there once, and the counts say so.
    """
    rows("create table numbers (id bigint, name text, at timestamptz)")
    rows(f"insert into numbers select n, 'n' || n, now() from generate_series(0, {COUNT - 1}) n")  # noqa: S608
    login = f"url={'jdbc:' + server.url!r}, password_env={PASSWORD_ENV!r}"
    failpoints = Failpoints(tmp_path / "failpoints")
    with Crew(settings, tmp_path) as crew:
        crew.coordinator()
        for _ in range(3):
            crew.peers(2, failpoint=str(failpoints.folder))
        failpoints.arm("stored", "kill")
        failpoints.arm("store", "stop")
        source, target = f"sql({login}, table='numbers', split_by='id', splits=10)", f"sql({login}, table='results')"
        handle = crew.client.submit(job_of(tmp_path / "one", source, target))
        crew.until(lambda: failpoints.struck("stored") and failpoints.struck("store"), "both failpoints to be passed")
        view = crew.completed(handle, 300)
        found = "select id, name, twice from results order by id"
        assert rows(found) == [(number, f"n{number}", 2 * number) for number in KEPT]
        sleeper = next(process for process in crew.processes if process.pid == failpoints.struck("store"))
        sleeper.signal(signal.SIGCONT)
        crew.until(lambda: len([peer for peer in crew.client.peers() if peer.pid == sleeper.pid]) == 2, "it to be back")
        assert len(rows(found)) == len(KEPT)
        counted = {task.name: (task.rows_in, task.rows_out) for task in view.tasks}
        assert counted == {"read": (COUNT, COUNT), "keep": (COUNT, len(KEPT)), "write": (len(KEPT), len(KEPT))}
        kept = rows("select sealed is not null, owed from sardonyx_positions where task = 'write'")
        assert kept == [(True, None)] * 6

        failpoints.arm("stored", "kill")
        source = f"generator({COUNT}, columns={{'id': 'sequence', 'n': 'integer'}})"
        target = "sql('sqlite:///out.db', table='results', mode='upsert', key='id')"
        view = crew.completed(crew.client.submit(job_of(tmp_path / "two", source, target)), 300)
        assert failpoints.struck("stored")
        own_connector(crew, tmp_path)
    with closing(sqlite3.connect(tmp_path / "two" / "out.db")) as connection:
        assert connection.execute("select id, twice from results order by id").fetchall() == [(n, 2 * n) for n in KEPT]
    assert view.task("write").rows_in == len(KEPT)


def own_connector(crew: Crew, folder: Path) -> None:
    """A class in a module beside the spec, which peers and Spark's workers only have from the job's code, at both ends."""
    source, target = folder / "from", folder / "to"
    source.mkdir()
    for half in range(2):
        numbers = range(half * 500, half * 500 + 500)
        (source / f"{half}.json").write_text("".join(f'{{"id": {number}}}\n' for number in numbers))
    ends = [f"connector('ledger:Ledger', folder={str(place)!r})" for place in (source, target)]
    crew.completed(crew.client.submit(job_of(folder / "three", *ends)), 300)
    lines = [line for path in target.glob("*.json") for line in path.read_text().splitlines()]
    assert sorted(json.loads(line)["id"] for line in lines) == [number for number in range(1000) if number % 10]


class OnPostgres:
    @pytest.fixture(autouse=True)
    def _server(self, server: Postgres, rows: Rows) -> None:
        self.options = {"url": server.url, "password_env": PASSWORD_ENV}
        self.rows = rows
        rows("drop table if exists conform, sardonyx_positions")


class TestPostgresOutput(OnPostgres, PositionedOutputSuite):
    def make(self):
        task = TaskSpec(name="out", type="output", connector="sql", options={**self.options, "table": "public.conform"})
        return output(task, "job-1")

    def visible(self):
        if self.rows("select to_regclass('conform')") == [(None,)]:
            return []
        return [{"id": number, "text": text} for number, text in self.rows("select id, text from conform")]

    def _raises(self, state: str, trigger: str) -> None:
        """From now on every write of a row gets that error."""
        self.rows(
            "create or replace function raises() returns trigger language plpgsql as "
            f"$$ begin raise exception 'so it is' using errcode = '{state}'; end $$"
        )
        when = "deferrable initially deferred" if "constraint" in trigger else ""
        self.rows(f"create {trigger} raises after insert on conform {when} for each row execute function raises()")

    @pytest.mark.gate
    def test_who_waits_for_a_rival_finds_that_it_was_faster(self):
        """Two do the same batch at once: the second waits for the first one's end, and is refused if that was a commit."""
        self._commit(ROWS[:10], None, 7)
        first, second = self.make(), self.make()
        table = pa.Table.from_pylist(ROWS[10:])
        first.begin(table, {self.here: 7}, {self.here: Position(9)}, None)
        with ThreadPoolExecutor(1) as pool:
            late = pool.submit(second.begin, table, {self.here: 7}, {self.here: Position(9)}, None)
            waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
            until(lambda: self.rows(waits) == [(1,)], what="the second to wait for the first")
            first.commit()
            with pytest.raises(PositionsMoved):
                late.result(180)
        self._sees(ROWS)

    def test_a_connection_that_breaks_is_told_as_such(self):
        """It may be waited for; here nothing was committed, and the same batch goes through on the next connection."""
        table = pa.Table.from_pylist(ROWS)
        output = self.make()
        output.begin(table, {self.here: None}, {self.here: Position(7)}, None)
        self.rows("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'sardonyx'")
        with pytest.raises(SetupError) as error:
            output.commit()
        assert error.value.code == "SX-DATABASE-UNREACHABLE"
        output.reach()
        assert output.positions([self.here]) == {}
        self._commit(ROWS, None, 7)
        self._sees(ROWS)

    def test_a_server_that_vanishes_is_not_waited_for_in_silence(self):
        """The system asks whether it is still there, and gives the connection up after 15 seconds without an answer."""
        with Address.of(self.options).engine().connect() as connection:
            descriptor = connection.connection.driver_connection.pgconn.socket
            with closing(socket.socket(fileno=os.dup(descriptor))) as held:
                assert held.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 15_000
                assert held.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                assert held.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5

    def test_a_deadlock_that_the_database_ended_is_no_failure(self):
        """The batch is dropped, and read and written again."""
        self._commit(ROWS[:1], None, 1)  # makes the table
        self._raises("40P01", "trigger")
        output = self.make()
        with pytest.raises(PositionsMoved):
            output.begin(pa.Table.from_pylist(ROWS[1:]), {self.here: 1}, {self.here: Position(7)}, None)

    @pytest.mark.parametrize(("state", "code"), [("23514", "SX-OUTPUT-DATABASE"), ("53100", "SX-DATABASE-REFUSED")])
    def test_what_only_a_commit_is_told_is_told_as_what_it_is(self, state: str, code: str):
        """A deferred constraint, a full disk: the error does not say that the database is unreachable."""
        self._commit(ROWS[:1], None, 1)
        self._raises(state, "constraint trigger")
        output = self.make()
        output.begin(pa.Table.from_pylist(ROWS[1:]), {self.here: 1}, {self.here: Position(7)}, None)
        with pytest.raises(SardonyxError) as error:
            output.commit()
        assert error.value.code == code
        self._sees(ROWS[:1])

    def test_as_many_as_there_are_peers_may_write_at_a_time(self):
        """None waits for another's connection."""
        with ExitStack() as stack:
            held = [stack.enter_context(Address.of(self.options).engine().connect()) for _ in range(20)]
            self.make().reach()
            assert len(held) == 20


class TestPostgresTable(OnPostgres, InputSuite):
    ordered = False
    split_by = "id"

    def make(self):
        if self.rows("select to_regclass('conform')") == [(None,)]:
            self.rows("create table conform (id int, text text, price numeric(9, 2), at timestamptz, day date)")
            for row in ROWS:
                text = "null" if row["text"] is None else f"'{row['text']}'"
                self.rows(f"insert into conform values ({row['id']}, {text}, {row['id']} / 8.0, 'epoch', 'epoch')")  # noqa: S608
            self.rows("insert into conform select null, 'none', 'NaN', null, null from generate_series(1, 3)")
        options = {
            **self.options,
            "query": "select id, text, at, day from conform",
            "split_by": self.split_by,
            "splits": 6,
        }
        return split_input(TaskSpec(name="in", type="input", connector="sql", options=options))

    def expected(self):
        epoch = dt.datetime.fromtimestamp(0, dt.UTC)
        found = [{**row, "at": epoch, "day": epoch.date()} for row in ROWS]
        return [*found, *[{"id": None, "text": "none", "at": None, "day": None}] * 3]


class TestPostgresTableByText(TestPostgresTable):
    split_by = "text"


class TestPostgresTableByTime(TestPostgresTable):
    split_by = "at"


def test_the_url_says_that_the_servers_certificate_is_checked(
    server: Postgres, rows: Rows, authority: Authority
) -> None:
    """As docs/security.md tells to write it: who signed it, and that it is for this host. Without, nothing is checked."""
    rows("create table guarded (id int); insert into guarded values (7)")
    other = Authority(authority.path.parent, "other")

    def read(url: str) -> list[dict]:
        options = {"url": url, "table": "guarded", "password_env": PASSWORD_ENV}
        source = split_input(TaskSpec(name="read", type="input", connector="sql", options=options))
        return [row for split in source.splits() for row in source.read(split.data).to_pylist()]

    checked = f"{server.url}?sslmode=verify-full&sslrootcert="
    renamed = f"{server.url.replace('127.0.0.1', 'db.example.com')}?hostaddr=127.0.0.1"
    assert read(f"{checked}{authority.path}") == read(server.url) == read(renamed) == [{"id": 7}]
    for url in (f"{checked}{other.path}", f"{renamed}&sslmode=verify-full&sslrootcert={authority.path}"):
        with pytest.raises(SardonyxError, match="certificate") as refused:
            read(url)
        assert refused.value.code == "SX-DATABASE-UNREACHABLE"
