"""Where a module reads the environment while it is imported.

Peers and Spark's workers import a job's modules too, without the environment in which the job was submitted. A module that
reads ``os.environ["TOPIC"]`` at its top level then raises there, or quietly gets another value. The source shows this without
running it; see :mod:`sardonyx.job.warn` for why it is not tried out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple


class EnvironmentRead(NamedTuple):
    """One place that reads a variable during the import."""

    line: int
    variable: str
    """Its name; empty if the source computes it."""
    required: bool
    """Whether the import fails without the variable: ``os.environ[...]``, but not ``os.environ.get(...)``."""


def environment_reads(source: str | bytes) -> list[EnvironmentRead]:
    """What an import of this source reads from ``os.environ``, in the order of lines.

    Follows calls of the module's own functions by their names. Leaves out what only a script runs (``if __name__ ==
    "__main__"``) and what only a type checker reads. Source that does not parse gives nothing.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    return sorted(set(_Scan(tree).reads()))


class _Scan:
    """A walk over the statements that an import executes."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self._os, self._environ, self._getenv = {"os"}, set[str](), set[str]()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._os |= {alias.asname or alias.name for alias in node.names if alias.name == "os"}
            elif isinstance(node, ast.ImportFrom) and node.module == "os":
                self._environ |= {alias.asname or alias.name for alias in node.names if alias.name == "environ"}
                self._getenv |= {alias.asname or alias.name for alias in node.names if alias.name == "getenv"}

    def reads(self) -> Iterator[EnvironmentRead]:
        called: set[str] = set()
        waiting: list[ast.AST] = list(self._tree.body)
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in called:
                called.add(node.func.id)
                function = self._functions.get(node.func.id)
                waiting += [] if function is None else function.body
            read = self._read(node)
            if read is not None:
                yield read
            waiting += _executed(node)

    def _read(self, node: ast.AST) -> EnvironmentRead | None:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and self._is_environ(node.value):
            return EnvironmentRead(node.lineno, _text(node.slice), required=True)
        if not isinstance(node, ast.Call):
            return None
        function = node.func
        asks_environ = (
            isinstance(function, ast.Attribute) and function.attr == "get" and self._is_environ(function.value)
        )
        is_getenv = (isinstance(function, ast.Name) and function.id in self._getenv) or (
            isinstance(function, ast.Attribute) and function.attr == "getenv" and self._is_os(function.value)
        )
        if asks_environ or is_getenv:
            return EnvironmentRead(node.lineno, _text(node.args[0]) if node.args else "", required=False)
        return None

    def _is_os(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id in self._os

    def _is_environ(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self._environ
        return isinstance(node, ast.Attribute) and node.attr == "environ" and self._is_os(node.value)


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a statement or expression that an import executes."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from node.decorator_list
        yield from node.args.defaults
        yield from (default for default in node.args.kw_defaults if default is not None)
    elif isinstance(node, ast.Lambda):
        return
    elif isinstance(node, ast.If) and _never_at_import(node.test):
        yield from node.orelse
    else:
        yield from ast.iter_child_nodes(node)


def _never_at_import(test: ast.expr) -> bool:
    if isinstance(test, ast.Compare) and isinstance(test.left, ast.Name):
        return test.left.id == "__name__" and isinstance(test.ops[0], ast.Eq)
    name = test.attr if isinstance(test, ast.Attribute) else test.id if isinstance(test, ast.Name) else ""
    return name == "TYPE_CHECKING"


def _text(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
