"""The benchmarks reach into the product; what changes there shall not be noticed an hour into one of them."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest

BENCH = Path(__file__).parents[2] / "bench"


def script(name: str):
    """A script that needs nothing but Python's own and psutil."""
    spec = importlib.util.spec_from_file_location(name, BENCH / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


races, processes, web_goals = script("races"), script("processes"), script("bench_web_goals")
figures = script("window_figures")


def test_every_script_finds_what_it_takes_from_the_product():
    """Each can be imported, in a process of its own: some stand in for parts of the product."""
    scripts = sorted(path.stem for path in BENCH.glob("*.py"))
    assert scripts
    imports = [sys.executable, "-c", f"import {', '.join(scripts)}; print(machine.machine())"]
    found = subprocess.run(imports, cwd=BENCH, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert re.search(r", (commit \w{7,}(, changed)?|of no commit), \d{4}-", found.stdout), "what a figure is of"


def test_a_small_cost_is_told_only_where_enough_runs_agree():
    """Single runs that differ by a fifth say nothing about three hundredths, whatever their median is."""

    def row(*ratios: float):
        return races.Row("lineage", "without", 0.97, fine=True, ratios=list(ratios), ours=[1], theirs=[1])

    assert row(1.08, 1.1, 0.9, 0.95, 1.36).verdict == "cannot be told"
    assert row(0.5, 0.98, 0.98, 0.99, 0.99, 0.99, 1.0, 1.0, 1.9).verdict == "met", (
        "a single run far off on either side is none"
    )
    assert row(0.5, 0.93, 0.94, 0.95, 0.95, 0.95, 0.96, 0.96, 1.9).verdict == "missed"
    assert races.interval([5, 3, 9, 1, 7]) == (1, 9)
    assert races.interval([9, 8, 7, 6, 5, 4, 3, 2, 1]) == (2, 8)


def test_both_sides_of_a_pair_run_at_the_same_time():
    """So a machine whose speed changes favours neither side."""
    both = threading.Barrier(2)

    def run(*figures: float):
        both.wait(10)  # raises if the other side does not run
        return figures

    rows = [races.Row("of times", "the same", None, unit="s"), races.Row("of rates", "the same", None)]
    races.paired(rows, 3, lambda: run(2.0, 30.0), lambda: run(4.0, 20.0))
    assert [row.ratios for row in rows] == [[2.0] * 3, [1.5] * 3]


def test_a_job_is_not_as_fast_as_its_last_step():
    """A first step that is through before the last one begins does not make the job quick: its time counts."""
    ids, seen = np.arange(1000), 10.0 + np.arange(1000) / 10_000
    assert round(figures.joined_rate(ids, seen, 1000)) == 10_000, "by the output alone"
    assert round(figures.joined_rate(ids, seen, 1000, since=0.0)) == 99, "from when the first step began"
    counts = [(0, hits + 1, at) for hits, at in enumerate(seen)]
    assert round(figures.running_rate(counts, {0: 1000}, since=0.0)) == 99
    windows = np.unique(figures.places(ids, np.zeros(1000, np.int64))), np.ones(1000, np.int64)
    found = figures.Results(ids, np.zeros(1000, np.int64), np.ones(1000, np.int64), seen)
    assert round(figures.steady(found, windows, once=True, since=0.0)) == 99


def test_opponents_take_turns_in_who_is_next_to_a_run_of_ours():
    """The machine changes its speed within minutes, so who is always last is held to another machine."""
    order: list[str] = []
    names = ["Flink", "Spark", "Quix"]
    sides = [(races.Row("filter", name, None), lambda name=name: float(order.append(name) or 1)) for name in names]
    found = races.race_all(3, lambda: float(order.append("ours") or 1), sides)
    assert order == ["ours", *names, "ours", *names[1:], names[0], "ours", names[2], *names[:2], "ours"]
    assert [row.against for row in found] == names


def test_the_figures_beside_a_ratio_are_those_that_it_is_of():
    """The ratio is to the mean of two runs of the other side, and so is the figure of that side."""
    theirs = iter([[100.0], [300.0], [500.0]])
    (row,) = races.race([races.Row("filter", "Spark", 1)], 2, lambda: [400.0], lambda: next(theirs))
    assert list(zip(row.theirs, row.ratios, strict=True)) == [(200.0, 2.0), (400.0, 1.0)]


def test_an_opponent_that_fails_or_is_left_out_is_said_and_the_others_go_on(capsys):
    def fails() -> float:
        raise AssertionError("3 records are missing")

    rows = [
        races.Row("filter", against, goal) for against, goal in (("Flink", 1.5), ("Bytewax", 1.5), ("Pathway", None))
    ]
    rows += [races.Row("filter", "Kafka Streams", 1.5, gone="left out"), races.Row("filter", "Spark", 5)]
    sides = [lambda: 100.0, fails, lambda: 300.0, fails, lambda: 200.0]
    found = races.race_all(2, lambda: 200.0, list(zip(rows, sides, strict=True)))
    assert [row.ratios for row in found] == [[2.0, 2.0], [], [200 / 300] * 2, [], [1.0, 1.0]]
    said = capsys.readouterr().out
    assert said.count("Bytewax failed, and does not run again: 3 records are missing") == 1
    *lines, last = races.table(found).splitlines()
    assert [row.verdict for row in found] == ["met", "failed", "", "left out", "missed"]
    assert [line.split(" | ")[1].strip() for line in lines[2:]] == [
        "Flink",
        "Bytewax",
        "Kafka Streams",
        "Spark",
        "Pathway",
    ]
    assert last == "Of 4 goals: 1 met, 1 failed, 1 left out, 1 missed"


@pytest.mark.parametrize("error", [AssertionError, KeyError, OSError, ValueError])
def test_whatever_an_opponent_raises_the_bench_goes_on(error, capsys):
    """An odd row, a broker that refuses, a program that is not there: each ends the race of that opponent, and nothing else."""
    given = iter([[100.0], [200.0]])

    def theirs():
        if (found := next(given, None)) is None:
            raise error("odd")
        return found

    rows = races.race([races.Row("filter", "Spark", 3)], 5, lambda: [300.0], theirs)
    assert [(row.ratios, row.verdict) for row in rows] == [([2.0], "failed")]
    other, fails = races.Row("filter", "Quix", 5), races.Row("filter", "Flink", 5)
    races.race_all(2, lambda: 100.0, [(fails, theirs), (other, lambda: 50.0)])
    assert (fails.verdict, other.ratios) == ("failed", [2.0, 2.0])
    assert capsys.readouterr().out.count("does not run again") == 2


def opponent(child: str, then: str) -> subprocess.Popen[str]:
    """A process that starts another one, says which, and does something then."""
    start = f"import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-SEc', {child!r}], stdin=subprocess.PIPE)"
    program = f"{start}; print('ready', flush=True); print(p.pid, flush=True); {then}"
    return subprocess.Popen([sys.executable, "-SEc", program], stdout=subprocess.PIPE, text=True)


def test_an_opponent_that_hangs_is_ended_with_all_that_it_has_started():
    """One that has lost a record waits for it without end, and what it has started keeps its output open."""
    with opponent("import time; time.sleep(600)", "time.sleep(600)") as process:
        with processes.ending(process, longest=0.5, patience=0.0):
            assert processes.said_by(process) == ["ready"]
        assert process.poll() is not None


def test_what_an_opponent_has_started_has_ended_before_the_next_run():
    """It has time to end by itself, as a JVM does at the end of its input."""
    with opponent("import sys; sys.stdin.read()", "p.wait()") as process:
        assert process.stdout is not None
        with processes.ending(process):
            process.stdout.readline()
            started = psutil.Process(int(process.stdout.readline()))
        assert not started.is_running()


WEB = {
    "viewers": {
        "by_viewers": {
            "0": {"web_core": 0.001, "coordinator_core": 0.03},
            "1": {"web_core": 0.01, "coordinator_core": 0.03},
            "200": {"web_core": 0.04, "coordinator_core": 0.04},
        },
        "zookeeper_many_to_one": 1.02,
        "kafka_many_to_one": None,
    },
    "decision": {"by_viewers": {"1": {"ms_p99": 120}, "200": {"ms_p99": 501}}},
    "attention": {"seconds": {"a slow task": 21.5, "dead letters": 30.5, "a missing peer": None}},
    "past": {
        "500": {"entries": 1_000_000, "answers": {"job": {"ms_p99": 500}}},
        "10000": {"entries": 1_000_000, "answers": {"job": {"ms_p99": 99.0}, "entry": {"ms_p99": 111.0}}},
        "machine": "two cores",
        "load": 0.1,
    },
    "paint": {"tasks": 200, "ms_median": 700},
    "scrub": {"tasks": 200, "ms_p99": 9.1, "asked": 0},
}


def test_what_the_pages_cost_is_held_to_its_goals():
    """Each figure beside its goal; what was not measured cannot be told, and parts that did not run have no line."""
    found = [(each.part, each.measured, each.met) for each in web_goals.goals(WEB)]
    assert found == [
        ("viewers", 1.02, True),
        ("viewers", None, None),
        ("viewers", 0.01, True),
        ("viewers", 0.04, True),
        ("decision", 120, True),
        ("decision", 501, False),
        ("attention", 21.5, True),
        ("attention", 30.5, False),
        ("attention", None, False),
        ("past", 99.0, True),
        ("past", 111.0, False),
        ("paint", 700, True),
        ("scrub", 9.1, True),
        ("scrub", 0, True),
    ]
    assert [each.part for each in web_goals.goals({"paint": WEB["paint"]})] == ["paint"]
    assert web_goals.table(WEB).count("\n") == 1 + len(found)
    assert "| decision to page, p99, 200 who look | 501 | at most 500 ms | missed |" in web_goals.table(WEB)
