"""What the layers' contract (`lint-imports`, in `make check`) cannot see: what loads without the clients of services."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLIENTS = ("kazoo", "confluent_kafka", "pyspark", "py4j")
PURE = ("coordinator/core", "sardonyx/core", "sardonyx/job")
"""Packages whose every module loads without any service's client."""


def test_what_decides_and_what_users_import_load_without_clients() -> None:
    """Every module of the pure packages, and ``sardonyx`` itself, loads in a Python without the clients of the services."""
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for folder in PURE
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]
    assert len(names) > 20
    program = "\n".join(
        [
            "import importlib, sys",
            f"sys.modules.update(dict.fromkeys({CLIENTS!r}))",  # None in there makes an import fail
            f"for name in {[*names, 'sardonyx', 'sentinel.rules']!r}:",
            "    importlib.import_module(name)",
        ]
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _imported(path: Path) -> set[str]:
    """The top-level packages that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


def test_hypothesis_is_used_in_core_tests_only() -> None:
    """It watches the random generator that the process shares; kazoo draws from it in its own thread at each wait."""
    for path in sorted((ROOT / "tests" / "services").rglob("*.py")):
        assert "hypothesis" not in _imported(path), path.name
