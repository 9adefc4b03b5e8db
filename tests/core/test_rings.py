"""The house has rings, and imports only point inwards: decide < front < drive < adapt."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("coordinator", "peer", "queues", "sentinel", "spark_tasks", "sardonyx")
OUTSIDE = ("kazoo", "confluent_kafka", "pyspark", "py4j")

DECIDE = {
    "coordinator.core.admission",
    "coordinator.core.decide",
    "sardonyx.core.events",
    "coordinator.core.explain",
    "coordinator.history.timeline",
    "sardonyx.core.node_paths",
    "coordinator.core.peer_states",
    "coordinator.history.replay",
    "coordinator.core.scheduling",
    "coordinator.core.state",
    "coordinator.core.changeset",
    "queues.block",
    "queues.messages",
    "sardonyx.core.errors",
    "sardonyx.core.graph",
    "sardonyx.connectors.declarations",
    "sardonyx.connectors.options",
    "sardonyx.connectors.schema",
    "sardonyx.core.spec",
    "sardonyx.core.units",
    "sentinel.rules",
}
"""Pure: no clock, no chance, no I/O; they import each other and data libraries, nothing that talks to a service."""

FRONT = {
    "sardonyx.job.parse",
    "sardonyx.job.validate_edges",
    "sardonyx.runtime.functions",
    "sardonyx.job.builder",
    "sardonyx.connectors.check_paths",
    "sardonyx.core.tracebacks",
    "sardonyx.job.validate",
}
"""What a job is written and checked with, before anything is started: may read files and import the user's modules."""

DRIVE = {"coordinator.loop.leader", "peer.task_loop"}
"""One loop each, which everything else serves."""

PURE_LIBRARIES = {"msgspec", "transitions", "pyarrow"}
"""What the inner ring may import beside the standard library."""

SIDE_EFFECTS = {"random", "secrets", "socket", "subprocess", "threading", "time", "uuid"}
"""Standard modules that give a clock, chance or I/O."""


def ring(module: str) -> int:
    return next((at for at, held in enumerate((DECIDE, FRONT, DRIVE)) if module in held), 3)


def modules() -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(path: Path, *, in_functions: bool = True) -> set[str]:
    """Every module that a file imports, but for those that only annotations need.

    ``in_functions``: also what is imported only when it is needed, not just what the file cannot be imported without.
    """
    found: set[str] = set()
    nodes: list[ast.AST] = [ast.parse(path.read_text())]
    while nodes:
        node = nodes.pop()
        if _for_types_only(node) or (isinstance(node, ast.FunctionDef) and not in_functions):
            continue
        nodes += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            base = node.module or ""
            found |= {name if (name := f"{base}.{alias.name}") in MODULES else base for alias in node.names}
    return found


def _for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def test_the_rings_hold_modules_that_exist() -> None:
    """The table names nothing that is not there."""
    assert sorted((DECIDE | FRONT | DRIVE) - MODULES.keys()) == []


@pytest.mark.parametrize("module", sorted(DECIDE & MODULES.keys()))
def test_the_inner_ring_is_pure(module: str) -> None:
    """It imports its own ring, data libraries, and of the standard library nothing with a clock, chance or sockets."""
    for name in imports(MODULES[module]):
        top = name.partition(".")[0]
        if top in PACKAGES:
            assert name in DECIDE, f"{module} imports {name}, which lies outside its ring"
        else:
            assert top not in SIDE_EFFECTS, f"{module} imports {name}"
            assert top in PURE_LIBRARIES or top in sys.stdlib_module_names, f"{module} imports {name}"


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_inwards(module: str) -> None:
    """No module imports one of a ring further out when it is itself imported. A loop may start what it drives."""
    outward = [
        name for name in imports(MODULES[module], in_functions=False) if name in MODULES and ring(name) > ring(module)
    ]
    assert module in DRIVE or outward == []


def test_the_inner_ring_without_the_outside_world() -> None:
    """It imports in a Python in which ZooKeeper's, Kafka's and Spark's clients cannot be imported; so does `sardonyx`."""
    program = "\n".join(
        [
            "import importlib, sys",
            f"sys.modules.update(dict.fromkeys({OUTSIDE!r}))",  # None in there makes an import fail
            f"for name in {sorted((DECIDE | FRONT) & MODULES.keys())!r} + ['sardonyx']:",
            "    importlib.import_module(name)",
        ]
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_core_tests_import_nothing_from_outside() -> None:
    """Tests of the core run where no service's client is installed."""
    for path in sorted(Path(__file__).parent.glob("*.py")):
        outside = [name for name in imports(path) if name.partition(".")[0] in OUTSIDE]
        assert outside == [], f"{path.name} imports {outside}"


def test_what_hypothesis_chooses_is_chosen_among_the_core_tests() -> None:
    """It watches the chance that all share; a client of ZooKeeper draws from it in its own thread at each of its waits."""
    for path in sorted((Path(__file__).parent.parent / "services").rglob("*.py")):
        assert [name for name in imports(path) if name.partition(".")[0] == "hypothesis"] == [], path.name
