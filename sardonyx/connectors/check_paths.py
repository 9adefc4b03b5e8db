"""Check the files and directories that a job names, as far as the client's machine shows them, before anything starts."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Container, Iterator
from glob import glob, has_magic
from itertools import islice
from pathlib import Path

from sardonyx.connectors.declarations import paths_of
from sardonyx.core.errors import InputError, JobInvalid, OutputError, SardonyxError
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.core.text import near

_PIECES = 1000
"""Splits of an input that are checked; peers check the others when they read them."""


def check_places(spec: JobSpec, *, leave: Container[str] = ()) -> None:
    """Check a job against the file system.

    Args:
        spec: the job; connectors and options must be valid.
        leave: names of tasks to skip, because their options are not valid.

    Raises:
        JobInvalid: with every problem: ``SX-INPUT-...`` (missing, unreadable, a schema that does not fit the header),
            ``SX-OUTPUT-NOT-EMPTY``, ``SX-OUTPUT-NOT-DIRECTORY``.
    """
    problems: list[SardonyxError] = []
    for task in spec.catalog:
        if task.connector == "files" and task.type != "function" and task.name not in leave:
            problems += _input(task) if task.type == "input" else _output(task)
    if problems:
        raise JobInvalid(problems)


def _input(task: TaskSpec) -> Iterator[SardonyxError]:
    """The errors that a peer would raise when it plans the job, from the same code; a missing file with the nearest name."""
    from sardonyx.connectors.files.byte_ranges import explained
    from sardonyx.connectors.files.input import FilesInput

    missing = []
    try:
        for path in paths_of(task.options):
            with explained(path):
                if not Path(path).exists() and not _matches(path):
                    missing.append(path)
    except InputError as error:
        yield _in_task(task, error)
        return
    for path in missing:
        yield InputError(
            "SX-INPUT-MISSING",
            f"task {task.name!r}: there is no file {path}",
            cause=_how_far(Path(path)),
            fix="correct the path (relative ones are relative to the spec), or put the file there",
            where={"task": task.name, "path": path},
        )
    if missing:
        return
    try:
        deque(islice(FilesInput(task.options).splits(), _PIECES), maxlen=0)
    except InputError as error:
        yield _in_task(task, error)


def _in_task(task: TaskSpec, error: InputError | OutputError) -> SardonyxError:
    """The error with the task that has met it."""
    message, where = f"task {task.name!r}: {error.message}", {"task": task.name, **error.where}
    return type(error)(error.code, message, cause=error.cause, fix=error.fix, where=where)


def _matches(path: str) -> list[str]:
    return glob(path, recursive=True) if has_magic(path) else []  # noqa: PTH207 - the pattern is absolute


def _output(task: TaskSpec) -> Iterator[SardonyxError]:
    """What this user may not look at is left to the peers, which may run as another one."""
    from sardonyx.connectors.files.disk import explained

    path = Path(str(task.options.get("path")))
    where = {"task": task.name, "path": str(path)}
    try:
        with explained(path), contextlib.suppress(PermissionError):
            yield from _output_at(task, path, where)
    except OutputError as error:
        yield _in_task(task, error)


def _output_at(task: TaskSpec, path: Path, where: dict[str, str]) -> Iterator[SardonyxError]:
    parent = next((parent for parent in (path, *path.parents) if parent.exists()), path)
    if not parent.is_dir():
        yield OutputError(
            "SX-OUTPUT-NOT-DIRECTORY",
            f"task {task.name!r}: {parent} is a file, but an output is a directory",
            fix="give another path, or move the file away",
            where=where,
        )
    elif path.is_dir() and task.options.get("mode", "error") == "error":
        there = sorted(
            entry.name for entry in path.iterdir() if not entry.name.startswith(".") and entry.name != "_sardonyx"
        )
        if there:
            yield OutputError(
                "SX-OUTPUT-NOT-EMPTY",
                f"task {task.name!r}: {path} is not empty",
                cause=f"it contains {', '.join(there[:3])}{f' and {len(there) - 3} more' if len(there) > 3 else ''}",
                fix='give mode="append" to add to it, mode="overwrite" to replace it, or another path',
                where=where,
            )


def _how_far(path: Path) -> str:
    """Which part of a path exists, and the nearest name to the part that does not."""
    known = next(parent for parent in path.parents if parent.exists())
    missing = path.relative_to(known).parts[0]
    try:
        beside = [entry.name for entry in islice(known.iterdir(), 1000)] if known.is_dir() else []
    except OSError:
        beside = []
    return f"{known} exists, but does not contain {missing}{near(missing, beside)}"
