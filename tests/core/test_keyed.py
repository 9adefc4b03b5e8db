"""Keyed state against a dumb twin: random logs, cut into batches in random ways, with crashes between plan and commit."""

import json
import random
from datetime import timedelta

import msgspec
import pyarrow as pa
import pytest

from queues.keys import canonical
from sardonyx.core.clocks import END
from sardonyx.core.keyed import KeyedSpec
from sardonyx.state.handles import Key, ListState, MapState, State
from sardonyx.state.keyed_run import KeyedFunction
from sardonyx.state.keyed_work import KeyedPiece
from sardonyx.state.memory import MemoryStore
from sardonyx.state.signature import signature_of
from sardonyx.state.timers import EPOCH, Timer, Timers
from tests.core.dict_store import DictStore
from tests.core.keyed_machine import Machine
from tests.core.keyed_twin import Twin, TwinList, TwinMap, TwinValue
from tests.sizes import histories

HISTORIES = histories(60, whole=180)
SECOND = 1_000_000


class Account(msgspec.Struct):
    total: int = 0
    notes: list[str] = []


def act(given, states, timers, key):  # noqa: C901, PLR0912 - one branch a step
    """What the functions of rows and timers do: the steps that the row, or the name of the timer, holds."""
    account, seen, by = states["account"], states["seen"], states["by"]
    for what, x in given["do"]:
        at = given["at"]
        if what == "add":
            account.value.total += x
        elif what == "note":
            account.value.notes.append(f"n{x}")
        elif what == "put":
            account.value = Account(x)
        elif what == "look":
            account.value.total  # noqa: B018 - a look changes nothing
        elif what == "clear":
            (account, seen, by)[x % 3].clear()
        elif what == "append":
            seen.append(x)
        elif what == "first":
            seen.remove_first(x % 3)
        elif what == "again" and len(seen):
            seen[x % len(seen)] = -x
        elif what == "drop" and len(seen):
            del seen[x % len(seen)]
        elif what == "map":
            by[f"k{x % 4}"] = x
        elif what == "unmap":
            by.pop(f"k{x % 4}", None)
        elif what == "timer":
            step = f"again {x % 3}" if x % 2 else f"once {x % 3}"
            timers.set(at + timedelta(seconds=x % 23 - 3), step)
        elif what == "undo":
            timers.delete(f"again {x % 3}")
        elif what == "raise":
            raise ValueError(x)
    shown = {
        "account": (account.value.total, list(account.value.notes)) if account.exists else None,
        "seen": list(seen),
        "by": dict(sorted(by.items())),
    }
    return [{"key": str(key), "at": str(given["at"]), "shown": json.dumps(shown)}]


def when_due(timer):
    """The steps of a timer."""
    word, _, number = timer.name.partition(" ")
    n = int(number)
    steps = [["add", 100 + n], ["append", n], ["map", n]]
    if word == "again" and (timer.at.second + n) % 4:
        steps.append(["timer", 4 + 2 * n + 5])
    if (timer.at.second + n) % 7 == 3:
        steps.append(["raise", 1])
    return {"do": steps, "at": timer.at}


def on_row(row: dict, account: State[Account], seen: ListState[int], by: MapState[str, int], timers: Timers, key: Key):
    states = {"account": account, "seen": seen, "by": by}
    return act({"do": json.loads(row["do"]), "at": row["at"]}, states, timers, key)


def on_timer(timer: Timer, account: State[Account], seen: ListState[int], by: MapState[str, int], timers: Timers):
    return act(when_due(timer), {"account": account, "seen": seen, "by": by}, timers, timer.key)


STEPS = ("add", "note", "put", "look", "clear", "append", "first", "again", "drop", "map", "unmap", "timer", "undo")


def a_log(chance):
    """Pieces of rows and statements of the clock, as they stand in a partition of a link; and perhaps its end."""
    time, clock, log = 1_000 * SECOND, None, []
    keys = [f"u{n}" for n in range(chance.choice([1, 2, 5]))]
    for _ in range(chance.randrange(1, 14)):
        if chance.random() < 0.45 and clock != time:
            clock = max(clock or 0, time - chance.randrange(4) * SECOND)
            log.append(clock)
        else:
            rows = []
            for _ in range(chance.randrange(1, 5)):
                time += chance.randrange(-2, 4) * SECOND
                steps = [[chance.choice(STEPS), chance.randrange(30)] for _ in range(chance.randrange(1, 4))]
                if chance.random() < 0.08:
                    steps.append(["raise", 1])
                rows.append((chance.choice(keys), max(time, 0), json.dumps(steps)))
            log.append(rows)
        time += chance.choice([0, 1, 5, 20]) * SECOND
    if chance.random() < 0.5:
        log.append("end")
    return log


def twin_of(log, ttl):
    make = lambda: {"account": TwinValue(Account), "seen": TwinList(), "by": TwinMap()}  # noqa: E731

    def timer_of(key, name, at):
        return Timer(key, name, EPOCH + timedelta(microseconds=at))

    twin = Twin(act, lambda timer, *rest: act(when_due(timer), *rest), make, ttl, timer_of)
    for each in log:
        if each == "end":
            twin.state_at(twin.clock)  # what the last rows have set for a time that has passed
            twin.end()
        elif isinstance(each, int):
            twin.state_at(each)
        else:
            for key, at, do in each:
                row = {"do": json.loads(do), "at": EPOCH + timedelta(microseconds=at)}
                twin.row(row, key, at)
    if log[-1] != "end":
        twin.state_at(twin.clock)
    return twin


def run(machine, log, chance):
    """Run the log in batches that begin and end anywhere."""
    clock = machine.clock
    pieces, crash = [], lambda: chance.random() < 0.15
    for each in log:
        if each == "end":
            if pieces and chance.random() < 0.5:
                machine.batch(pieces, clock, crash=crash)
                pieces = []
            machine.batch(pieces, END, before=clock, crash=crash)
            return clock
        if isinstance(each, int):
            clock = each
        else:
            users, times, dos = zip(*each, strict=True)
            ats = pa.array(times, pa.timestamp("us", "UTC"))
            rows = pa.table({"user": pa.array(users), "at": ats, "do": pa.array(dos)})
            pieces.append(KeyedPiece(rows, clock, ats.cast(pa.int64()).to_numpy()))
        if chance.random() < 0.5:
            machine.batch(pieces, clock, crash=crash)
            pieces = []
    machine.batch(pieces, clock, crash=crash)
    return clock


def by_key(results):
    found = {}
    for result, _ in results:
        found.setdefault(result["key"], []).append(result)
    return found


def one_history(seed, make_store):
    chance = random.Random(seed)
    ttl = chance.choice([{}, {"*": "7 s"}, {"account": "5 s", "seen": "9 s"}, {"by": "3 s"}])
    spec = KeyedSpec(on_timer="x:y", ttl=ttl)
    signature = signature_of(spec, on_row, on_timer)
    log = a_log(chance)
    twin = twin_of(log, {name: state.ttl for name, state in signature.states.items() if state.ttl is not None})
    wanted = {(canonical(key), name): value for (key, name), value in twin.shown().items()}
    for _ in range(2):
        function = KeyedFunction(signature, on_row, on_timer)
        limit, parts = chance.choice([1, 2, 1_000]), chance.choice([1, 1, 3])
        machine = Machine(signature, function, ["user"], make_store, limit, parts)
        clock = run(machine, log, chance)
        where = f"seed {seed}, ttl {ttl}, log {log}"
        assert by_key(machine.results) == {key: each for key, each in twin.results.items() if each}, where
        assert len(machine.failed) == len(twin.failed), where
        if not ttl or log[-1] != "end":  # timers of the end see states that have expired by then, and are kept
            assert machine.shown(clock) == wanted, where
        machine.store.close()


@pytest.mark.parametrize("part", range(6))
def test_keyed_state_equals_a_dumb_twin_however_the_log_is_cut(part):
    """Whatever the batches, crashes and limits: each key gives the same results in the same order, and has the same state."""
    for seed in range(part * HISTORIES // 6, (part + 1) * HISTORIES // 6):
        one_history(seed, MemoryStore if seed % 3 else DictStore)


def test_keyed_state_on_disk_equals_a_dumb_twin(tmp_path):
    """The same with RocksDB."""
    pytest.importorskip("rocksdict")
    from sardonyx.state.rocks import RocksStore

    folders = iter(range(10_000))
    for seed in range(10_000, 10_012):
        one_history(seed, lambda schema: RocksStore(schema, tmp_path / str(next(folders))))
