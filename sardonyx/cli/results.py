"""What a job has made: where each output lies, how much it is, and the first few rows of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sardonyx.cli.tables import number, plain
from sardonyx.core.errors import SardonyxError
from sardonyx.core.text import shorten

if TYPE_CHECKING:
    from rich.console import Console

    from sardonyx.client.views import JobView
    from sardonyx.core.spec import JobSpec, TaskSpec
    from sardonyx.runtime.settings import Settings

FEW = 3
"""Rows of an output that are shown."""
WIDE = 10
"""Columns of it that are shown."""


class OutputView(msgspec.Struct, omit_defaults=True):
    """One output of a job."""

    task: str
    connector: str
    where: str = ""
    """The path or the topic."""
    rows: int | None = None
    files: int | None = None
    first: list[Any] = []
    """A few rows: dicts from files, texts from a topic."""
    note: str = ""
    """Why there are no rows to be seen."""


def look_at(settings: Settings, spec: JobSpec, view: JobView) -> list[OutputView]:
    """Every output as it is now. What cannot be read is not raised; ``note`` says why."""
    found = []
    for task in spec.catalog:
        if task.type != "output":
            continue
        output = OutputView(task.name, task.connector or "", rows=view.task(task.name).rows_out)
        if output.rows is None or (task.connector != "kafka" and not output.rows):
            output.rows = view.task(task.name).rows_in
        if task.connector == "files":
            _look_at_files(task, output)
        elif task.connector == "kafka":
            output.where = str(task.options["topic"])
            if output.rows:
                _look_at_topic(settings, output)
        elif task.connector == "sql":
            output.where = str(task.options["table"])
        found.append(output)
    return found


def data_files(path: Path) -> list[Path]:
    """The files that hold rows, in order; names that begin with ``_`` or ``.`` are left out."""
    if not path.is_dir():
        return []
    return sorted(
        file
        for file in path.rglob("*")
        if file.is_file() and not any(part.startswith(("_", ".")) for part in file.relative_to(path).parts)
    )


def _look_at_files(task: TaskSpec, output: OutputView) -> None:
    path = Path(str(task.options["path"]))
    files = data_files(path)
    output.where, output.files = str(path), len(files)
    if files:
        try:
            output.first = first_rows(files, task.options)
        except Exception as error:  # noqa: BLE001 - a look must not turn a job that succeeded into one that did not
            output.note = f"cannot be shown: {error}"


def first_rows(files: Sequence[Path], options: dict[str, Any]) -> list[dict[str, Any]]:
    """The first few rows of these files of one format."""
    from queues.shown_values import records
    from sardonyx.connectors.files.written import rows_in

    return records(rows_in([str(file) for file in files], options).head(FEW))


def _look_at_topic(settings: Settings, output: OutputView) -> None:
    from queues.topics import peek

    try:
        output.first = peek(settings, output.where, FEW)
    except SardonyxError as error:
        output.note = f"cannot be shown: {error.message}"


def show(console: Console, outputs: Sequence[OutputView], *, vanishes: bool) -> None:
    """The results as tables.

    Args:
        console: where to.
        outputs: as :func:`look_at` gives them.
        vanishes: whether topics end with the embedded Kafka.
    """
    table = plain("output", "where", "files", "rows")
    for output in outputs:
        place = f"{output.connector} {output.where}".strip()
        table.add_row(
            output.task, place, number(output.files) if output.connector == "files" else "", number(output.rows)
        )
    console.print()
    console.print(table)
    for output in outputs:
        if output.note:
            console.print(f"\n{output.task}: {output.note}", markup=False)
        if output.first:
            console.print(f"\n{output.task}, a few of them:", markup=False)
            _show_rows(console, output.first)
    topics = [output.where for output in outputs if output.connector == "kafka"]
    if vanishes and topics:
        console.print(
            f"\n{', '.join(topics)}: in the embedded Kafka, which is removed now; keep it with --data DIR", markup=False
        )


def _show_rows(console: Console, rows: Sequence[Any]) -> None:
    if not isinstance(rows[0], dict):
        for row in rows:
            console.print(f"  {shorten(row, 200, ellipsis='…')}", markup=False)
        return
    columns = list(rows[0])[:WIDE]
    table = plain(*columns)
    for row in rows:
        table.add_row(*(shorten(str(row[column]), 40, ellipsis="…").replace("[", r"\[") for column in columns))
    console.print(table)
    if len(rows[0]) > WIDE:
        console.print(f"  and {len(rows[0]) - WIDE} more columns", markup=False)
