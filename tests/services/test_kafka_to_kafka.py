"""From a user's topic through one function to a user's topic: exactly once, by id, as everybody sees it who reads it."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from sardonyx.runtime.settings import Settings
from tests.services.crew import Crew

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """``bench/topic_to_topic.py``, which anyone can start with a million records: what it does, on a smaller scale."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("topic_to_topic")


@pytest.mark.parametrize(
    ("kind", "records"),
    [pytest.param("record", 50_000, marks=pytest.mark.gate), pytest.param("arrow", 200_000, marks=pytest.mark.long)],
)
def test_every_record_of_a_topic_comes_out_once(
    bench: ModuleType, settings: Settings, tmp_path: Path, kind: str, records: int
):
    """Nothing is missing, nothing stands there twice, nothing is there that was never written; and the counts say so."""
    source, target = f"{settings.deployment}-in", f"{settings.deployment}-out"
    bench.create_topic(settings, source)
    bench.create_topic(settings, target)
    bench.fill(settings, source, records)
    with Crew(settings, tmp_path) as crew:
        crew.coordinator()
        crew.peers(3)
        view = crew.completed(crew.client.submit(bench.make_job(kind, source, target, 20_000)), 300)
    found = bench.read_back(settings, target, records)
    assert (found.missing, found.doubled, found.strangers) == (0, 0, 0)
    task = view.task("work")
    assert (task.rows_in, task.rows_out, task.skipped) == (records, records, 0)
