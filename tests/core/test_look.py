"""What is shown of a task's state: it is what the function has kept, and what open windows hold, as of what is committed."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from queues.key_values import key_values
from queues.keys import canonical
from sardonyx import Count, Job, Sum, blackhole, event_time, kafka, session, tumbling
from sardonyx.client.task_state import state_of, task_state
from sardonyx.core.clocks import NEVER
from sardonyx.core.errors import SardonyxError
from sardonyx.core.keyed import KeyedSpec
from sardonyx.core.notes import JobNote
from sardonyx.core.positions import Partition
from sardonyx.runtime.settings import Settings
from sardonyx.state.keyed_run import KeyedFunction
from sardonyx.state.keyed_work import KeyedPiece
from sardonyx.state.look import KeyState, Live, keyed_states
from sardonyx.state.memory import MemoryStore
from sardonyx.state.signature import signature_of
from sardonyx.testing import ClockedRun
from sardonyx.testing.memory import StateLog
from tests.core.keyed_machine import Machine
from tests.core.test_keyed import a_log, on_row, on_timer, run
from tests.sizes import histories

HISTORIES = histories(40, whole=100)
Begin = Callable[..., ClockedRun]


@pytest.mark.parametrize(
    "values",
    [
        ("a",),
        ("", "täxt"),
        (0, -12, 10**30),
        (0.5, -0.1, math.inf),
        (Decimal("0.1"),),
        (True, False, None),
        (b"\0\xff",),
        (dt.date(2026, 11, 26), dt.time(1, 2, 3, 4)),
        (dt.datetime(2026, 11, 26, 1, 2, 3, 4, tzinfo=dt.UTC), dt.datetime(1960, 1, 1)),  # noqa: DTZ001
        (dt.timedelta(days=-3, microseconds=7),),
        (),
    ],
)
def test_a_key_comes_back_from_its_bytes(values: tuple[Any, ...]) -> None:
    """Each kind of value, and several together; and it has the same bytes again."""
    assert key_values(canonical(*values)) == values
    assert canonical(*key_values(canonical(*values))) == canonical(*values)


class Looked(Machine):
    """Looks at its store after each commit."""

    ttl: dict[str, int]
    seen = seen_at_end = 0

    def note(self, work: Any, done: Any) -> None:
        super().note(work, done)
        flat = {}
        for each in keyed_states(self.store, None, Live(self.ttl, work.clock)):
            key = canonical(*each.key)
            flat |= {(key, name): value for name, value in each.states.items()}
            flat |= {(key, f"timer {timer.name}"): timer.at for timer in each.timers}
        wanted = {place: msgspec.to_builtins(value) for place, value in self.shown(work.clock).items()}
        wanted = {
            place: list(map(list, value.items())) if place[1] == "by" else value for place, value in wanted.items()
        }
        assert flat == wanted
        self.seen += len(flat)
        self.seen_at_end += len(flat) if work.ended and self.ttl else 0


def test_what_is_shown_is_what_the_function_has_kept(seed: int) -> None:
    """In random histories of values, lists, maps, timers and ttl, after each commit, and at the end of the input too: the same as
    the engine's own types give, without the types.
    """
    shown = at_end = 0
    for number in range(HISTORIES):
        chance = random.Random(f"{seed}/look/{number}")
        ttl = chance.choice([{}, {"*": "7 s"}, {"account": "5 s", "seen": "9 s"}])
        signature = signature_of(KeyedSpec(on_timer="x:y", ttl=ttl), on_row, on_timer)
        length = {name: int(each[:-2]) * 1_000_000 for name, each in ttl.items()}
        limit = chance.choice([1, 1_000])
        machine = Looked(signature, KeyedFunction(signature, on_row, on_timer), ["user"], MemoryStore, limit)
        machine.ttl = length
        run(machine, a_log(chance), chance)
        shown += machine.seen
        at_end += machine.seen_at_end
    assert shown > HISTORIES
    assert at_end > HISTORIES // 4


def running(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Keeps the sum of each user."""
    old = {each["user"]: each["total"] for each in state.to_pylist()}
    for row in rows.to_pylist():
        old[row["user"]] = (old.get(row["user"]) or 0) + row["amount"]
    return rows, pa.table({"user": list(old), "total": pa.array(old.values(), pa.int64())})


def test_the_state_of_a_function_of_tables_is_shown_by_column() -> None:
    """The declared columns of each key; of one key alone if it is asked for."""
    declared = pa.schema([("total", pa.int64())])
    signature = signature_of(KeyedSpec(state="total bigint"), running, None, declared)
    machine = Machine(signature, KeyedFunction(signature, running), ["user"], MemoryStore)
    rows = pa.table({"user": ["b", "a", "b"], "amount": [1, 2, 3]})
    machine.batch([KeyedPiece(rows, NEVER, np.zeros(3, np.int64))], NEVER)
    assert [(each.key, each.states) for each in keyed_states(machine.store)] == [
        (["a"], {"total": 2}),
        (["b"], {"total": 4}),
    ]
    assert [each.key for each in keyed_states(machine.store, {canonical("b")})] == [["b"]]


def job(window: Any = None) -> Job:
    made = Job("counted", partitions=3)
    schema = "user string, n long, at timestamp"
    hits = made.input("hits", kafka("hits", schema=schema, start="earliest"), time=event_time("at"))
    counted = made.window(
        "count",
        window or tumbling("1 min"),
        after=hits,
        group_by=["user", "n"],
        aggregate={"hits": Count(), "sum": Sum("n")},
    )
    made.output("out", blackhole(), after=counted)
    return made


def hit(user: str, n: int, minute: int) -> dict[str, Any]:
    return {"user": user, "n": n, "at": f"2026-11-26T10:{minute:02}:10Z"}


def rows_of(run: ClockedRun, wanted: set[bytes] | None = None) -> list[dict[str, Any]]:
    engine = run._engine
    task = engine.tasks["count"]
    link = next(link for link in task.stage.egress if link.kind == "state")
    first = task.stage.ingress[0].topic

    def positions() -> dict[Partition, Any]:
        return {Partition(first, number): task.positions.get(Partition(first, number)) for number in range(3)}

    found = list(state_of(task.stage, link, StateLog(engine.topics, link), positions, lambda: None, wanted).rows())
    assert all(isinstance(row, dict) for row in found)
    return sorted(found, key=lambda row: (row["window_start"], row["user"], row["n"]))


@pytest.mark.parametrize("window", [tumbling("1 min"), session("30 s")], ids=["tumbling", "session"])
def test_open_windows_are_shown_with_what_they_hold(window: Any, sardonyx_clocked: Begin) -> None:
    """Windows that have closed are not shown; looking changes nothing, and a crash changes nothing that is shown."""
    run = sardonyx_clocked(job(window))
    run.give("hits", [hit("a", 1, 0), hit("b", 2, 0), hit("a", 1, 2), hit("a", 1, 2), hit("b", 7, 2)])
    found = rows_of(run)
    assert [(row["user"], row["n"], row["hits"], row["sum"]) for row in found] == [("a", 1, 2, 2), ("b", 7, 1, 7)]
    assert not {"pane", "final", "window_time"} & set(found[0])
    run.crash("count")
    assert rows_of(run) == found
    assert [row["n"] for row in rows_of(run, {canonical("b", 7)})] == [7]
    assert rows_of(run, {canonical("b", 8)}) == []
    before = run.rows("out")
    run.end()
    assert [row["hits"] for row in run.rows("out")[len(before) :]] == [2, 1]


def test_what_cannot_be_shown_says_why() -> None:
    """A task without state, one that does not exist, a job that has ended, a key with too few values."""
    spec = job().spec()
    ended, going = (
        JobNote(name="counted", status="completed", n=1, submitted_at=0.0),
        JobNote(name="counted", status="running", n=1, submitted_at=0.0, links="made"),
    )

    def code(note: JobNote, task: str, key: list[str] | None = None) -> tuple[str, str]:
        with pytest.raises(SardonyxError) as raised:
            task_state(Settings(), "j-1", spec, lambda: note, task, key)
        assert raised.value.fix
        return raised.value.code, raised.value.cause

    assert code(going, "hits") == ("SX-STATE-NONE", "of job counted, count keep state")
    assert code(going, "nobody")[0] == "SX-STATE-NONE"
    assert code(ended, "count")[0] == "SX-STATE-GONE"
    assert code(going, "count", ["a"]) == ("SX-STATE-KEY", "it groups by user and n")


def test_a_key_state_is_json() -> None:
    """As the command prints it."""
    state = KeyState(key=["a", 1], states={"total": 5})
    assert msgspec.json.decode(msgspec.json.encode(state)) == {"key": ["a", 1], "states": {"total": 5}, "timers": []}
