"""Removes the rows that a purged job had in databases, as the state of its tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sardonyx.connectors.sql.state import ENTRIES, SHARDS, StateDatabase
from sardonyx.core.errors import Failure, SardonyxError, SetupError
from sardonyx.core.spec import JobSpec, database_of
from sardonyx.core.stores import SqlStore


def remove_state_rows(spec: JobSpec, deployment: str, job: str) -> Iterator[Failure]:
    """Remove the state of all tasks of a job from their databases. Only this process's user and environment are at hand.

    Yields:
        ``SX-WARN-STATE-ROWS`` for each task whose rows stay, with the reason, and what to run in the database.
    """
    for task in spec.catalog:
        store = database_of(task)
        if store is None:
            continue
        try:
            _require_here(store)
            StateDatabase(store, deployment, job, task.name).remove()
        except SardonyxError as error:
            rows = f"where deployment = '{deployment}' and job = '{job}' and task = '{task.name}'"
            yield Failure(
                "SX-WARN-STATE-ROWS",
                f"the state of task {task.name!r} of the purged job {job} stays in its database: {store.url}",
                cause=error.message,
                fix=f"run there: delete from {ENTRIES} {rows}; delete from {SHARDS} {rows};",  # noqa: S608 - for a person
                where={"job": job, "task": task.name},
            )


def _require_here(store: SqlStore) -> None:
    """SQLite would make a file that is missing."""
    path = store.url.removeprefix("jdbc:").removeprefix("sqlite:///")
    if store.url.removeprefix("jdbc:").startswith("sqlite") and not Path(path).exists():
        raise SetupError("SX-DATABASE-UNREACHABLE", f"there is no file {path} on this machine")
