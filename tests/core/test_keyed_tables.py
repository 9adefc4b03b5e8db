"""Functions of two tables with keyed state: random logs, cut in random ways, with crashes, against dictionaries and a loop."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pyarrow as pa
import pytest

from queues.key_values import key_values
from sardonyx import State
from sardonyx.connectors.records import records_or_errors
from sardonyx.core.clocks import NEVER
from sardonyx.core.errors import FunctionError
from sardonyx.core.keyed import KeyedSpec
from sardonyx.state.keyed_entries import read_state_key
from sardonyx.state.keyed_run import KeyedFunction
from sardonyx.state.keyed_work import KeyedPiece
from sardonyx.state.memory import MemoryStore
from sardonyx.state.signature import signature_of
from tests.core.dict_store import DictStore
from tests.core.keyed_machine import Machine
from tests.sizes import histories

HISTORIES = histories(25, whole=60)
SECOND = 1_000_000
DECLARED = pa.schema([("total", pa.int64()), ("n", pa.int32())])
BAD, GONE = 13, 0


def running(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Adds up; a row of 0 removes the state of its key, and a row of 13 raises."""
    found = {each["user"]: each for each in state.to_pylist()}
    assert list(found) == list(dict.fromkeys(rows["user"].to_pylist()))
    for row in rows.to_pylist():
        if row["amount"] == BAD:
            raise ValueError(row["amount"])
        each = found.get(row["user"]) or {"user": row["user"], "total": None, "n": None}
        found[row["user"]] = each | {"total": (each["total"] or 0) + row["amount"], "n": (each["n"] or 0) + 1}
        if row["amount"] == GONE:
            del found[row["user"]]
    schema = pa.schema([("n", pa.int64()), ("user", pa.string()), ("total", pa.int64())])
    return rows.select(["user", "amount"]), pa.Table.from_pylist(list(found.values()), schema)


def a_log(chance: random.Random) -> list[tuple[int, list[tuple[str, int, int]]]]:
    """Blocks: the clock before each, and its rows (key, time, amount)."""
    time = clock = 1_000 * SECOND
    found = []
    for _ in range(chance.randrange(1, 12)):
        rows = []
        for _ in range(chance.randrange(1, 6)):
            time += chance.randrange(-2, 5) * SECOND
            rows.append((f"u{chance.randrange(4)}", time, chance.choice([1, 2, 5, 7, GONE, BAD])))
        found.append((clock, rows))
        clock = max(clock, time - chance.randrange(4) * SECOND)
        time += chance.choice([0, 0, 5, 20]) * SECOND
    return found


def twin_of(log, ttl: int | None):
    """The states in the end, by key, how many rows failed, and how many did not."""
    states: dict[str, dict] = {}
    failed = done = 0
    for clock, rows in log:
        for user, time, amount in rows:
            old = states.get(user)
            if old is not None and ttl is not None and old["at"] + ttl <= clock:
                old = states.pop(user, None) and None
            if amount == BAD:
                failed += 1
                continue
            done += 1
            new = {"total": (old["total"] if old else 0) + amount, "n": (old["n"] if old else 0) + 1}
            new["at"] = max(time, clock, old["at"] if old else NEVER)
            states[user] = new
            if amount == GONE:
                del states[user]
    return states, failed, done


def one_history(seed: int) -> None:
    chance = random.Random(seed)
    ttl = chance.choice([None, 7])
    spec = KeyedSpec(state="total bigint, n int", ttl={} if ttl is None else {"*": f"{ttl} s"})
    signature = signature_of(spec, running, None, DECLARED)
    log = a_log(chance)
    wanted, failed, done = twin_of(log, None if ttl is None else ttl * SECOND)
    function = KeyedFunction(signature, running)
    store = chance.choice([MemoryStore, DictStore])
    machine = Machine(signature, function, ["user"], store, parts=chance.choice([1, 3]))
    pieces: list[KeyedPiece] = []
    for clock, rows in log:
        users, times, amounts = zip(*rows, strict=True)
        table = pa.table({"user": pa.array(users), "amount": pa.array(amounts)})
        if pieces and chance.random() < 0.5:
            machine.batch(pieces, clock, crash=lambda: chance.random() < 0.2)
            pieces = []
        pieces.append(KeyedPiece(table, clock, pa.array(times).to_numpy()))
    machine.batch(pieces, log[-1][0])
    entries = machine.store.scan(b"\1", b"\2").to_pylist()
    clock = log[-1][0]
    found = [(each["s:total"], each["s:n"]) for each in entries if ttl is None or each["at"] + ttl * SECOND > clock]
    there = [(each["total"], each["n"]) for each in wanted.values() if ttl is None or each["at"] + ttl * SECOND > clock]
    where = f"seed {seed}, ttl {ttl}, log {log}"
    assert sorted(found) == sorted(there), where
    assert len(machine.failed) == failed, where
    assert len(machine.results) == done, where
    if ttl is not None:  # nothing that has expired is left, nor what names it
        end = clock + 100 * SECOND
        machine.batch([], end)
        assert len(machine.store.scan(b"\1", b"\xfe")) == 0, where


@pytest.mark.parametrize("part", range(4))
def test_the_state_equals_that_of_a_dumb_twin_however_the_log_is_cut(part: int) -> None:
    """Whatever the batches, crashes and rows that raise: the same state, bad rows fail alone, others give results."""
    for seed in range(part * HISTORIES, (part + 1) * HISTORIES):
        one_history(seed)


FAR = pa.array([1, 2_932_897, 2_932_897], pa.int32()).cast(pa.date32())
"""A day, and twice the first of the year 10000, which Python does not have."""


def counting(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    if rows.num_rows == 1:
        raise ValueError("one row")
    return rows.select([]), state.set_column(1, "n", pa.array([rows.num_rows] * state.num_rows, pa.int32()))


def seen(row: dict[str, Any], n: State[int]) -> None:
    del row
    n.value += 1


@pytest.mark.parametrize(("fn", "declared", "failed"), [(counting, pa.schema([("n", pa.int32())]), 0), (seen, None, 2)])
def test_a_key_may_be_a_date_that_python_does_not_have(fn: Any, declared: pa.Schema | None, failed: int) -> None:
    """To a function of tables. Rows with such a date are bad records of a function of records."""
    signature = signature_of(KeyedSpec(state="n int" if declared else None), fn, None, declared)
    machine = Machine(signature, KeyedFunction(signature, fn, to_records=records_or_errors), ["day"], MemoryStore)
    machine.batch([KeyedPiece(pa.table({"day": FAR}), NEVER)], NEVER)
    machine.batch([KeyedPiece(pa.table({"day": FAR[1:2]}), NEVER)], NEVER)
    assert machine.failed == (["FunctionError"] * (failed + 1) if failed else ["ValueError"])
    keys = [read_state_key(entry).key for entry in machine.store.scan(b"\1", b"\2")["k"].to_pylist()]
    assert [key_values(key) for key in keys] == [(dt.date(1970, 1, 2),), ("10000-01-01",)][: 1 if failed else 2]


def given_back(back, state: str = "total bigint") -> None:
    def fn(rows: pa.Table, state: pa.Table):
        return back(rows, state)

    declared = pa.schema([("total", pa.int64())])
    signature = signature_of(KeyedSpec(state=state), fn, None, declared)
    machine = Machine(signature, KeyedFunction(signature, fn), ["user"], MemoryStore)
    machine.batch([KeyedPiece(pa.table({"user": ["a", "b"]}), NEVER)], NEVER)


@pytest.mark.parametrize(
    ("back", "said"),
    [
        (lambda rows, state: rows, "it gave back"),
        (lambda rows, state: (rows, None), "it gave back"),
        (lambda rows, state: (rows, state.select(["user"])), "no column 'total'"),
        (lambda rows, state: (rows, state.select(["total"])), "no column 'user'"),
        (lambda rows, state: (rows, pa.concat_tables([state, state])), "several rows of one key"),
        (lambda rows, state: (rows, pa.table({"user": ["z"], "total": [1]})), "a key that its rows do not have"),
        (lambda rows, state: (rows, pa.table({"user": ["a"], "total": ["x"]})), "bigint and string"),
        (lambda rows, state: (rows, pa.table({"user": ["a"], "total": [0.5]})), "bigint and double"),
    ],
)
def test_what_is_no_rows_and_state_is_refused(back, said: str) -> None:
    """It is a mistake of the function and no matter of a record."""
    with pytest.raises(FunctionError) as error:
        given_back(back)
    assert (error.value.code, said in error.value.cause) == ("SX-KEYED-RESULT", True)
