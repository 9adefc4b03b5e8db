"""Loops that run in the process of the test. Batches, hops, counts and the end are the product's own; tasks pass rows on as they
are.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sardonyx.core.errors import JobFailed
from sardonyx.core.spec import CycleSpec, JobSpec, OnError, Route, TaskSpec
from sardonyx.testing.engine import Engine
from sardonyx.testing.local import begun, run_job
from tests.sizes import histories

HISTORIES = histories(20, whole=60)


def odd(rows: pa.Table) -> pa.ChunkedArray:
    return pc.equal(pc.bit_wise_and(rows["n"], 1), 1)


def looping(rng: random.Random, then: Any = "skip") -> tuple[JobSpec, int]:
    """A ring of tasks, the first of which may also be fed by one in the middle; and how often a row may come back."""
    size, hops = rng.randint(1, 3), rng.randint(1, 4)
    ring = [f"t{number}" for number in range(size)]
    names = ["in", *ring, "out"]
    spec = JobSpec(
        name="loop",
        workflow=[("in", "t0"), *itertools.pairwise(ring), (ring[-1], "out")],
        catalog=[
            TaskSpec(name="in", type="input", connector="generator", options={"count": rng.randint(0, 30)}),
            *(
                TaskSpec(name=name, type="function", batch_size=rng.choice([1, 3, 50]), on_error=OnError(then=then))
                for name in ring
            ),
            TaskSpec(name="out", type="output", connector="blackhole"),
        ],
        partitions=rng.randint(1, 3),
        cycles=[CycleSpec(name="ring", back=[(ring[-1], "t0")], max_hops=hops)],
        routes={f"{ring[-1]}.t0": Route(where=f"{__name__}:odd")} if rng.random() < 0.5 else {},
    )
    assert {task.name for task in spec.catalog} == {*names}
    return spec, hops


def expected(spec: JobSpec, hops: int, rows: list[int]) -> tuple[Counter[int], int]:
    """How often each row comes out, and how many come back once too often."""
    goes_on = [row for row in rows if not spec.routes or row % 2]
    return Counter({row: hops + 1 if row in goes_on else 1 for row in rows}), len(goes_on)


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_each_row_comes_back_as_often_as_it_may(seed: int) -> None:
    """However loops are cut into batches: the job ends, and each row has passed the right number of times."""
    rng = random.Random(seed)
    spec, hops = looping(rng)
    rows = list(range(rng.randint(0, 40)))
    result = run_job(spec, {"in": [{"n": row} for row in rows]})
    wanted, beyond = expected(spec, hops, rows)
    assert Counter(row["n"] for row in result.rows("out")) == wanted
    assert result.counts("t0").skipped == beyond
    assert result.counts("t0").rows_in == sum(wanted.values()) + beyond


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_a_loop_outlives_its_peers(seed: int) -> None:
    """Peers crash with nothing to do, before they write and after it. Nothing is lost or doubled. The loop ends with its input,
    and not before.
    """
    rng = random.Random(seed)
    spec, hops = looping(rng)
    engine: Engine = begun(spec, places=False, batch_size=None, partitions=spec.partitions, spark=None, now=0.0)
    rows: list[int] = []
    try:
        for _ in range(rng.randint(1, 4)):
            more = list(range(len(rows), len(rows) + rng.randint(0, 12)))
            engine.give("in", [{"n": row} for row in more])
            rows += more
            for _ in range(rng.randint(0, 3)):
                task = rng.choice(["t0", *(stage.name for stage in engine.graph.stages)])
                engine.tasks[task].crash(rng.choice(["settled", "applied", "committed"]))
            engine.settle()
            assert not engine.tasks["t0"].ended
            assert not engine.tasks["out"].ended
        wanted, beyond = expected(spec, hops, rows)
        assert engine.tasks["out"].result.counts.rows_in == sum(wanted.values())  # all is through, though it goes on
        engine.end("in")
        engine.settle()
        assert all(task.ended for task in engine.tasks.values())
        out = engine.tasks["out"].result
        assert Counter(row for table in out.tables for row in table["n"].to_pylist()) == wanted
        assert engine.tasks["t0"].result.counts.skipped == beyond
    finally:
        engine.close()


def test_a_row_that_comes_back_too_often_fails_the_job() -> None:
    """Unless its task says otherwise; the error says which loop, which task and how often."""
    spec, _ = looping(random.Random(1), then="fail")
    with pytest.raises(JobFailed) as raised:
        run_job(spec, {"in": [{"n": 1}]})
    assert raised.value.code == "SX-CYCLE-HOPS"
    assert raised.value.where["cycle"] == "ring"
    assert raised.value.where["task"] == "t0"


def test_rows_beyond_become_dead_letters_that_hold_them() -> None:
    """A redo can work on them again."""
    spec, _ = looping(random.Random(1), then="dead_letter")
    letters = run_job(spec, {"in": [{"n": 1}, {"n": 3}]}).dead_letters("t0")
    assert sorted(letter.record["n"] for letter in letters) == [1, 3]  # type: ignore[index, call-overload]
    assert {letter.failure.code for letter in letters} == {"SX-CYCLE-HOPS"}
