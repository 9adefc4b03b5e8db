"""What a task of a running job keeps: read from its state log in Kafka, as of what is committed. What it keeps in a database can
be counted.
"""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from peer.operators import Asked, Stores, WindowOperator
from queues.key_values import key_readings
from queues.keys import canonical
from queues.messages import Logged
from queues.shown_values import records
from sardonyx.client.checkpoints import moment, refuse_unknown
from sardonyx.client.links import links_stand
from sardonyx.client.state_rows import require_here
from sardonyx.client.views import laid_out
from sardonyx.connectors.base import PositionsMoved
from sardonyx.connectors.sql.state import StateDatabase
from sardonyx.core.clocks import END, NEVER
from sardonyx.core.errors import FunctionError, InputError, SardonyxError, SetupError
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Link, Stage
from sardonyx.core.notes import JobNote
from sardonyx.core.positions import Partition, Position
from sardonyx.core.spec import JobSpec, database_of, stateful, whole_of
from sardonyx.core.stores import SqlStore
from sardonyx.core.text import listed
from sardonyx.core.timing import WINDOW_NUMBER
from sardonyx.core.units import seconds
from sardonyx.state.adopted import AdoptedState
from sardonyx.state.columns import ROWS
from sardonyx.state.entry_keys import OPEN_END
from sardonyx.state.log import LogState
from sardonyx.state.look import KeyState, Live, keyed_states
from sardonyx.state.memory import MemoryStore
from sardonyx.state.messages import Mark, about
from sardonyx.state.resharding import share_of
from sardonyx.state.restore import Restore
from sardonyx.state.undo import as_entries

if TYPE_CHECKING:
    from peer.state_keeper import StateTopic
    from sardonyx.runtime.settings import Settings

_AGAIN = 5
"""So often positions are asked for again if the log was trimmed while it was read."""
_HIDDEN = ("pane", "final", "window_time")
"""Columns of results that mean nothing of windows that are open."""
_ALL = 2**31 - 1


class AtTime(NamedTuple):
    """The time of a checkpoint, and how far they are apart, in microseconds."""

    time: int
    every: int


StateRow = KeyState | dict[str, Any]
"""What is kept of one key; or the result that one open window would have if it closed now."""


class Held(NamedTuple):
    """How much a part of a task's state holds."""

    keys: int = 0
    """Keys of keyed state."""
    windows: int = 0
    """Open windows, each key's by itself."""
    rows: int = 0
    """Rows in these. One that is in several windows may count in each."""


class _Shard(NamedTuple):
    """What a task keeps of one partition's keys."""

    number: int
    stores: Stores
    clock: int


class TaskState(NamedTuple):
    """What a task keeps. The log is read while one of the methods is gone through, once."""

    stage: Stage
    wanted: Collection[bytes] | None
    """The canonical bytes of the keys that are asked for; None: all."""
    shards: Iterator[_Shard]

    def rows(self) -> Iterator[StateRow]:
        """Each key of keyed state; each open window, or each row that one keeps for its function."""
        task = self.stage.task
        for shard in self.shards:
            keyed = shard.stores.get("keyed")
            if keyed is not None and task.keyed is not None:
                ttl = {name: round(seconds(length) * 1_000_000) for name, length in task.keyed.ttl.items()}
                yield from keyed_states(keyed, self.wanted, Live(ttl, shard.clock))
            if task.window is not None:
                for row in records(_open_windows(self.stage, shard)):
                    if self.wanted is None or _key_of(self.stage, row) in self.wanted:
                        yield row

    def held(self) -> Iterator[Held]:
        """Count what the task keeps, part by part. The sum is all of it."""
        task = self.stage.task
        if task.window is None:
            yield from (Held(keys=1) for _ in self.rows())
            return
        for shard in self.shards:
            results, kept = _open_windows(self.stage, shard), shard.stores.get("windows")
            if not task.window.aggregate:  # a result is a row
                window = [*(task.group_by if isinstance(task.group_by, list) else ()), "window_start", WINDOW_NUMBER]
                names = [name for name in results.column_names if name in window]
                yield Held(windows=len({repr(row) for row in records(results.select(names))}), rows=results.num_rows)
            elif kept is not None:
                rows = pc.sum(kept.scan(b"", OPEN_END)[ROWS]).as_py() or 0
                yield Held(windows=results.num_rows, rows=rows)


def task_state(
    settings: Settings,
    job: str,
    spec: JobSpec,
    note: Callable[[], JobNote | None],
    task: str,
    key: Sequence[object] | None = None,
    at: datetime | str | None = None,
    facts: Callable[[], Mapping[str, LinkFacts]] = dict,
    *,
    counts: bool = False,
) -> TaskState:
    """Return what a task keeps: of keyed state the states and timers of each key, of windows what each open one holds.

    Each partition is read as of one commit, and no two partitions as of the same one. It is read from the log whole, which takes
    about a second for each 500,000 entries. What is asked for is checked at once, and the log is read when rows are taken.

    Args:
        settings: of the deployment.
        job: the job's id.
        spec: the job as data.
        note: asks for its status.
        task: the name of the task.
        key: a list or tuple of the values of one key; None: all keys. A text is read as all that it may mean.
        at: the time of a checkpoint: what it kept then; None: what it keeps now.
        facts: asks for the facts of the job's links.
        counts: whether it is only counted. Then a state in a database is read too, from there.

    Raises:
        SardonyxError: ``SX-STATE-NONE``: the task keeps no state that can be read here; ``SX-STATE-GONE``: its job does not run;
            or ends meanwhile; ``SX-STATE-KEY``: these values are not a key of it; ``SX-CHECKPOINT-UNKNOWN``: it has no checkpoint
            at this time.
        SetupError: ``SX-CONFIG-MISSING``, ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    graph = laid_out(spec, settings.deployment, job)
    stage = next((stage for stage in graph.stages if stage.name == task), None)
    link = _readable(spec, task, stage, counts=counts)

    def check() -> None:
        now = note()
        if not links_stand(now):
            raise _gone(task, f"job {job} is {now.status if now is not None else 'not taken in yet'}")

    check()
    assert stage is not None  # noqa: S101 (for the type checker: `_readable` raises)
    wanted = None if key is None else _keys(stage, key)
    time = None if at is None else AtTime(moment(at), graph.checkpoint_every or 0)
    settings.require("kafka")
    from queues import admin
    from queues.state_topics import StateTopic

    def positions() -> Mapping[Partition, Position | None]:
        return admin.held_positions(settings, [stage], job)[task]

    if link is None:
        return counted_in_database(stage, settings.deployment, job, positions, check)
    topic = StateTopic(settings, link)
    known = facts()
    begun = known.get(link.name)
    adopts = None
    if begun is not None and begun.adopts is not None:
        share = share_of(stage.task, begun.partitions) if begun.reshards else None
        log = StateTopic(settings, msgspec.structs.replace(link, topic=begun.adopts.topic))
        adopts = AdoptedState(begun.adopts, log, share)
    return state_of(stage, link, topic, positions, check, wanted, time, adopts)


def nothing_kept(task: str, key: Sequence[str]) -> SardonyxError:
    """The error for a key that nothing is kept of. It says what the key was read as."""
    tried = [f"{text!r} was read as {listed(key_readings(text).values())}" for text in key]
    return SardonyxError(
        "SX-STATE-EMPTY",
        f"task {task} keeps nothing of this key" if key else f"task {task} keeps nothing yet",
        cause="; ".join(tried) or "no batch with state is committed",
        fix="`sardonyx state export` prints all keys; a state that has expired and a window that has closed are not among them",
    )


def state_of(
    stage: Stage,
    link: Link,
    topic: StateTopic,
    positions: Callable[[], Mapping[Partition, Position | None]],
    check: Callable[[], None],
    wanted: Collection[bytes] | None = None,
    at: AtTime | None = None,
    adopts: AdoptedState | None = None,
) -> TaskState:
    """Return the state of a task, given its log and how to ask for its positions.

    Args:
        stage: the task.
        link: that of its state log.
        topic: the log.
        positions: asks for the committed positions of the task, stable.
        check: raises if the job does not run any more. Then the positions may be any, as its group and its topics are deleted.
        wanted: the canonical bytes of the keys that are wanted; None: all.
        at: of which checkpoint; None: the state as it is.
        adopts: what it began with, if its job goes on from a checkpoint.
    """
    return TaskState(stage, wanted, _shards(stage, link, topic, positions, check, wanted, at, adopts))


def _shards(
    stage: Stage,
    link: Link,
    topic: StateTopic,
    positions: Callable[[], Mapping[Partition, Position | None]],
    check: Callable[[], None],
    wanted: Collection[bytes] | None,
    at: AtTime | None,
    adopts: AdoptedState | None,
) -> Iterator[_Shard]:
    """Read the shards that hold the wanted keys. See :func:`state_of`."""
    found = _asked(stage, positions, check)
    first = stage.ingress[0].topic
    if at is not None:
        refuse_unknown(stage, found, *at)
    numbers = {place.number for place in found if place.topic == first}
    if wanted is not None and stage.task.group_by:
        numbers = {zlib.crc32(key) % len(numbers) for key in wanted}
    for number in sorted(numbers):
        for left in reversed(range(_AGAIN)):
            error: SardonyxError | None = None
            try:
                stores = _stores(link, topic, number, found[Partition(first, number)], at, adopts)
                break
            except (InputError, SetupError) as raised:
                error = raised
            if error.code != "SX-STATE-TORN" or not left:
                check()  # the log of a job that has ended may be deleted
                raise error
            time.sleep(0.2)  # the job went on, and what its new position does not need was deleted
            found = _asked(stage, positions, check)
            if at is not None:
                refuse_unknown(stage, found, *at)
        yield _Shard(number, stores, _clock(found, number) if at is None else at.time)


def counted_in_database(
    stage: Stage,
    deployment: str,
    job: str,
    positions: Callable[[], Mapping[Partition, Position | None]],
    check: Callable[[], None],
) -> TaskState:
    """Return the state of a task that keeps it in a database. Each shard is read as of one commit.

    Args:
        stage: the task.
        deployment: of the job.
        job: its id.
        positions: as of :func:`state_of`.
        check: as of :func:`state_of`.
    """
    return TaskState(stage, None, _shards_in_database(stage, deployment, job, positions, check))


def _shards_in_database(
    stage: Stage,
    deployment: str,
    job: str,
    positions: Callable[[], Mapping[Partition, Position | None]],
    check: Callable[[], None],
) -> Iterator[_Shard]:
    store = database_of(stage.task)
    assert store is not None  # noqa: S101 (for the type checker: the caller asks)
    found = _asked(stage, positions, check)  # first: the database is never behind Kafka
    require_here(store)
    database = StateDatabase(store, deployment, job, stage.name)
    rows = database.committed()
    for number in sorted({place.number for place in found if place.topic == stage.ingress[0].topic}):
        here = [position for place, position in found.items() if place.number == number and position is not None]
        row = rows.get(number)
        if (0 if row is None else row.number) < max((each.state[0] for each in here if each.state), default=0):
            raise _elsewhere(stage.name, store)
        if row is not None:
            clock = max(_clock(found, number), _clock(row.positions, number))
            yield _Shard(number, _loaded(database, number, stage.name), clock)


def _loaded(database: StateDatabase, number: int, task: str) -> Stores:
    """The stores of a shard as of its last commit."""
    for _ in range(_AGAIN):
        stores = Stores(lambda _, schema: MemoryStore(schema))
        with suppress(PositionsMoved):
            database.load(number, None, stores.open)
            return stores
    raise _gone(
        task, f"its rows in the database were removed, or others took their place {_AGAIN} times as they were read"
    )


def _elsewhere(task: str, store: SqlStore) -> SardonyxError:
    return SardonyxError(
        "SX-STATE-NONE",
        f"the state of task {task} cannot be read from this machine",
        cause=f"the database {store.url}, as this machine finds it, lacks commits of the task",
        fix="ask on a machine that has the database of the peers; a file of SQLite is on the machine of the peers",
    )


def _asked(
    stage: Stage, positions: Callable[[], Mapping[Partition, Position | None]], check: Callable[[], None]
) -> Mapping[Partition, Position | None]:
    """The positions of a task of a job that still ran after they were asked for."""
    found: Mapping[Partition, Position | None] = {}
    error: SetupError | None = None
    try:
        found = positions()
    except SetupError as raised:
        error = raised
    check()
    if error is not None:
        raise error
    if not any(place.topic == stage.ingress[0].topic for place in found):
        raise _gone(stage.name, f"Kafka does not show topic {stage.ingress[0].topic}, which it reads")
    return found


def _gone(task: str, cause: str) -> SardonyxError:
    return SardonyxError(
        "SX-STATE-GONE",
        f"the state of task {task} cannot be read",
        cause=cause,
        fix="read it while the job runs; `sardonyx job show` says what became of it",
    )


def _clock(positions: Mapping[Partition, Position | None], number: int) -> int:
    """The clock of a shard: the least over its partitions."""
    here = [position for place, position in positions.items() if place.number == number]
    return min((NEVER if position is None else position.clock.value for position in here), default=NEVER)


def _readable(spec: JobSpec, task: str, stage: Stage | None, *, counts: bool) -> Link | None:
    """The state log of a task; None: its state is in a database, and to be counted. Raises if it has none, or one that means
    nothing here.
    """
    keeping = [each.name for each in spec.catalog if stateful(each)]
    if stage is None or not stateful(stage.task):
        raise SardonyxError(
            "SX-STATE-NONE",
            f"{task} is not a task with state",
            cause=f"of job {spec.name}, {listed(keeping)} keep state"
            if keeping
            else f"no task of job {spec.name} keeps state",
            fix="name a task with windows or keyed state",
        )
    store = database_of(stage.task)
    if store is not None and not counts:
        raise SardonyxError(
            "SX-STATE-NONE",
            f"the state of task {task} is not a log in Kafka",
            cause=f"it is in the database {store.url}",
            fix="read the table sardonyx_state there",
        )
    if stage.task.relation is not None or whole_of(stage.task) is not None:
        raise SardonyxError(
            "SX-STATE-NONE",
            f"the state of task {task} cannot be shown",
            cause=_of_rows(stage),
            fix="look at the rows with a copy of the edge into an output; tasks with windows or keyed state can be shown",
        )
    return None if store is not None else next(link for link in stage.egress if link.kind == "state")


def _of_rows(stage: Stage) -> str:
    """What a task keeps that has neither windows nor keyed state."""
    if stage.task.relation is not None:
        return "a join, a lookup and the like keep rows that wait for others"
    if stage.task.graph is not None:
        return "a graph keeps its edges"
    return "it keeps its rows until all of them are there"


def _keys(stage: Stage, key: Sequence[object]) -> set[bytes]:
    """The canonical bytes of all keys that a user may mean: a text may be a text, a number, a date ..."""
    columns = list(stage.task.group_by or ())
    if not isinstance(key, list | tuple):
        raise SardonyxError(
            "SX-STATE-KEY",
            f"a key of task {stage.name} is a list or a tuple, and {key!r} was given",
            cause="it has one value for each column of the task's group_by, also if that is one column",
            fix=f"give [{key!r}]",
        )
    if len(key) != len(columns):
        raise SardonyxError(
            "SX-STATE-KEY",
            f"a key of task {stage.name} has {len(columns)} values, and {len(key)} were given",
            cause=f"it groups by {listed(columns)}" if columns else "it has no key: there is one state for all rows",
            fix=f"name {' '.join(column.upper() for column in columns)}" if columns else "name no key",
        )
    meant = [key_readings(value) if isinstance(value, str) else [canonical(value)] for value in key]
    return {b"".join(values) for values in itertools.product(*meant)}


def _stores(
    link: Link,
    topic: StateTopic,
    number: int,
    position: Position | None,
    at: AtTime | None,
    adopts: AdoptedState | None = None,
) -> Stores:
    """The stores of a shard as of a commit, or of a checkpoint. What stands behind it in the log is of later ones."""
    stores = Stores(lambda _, schema: MemoryStore(schema))
    mark = Mark() if position is None or position.state is None else Mark(*position.state)
    left: LogState | None = None
    if adopts is not None and mark.base == 0 and at is None:  # its own log does not hold all of it yet
        left = adopts.fill(number, stores, _NAMES)
    if position is None or position.state is None:
        return stores
    if at is not None:
        known = None if position.checkpoints is None else position.checkpoints.at(at.time)
        assert known is not None  # noqa: S101 (for the type checker: an unknown time is refused before)
        mark = Mark(known.seq, known.low, known.base)
    restore = Restore(mark, stores.all, topic=link.topic, partition=number, others=_NAMES, make=stores.open, begun=left)
    end = topic.end(number)
    restore.read(_up_to(mark, link, number, topic.read(number, restore.start, end)))
    while not restore.reached and (further := topic.end_beyond(number, end)) > end:
        restore.read(_up_to(mark, link, number, topic.read(number, end, further)))
        end = further
    restore.finish()
    for name, undo in (restore.undo.get(at.time, {}) if at is not None else {}).items():
        stores.all[name].apply(as_entries(undo, stores.all[name]))
    return stores


_NAMES = ("keyed", "windows")


def _up_to(mark: Mark, link: Link, number: int, messages: Iterable[Logged]) -> Iterator[Logged]:
    where: dict[str, object] = {"topic": link.topic, "partition": number}
    return itertools.takewhile(lambda message: about(message, where).seq <= mark.seq, messages)


def _open_windows(stage: Stage, shard: _Shard) -> pa.Table:
    """What the windows of a shard would give if the input ended now."""
    asked = Asked(shard.number, shard.stores, (), END, END, time.time_ns() // 1000)
    (answer,) = WindowOperator(stage, _ALL).plan([asked])
    results: pa.Table = answer.results
    return results.drop_columns([name for name in _HIDDEN if name in results.column_names])


def _key_of(stage: Stage, row: Mapping[str, Any]) -> bytes:
    try:
        return canonical(*(row[column] for column in stage.task.group_by or ()))
    except FunctionError:
        return b""


__all__ = ["StateRow", "counted_in_database", "nothing_kept", "state_of", "task_state"]
