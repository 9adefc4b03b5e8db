"""The jobs that fault runs run: their specs, what goes in, and what must come out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PARTITIONS = 4
"""Of every topic that goes in, and that comes out."""
SOURCE = 100_000_000
"""Ids of one source (a partition of an input) begin at its number times this."""
KEYS = 16
"""Keys of each source; no two sources share one."""
AT_A_TIME = 2
"""Peers on a task, at most: so that several jobs find room, and there is a peer to take over."""
BAD = 101
"""Of so many records one is bad, where there are any."""
SCHEMA = "id bigint, key string, at bigint"
WINDOW = 50
"""Milliseconds of a window. The time of a record is its number in its source, in milliseconds."""
DELAY, ALLOWED = 40, 100
"""Milliseconds, where records are out of order: by so much rows may be older than rows before them; for so long a window that has
closed is corrected."""
THIRD = 3
"""Of so many records one is on the right side of a join."""
VERTICES = 200_003
"""Of a graph: so many that each edge, which is a record, matters."""
CIRCLE = 16
"""Vertices between which there are edges."""
PATH = 100
"""Of a graph of paths: so many vertices one behind the other. Each edge matters, and it takes as many supersteps."""
MODULUS, ROUNDS = 1009, 15
"""Of rounds: numbers stay below this, and go on changing; how many rounds there are."""
TURNS = 6
"""In a loop a record comes back fewer times than this: as many as its id says."""

_FUNCTIONS = """
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from sardonyx import (
    Collect, Count, Job, MapState, Max, State, Sum, Timer, Timers, event_time, files, generator, kafka, sql, tumbling
)

def same(rows: pa.Table) -> pa.Table:
    return rows

def left(rows: pa.Table) -> pa.Table:
    return rows.append_column("via", pa.array(["left"] * rows.num_rows, pa.string()))

def right(rows: pa.Table) -> pa.Table:
    return rows.append_column("via", pa.array(["right"] * rows.num_rows, pa.string()))

def thirds(rows: pa.Table) -> pa.Table:
    return rows.filter(pa.array(rows["id"].to_numpy() % {third} == 0))

def each(row: dict) -> dict:
    return {{**row}}

def running(row: dict, hits: State[int], total: State[int], of: MapState[int, int], timers: Timers) -> dict:
    hits.value += 1
    total.value += row["id"]
    window = row["at"] // {window}
    of[window] = of.get(window, 0) + 1
    timers.set(datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=(window + 1) * {window}), str(window))
    return {{"id": row["id"], "key": row["key"], "hits": hits.value, "total": total.value}}

def counted(timer: Timer, of: MapState[int, int]) -> dict:
    source, key = map(int, timer.key.split("-"))
    window = int(timer.name)
    first = window * {window}
    first += (key - first) % {keys}
    return {{"id": source * {ids} + first, "key": timer.key, "rows": of.pop(window)}}

def picky(row: dict) -> dict:
    if row["id"] % {bad} == 0:
        raise ValueError("not this one")
    return {{**row}}

def ends(rows: pa.Table) -> pa.Table:
    ids = rows["id"].to_numpy()
    a = ids * 7919 % {vertices}
    return pa.table({{"a": a, "b": a - a % {circle} + ids // 7 % {circle}}})

def steps(rows: pa.Table) -> pa.Table:
    ids = rows["id"].to_numpy()
    return pa.table({{"a": ids, "b": ids - (ids % {ids} % {path} > 0)}})

def mixed(rows: pa.Table, aggregates: pa.Table) -> pa.Table:
    if not len(aggregates):
        return pa.table({{"value": rows["id"].to_numpy() % {modulus}}})
    sums = dict(zip(aggregates["key"].to_pylist(), aggregates["value"].to_pylist()))
    told = pa.array([sums[key] for key in rows["key"].to_pylist()], pa.int64()).to_numpy()
    return pa.table({{"value": (rows["value"].to_numpy() ** 2 + told) % {modulus}}})

def turn(row: dict) -> dict:
    left = row.get("left")
    return {{**row, "left": row["id"] % {turns} if left is None else left - 1}}

def more(rows: pa.Table) -> pa.BooleanArray:
    return pa.array(rows["left"].to_numpy() > 0)

def done(rows: pa.Table) -> pa.BooleanArray:
    return pa.array(rows["left"].to_numpy() == 0)

def source(topic: str):
    return kafka(topic, start="earliest", end={end}, format="json", schema="{schema}")

out = kafka("{out}", format="json", key="key")
by_vertex = kafka("{out}", format="json", key="id")
job = Job("{name}", partitions=4)
"""


@dataclass(frozen=True)
class Shape:
    """A shape of job.

    Args:
        name: what it is called.
        stages: how many of its tasks run; each takes :data:`AT_A_TIME` peers.
        body: the job, with the names of :data:`_FUNCTIONS`; ``IN0``, ``IN1`` are its input topics, ``OUT`` its folder.
        inputs: how many topics go in; none, and the job makes up its records.
        vias: what ``via`` says in the copies of each record that must come out.
        ordered: whether order per key is promised.
        files: whether it puts files out.
        bad: every so manyth id is one of a record that must become a dead letter; 0: none.
        results: what comes out: records as they went in, windows, all panes of windows and what is too late for them, what keyed
            state gives, pairs of joined records, what comes of a graph whose edges are the records, or of rounds over them.
        edges: which edge a record is.
        shared: whether several peers compute a graph together, in supersteps that are committed.
        store: where the state of tasks is at hand.
    """

    name: str
    stages: int
    body: str
    inputs: int = 1
    vias: tuple[str, ...] = ("",)
    ordered: bool = False
    files: bool = False
    bad: int = 0
    results: Literal["records", "windows", "panes", "keyed", "pairs", "ranks", "components", "rounds"] = "records"
    edges: Literal["circles", "paths"] = "circles"
    shared: bool = False
    store: str = "memory"

    @property
    def late(self) -> bool:
        """Whether all results come at the end."""
        return self.results in ("ranks", "components", "rounds")

    def at(self, number: int) -> int:
        """The time of a record, in milliseconds, by its number in its source."""
        return disordered(number) if self.results == "panes" else number

    @property
    def loops(self) -> bool:
        """Whether its end is that of a loop."""
        return self.shared or self.name == "loop"

    def spec(self, name: str, inputs: list[str], out: str, end: int, made: int, rate: float, folder: Path) -> str:
        """The text of ``job.py``. ``folder``: where a database for its state may be."""
        ends = dict.fromkeys(range(PARTITIONS), end)
        numbers = {"bad": BAD, "third": THIRD, "window": WINDOW, "keys": KEYS, "ids": SOURCE}
        numbers |= {"vertices": VERTICES, "circle": CIRCLE, "turns": TURNS, "path": PATH, "modulus": MODULUS}
        text = _FUNCTIONS.format(end=ends, schema=SCHEMA, out=out, name=name, **numbers) + self.body
        for number, topic in enumerate(inputs):
            text = text.replace(f"IN{number}", repr(topic))
        in_database = self.store == "sql" and not self.shared  # supersteps are committed with Kafka
        said = {
            "OUT": repr(out),
            "MADE": str(made),
            "RATE": f"{rate:.1f}",
            "MOST": str(AT_A_TIME),
            "STORE": f'sql("sqlite:///{folder}/{name}-state.db")'
            if in_database
            else repr("memory" if self.store == "sql" else self.store),
        }
        for word, value in said.items():
            text = text.replace(word, value)
        return text


def disordered(number: int) -> int:
    """The time of a record of a source that is out of order: some are older than those before them by less than
    :data:`DELAY`, some by so much that their window may have closed, some by so much that nothing may correct it any more.
    """
    dice = number * 7919 % 101
    back = number * 104_729
    if dice < 20:
        back %= DELAY
    elif dice < 30:
        back = DELAY + WINDOW + back % ALLOWED
    elif dice < 34:
        back = DELAY + 2 * WINDOW + ALLOWED + back % 300
    else:
        back = 0
    return max(0, number - back)


_GRAPH = (
    'edges = job.task("ends", ends, after=job.input("read", source(IN0)), max_peers=MOST)\n'
    'graph = job.graph("web", edges=edges, source="a", target="b", batch_size=500, store=STORE)\n'
)
_SHARED = (
    'edges = job.task("ends", EDGES, after=job.input("read", source(IN0)), max_peers=MOST)\n'
    'graph = job.graph("web", edges=edges, source="a", target="b", batch_size=500, batch_timeout="10 ms", store=STORE, '
    "max_peers=4)\n"
)

SHAPES = {
    shape.name: shape
    for shape in (
        Shape(
            "copy",
            1,
            'job.output("write", out, after=job.task("copy", same, after=job.input("read", source(IN0)), max_peers=MOST))\n',
            ordered=True,
        ),
        Shape(
            "chain",
            3,
            'first = job.task("first", same, after=job.input("read", source(IN0)), max_peers=MOST)\n'
            'second = job.task("second", each, after=first, max_peers=MOST)\n'
            'job.output("write", out, after=job.task("third", same, after=second, max_peers=MOST))\n',
        ),
        Shape(
            "diamond",
            4,
            'both = [job.input("read", source(IN0)), job.input("also", source(IN1))]\n'
            'union = job.task("union", same, after=both, max_peers=MOST)\n'
            'one = job.task("left", left, after=union, max_peers=MOST)\n'
            'other = job.task("right", right, after=union, max_peers=MOST)\n'
            'job.output("write", out, after=job.task("join", same, after=[one, other], max_peers=MOST))\n',
            inputs=2,
            vias=("left", "right"),
        ),
        Shape(
            "files",
            2,
            'work = job.task("work", same, after=job.input("read", source(IN0)), max_peers=MOST)\n'
            'job.output("write", files(OUT, format="json"), after=work, max_peers=MOST)\n',
            files=True,
        ),
        Shape(
            "fused",
            1,
            'first = job.task("first", same, after=job.input("read", source(IN0)), max_peers=MOST)\n'
            'second = job.task("second", each, after=first, fuse=True)\n'
            'job.output("write", files(OUT, format="json"), after=second, fuse=True)\n',
            files=True,
        ),
        Shape(
            "made",
            2,
            'columns = {"id": "sequence", "key": {"kind": "key", "distinct": 50}}\n'
            'made = job.input("make", generator(MADE, rate=RATE, columns=columns), max_peers=MOST)\n'
            'job.output("write", out, after=job.task("work", same, after=made, max_peers=MOST))\n',
            inputs=0,
        ),
        Shape(
            "grouped",
            2,
            'work = job.task("work", same, after=job.input("read", source(IN0)), max_peers=MOST)\n'
            'job.output("write", out, after=job.task("meet", each, after=work, group_by=["key"], max_peers=MOST))\n',
            ordered=True,
        ),
        Shape(
            "dead",
            2,
            'work = job.task("work", same, after=job.input("read", source(IN0)), max_peers=MOST)\n'
            'met = job.task("meet", picky, after=work, max_peers=MOST, on_error="dead_letter")\n'
            'job.output("write", out, after=met)\n',
            bad=BAD,
        ),
        Shape(
            "window",
            3,
            'timed = job.input("read", source(IN0), time=event_time("at", unit="ms"), max_peers=MOST)\n'
            'work = job.task("work", same, after=timed, max_peers=MOST)\n'
            'counts = {"hits": Count(), "total": Sum("id"), "most": Max("id")}\n'
            f'each_window = tumbling("{WINDOW} ms")\n'
            'met = job.window("meet", each_window, after=work, group_by="key", aggregate=counts, max_peers=MOST, store=STORE)\n'
            'job.output("write", out, after=met)\n',
            results="windows",
        ),
        Shape(
            "panes",
            2,
            f'timed = job.input("read", source(IN0), time=event_time("at", unit="ms", delay="{DELAY} ms"), max_peers=MOST)\n'
            'counts = {"hits": Count(), "total": Sum("id"), "most": Max("id"), "ids": Collect("id")}\n'
            f'about = {{"aggregate": counts, "emit": "changes", "allowed_lateness": "{ALLOWED} ms"}}\n'
            f'each_window = tumbling("{WINDOW} ms")\n'
            'met = job.window("meet", each_window, after=timed, group_by="key", **about, max_peers=MOST, store=STORE)\n'
            'job.output("write", out, after=met)\n'
            'job.output("late", out, after=met.late)\n',
            results="panes",
        ),
        Shape(
            "keyed",
            3,
            'timed = job.input("read", source(IN0), time=event_time("at", unit="ms"), max_peers=MOST)\n'
            'work = job.task("work", same, after=timed, max_peers=MOST)\n'
            'met = job.keyed("meet", running, after=work, group_by="key", on_timer=counted, max_peers=MOST, store=STORE)\n'
            'job.output("write", out, after=met)\n',
            ordered=True,
            results="keyed",
        ),
        Shape(
            "join",
            3,
            'timed = job.input("read", source(IN0), time=event_time("at", unit="ms"), max_peers=MOST)\n'
            'work = job.task("work", same, after=timed, max_peers=MOST)\n'
            'third = job.task("third", thirds, after=timed, max_peers=MOST)\n'
            f'near = {{"within": ("0 ms", "{KEYS} ms"), "how": "left", "prefix": "other_"}}\n'
            'met = job.join("meet", work, third, on="key", **near, max_peers=MOST, store=STORE)\n'
            'job.output("write", out, after=met)\n',
            results="pairs",
        ),
        Shape(
            "loop",
            2,
            'again = job.cycle("round", after=job.input("read", source(IN0)), max_hops=20)\n'
            'turned = job.task("turn", turn, after=again, max_peers=MOST)\n'
            'each_turn = job.task("each", same, after=turned, max_peers=MOST)\n'
            "again.feedback(each_turn.where(more))\n"
            'job.output("write", out, after=each_turn.where(done))\n',
        ),
        Shape(
            "pagerank",
            2,
            _GRAPH + 'job.output("write", by_vertex, after=graph.pagerank("meet", tolerance=1e-13))\n',
            results="ranks",
        ),
        Shape(
            "components",
            2,
            _GRAPH + 'job.output("write", by_vertex, after=graph.connected_components("meet"))\n',
            results="components",
        ),
        Shape(
            "shared-pagerank",
            4,
            _SHARED.replace("EDGES", "ends")
            + 'job.output("write", by_vertex, after=graph.pagerank("meet", tolerance=1e-13))\n',
            results="ranks",
            shared=True,
        ),
        Shape(
            "shared-components",
            4,
            _SHARED.replace("EDGES", "steps")
            + 'job.output("write", by_vertex, after=graph.connected_components("meet"))\n',
            results="components",
            edges="paths",
            shared=True,
        ),
        Shape(
            "rounds",
            2,
            'work = job.task("work", same, after=job.input("read", source(IN0)), max_peers=MOST)\n'
            'about = {"state": "value bigint", "group_by": "key", "aggregate": {"value": "sum"}, "batch_size": 500}\n'
            f'met = job.iterate("meet", mixed, rows=work, max_rounds={ROUNDS}, store=STORE, **about)\n'
            'job.output("write", out, after=met)\n',
            results="rounds",
        ),
    )
}
