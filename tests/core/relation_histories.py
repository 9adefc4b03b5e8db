"""Random logs of two sides, and ways to put them through a shard: cut anywhere, in any order of the sides, with crashes."""

import random
from collections import Counter

import pyarrow as pa

from sardonyx.core.clocks import END, NEVER
from sardonyx.state.memory import MemoryStore
from sardonyx.state.overlay import Overlay
from sardonyx.state.row_pack import SCHEMA
from sardonyx.state.sides import LEFT, RIGHT, SidedPiece
from sardonyx.state.waits import RELATION_WAITS

KEYS = ["a", "b", "c", None]


class Block:
    """A block of a link: its rows as dicts, the clock in force before it, and the clock after it."""

    def __init__(self, side, rows, in_force, clock):
        self.side, self.rows, self.in_force, self.clock = side, rows, in_force, clock

    def piece(self):
        """The block as a shard gets it. A column that all of its rows lack is not there."""
        names = [name for name in ("k", "t", "v", "extra") if any(name in row for row in self.rows)]
        types = {"k": pa.string(), "t": pa.int64(), "v": pa.int64(), "extra": pa.string()}
        schema = pa.schema([(name, types[name]) for name in names])
        return SidedPiece(pa.Table.from_pylist(self.rows, schema=schema), self.in_force, self.side)


def log(chance, side, start=0):
    """A random log: blocks with late rows among them. Its last block ends it."""
    blocks, clock, now = [], NEVER, start
    disorder = chance.choice([1, 10, 40])
    for number in range(chance.randint(1, 10)):
        rows = []
        for _ in range(chance.choice([0, 1, 3, 8])):
            now += chance.choice([0, 0, 1, 3])
            row = {"k": chance.choice(KEYS), "t": now - chance.randint(0, disorder), "v": chance.randint(0, 99)}
            rows.append(row | ({"extra": chance.choice("xyz")} if chance.random() < 0.2 else {}))
        before = clock
        if chance.random() < 0.6:
            clock = max(clock, now - chance.choice([0, 3, 15]))
        blocks.append(Block(side, rows, before, clock))
        now += 50 if chance.random() < 0.1 else 0
        if number and chance.random() < 0.05:
            blocks.append(Block(side, [], clock, clock))
    last = blocks[-1]
    blocks[-1] = Block(side, last.rows, last.in_force, END)
    return blocks


def times(rows):
    return rows["t"].to_numpy(zero_copy_only=False).astype("int64")


def interleaved(chance, logs):
    """The blocks of several logs, each log in its order."""
    rest, found = [list(each) for each in logs], []
    while any(rest):
        side = chance.choice([each for each in rest if each])
        found.append(side.pop(0))
    return found


class Run:
    """What a shard gives for blocks.

    Args:
        make: makes the shard over a store.
        blocks: in the order in which they are read.
        chance: where they are cut, and where a plan is made that never commits.
        sides: how many.
        store: an empty one; None: in memory.
    """

    def __init__(self, make, blocks, chance, sides, store=None):
        self.results, self.late, self.late_by, self.plans = [], [], [], []
        store = MemoryStore(SCHEMA) if store is None else store
        shard, clocks = make(store), [NEVER] * sides
        while blocks:
            size = chance.randint(1, 4)
            if chance.random() < 0.2:  # a batch that is dropped; the next one is cut elsewhere
                taken = blocks[: chance.randint(1, 4)]
                shard.plan([block.piece() for block in taken], self._after(clocks, taken), chance.choice([None, 2]))
            taken, blocks = blocks[:size], blocks[size:]
            clocks = self._after(clocks, taken)
            pieces, more = [block.piece() for block in taken], True
            while more:
                limit = chance.choice([None, 1, 3])
                planned = shard.plan(pieces, tuple(clocks), limit)
                again = shard.plan(pieces, tuple(clocks), limit)
                assert planned.results.equals(again.results), "a plan changes nothing"
                self._note(planned, taken if pieces else [])
                store.apply(planned.changes)
                pieces, more = [], planned.more
            if chance.random() < 0.3:
                shard = make(store)  # another peer
        self.store = store

    def _after(self, clocks, blocks):
        found = list(clocks)
        for block in blocks:
            found[block.side] = max(found[block.side], block.clock)
        return tuple(found)

    def _note(self, planned, blocks):
        rows = planned.results.to_pylist()
        self.results += rows
        self.plans.append(rows)
        for late in planned.late.to_pylist():
            block = blocks[late["piece"]]
            self.late.append((block.side, tuple(block.rows[late["row"]].items())))
            self.late_by.append(late["late_by"])


def judged(spec, logs):
    """The rows of each side that are on time, and the late ones of both."""
    on_time, late = ([], []), []
    for block in (block for each in logs for block in each):
        for row in block.rows:
            if block.in_force > NEVER and row["t"] + spec.grace < block.in_force:
                late.append((block.side, tuple(row.items())))
            else:
                on_time[block.side].append(row)
    return on_time, late


def runs_as(name, spec_of, shard_of, twin):
    """Put two random logs through a shard in several ways. The results and the late rows, as multisets, must be those of the
    twin. Gives each run, and its spec.
    """
    chance = chance_of(name)
    spec, logs = spec_of(chance), (log(chance, LEFT), log(chance, RIGHT))
    for each in logs:  # the names of columns depend on which the left side has
        each[0].rows.insert(0, {"k": "z", "t": 10**6, "v": 0, "extra": "x"})
    on_time, late = judged(spec, logs)
    wanted = twin(spec, on_time)
    for _ in range(3):
        first = [logs[LEFT][0], logs[RIGHT][0]]
        blocks = first + interleaved(chance, (logs[LEFT][1:], logs[RIGHT][1:]))
        run = Run(shard_of(spec), blocks, chance, 2)
        assert counted(run.results) == counted(wanted), (name, spec)
        assert sorted(run.late, key=repr) == sorted(late, key=repr), (name, spec)
        yield spec, run


def counted(rows):
    """Rows as a multiset. A column that is missing counts as null."""
    return Counter(tuple(sorted((name, value) for name, value in row.items() if value is not None)) for row in rows)


def entries(store):
    """What a store holds, besides the schemas of rows and how long late ones are waited for."""
    return [row for row in Overlay(store).scan().to_pylist() if not row["k"].startswith((b"s", RELATION_WAITS))]


def chance_of(seed):
    return random.Random(seed)
