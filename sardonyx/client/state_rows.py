"""Removes the rows that a job which is to be purged has in databases, as the state of its tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from sardonyx.connectors.sql.state import ENTRIES, SHARDS, StateDatabase
from sardonyx.core.errors import Failure, SetupError, failure_of
from sardonyx.core.spec import database_of, decode_spec
from sardonyx.core.stores import SqlStore


def remove_state_rows(spec: bytes, deployment: str, job: str) -> Iterator[Failure]:
    """Remove the state of all tasks of a job from their databases. Only this process's user and environment are at hand.

    Yields:
        ``SX-WARN-STATE-ROWS`` for each task whose rows stay, with the reason, and what to run in the database.
    """
    try:
        tasks = decode_spec(spec).catalog
    except msgspec.DecodeError as error:
        yield _stays(f"state of job {job} may stay in a database", error, {"deployment": deployment, "job": job})
        return
    for task in tasks:
        store = database_of(task)
        if store is None:
            continue
        try:
            require_here(store)
            StateDatabase(store, deployment, job, task.name).remove()
        except Exception as error:  # noqa: BLE001 - whatever it is, the job can be purged all the same
            place = {"deployment": deployment, "job": job, "task": task.name}
            yield _stays(
                f"the state of task {task.name!r} of job {job} stays in its database: {store.url}", error, place
            )


def _stays(message: str, error: Exception, place: dict[str, str]) -> Failure:
    rows = " and ".join(f"{column} = '{value}'" for column, value in place.items())  # names hold no quotes
    return Failure(
        "SX-WARN-STATE-ROWS",
        message,
        cause=failure_of(error).message,
        fix=f"run there: delete from {SHARDS} where {rows}; delete from {ENTRIES} where {rows};",  # noqa: S608 - for a person
        where=place,
    )


def require_here(store: SqlStore) -> None:
    """Raise an error if a database is a file that this machine lacks: SQLite would make it.

    Raises:
        SetupError: ``SX-DATABASE-UNREACHABLE``.
    """
    url = store.url.removeprefix("jdbc:")
    path = url.removeprefix("sqlite:///")
    if url.startswith("sqlite") and not Path(path).exists():
        raise SetupError("SX-DATABASE-UNREACHABLE", f"there is no file {path} on this machine")
