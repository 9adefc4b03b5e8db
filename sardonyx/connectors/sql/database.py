"""Databases: how to connect to them, which of our types their types become, and what their errors mean.

SQLAlchemy is only imported when a job names a database (``sardonyx[sql]``). PostgreSQL and SQLite are supported and
tested.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from sardonyx.core.errors import OutputError, SardonyxError, SetupError

if TYPE_CHECKING:
    import sqlalchemy as sa

_PATIENCE = 30
"""Seconds that a statement waits for a lock."""
_IDLE = 5
"""Seconds that a transaction may do nothing before PostgreSQL ends it.

A stopped peer holds up the peer that takes over for this long.
"""
_REACHED_WITHIN = 10
"""Seconds that connecting may take."""
_SILENCE = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 5,
    "tcp_user_timeout": 15_000,
}
"""With these settings, we notice within 15 seconds that a PostgreSQL server has silently vanished.

Without them, that takes hours. The units are libpq's.
"""

_READS_ONLY = "25006"
"""What PostgreSQL calls a write to a server that only reads, such as a replica that a failover has not made the primary yet."""


class Address(msgspec.Struct, frozen=True):
    """A database and the user who logs in. It is plain data without the password, which is read where it is needed."""

    url: str
    user: str | None = None
    password_env: str | None = None

    @classmethod
    def of(cls, options: dict[str, Any]) -> Address:
        """Take the address from a connector's options."""
        return cls(str(options["url"]).removeprefix("jdbc:"), options.get("user"), options.get("password_env"))

    @property
    def is_sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    def engine(self) -> sa.Engine:
        """Return the one pool of connections to this database that the process has.

        The pool grows to as many connections as are in use at a time: each writer holds its own while it writes.

        Raises:
            SetupError: ``SX-DATABASE-DRIVER`` if the database driver is not installed here; ``SX-DATABASE-PASSWORD`` if
                the variable is not set here.
        """
        return _engine(self, os.getpid())  # a forked process must not share our connections


@functools.lru_cache(maxsize=16)
def _engine(address: Address, _pid: int) -> sa.Engine:
    try:
        import sqlalchemy as sa
        from sqlalchemy.engine import make_url

        if not address.is_sqlite:
            import psycopg  # noqa: F401 - imported here, so that a missing driver gives our error
    except ImportError as error:
        raise SetupError(
            "SX-DATABASE-DRIVER",
            "the database driver is not installed on this machine",
            cause=str(error),
            fix="install it where peers and Spark workers run: pip install 'sardonyx[sql]'",
        ) from error
    url = make_url(re.sub(r"^postgres(ql)?(?=:)", "postgresql+psycopg", address.url))
    if address.is_sqlite:
        return sa.create_engine(url, poolclass=sa.QueuePool, max_overflow=-1, connect_args={"timeout": _PATIENCE})
    if address.user is not None:
        url = url.set(username=address.user)
    if address.password_env is not None:
        url = url.set(password=_password(address.password_env))
    # In UTC no moment of the years 1 to 9999 becomes one that Python does not have.
    session = {"lock_timeout": f"{_PATIENCE}s", "idle_in_transaction_session_timeout": f"{_IDLE}s", "TimeZone": "UTC"}
    options = " ".join(f"-c {name}={value}" for name, value in session.items())
    arguments = {"connect_timeout": _REACHED_WITHIN, "application_name": "sardonyx", "options": options, **_SILENCE}
    return sa.create_engine(
        url, pool_pre_ping=True, max_overflow=-1, connect_args=arguments, json_deserializer=_json_as_it_is
    )


def _json_as_it_is(text: bytes | str) -> str:
    """JSON is read as text, so that its numbers keep all their digits."""
    return text if isinstance(text, str) else text.decode()


def _password(variable: str) -> str:
    """What the variable holds; or the file that ``VARIABLE_FILE`` names, as settings do, without a newline at its end."""
    try:
        found = os.environ.get(variable)
        return Path(os.environ[f"{variable}_FILE"]).read_text("utf-8").removesuffix("\n") if found is None else found
    except (KeyError, OSError, ValueError) as error:
        unread = "" if isinstance(error, KeyError) else f"{variable}_FILE cannot be read: {error}; "
        raise SetupError(
            "SX-DATABASE-PASSWORD",
            f"the environment variable {variable} for the database's password is not set",
            cause=f"{unread}every peer that runs the task reads it, and so do Spark workers",
            fix=f"set it where peers and Spark workers are started, or {variable}_FILE to the path of a file with the password",
            where={"variable": variable},
        ) from None


@contextmanager
def explained(address: Address, kind: type[SardonyxError], code: str, what: str) -> Iterator[None]:
    """Turn a database's errors into ours. Errors about the rows or the statement become ``kind`` with ``code``.

    Raises:
        SetupError: ``SX-DATABASE-UNREACHABLE`` if the database does not answer or the connection was lost; the caller
            must then ask again whether a transaction was committed. ``SX-DATABASE-REFUSED`` if the database cannot do
            it now, because of a lock, its disk or its limits, or because it is a replica. ``SX-DATABASE-DENIED`` if it
            does not let the user do it.
    """
    import sqlalchemy as sa

    where = {"database": address.url}
    try:
        yield
    except sa.exc.DBAPIError as error:
        told = str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else type(error.orig).__name__
        if _is_denied(error):
            raise SetupError(
                "SX-DATABASE-DENIED",
                f"the database does not let this user {what}: {told}",
                fix="correct the user, the password, the name of the database or its rights",
                where=where,
            ) from error
        if _is_away(error):
            raise SetupError(
                "SX-DATABASE-UNREACHABLE",
                f"the database cannot be reached: {told}",
                fix="check its address, and whether it runs",
                where=where,
            ) from error
        if kind is OutputError and _state(error) == _READS_ONLY:
            # An address that leads to another server by now, and not the connections that we hold, may lead to one that writes.
            address.engine().dispose()
            raise SetupError(
                "SX-DATABASE-REFUSED",
                f"the database could not {what}: {told}",
                fix="check whether the address leads to a replica, as during a failover; the batch was not written, and is tried "
                "again",
                where=where,
            ) from error
        if isinstance(error, sa.exc.OperationalError) and not (_is_about_names(error) or is_about_a_value(error)):
            raise SetupError(
                "SX-DATABASE-REFUSED",
                f"the database could not {what}: {told}",
                fix="check whether it is locked, full or at its limits; the batch was not written, and is tried again",
                where=where,
            ) from error
        raise kind(
            code, f"the database did not {what}: {told}", fix="correct the job or the table", where=where
        ) from error
    except sa.exc.SQLAlchemyError as error:
        raise kind(
            code, f"the database did not {what}: {error}", fix="correct the job or the table", where=where
        ) from error


def _state(error: sa.exc.DBAPIError) -> str:
    """The database's own name for the error; empty if the database did not send it."""
    return str(getattr(error.orig, "sqlstate", None) or getattr(error.orig, "sqlite_errorname", None) or "")


def _is_denied(error: sa.exc.DBAPIError) -> bool:
    """Whether it will be the same until the user, the password, the database's name or its rights are changed."""
    if state := _state(error):
        return state.startswith(("28", "3D", "SQLITE_READONLY"))
    # From connecting to PostgreSQL comes only the server's text.
    return error.statement is None and bool(re.search(r"authentication failed|does not exist", str(error.orig)))


def is_about_a_value(error: sa.exc.DBAPIError) -> bool:
    """Whether the driver cannot make Python's value of a value that the database has: a date after the year 9999, say."""
    import sqlalchemy as sa

    told_by_driver = isinstance(error, sa.exc.DataError) and not _state(error)
    return told_by_driver or "Could not decode" in str(error.orig)  # the latter from sqlite3


def _is_away(error: sa.exc.DBAPIError) -> bool:
    """Whether there is no connection: connecting failed, the connection broke, or the server ended it."""
    if error.connection_invalidated:
        return True
    if is_about_a_value(error):
        return False
    state = _state(error)
    if not state:  # the database did not send this error; it came from connecting, unless a statement was running
        return error.statement is None
    return state.startswith(("08", "57P")) or state == "SQLITE_CANTOPEN"


def lost_to_rival(error: SetupError) -> bool:
    """Whether an error of :func:`explained` only means that the database preferred another transaction.

    That is a deadlock or a serialisation failure. The same transaction may succeed if it is tried again at once.
    """
    return getattr(getattr(error.__cause__, "orig", None), "sqlstate", None) in {"40P01", "40001"}


def _is_about_names(error: sa.exc.OperationalError) -> bool:
    """Whether a name or the syntax is wrong. SQLite reports a missing table or column as an operational error."""
    return bool(re.search(r"no such (table|column)|has no column|syntax error|ON CONFLICT clause", str(error.orig)))


def create_table(engine: sa.Engine, table: sa.Table) -> None:
    """Create a table that others may be creating at the same moment."""
    import sqlalchemy as sa

    try:
        table.create(engine, checkfirst=True)
    except sa.exc.DBAPIError:
        if not sa.inspect(engine).has_table(table.name, schema=table.schema):
            raise


def place(name: str) -> tuple[str | None, str]:
    """Split ``schema.table`` into its two parts. A schema of None means the database's own default."""
    schema, dot, table = name.rpartition(".")
    return (schema, table) if dot else (None, name)


# --- Types ----------------------------------------------------------------------------------------------------------

_POSTGRES = {
    "bool": "boolean",
    "int2": "smallint",
    "int4": "int",
    "int8": "bigint",
    "float4": "float",
    "float8": "double",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "bytea": "binary",
    "text": "string",
    "varchar": "string",
    "bpchar": "string",
    "name": "string",
    "uuid": "string",
    "json": "string",
    "jsonb": "string",
}
"""PostgreSQL's types -> Spark's. We also know numeric with a precision, and arrays of these types."""

_SQLITE = (
    (r"BOOL", "boolean"),
    (r"INT", "bigint"),
    (r"CHAR|CLOB|TEXT|JSON", "string"),
    (r"BLOB", "binary"),
    (r"REAL|FLOA|DOUB", "double"),
    (r"TIMESTAMP|DATETIME", "timestamp"),
    (r"DATE", "date"),
)
"""A pattern in the name of a declared SQLite type -> Spark's type. The first match counts."""


SQLITE_DIGITS, SQLITE_WHOLE = 15, 18
"""Digits that SQLite keeps of a decimal, and of a whole one, in a column that is declared as a number."""


def of_postgres(name: str, precision: int | None, scale: int | None) -> str | None:
    """Return Spark's name for a PostgreSQL type, or None if we know none."""
    if name == "numeric":
        return f"decimal({precision},{scale or 0})" if precision and precision <= 38 else None
    return _POSTGRES.get(name)


def of_sqlite(declared: str) -> str | None:
    """Return Spark's name for the declared type of an SQLite column, or None if we know none."""
    name = declared.upper()
    if found := re.fullmatch(r"(?:DECIMAL|NUMERIC)(?:_TEXT)?\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", name):
        return f"decimal({found[1]},{found[2] or 0})" if int(found[1]) <= 38 else None
    return next((kind for pattern, kind in _SQLITE if re.search(pattern, name)), None)


def _text_of_digits(precision: int, scale: int) -> Any:
    """A type by whose name SQLite keeps decimals as texts."""
    from sqlalchemy.types import UserDefinedType

    class TextOfDigits(UserDefinedType[Any]):
        cache_ok = True

        def get_col_spec(self, **_: Any) -> str:
            return f"DECIMAL_TEXT({precision}, {scale})"

    return TextOfDigits()


def to_sql(kind: pa.DataType) -> Any:
    """Return the SQLAlchemy type for a new column that holds values of an Arrow type. Nested values become JSON."""
    import sqlalchemy as sa

    if pa.types.is_decimal(kind):
        number = sa.Numeric(kind.precision, kind.scale)
        if kind.precision <= (SQLITE_DIGITS if kind.scale else SQLITE_WHOLE):
            return number
        return number.with_variant(_text_of_digits(kind.precision, kind.scale), "sqlite")
    if pa.types.is_timestamp(kind):
        return sa.DateTime(timezone=kind.tz is not None)
    if pa.types.is_nested(kind):
        return sa.JSON()
    fixed = {
        pa.bool_(): sa.Boolean(),
        pa.int8(): sa.SmallInteger(),
        pa.int16(): sa.SmallInteger(),
        pa.uint8(): sa.SmallInteger(),
        pa.int32(): sa.Integer(),
        pa.uint16(): sa.Integer(),
        pa.int64(): sa.BigInteger(),
        pa.uint32(): sa.BigInteger(),
        pa.float16(): sa.REAL(),
        pa.float32(): sa.REAL(),
        pa.float64(): sa.Double(),
        pa.date32(): sa.Date(),
        pa.binary(): sa.LargeBinary(),
        pa.large_binary(): sa.LargeBinary(),
    }
    return fixed.get(kind, sa.Text())
