"""The graph example: a valid job, whose results are those of networkx."""

from __future__ import annotations

import sys
from pathlib import Path

import networkx as nx
import pytest

from sardonyx.job.load import load
from sardonyx.testing import run_job

FOLDER = Path(__file__).parents[2] / "examples" / "graph"
NOVEL = nx.les_miserables_graph()


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its modules are found, and gone after the test: other examples have a ``job`` as well."""
    monkeypatch.syspath_prepend(FOLDER)
    for name in ("job", "novel_data"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_it_is_a_valid_job_without_warnings() -> None:
    """Nothing is wrong with it, and nothing probably not meant."""
    assert load(str(FOLDER / "job.py")).warnings == ()


@pytest.mark.parametrize("batch_size", [10, 50_000])
def test_its_results_are_those_of_networkx(batch_size: int) -> None:
    """Of the graph as it comes with networkx: a rank for each of 77 characters, and the circles of those who meet often."""
    result = run_job(str(FOLDER / "job.py"), batch_size=batch_size)
    ranks = {row["name"]: row["rank"] for row in result.rows("ranks-out")}
    wanted = nx.pagerank(NOVEL, weight=None, tol=1e-14, max_iter=1_000)
    assert ranks.keys() == wanted.keys()
    assert max(abs(ranks[name] - wanted[name]) for name in wanted) < 1e-9
    often = NOVEL.edge_subgraph([(a, b) for a, b, chapters in NOVEL.edges(data="weight") if chapters >= 3])
    circles = {name: min(circle) for circle in nx.connected_components(often) for name in circle}
    assert {row["name"]: row["component"] for row in result.rows("circles-out")} == circles
    assert len(set(circles.values())) > 1
