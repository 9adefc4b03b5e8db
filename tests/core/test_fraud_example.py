"""The fraud example: a valid job, whose functions give what plain loops give, however its queue is cut into batches."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from sardonyx.core.clocks import END, NEVER
from sardonyx.job.load import load
from sardonyx.runtime.functions import import_function
from sardonyx.state.keyed_run import KeyedFunction
from sardonyx.state.keyed_work import KeyedPiece
from sardonyx.state.memory import MemoryStore
from sardonyx.state.signature import signature_of
from tests import fraud_reference as reference
from tests.core.keyed_machine import Machine

DELAY = 10_000_000


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A shard of its task ``watch``."""
    spec = load(str(reference.EXAMPLE)).spec
    monkeypatch.syspath_prepend(reference.EXAMPLE.parent)
    task = spec.task("watch")
    assert task.keyed is not None
    fn, on_timer = import_function(str(task.fn)), import_function(str(task.keyed.on_timer))
    signature = signature_of(task.keyed, fn, on_timer)
    return Machine(signature, KeyedFunction(signature, fn, on_timer, task.params), ["card"], MemoryStore, limit=20)


def test_it_is_a_valid_job_without_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over generated payments, and over a topic without an end."""
    assert load(str(reference.EXAMPLE)).warnings == ()
    monkeypatch.setenv("FRAUD_TOPIC", "payments")
    assert load(str(reference.EXAMPLE)).warnings == ()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("with_clock", [True, False])
def test_it_gives_every_alert_once(machine: Machine, seed: int, with_clock: bool) -> None:
    """With a clock that follows the rows, and with one that stands still until the end of the input; with crashes."""
    chance = random.Random(seed)
    rows = reference.payments(seed, 600, cards=chance.choice([1, 5, 40]))
    wanted = reference.alerts(rows)
    clock = NEVER
    while rows:
        count = chance.randrange(1, 90)
        taken, rows = rows[:count], rows[count:]
        table = pa.Table.from_pylist(taken)
        times = table["at"].cast(pa.timestamp("us")).cast(pa.int64()).to_numpy()
        piece = KeyedPiece(table, clock, times)
        clock = max(clock, int(times[-1]) - DELAY) if with_clock else clock
        machine.batch([piece], clock, crash=lambda: chance.random() < 0.2)
    machine.batch([], END, before=clock)
    results = [result for result, _ in machine.results]
    assert reference.of_results(results) == wanted
    assert not machine.failed
