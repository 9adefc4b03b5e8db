"""A new version of a task is tried on rows that lie on the task's links, beside the version that runs."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from peer.allowed import open_code
from peer.topic_rows import Formats, read_topic
from queues import block
from queues.batch import Batch
from sardonyx.client.ids import job_gone
from sardonyx.client.links import facts_of, links_stand
from sardonyx.client.views import laid_out
from sardonyx.connectors.records import rows_at, to_records
from sardonyx.core import node_paths
from sardonyx.core.column_types import together
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Link, Stage
from sardonyx.core.notes import JobNote
from sardonyx.core.positions import Partition, Position
from sardonyx.core.spec import JobSpec, decode_spec, stateful
from sardonyx.core.text import listed
from sardonyx.core.trial import Comparison, Difference, Outcome, Row, TaskTrial, compare_records, compare_tables
from sardonyx.runtime.secret_values import resolved
from sardonyx.runtime.settings_sections import PeerSettings, SparkSettings
from sardonyx.state.look import json_form
from spark_tasks.code import CodeBundle
from spark_tasks.trial import Tried, try_functions

if TYPE_CHECKING:
    from sardonyx.client.client import Client
    from sardonyx.client.job_handle import JobHandle
    from sardonyx.job import builder
    from sardonyx.job.load import LoadedJob
    from spark_tasks.session import SparkSession


def try_task(
    client: Client,
    handle: JobHandle,
    task: str,
    job: builder.Job | LoadedJob | str | os.PathLike[str],
    rows: int,
    most: int,
) -> TaskTrial:
    """What :meth:`sardonyx.client.job_handle.JobHandle.try_task` does."""
    loaded = client.loaded(job)
    spec, facts = _running(client, handle.id)
    old, new = (resolved(_stage(client, handle.id, each, task)) for each in (spec, loaded.spec))
    _refuse(handle.id, task, old, new)
    client.settings.require("kafka")
    given, unread = _rows(client, old, facts, rows)
    if not given.num_rows:
        raise SardonyxError(
            "SX-TRY-EMPTY",
            f"no row that task {task} can be tried on lies on {listed(sorted(link.name for link in old.ingress))}",
            cause=f"the {unread} records there cannot be decoded"
            if unread
            else "no row has come, or all were processed and deleted",
            fix=f'wait for rows, or let them stay for a while (`sardonyx link keep {handle.id} "1 h"`)',
            where={"job": handle.id, "task": task},
        )
    zipped = None if spec.code is None else client.zk.read(node_paths.code(spec.code))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sardonyx-try-")))
        spark: list[SparkSession] = []

        def session() -> SparkSession:
            if not spark:
                spark.append(stack.enter_context(_session()))
            return spark[0]

        peer = client.settings.peer
        before, took = _timed(old, _code(zipped, spec, folder, peer), given, session)
        after, takes = _timed(new, _code(loaded.code, loaded.spec, folder, PeerSettings()), given, session)
    found = _compared(given, before, after, most)
    return TaskTrial(
        job=handle.id,
        task=task,
        functions=[each.name for each in new.functions],
        rows=given.num_rows,
        unread=unread,
        types=_types(before.table, after.table),
        seconds=(took, takes),
        **{name: getattr(found, name) for name in Comparison.__struct_fields__},
    )


def _running(client: Client, job: str) -> tuple[JobSpec, Mapping[str, LinkFacts]]:
    """The job as it is now, with the facts of its links. A change gives it another spec, so none that is known is used."""
    status, spec = (client.zk.read(path(job)) for path in (node_paths.job_status, node_paths.job_spec))
    facts = facts_of(client.zk, job)
    note = None if status is None else msgspec.json.decode(status, type=JobNote)
    if note is None and client.is_gone(job):
        raise job_gone(job)
    if not links_stand(note) or spec is None or facts is None:
        raise SardonyxError(
            "SX-TRY-GONE",
            f"no task of job {job} can be tried",
            cause=f"the job is {'submitted' if note is None else note.status}, so it has no links with rows",
            fix="try it while the job runs or is suspended; `sardonyx.testing.run_job` runs a job on rows of a test",
            where={"job": job},
        )
    return decode_spec(spec), facts


def _stage(client: Client, job: str, spec: JobSpec, task: str) -> Stage:
    """The stage that runs a task: by itself, or fused to the one before it."""
    stages = laid_out(spec, client.settings.deployment, job).stages
    for stage in stages:
        if task in (stage.name, *(each.name for each in stage.fused)):
            return stage
    bound = any(each.name == task for each in spec.catalog)
    raise _unfit(
        job,
        task,
        "no peer runs it: its topic is a link in place" if bound else f"job {spec.name} has no such task",
        f"name one of {listed(sorted(stage.name for stage in stages))}",
    )


def _refuse(job: str, task: str, old: Stage, new: Stage) -> None:
    """Refuse what cannot be tried.

    Raises:
        SardonyxError: ``SX-TRY-TASK``.
    """
    stages = (old, new)
    functions = [each for stage in stages for each in stage.functions]
    if any(stateful(stage.task) for stage in stages):
        cause = "it keeps a state, and what it gives depends on all rows before these"
        fix = (
            "try it in a test (`sardonyx_clocked`), or change the job: one that fails is suspended and keeps its state"
        )
    elif any(link.kind == "splits" for link in old.ingress):
        cause = "no rows lie on its link: it reads them itself, in pieces"
        fix = "try a task after it"
    elif any(each.lifecycle is not None for stage in stages for each in (stage.task, *stage.fused)):
        cause = "it has a lifecycle, whose hooks may do anything outside"
        fix = "try it in a test (`sardonyx.testing.run_job`)"
    elif not functions:
        cause = "it has no function"
        fix = "name a task with a function"
    elif old.name != new.name or {link.name for link in old.ingress} != {link.name for link in new.ingress}:
        cause = "in the new version it reads other links"
        fix = "give it the same tasks before it, or test it by itself"
    else:
        return
    raise _unfit(job, task, cause, fix)


def _unfit(job: str, task: str, cause: str, fix: str) -> SardonyxError:
    where = {"job": job, "task": task}
    return SardonyxError("SX-TRY-TASK", f"task {task} cannot be tried", cause=cause, fix=fix, where=where)


def _rows(client: Client, stage: Stage, facts: Mapping[str, LinkFacts], rows: int) -> tuple[pa.Table, int]:
    """The last rows on the links of a task, evenly from all partitions, and how many records cannot be decoded."""
    from queues.recent import recent

    settings = client.settings
    share = -(-rows // sum(facts[link.name].partitions for link in stage.ingress))
    formats = Formats(settings.kafka.registry)
    tables, unread = list[pa.Table](), 0
    for link in stage.ingress:
        for place, messages in recent(settings, link, facts[link.name], share).items():
            if not messages:
                continue
            table, bad = _decoded(link, place, messages, formats)
            tables.append(table.slice(max(0, table.num_rows - share)))
            unread += bad
    # pyarrow takes a slice of a table without columns for one of as many rows as were asked for.
    return (together(tables).slice(0, rows) if any(map(len, tables)) else pa.table({})), unread


def _decoded(link: Link, place: Partition, messages: Sequence[Any], formats: Formats) -> tuple[pa.Table, int]:
    if link.kind == "internal":
        return together([block.decode([message.value()]) for message in messages]), 0
    batch = Batch(
        {link.name: list(messages)},
        positions={place: Position(messages[-1].offset() + 1)},
        spans={link.name: [(place, len(messages))]},
    )
    read = read_topic(link, messages, formats, batch, time.time())
    return read.table, len(read.unread)


def _code(zipped: bytes | None, spec: JobSpec, folder: Path, peer: PeerSettings) -> CodeBundle | None:
    """The modules of a version. Those of the job in the deployment must be signed if the settings here name ``peer.signers``."""
    return None if zipped is None or spec.code is None else open_code(peer, zipped, spec.code, folder)


@contextlib.contextmanager
def _session() -> Iterator[SparkSession]:
    """A session of this process: the active one, or one that ends with the trial."""
    from spark_tasks.session import SparkSession, start_session, stop_session

    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    started = start_session(SparkSettings())
    try:
        yield started
    finally:
        stop_session(started)


def _timed(stage: Stage, code: CodeBundle | None, rows: pa.Table, session: Any) -> tuple[Tried, float]:
    began = time.perf_counter()
    return try_functions(stage, code, rows, session), time.perf_counter() - began


def _compared(given: pa.Table, old: Tried, new: Tried, most: int) -> Comparison:
    if old.by_record is not None and new.by_record is not None:
        records = to_records(given)
        found = compare_records(records, _outcomes(old, old.by_record), _outcomes(new, new.by_record), most)
    else:
        raising = sorted({*old.failed, *new.failed})
        records = to_records(rows_at(given, raising)) if raising else []
        failed = [
            (record, old.failed.get(index), new.failed.get(index))
            for index, record in zip(raising, records, strict=True)
        ]
        found = compare_tables(to_records(old.table), to_records(new.table), most, failed)
    found.differences = [_shown(each) for each in found.differences]
    return found


def _outcomes(tried: Tried, by_record: Sequence[pa.Table]) -> list[Outcome]:
    return [Outcome(to_records(table), tried.failed.get(index)) for index, table in enumerate(by_record)]


def _shown(difference: Difference) -> Difference:
    """The difference with its rows in a form that JSON can hold."""

    def row(found: Row | None) -> Row | None:
        return None if found is None else json_form(found)

    return msgspec.structs.replace(
        difference, given=row(difference.given), before=row(difference.before), after=row(difference.after)
    )


def _types(old: pa.Table, new: pa.Table) -> dict[str, tuple[str | None, str | None]]:
    """By column that differs, its types. What gave no row has no columns to compare, and one of nothing but nulls has no type."""
    if not old.num_columns or not new.num_columns:
        return {}
    before, after = ({field.name: str(field.type) for field in table.schema} for table in (old, new))
    return {
        name: (before.get(name), after.get(name))
        for name in {**before, **after}
        if before.get(name) != after.get(name) and "null" not in (before.get(name), after.get(name))
    }
