"""What a task of a running job keeps: read from its state log in Kafka, as of what is committed."""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from peer.operators import Asked, Stores, WindowOperator
from queues.keys import canonical
from queues.messages import Logged
from sardonyx.client.views import laid_out
from sardonyx.core.clocks import END, NEVER
from sardonyx.core.errors import FunctionError, InputError, SardonyxError
from sardonyx.core.events import ENDED
from sardonyx.core.graph import Link, Stage
from sardonyx.core.notes import JobNote
from sardonyx.core.positions import Partition, Position
from sardonyx.core.spec import JobSpec, database_of, stateful
from sardonyx.core.text import listed
from sardonyx.core.units import seconds
from sardonyx.state.look import KeyState, Live, keyed_states
from sardonyx.state.memory import MemoryStore
from sardonyx.state.messages import Mark, about
from sardonyx.state.restore import Restore

if TYPE_CHECKING:
    from peer.state_keeper import StateTopic
    from sardonyx.runtime.settings import Settings

_AGAIN = 5
"""So often positions are asked for again if the log was trimmed while it was read."""
_HIDDEN = ("pane", "final", "window_time")
"""Columns of results that mean nothing of windows that are open."""
_ALL = 2**31 - 1

StateRow = KeyState | dict[str, Any]
"""What is kept of one key; or the result that one open window would have if it closed now."""


def task_state(
    settings: Settings, job: str, spec: JobSpec, note: JobNote | None, task: str, key: Sequence[str] | None = None
) -> Iterator[StateRow]:
    """Read what a task keeps: of keyed state the states and timers of each key, of windows what each open one holds.

    Each partition is read as of one commit, and no two partitions as of the same one. It is read from the log whole, which takes
    about a second for each 500,000 entries.

    Args:
        settings: of the deployment.
        job: the job's id.
        spec: the job as data.
        note: its status.
        task: the name of the task.
        key: the values of one key, as text; None: all keys.

    Raises:
        SardonyxError: ``SX-STATE-NONE``: the task keeps no state that can be read here; ``SX-STATE-GONE``: its job does not run;
            ``SX-STATE-KEY``: these values are no key of it.
        SetupError: ``SX-CONFIG-MISSING``, ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    graph = laid_out(spec, settings.deployment, job)
    stage = next((stage for stage in graph.stages if stage.name == task), None)
    link = _readable(spec, task, stage)
    if note is None or note.status in ENDED or note.links != "made":
        raise SardonyxError(
            "SX-STATE-GONE",
            f"the state of task {task} of job {job} cannot be read",
            cause=f"the job is {note.status if note is not None else 'not taken in yet'}, so it has no positions in the log",
            fix="read it while the job runs; `sardonyx job show` says what became of it",
        )
    assert stage is not None  # noqa: S101 (for the type checker: `_readable` raises)
    wanted = None if key is None else _keys(stage, key)
    settings.require("kafka")
    from queues import admin
    from queues.state_topics import StateTopic

    topic = StateTopic(settings, link)

    def positions() -> Mapping[Partition, Position | None]:
        return admin.held_positions(settings, [stage], job)[task]

    yield from state_of(stage, link, topic, positions, wanted)


def state_of(
    stage: Stage,
    link: Link,
    topic: StateTopic,
    positions: Callable[[], Mapping[Partition, Position | None]],
    wanted: Collection[bytes] | None = None,
) -> Iterator[StateRow]:
    """Read the state of a task, given its log and how to ask for its positions.

    Args:
        stage: the task.
        link: that of its state log.
        topic: the log.
        positions: asks for the committed positions of the task, stable.
        wanted: the canonical bytes of the keys that are wanted; None: all.
    """
    first = stage.ingress[0].topic
    found = positions()
    known = {place.number: position for place, position in found.items() if place.topic == first}
    clocks = {number: _clock(found, number) for number in known}
    numbers = set(known)
    if wanted is not None and stage.task.group_by:
        numbers &= {zlib.crc32(key) % len(known) for key in wanted}
    for number in sorted(numbers):
        position = known[number]
        for left in reversed(range(_AGAIN)):
            try:
                stores = _stores(link, topic, number, position)
                break
            except InputError as error:
                if error.code != "SX-STATE-TORN" or not left:
                    raise
                time.sleep(0.2)  # the job went on, and what its new position does not need was deleted
                position = positions()[Partition(first, number)]
        yield from _rows(stage, number, stores, wanted, clocks[number])


def _clock(positions: Mapping[Partition, Position | None], number: int) -> int:
    """Of a shard: the least over its partitions."""
    here = [position for place, position in positions.items() if place.number == number]
    return min((NEVER if position is None else position.clock.value for position in here), default=NEVER)


def _readable(spec: JobSpec, task: str, stage: Stage | None) -> Link:
    """The state log of a task. Raises if it has none, or one that means nothing here."""
    keeping = [each.name for each in spec.catalog if stateful(each)]
    if stage is None or not stateful(stage.task):
        raise SardonyxError(
            "SX-STATE-NONE",
            f"{task} is no task with state",
            cause=f"of job {spec.name}, {listed(keeping)} keep state"
            if keeping
            else f"no task of job {spec.name} keeps state",
            fix="name a task with windows or keyed state",
        )
    store = database_of(stage.task)
    if store is not None:
        raise SardonyxError(
            "SX-STATE-NONE",
            f"the state of task {task} is no log in Kafka",
            cause=f"it is in the database {store.url}",
            fix="read the table sardonyx_state there",
        )
    if stage.task.relation is not None:
        raise SardonyxError(
            "SX-STATE-NONE",
            f"the state of task {task} cannot be shown",
            cause="a join, a lookup and the like keep rows that wait for others",
            fix="look at the rows with a copy of the edge into an output; tasks with windows or keyed state can be shown",
        )
    return next(link for link in stage.egress if link.kind == "state")


def _keys(stage: Stage, key: Sequence[str]) -> set[bytes]:
    """The canonical bytes of all keys that a user may mean by some texts: each as a text, a number, a date ..."""
    columns = list(stage.task.group_by or ())
    if len(key) != len(columns):
        raise SardonyxError(
            "SX-STATE-KEY",
            f"a key of task {stage.name} has {len(columns)} values, and {len(key)} were given",
            cause=f"it groups by {listed(columns)}" if columns else "it has no key: there is one state for all rows",
            fix=f"name {' '.join(column.upper() for column in columns)}" if columns else "name no key",
        )
    return {canonical(*values) for values in itertools.product(*map(_meanings, key))}


_WORDS = {"true": True, "false": False, "null": None}


def _meanings(text: str) -> list[object]:
    found: list[object] = [text]
    for read in (int, float, date.fromisoformat, datetime.fromisoformat, _WORDS.__getitem__):
        try:
            found.append(read(text))
        except (ValueError, KeyError):
            continue
    return found


def _stores(link: Link, topic: StateTopic, number: int, position: Position | None) -> Stores:
    """The stores of a shard as of a commit. What stands behind it in the log is of later ones."""
    stores = Stores(lambda _, schema: MemoryStore(schema))
    if position is None or position.state is None:
        return stores
    mark = Mark(*position.state)
    restore = Restore(mark, stores.all, topic=link.topic, partition=number, others=_NAMES, make=stores.open)
    end = topic.end(number)
    restore.read(_up_to(mark, link, number, topic.read(number, restore.start, end)))
    while not restore.reached and (further := topic.end_beyond(number, end)) > end:
        restore.read(_up_to(mark, link, number, topic.read(number, end, further)))
        end = further
    restore.finish()
    return stores


_NAMES = ("keyed", "windows")


def _up_to(mark: Mark, link: Link, number: int, messages: Iterable[Logged]) -> Iterator[Logged]:
    where: dict[str, object] = {"topic": link.topic, "partition": number}
    return itertools.takewhile(lambda message: about(message, where).seq <= mark.seq, messages)


def _rows(
    stage: Stage, number: int, stores: Stores, wanted: Collection[bytes] | None, clock: int
) -> Iterator[StateRow]:
    keyed = stores.get("keyed")
    if keyed is not None and stage.task.keyed is not None:
        ttl = {name: round(seconds(length) * 1_000_000) for name, length in stage.task.keyed.ttl.items()}
        yield from keyed_states(keyed, wanted, Live(ttl, clock))
    if stage.task.window is not None:
        yield from _open_windows(stage, number, stores, wanted)


def _open_windows(
    stage: Stage, number: int, stores: Stores, wanted: Collection[bytes] | None
) -> Iterator[dict[str, Any]]:
    """What the windows of a shard would give if the input ended now."""
    asked = Asked(number, stores, (), END, END, time.time_ns() // 1000)
    (answer,) = WindowOperator(stage, _ALL).plan([asked])
    results: pa.Table = answer.results
    for row in results.drop_columns([name for name in _HIDDEN if name in results.column_names]).to_pylist():
        if wanted is None or _key_of(stage, row) in wanted:
            yield row


def _key_of(stage: Stage, row: Mapping[str, Any]) -> bytes:
    try:
        return canonical(*(row[column] for column in stage.task.group_by or ()))
    except FunctionError:
        return b""


__all__ = ["StateRow", "state_of", "task_state"]
