"""Histories of jobs with clocks, windows and state, and proof that the simulation notices a safeguard that is gone."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

import pytest

from tests.simulation.plan import Plan
from tests.simulation.safeguards import SAFEGUARDS, Safeguard
from tests.simulation.simulate import drawn, noticed, played, share, world_of
from tests.sizes import histories

FIRST = int(os.environ.get("SARDONYX_SIMULATE_FIRST", "0"))
HISTORIES = int(os.environ.get("SARDONYX_SIMULATE_TIMED") or histories(20, whole=50))
"""Half as many of other kinds, and a fifth of jobs that go back or are stopped. ``make simulate KIND=clocks SEEDS=10000`` plays
any number.
"""
SHARES = 4


@pytest.mark.parametrize("kind", ["clocks", "damage", "lineage", "checkpoints", "loops", "going-back", "stops"])
@pytest.mark.parametrize("number", range(SHARES))
def test_windows_count_each_row_once_whatever_dies(number: int, kind: str) -> None:
    """Rows, late rows and panes are what the links call for, clocks and positions never fall, and every job completes. If Kafka
    loses a task's state or positions, the job fails with an error that says so, or has not needed them: it never gives other
    results. The progress of a job with lineage is never beyond the truth, and reaches the end with the job. Each checkpoint of a
    job is the state that the rows before its time have made. Each row of a job with a loop has come back as often as it may. Each
    row has its effect once over all jobs that go on from each other; what was given for rows after a checkpoint is given again. A
    job without an end gives the same as one with an end when a user stops it.
    """
    size = max(1, HISTORIES // SHARES // {"clocks": 1, "going-back": 5, "stops": 5}.get(kind, 2))
    total, failures = share(FIRST + number * size, size, kind)
    assert not failures, "\n".join(
        f"history {seed} failed (again, shrunk: make simulate SEEDS=1 FIRST={seed} KIND={kind})\n{wrong}"
        for seed, wrong in failures
    )
    assert total.accepted == 0


def test_damage_is_done_and_refused() -> None:
    """Most histories with a damaged Kafka come to the refusal: they would show nothing otherwise."""
    refused = set()
    for seed in range(20):
        world = world_of(drawn("damage", str(seed)))
        world.play()
        refused |= {(seed, job.error.code) for job in world.oracle.state.jobs.values() if job.error is not None}
    assert len(refused) > 10, refused
    assert {code for _, code in refused} >= {"SX-STATE-TORN", "SX-STATE-POSITIONS-LOST"}, refused


def test_progress_moves_while_a_job_runs() -> None:
    """In some histories rows are told to be everywhere while others are pending: that it is never wrong would show nothing
    otherwise. They have few rows, most of them in windows that close with the job.
    """
    moved, count = 0, 14
    for seed in range(count):
        world = world_of(drawn("lineage", str(seed)))
        world.play()
        moved += world.progress.seen["moved"] > 0  # type: ignore[attr-defined]
    assert moved > count // 13, moved


def test_checkpoints_are_taken_among_later_rows() -> None:
    """In most histories rows of later times come before the clock has passed a checkpoint, and of some the coordinator has logged
    one by the end: it would show nothing otherwise.
    """
    taken, logged = [], 0
    for seed in range(10):
        world = world_of(drawn("checkpoints", str(seed)))
        world.play()
        taken.append(world.checkpoints.taken)  # type: ignore[attr-defined]
        logged += world.checkpoints.logged  # type: ignore[attr-defined]
    assert sum(map(bool, taken)) > len(taken) // 2, taken
    assert logged, "no checkpoint was logged"


def test_users_do_go_back_and_restart() -> None:
    """A good part of the histories of that kind has a rollback that took place, and a restart: others show nothing about them."""
    done = []
    for seed in range(6):
        world = world_of(drawn("going-back", str(seed)))
        done.append(world.play())
    for kind in ("rollbacks", "restarts"):
        count = sum(getattr(tally, kind) for tally in done)
        assert count > len(done) // 4, f"{count} {kind} in {len(done)} histories"


@cache
def undisturbed(planned: Callable[[str], Plan], seed: int) -> str:
    """What goes wrong in a history with all safeguards: several of them have the same one."""
    return played(planned(str(seed)))[1]


@pytest.mark.parametrize("safeguard", SAFEGUARDS, ids=lambda each: each.name)
def test_the_simulation_notices(safeguard: Safeguard, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one safeguard taken out, some of the first thousand histories fail: here is one. With it in place it goes well. An
    error that the patch itself raises shows nothing, and fails the test.

    If a change of the product or of the simulation makes it go well without the safeguard, too, look for another one:
    ``make simulate WITHOUT=name``.
    """
    assert safeguard.seed < 1000
    assert not undisturbed(safeguard.planned, safeguard.seed)
    safeguard.take_out(monkeypatch)
    said = noticed(safeguard.planned(str(safeguard.seed)))
    assert safeguard.says in said, f"without it, history {safeguard.seed} {said or 'goes well'}"
