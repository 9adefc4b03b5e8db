"""Pipelines: one in three modes, with functions of all kinds, in this process, on a cluster, and on services of its own."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame

from sardonyx import Count, Job, State, Sum, files, generator, kafka
from sardonyx.pipeline import Environment, Pipeline, Window
from sardonyx.testing import Cluster, run_job

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline"
ORDERS = [
    {"shop": shop, "at": f"2026-11-27T10:0{n // 3}:{n % 3 * 10:02}Z", "currency": currency, "amount": float(n * 10)}
    for n, (shop, currency) in enumerate([("oslo", "EUR"), ("lima", "USD"), ("oslo", "USD")] * 4)
]
WINDOW_OF: dict[str, Callable[[int], int]] = {
    "batch": lambda _: 0,
    "micro": lambda n: n // 4,
    "stream": lambda n: n // 3,
}


@pytest.fixture
def _example(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its modules are found, and gone after the test: other examples have a ``job`` as well."""
    monkeypatch.syspath_prepend(EXAMPLE)
    for name in ("job", "main"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def reference(mode: str) -> tuple[dict[str, list[tuple[int, float]]], dict[str, list[float]]]:
    """By shop, after each window in which it has paid orders: how many it has had and their sum; and the largest one."""
    revenue: dict[str, list[tuple[int, float]]] = defaultdict(list)
    largest: dict[str, list[float]] = defaultdict(list)
    paid = [
        (WINDOW_OF[mode](n), order["shop"], round(order["amount"] * (0.9 if order["currency"] == "USD" else 1.0), 2))
        for n, order in enumerate(ORDERS)
        if order["amount"] > 0
    ]
    for window, shop in dict.fromkeys((window, shop) for window, shop, _ in paid):
        so_far = [euros for before, of, euros in paid if of == shop and before <= window]
        revenue[shop].append((len(so_far), round(sum(so_far), 2)))
        largest[shop].append(max(so_far))
    return dict(revenue), dict(largest)


@pytest.mark.usefixtures("_example")
@pytest.mark.parametrize("batch_size", [2, 50_000])
@pytest.mark.parametrize("mode", ["batch", "micro", "stream"])
def test_one_pipeline_is_batch_micro_batches_and_stream(
    mode: str, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch gives each result once. The others give one after each window, which counts exactly the windows so far, however
    the rows were cut into batches.
    """
    monkeypatch.setenv("MODE", mode)
    result = run_job(str(EXAMPLE / "job.py"), {"orders": ORDERS}, batch_size=batch_size)
    revenue: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in result.rows("revenue-out"):
        revenue[row["shop"]].append((row["orders"], round(row["euros"], 2)))
    largest: dict[str, list[float]] = defaultdict(list)
    for row in result.rows("largest-out"):
        largest[row["shop"]].append(row["euros"])
    assert (dict(revenue), dict(largest)) == reference(mode)
    counts = {shop: len(results) for shop, results in revenue.items()}
    assert (
        counts
        == {"batch": {"oslo": 1, "lima": 1}, "micro": {"oslo": 3, "lima": 3}, "stream": {"oslo": 4, "lima": 4}}[mode]
    )


def test_the_example_runs_on_services_of_its_own() -> None:
    """As its text says: a batch, micro-batches, and a stream that is stopped."""
    done = subprocess.run(
        [sys.executable, EXAMPLE / "main.py"], capture_output=True, text=True, timeout=300, check=False, cwd=EXAMPLE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    begin, end = lines.index(["batch"]), lines.index(["micro"])
    assert lines[-1] == ["stream", "stopped"]
    for mode, rows in (("batch", lines[begin + 1 : end]), ("micro", lines[end + 1 : -1])):
        found: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for shop, orders, euros, *_ in rows:
            found[shop].append((int(orders), round(float(euros), 2)))
        assert found == reference(mode)[0]


# --- On a cluster -----------------------------------------------------------------------------------------------------


def spelled(row: dict) -> dict:
    return {**row, "n": 1}


def is_word(rows: pa.Table) -> pa.ChunkedArray:
    return pc.utf8_is_alpha(rows["word"])


def total(one: dict, other: dict) -> dict:
    return {**one, "n": one["n"] + other["n"]}


def test_a_pipeline_runs_on_a_cluster(sardonyx_cluster: Cluster, tmp_path: Path) -> None:
    """Rows of two partitions in windows by size; what a sink has written is collected from a topic and from files."""
    words = ["tea", "rum", "7", "tea", "gin", "tea", "8", "rum"] * 5
    topic = sardonyx_cluster.topic("words", [{"word": word} for word in words])
    counts = sardonyx_cluster.topic("counts")

    def build(p: Pipeline) -> None:
        source = kafka(topic, schema="word string", start="earliest", end="latest")
        rows = p.source("words", source, window=Window.size(10)).map(spelled).filter(is_word).key_by("word")
        rows.reduce(total, across="windows").sink("counts", kafka(counts, key="word"))
        rows.reduce(total, "each").sink("each-out", files(str(tmp_path / "each"), format="json"))

    with Environment.cluster(sardonyx_cluster.settings) as here:
        execution = here.pipeline("words", build, partitions=2)
        running = execution.collect("counts", timeout="2 min")
        (each,) = [job for job in here.client.jobs() if job.name == "words"]
        assert each.status == "completed"
    wanted = {word: words.count(word) for word in ("tea", "rum", "gin")}
    last = {row["word"]: row["n"] for row in sorted(running, key=lambda row: row["window_end"])}
    assert last == wanted
    assert [row["window_end"] for row in running if row["word"] == "tea"] == [10, 20]
    files_of_each = [file for file in (tmp_path / "each").rglob("*.json") if file.is_file()]
    assert sum(line.count("\n") for line in (file.read_text() for file in files_of_each)) == 6


# --- Functions among the params ---------------------------------------------------------------------------------------


def times_two(n: int) -> int:
    return n * 2


def by_record(row: dict, f: Callable[[int], int]) -> dict:
    return {**row, "record": f(row["n"])}


def by_table(rows: pa.Table, f: Callable[[int], int]) -> pa.Table:
    return rows.append_column("arrow", pa.array([f(n) for n in rows["n"].to_pylist()]))


def by_frame(rows: DataFrame, f: Callable[[int], int]) -> DataFrame:
    return rows.withColumn("frame", rows["n"] + f(1))


def by_key(row: dict, f: Callable[[int], int], seen: State[int]) -> dict:
    seen.value = f(row["n"])
    return {**row, "keyed": seen.value}


def next_hop(vertices: pa.Table, f: Callable[[int], int]) -> pa.Table:
    return pa.table({"hops": pa.array([f(2)] * vertices.num_rows, pa.int64())})


def test_functions_of_all_kinds_are_given_functions() -> None:
    """Of rows, tables, DataFrames, states and programs over graphs: each is given the function that its params name."""
    job = Job("j")
    after: Any = job.input("in", generator(3, columns={"n": "sequence"}))
    given = {"params": {"f": times_two}}
    after = job.task("record", by_record, after=after, **given)
    after = job.task("table", by_table, after=after, fuse=True, **given)
    after = job.task("frame", by_frame, after=after, **given)
    after = job.keyed("key", by_key, after=after, group_by="n", **given)
    job.output("out", files("out", format="json"), after=after)
    web = job.graph("web", edges=after, source="n", target="record")
    job.output("hops", files("hops", format="json"), after=web.compute("hop", next_hop, state="hops bigint", **given))
    result = run_job(job, {"in": [{"n": n} for n in range(3)]})
    assert sorted(result.rows("out"), key=lambda row: row["n"]) == [
        {"n": n, "record": 2 * n, "arrow": 2 * n, "frame": n + 2, "keyed": 2 * n} for n in range(3)
    ]
    assert {row["hops"] for row in result.rows("hops")} == {4}


def test_totals_need_no_key() -> None:
    """`key_by()` puts all rows under one key."""
    p = Pipeline("j")
    rows = p.source("in", kafka("in", schema="n int", start="earliest", end="latest"), window=Window.size(2)).key_by()
    rows.aggregate("n", {"rows": Count(), "sum": Sum("n")}, across="windows").sink("out", files("out", format="json"))
    found = run_job(p, {"in": [{"n": n} for n in range(5)]}).rows("out")
    assert [(row["rows"], row["sum"], row["window_end"]) for row in found] == [(2, 1, 2), (4, 6, 4), (5, 10, 6)]
