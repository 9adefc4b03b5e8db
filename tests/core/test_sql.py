"""Databases as connectors, on SQLite: what is refused, and with which error. See also test_connector_conformance.py."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing, nullcontext
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from sardonyx.connectors import declarations, json_text
from sardonyx.connectors.declarations import Connector, console, kafka, sql
from sardonyx.connectors.registry import output, split_input
from sardonyx.connectors.sql import database, narrow
from sardonyx.connectors.sql.database import Address
from sardonyx.connectors.sql.transaction import HeldTransaction
from sardonyx.core.errors import FunctionError, InputError, OutputError, SardonyxError, SetupError
from sardonyx.core.positions import Partition, Position
from sardonyx.core.spec import TaskSpec

HERE = Partition("link", 0)
Run = Callable[[str], list]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db"


@pytest.fixture
def run(path: Path) -> Run:
    def one(statement: str) -> list:
        with closing(sqlite3.connect(path)) as connection, connection:
            return connection.execute(statement).fetchall()

    return one


def source(path: Path, **options):
    return split_input(
        TaskSpec(name="in", type="input", connector="sql", options={"url": f"sqlite:///{path}", **options})
    )


def everything(path: Path, **options) -> pa.Table:
    connector = source(path, **options)
    return pa.concat_tables(connector.read(split.data) for split in connector.splits())


def write(path: Path, table: pa.Table, **more) -> None:
    options = {"url": f"sqlite:///{path}", "table": "t", **more}
    task = TaskSpec(name="out", type="output", connector="sql", options=options)
    made = output(task, "job-1")
    made.begin(table, {HERE: None}, {HERE: Position(1)}, None)
    made.commit()


class Copying:
    """A connection to PostgreSQL that keeps the statements with which rows are copied, as the driver sends them."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.connection = self.driver_connection = self
        self.Error, self.closed = psycopg.Error, False

    def cursor(self):
        return nullcontext(self)

    def copy(self, statement):
        self.sent.append(statement.as_string(None))
        return nullcontext(self)

    def write(self, data: bytes) -> None:
        assert data


def test_names_reach_postgresql_as_they_are():
    """A percent sign means something to the driver, and a quote to the database."""
    options = {"url": "postgresql://h/d", "table": "shop.100%"}
    made = output(TaskSpec(name="out", type="output", connector="sql", options=options), "job-1")
    connection = Copying()
    made._copy(connection, pa.table({"discount %": [1], "%(x)s": [1], 'q"': [1]}))
    assert connection.sent == ['COPY "shop"."100%" ("discount %", "%(x)s", "q""") FROM STDIN (FORMAT csv)']


def refused(kind: type[SardonyxError], call: Callable[[], object]) -> SardonyxError:
    with pytest.raises(kind) as error:
        call()
    return error.value


def test_what_is_written_is_read_back(path: Path):
    """Into a table that is made for it, in types that keep every value; without a schema given."""
    moment = datetime(2026, 1, 31, 8, 30, 0, 5, UTC)
    table = pa.table(
        {
            "id": pa.array([1, None, -(2**63)]),
            "share": pa.array([0.1, None, -1e300]),
            "text": pa.array(["a'b\"c", None, ""]),
            "good": pa.array([True, None, False]),
            "data": pa.array([b"\x00\xff", None, b""]),
            "day": pa.array([date(2026, 1, 31), None, date(1, 1, 1)]),
            "at": pa.array([moment, None, moment], pa.timestamp("us", "UTC")),
            "price": pa.array([Decimal("12.50"), None, Decimal("-0.01")], pa.decimal128(9, 2)),
            "odd name": pa.array([1, 2, 3], pa.int64()),
        }
    )
    write(path, table)
    assert everything(path, table="t").equals(table)
    assert everything(path, query="select day, price from t", schema="price decimal(9,2), day date").equals(
        table.select(["price", "day"])
    )


def test_what_is_nested_is_written_as_json(path: Path, run: Run):
    """Lists, structs and maps as texts that any reader of JSON takes."""
    write(path, pa.table({"x": [[1, None]], "y": [{"a": Decimal("1.5")}]}))
    assert run("select x, y from t") == [("[1,null]", '{"a":"1.5"}')]


def test_a_table_that_changed_is_found_out(path: Path, run: Run):
    """Rows that came or went since the job began fail it, rather than be read in part."""
    run("create table t (id int)")
    run("insert into t values (1), (2), (3)")
    connector = source(path, table="t", split_by="id", splits=2)
    first, second = list(connector.splits())
    run("insert into t values (9)")
    assert connector.read(first.data).num_rows == 2
    assert refused(InputError, lambda: connector.read(second.data)).code == "SX-INPUT-CHANGED"


def test_equal_keys_are_never_torn_apart(path: Path, run: Run):
    """However many pieces are asked for; an empty table has none."""
    run("create table t (id int)")
    assert list(source(path, table="t", split_by="id").splits()) == []
    run("insert into t values (1), (1), (1), (1), (2)")
    assert [split.rows for split in source(path, table="t", split_by="id", splits=5).splits()] == [4, 1]


def test_what_a_database_refuses_is_told_in_its_words(path: Path, run: Run):
    """Tables, columns and types that are not there, and values that are not what they should be."""
    run("create table t (id int, b blob, p geometry)")
    run("insert into t values (1, x'00', 'here')")

    def code(**options) -> str:
        return refused(InputError, lambda: everything(path, **options)).code

    assert code(table="nowhere", schema="id int") == "SX-INPUT-DATABASE"
    assert code(query="selec 1", schema="id int") == "SX-INPUT-DATABASE"
    assert code(table="t", schema="other int") == "SX-INPUT-DATABASE"
    assert code(table="t") == "SX-INPUT-SCHEMA"
    assert code(query="select * from t") == "SX-INPUT-SCHEMA"
    assert code(table="t", schema="p int") == "SX-INPUT-TYPE"
    assert code(query="select 0.5 id", schema="id bigint") == "SX-INPUT-TYPE"
    assert code(query="select 1577836800 id", schema="id timestamp") == "SX-INPUT-TYPE"
    assert code(query="select cast(x'ff' as text) id", schema="id string") == "SX-INPUT-TYPE"
    run("insert into t values (1, x'01', 'here')")
    assert code(table="t", schema="id int", split_by="b", splits=2) == "SX-INPUT-SPLIT"
    error = refused(OutputError, lambda: write(path, pa.table({"id": [1], "more": [2]})))
    assert error.code == "SX-OUTPUT-DATABASE"
    assert "more" in error.message


def test_sqlite_does_not_round_decimals_in_a_table_of_the_users(path: Path, run: Run):
    """In a column declared as a number it would make floats of them. A text keeps all digits."""
    run("create table t (price decimal(38,0), text text)")
    table = pa.table({"price": pa.array([Decimal(2**63)], pa.decimal128(38, 0))})
    error = refused(OutputError, lambda: write(path, table))
    assert (error.code, error.message.split(",")[0]) == ("SX-OUTPUT-TYPE", "column 'price' holds '9223372036854775808'")
    write(path, table.rename_columns(["text"]))
    assert run("select * from t") == [(None, "9223372036854775808")]


@pytest.mark.parametrize(
    ("declared", "value", "kept"),
    [
        ("integer", "007", None),
        ("integer", "7", 7),
        ("real", "12.50", 12.5),
        ("numeric", "1e3", None),
        ("numeric", "+49", None),
        ("numeric", "9223372036854775808", None),
        ("real", "0.12345678901234567", None),
        ("date", "2026-01-01", "2026-01-01"),
        ("text", "007", "007"),
        ("", "007", "007"),
        ("text", 0.1 + 0.2, None),
        ("varchar(9)", 0.5, "0.5"),
        ("real", 0.1 + 0.2, 0.1 + 0.2),
    ],
)
def test_a_column_of_the_users_keeps_a_value_or_refuses_it(declared: str, value: Any, kept: Any, path: Path, run: Run):
    """SQLite makes numbers of texts, and texts of numbers, by how a column is declared."""
    run(f"create table t (id int primary key, V {declared})")
    table = pa.table({"id": [1], "v": [value]})
    if kept is None:
        error = refused(OutputError, lambda: write(path, table, mode="upsert", key=["id"]))
        assert (error.code, error.where["column"]) == ("SX-OUTPUT-TYPE", "v")
        assert repr(value) in error.message
    else:
        write(path, table, mode="upsert", key=["id"])
        assert run("select v from t") == [(kept,)]


AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("declared", "values", "first"),
    [
        (sa.Numeric(5, 2), [Decimal("1.50"), Decimal("1.23")], None),
        (sa.Numeric(5, 1), [Decimal("1.50"), Decimal("1.23")], "1.23"),
        (sa.Numeric(5), [Decimal("2.00"), Decimal("1.50")], "1.50"),
        (sa.Numeric(), [Decimal("1.234")], None),
        (sa.Numeric(5, 2), [1.234], None),
        (sa.Integer(), [None, 1.0, 1.5], "1.5"),
        (sa.BigInteger(), [1e20, 1e-7], "1e-"),
        (sa.SmallInteger(), [Decimal("1.5")], "1.5"),
        (sa.Date(), [AT, AT.replace(hour=5)], "2026-01-01T05:00:00"),
        (sa.Date(), [AT.date()], None),
        (
            postgresql.TIMESTAMP(timezone=True, precision=3),
            [AT.replace(microsecond=1000), AT.replace(microsecond=1)],
            ".000001",
        ),
        (postgresql.TIMESTAMP(timezone=True), [AT.replace(microsecond=1)], None),
        (postgresql.TIME(precision=0), [time(1), time(1, 2, 3, 500_000)], "01:02:03.5"),
        (sa.Text(), [1.5], None),
    ],
)
def test_what_postgresql_would_round_is_refused(declared: Any, values: list[Any], first: str | None):
    """By the first such value. Doubles are rounded to the digits of a numeric column; whole numbers have no fraction."""
    column = pa.chunked_array([values])
    written = column if pa.types.is_floating(column.type) else json_text.column_texts(column, "v")
    check = partial(narrow.refuse_rounded, column, written, "v", declared.compile(postgresql.dialect()))
    if first is None:
        check()
    else:
        error = refused(OutputError, check)
        assert (error.code, error.where, first in error.message) == ("SX-OUTPUT-TYPE", {"column": "v"}, True)


def test_a_row_that_is_refused_leaves_nothing(path: Path, run: Run):
    """Neither the rows before it nor the position."""
    run("create table t (id int primary key)")
    assert refused(OutputError, lambda: write(path, pa.table({"id": [1, 2, 1]}))).code == "SX-OUTPUT-DATABASE"
    assert run("select * from t") == []
    assert run("select * from sardonyx_positions") == []


def test_rows_with_keys_are_written_in_the_order_of_their_keys(path: Path, run: Run):
    """So that two peers never wait for each other in a circle. Of rows with one key the last of the batch stands."""
    run("create table t (k int, at text, v int, primary key (k, at))")
    table = pa.table({"v": [1, 2, 3, 4], "k": [9, 1, 9, 1], "at": ["b", "z", "b", "a"]})
    write(path, table, mode="upsert", key=["k", "at"])
    assert run("select k, at, v from t order by rowid") == [(1, "a", 4), (1, "z", 2), (9, "b", 3)]


def test_who_cannot_be_reached_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder that is not there, a server that does not answer, a password that is not set."""
    away = source(tmp_path / "none" / "db", table="t", schema="id int")
    assert refused(SetupError, lambda: list(away.splits())).code == "SX-DATABASE-UNREACHABLE"

    def server(**options):
        found = {"url": "jdbc:postgresql://127.0.0.1:9/test", "table": "t", "schema": "id int", "user": "me", **options}
        return split_input(TaskSpec(name="in", type="input", connector="sql", options=found))

    assert refused(SetupError, lambda: list(server().splits())).code == "SX-DATABASE-UNREACHABLE"
    unset = "SX_NOT_SET"
    monkeypatch.delenv(unset, raising=False)
    assert refused(SetupError, lambda: list(server(password_env=unset).splits())).code == "SX-DATABASE-PASSWORD"
    monkeypatch.setenv(f"{unset}_FILE", str(tmp_path / "password"))
    missing = refused(SetupError, lambda: list(server(password_env=unset).splits()))
    assert (missing.code, "SX_NOT_SET_FILE cannot be read" in missing.cause) == ("SX-DATABASE-PASSWORD", True)


def test_a_password_may_stand_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As a secret of Docker does: the variable with ``_FILE`` names it. One that is set itself goes first."""
    (tmp_path / "password").write_text("hush\n")
    monkeypatch.setenv("SX_IN_A_FILE_FILE", str(tmp_path / "password"))
    given = Address("postgresql://h/db", "me", "SX_IN_A_FILE").engine().url
    assert given.render_as_string(hide_password=False).startswith("postgresql+psycopg://me:hush@h/")
    monkeypatch.setenv("SX_IN_A_FILE", "set")
    given = Address("postgresql://h/other", "me", "SX_IN_A_FILE").engine().url
    assert given.render_as_string(hide_password=False).startswith("postgresql+psycopg://me:set@h/")


# --- as declared ------------------------------------------------------------------------------------------------------


def told(connector: Connector, use: str = "input") -> str:
    return "\n".join(str(problem) for problem in declarations.problems_of(connector.name, use, connector.options))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret@host/db",
        "jdbc:postgresql://host/db?user=me&password=s3cret",
        "postgresql://host/db?sslpassword=s3cret",
    ],
)
def test_a_password_in_a_url_is_refused_and_not_shown(url: str):
    """It would stand in ZooKeeper, and in whatever shows the job."""
    problems = told(sql(url, table="t"))
    assert "password_env" in problems
    assert "s3cret" not in problems


@pytest.mark.parametrize(
    ("connector", "use", "word"),
    [
        (sql("mysql://host/db", table="t"), "input", "PostgreSQL"),
        (sql("sqlite://", table="t"), "input", "file"),
        (sql("sqlite:////db"), "input", "a table or a query"),
        (sql("sqlite:////db", table="t", query="q"), "input", "a table or a query"),
        (sql("sqlite:////db", table="t", splits=3), "input", "split_by"),
        (sql("sqlite:////db", table="t", mode="upsert"), "output", "belong together"),
        (sql("sqlite:////db", table="t", key="id"), "output", "belong together"),
        (sql("sqlite:////db", table="t", password_env="my secret"), "input", "name of an environment variable"),  # noqa: S106
        (console(rows=0), "output", "at least 1"),
        (console(), "input", "cannot be an input"),
    ],
)
def test_options_that_do_not_fit_are_told(connector: Connector, use: str, word: str):
    """Each with what to do."""
    assert word in told(connector, use)


def test_options_that_fit_are_fine():
    """As users write them: one key as a text, a path relative to the spec."""
    login = {"user": "me", "password_env": "PW"}
    assert told(sql("jdbc:postgresql://host:5432/db", table="s.t", split_by="id", splits=3, **login)) == ""
    upsert = sql("sqlite:///out/x.db", table="t", mode="upsert", key="id")
    assert told(upsert, "output") == ""
    assert upsert.options["key"] == ["id"]
    assert declarations.absolute("sql", upsert.options, Path("/jobs"))["url"] == "sqlite:////jobs/out/x.db"
    assert declarations.absolute("sql", {"url": "sqlite:////abs/x.db"}, Path("/jobs"))["url"] == "sqlite:////abs/x.db"


def test_formats_of_a_registry_have_options_of_their_own():
    """Others do not know them; and an address with a password is refused, and not shown."""
    both = {"format": "avro", "registry": "http://registry:8081"}
    assert told(kafka("t", start="earliest", schema="id int", **both)) == ""
    assert told(kafka("t", subject="record", register=False, value_schema="{}", **both), "output") == ""
    assert "has no registry" in told(kafka("t", start="earliest", format="json", registry="http://registry:8081"))
    assert "has no value_schema" in told(kafka("t", value_schema="{}", format="protobuf"), "output")
    problems = told(kafka("t", start="earliest", format="avro", registry="https://me:s3cret@registry"))
    assert "kafka.schema_registry" in problems
    assert "s3cret" not in problems


# --- one's own, and the console ---------------------------------------------------------------------------------------


class Halved:
    def splits(self):
        return []


class Raising:
    def __init__(self, *, loud=False):
        self.loud = loud

    def splits(self):
        yield {}
        raise KeyError("gone")

    def read(self, data):
        raise OSError("disk on fire")


def test_a_class_that_is_no_connector_is_told():
    """What it lacks, by name; and what it is given that it does not take."""

    def made(name: str, kind: str = "input", **options):
        task = TaskSpec(name="x", type=kind, connector=f"{__name__}:{name}", options=options)
        return split_input(task) if kind == "input" else output(task, "job-1")

    error = refused(FunctionError, lambda: made("Halved"))
    assert (error.code, "read" in error.cause) == ("SX-CONNECTOR-CLASS", True)
    assert refused(FunctionError, lambda: made("Raising", "output")).code == "SX-CONNECTOR-CLASS"
    error = refused(FunctionError, lambda: made("Raising", folder="x"))
    assert (error.code, "folder" in error.message) == ("SX-CONNECTOR-RAISED", True)
    error = refused(FunctionError, lambda: made("Raising").read({}))
    assert "disk on fire" in error.traceback
    assert refused(FunctionError, lambda: list(made("Raising").splits())).code == "SX-CONNECTOR-RAISED"


def test_the_console_shows_the_first_rows(capsys: pytest.CaptureFixture[str]):
    """An object a line, behind the task's name, and how many more there were."""
    task = TaskSpec(name="look", type="output", connector="console", options={"rows": 2})
    assert output(task, "job-1").stage(pa.table({"id": [1, 2, 3]})) == []
    assert capsys.readouterr().out == 'look: {"id":1}\nlook: {"id":2}\nlook: {"more":1}\n'


def test_a_broken_connection_does_not_hide_why_a_transaction_is_given_up(path: Path):
    """A rollback that fails, since the server has ended the session, is no error: the database has rolled back by itself."""
    held = HeldTransaction(Address(f"sqlite:///{path}"))

    def write(connection: sa.Connection) -> None:
        connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS t (a)")
        connection.exec_driver_sql("INSERT INTO t VALUES (1)")
        opened.append(connection)

    def broken(connection: sa.Connection) -> None:
        write(connection)
        opened[-1].connection.driver_connection.close()
        raise ValueError("the first cause")

    opened: list[Any] = []
    held.begin(write)
    opened[-1].connection.driver_connection.close()
    held.abandon()
    with pytest.raises(ValueError, match="the first cause"):
        held.begin(broken)
    held.begin(write)
    opened[-1].connection.driver_connection.close()
    with pytest.raises(sa.exc.ProgrammingError):
        held.commit()
    held.begin(write)
    held.commit()
    assert everything(path, table="t", schema="a bigint").num_rows == 1


def test_a_replica_is_waited_for(path: Path):
    """During a failover an address may lead to a server that only reads yet. An input only reads, so there it is an error."""
    address = Address(f"sqlite:///{path}")

    def code(kind: type[SardonyxError]) -> str:
        error = psycopg.errors.ReadOnlySqlTransaction("cannot execute INSERT in a read-only transaction")
        with pytest.raises(SardonyxError) as caught, database.explained(address, kind, "SX-OUTPUT-DATABASE", "write"):
            raise sa.exc.DBAPIError.instance("INSERT", {}, error, psycopg.Error)
        return caught.value.code

    assert (code(OutputError), code(InputError)) == ("SX-DATABASE-REFUSED", "SX-OUTPUT-DATABASE")


def test_what_only_other_rights_would_mend_is_not_waited_for(path, run):
    """A wrong password, a name that does not exist, a database that may only be read: not one that is away for a while."""
    address = database.Address(f"sqlite:///{path}")

    def code(raised: Callable[[], object]) -> str:
        with (
            pytest.raises(SetupError) as caught,
            database.explained(address, OutputError, "SX-OUTPUT-DATABASE", "write"),
        ):
            raised()
        return caught.value.code

    def told(error: Exception, statement: str | None) -> Callable[[], object]:
        def run() -> None:
            raise sa.exc.DBAPIError.instance(statement, {}, error, psycopg.Error)

        return run

    run("CREATE TABLE t (a)")

    def read_only() -> None:
        with closing(sa.create_engine(address.url).connect()) as connection:
            connection.exec_driver_sql("PRAGMA query_only = 1")
            connection.exec_driver_sql("INSERT INTO t VALUES (1)")

    denied = [
        read_only,
        told(psycopg.errors.InvalidPassword("no"), "SELECT 1"),
        told(psycopg.errors.InvalidCatalogName("no"), "SELECT 1"),
        told(psycopg.OperationalError('FATAL:  password authentication failed for user "x"'), None),
        told(psycopg.OperationalError('FATAL:  database "x" does not exist'), None),
    ]
    assert {code(each) for each in denied} == {"SX-DATABASE-DENIED"}
    away = [
        told(psycopg.OperationalError("connection refused"), None),
        told(psycopg.OperationalError("FATAL:  sorry, too many clients already"), None),
    ]
    assert {code(each) for each in away} == {"SX-DATABASE-UNREACHABLE"}
    unheld = told(psycopg.DataError("date too large (after year 10K): 'infinity'"), None)
    with pytest.raises(OutputError), database.explained(address, OutputError, "SX-OUTPUT-DATABASE", "write"):
        unheld()
