"""What it saves to apply a function where its split was read: ``PYTHONPATH=. python bench/bench_splits.py``.

Each batch is one split. It is worked on in one Spark task, and in two steps as before: read on a worker, bring the rows to the
peer, and send them to the workers again. The two ways take turns, batch by batch, so that both meet the same load of the machine.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sardonyx.connectors.base import Split, SplitInput
from sardonyx.connectors.registry import split_input
from sardonyx.core.spec import TaskSpec
from sardonyx.runtime.settings_sections import SparkSettings
from spark_tasks.apply import TaskFunction
from spark_tasks.on_demand import SparkOnDemand, TaskSpark
from spark_tasks.read_splits import joined_splits, read_splits
from spark_tasks.session import start_session, stop_session

TIMES = 30
PEERS = 4
"""Tasks at a time, for the figures of several."""


def late(rows: pa.Table) -> pa.Table:
    """A function of tables that costs next to nothing."""
    return rows.append_column("late", pc.greater(rows["value"], 500.0))


def labelled(row: dict[str, Any]) -> dict[str, Any]:
    """A function of records."""
    return {**row, "late": row["value"] > 500.0}


def inputs(folder: Path) -> Iterator[tuple[str, SplitInput]]:
    """Inputs of a few splits of 50,000 rows, or 4 MiB."""
    made = split_input(TaskSpec(name="in", type="input", connector="generator", options={"count": 200_000}))
    yield "generator", made
    lines = [f"{n},customer-{n % 1000:012d},{n % 1000}.5,{'x' * 40}\n" for n in range(250_000)]
    (folder / "in.csv").write_text("".join(lines))
    schema = "id bigint, key string, value double, text string"
    options = {"path": str(folder / "in.csv"), "format": "csv", "schema": schema}
    yield "csv", split_input(TaskSpec(name="in", type="input", connector="files", options=options))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        spark = start_session(SparkSettings(), Path(folder))
        print(f"{TIMES} batches of one split each way; median, and the quartiles of the ratio of neighbours")
        for name, connector in inputs(Path(folder)):
            splits = list(connector.splits())
            for function in (late, labelled):
                _compare(spark, f"{name}, {function.__name__}", connector, splits, f"bench_splits:{function.__name__}")
        stop_session(spark)


def _compare(spark: Any, title: str, connector: SplitInput, splits: list[Split], fn: str) -> None:
    task = TaskSpec(name="in", type="input", fn=fn)

    def together(function: TaskFunction, split: Split) -> int:
        found = function.read_and_apply(connector, [split], time.time())
        assert found is not None
        assert found.applied.table is not None
        return found.applied.table.num_rows

    def apart(function: TaskFunction, split: Split) -> int:
        table = function.apply(joined_splits(read_splits(spark, connector, [split.data]))).table
        assert table is not None
        return table.num_rows

    for peers in (1, PEERS):
        functions = [TaskFunction(TaskSpark(SparkOnDemand(lambda: spark), "bench"), task) for _ in range(peers)]

        def timed(
            way: Callable[[TaskFunction, Split], int], number: int, functions: list[TaskFunction] = functions
        ) -> tuple[float, int]:
            began = time.perf_counter()
            some = [splits[(number + n) % len(splits)] for n in range(len(functions))]
            with ThreadPoolExecutor(len(functions)) as threads:
                rows = sum(threads.map(way, functions, some))
            return time.perf_counter() - began, rows

        for number in range(4):
            assert timed(together, number)[1] == timed(apart, number)[1]
        new, old = [], []
        for number in range(TIMES):
            new.append(timed(together, number)[0])
            old.append(timed(apart, number)[0])
        low, middle, high = statistics.quantiles([a / b for a, b in zip(new, old, strict=True)], n=4)
        print(
            f"{title:<22} {peers} at a time: two steps {statistics.median(old) * 1000:6.1f} ms, "
            f"one {statistics.median(new) * 1000:6.1f} ms, ratio {middle:.2f} ({low:.2f} to {high:.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
