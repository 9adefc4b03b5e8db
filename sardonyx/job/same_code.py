"""Which functions of a job are the same in two versions of its modules: their own text, and all that they use of these. Pure.

In doubt a function counts as another one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from sardonyx.job.bundle import contents

_DYNAMIC = frozenset({"__import__", "importlib", "exec", "eval", "globals", "import_module"})
"""Names by which a function may use what its text does not name."""


def same_functions(old: bytes | None, new: bytes | None, references: Iterable[str]) -> set[str]:
    """Those of the functions and classes, as ``module:name``, that are the same.

    Args:
        old: the zip with the modules of the version before; None: it brings none.
        new: that of the new version; None: it brings none.
        references: what is asked about. What is not in the modules of either version comes from elsewhere, and is the same.
    """
    both = _Versions(*(contents(data) if data else {} for data in (old, new)))
    return {name for name in references if both.same(name)}


class _Module:
    """The text of a module, by statements."""

    def __init__(self, name: str, source: bytes) -> None:
        self.name = name
        self.body = ast.parse(source).body
        self.bound: dict[str, list[ast.stmt]] = {}
        """By name, the statements at the top level that bind it, or a part of it."""
        for statement in self.body:
            for bound in _binds(statement):
                self.bound.setdefault(bound, []).append(statement)
        jobs = {name for name, found in self.bound.items() if any(map(_makes_a_job, found))}
        self.effects = [
            ast.dump(each) for each in self.body if isinstance(each, ast.Expr) and not _concerns(each, jobs)
        ]
        """What it does besides, but for what it tells its job."""


class _Versions:
    """The modules of both versions."""

    def __init__(self, old: dict[str, bytes], new: dict[str, bytes]) -> None:
        self._old, self._new = old, new
        self._parsed: dict[tuple[bool, str], _Module | None] = {}

    def same(self, reference: str) -> bool:
        """Whether a function means the same: its text, and that of all that can be reached from there."""
        module, _, name = reference.partition(":")
        found = {(module, name.partition(".")[0])}
        open_ = [*found]
        while open_:
            uses = self._uses(*open_.pop())
            if uses is None:
                return False
            open_ += uses - found
            found |= uses
        return True

    def _uses(self, module: str, name: str) -> set[tuple[str, str]] | None:
        """What a name of a module uses, as (module, name); a whole module has an empty name. None: it is another one."""
        if module not in self._old and module not in self._new:
            return set()  # it is installed
        one, other = self._module(module, new=False), self._module(module, new=True)
        if one is None or other is None or "*" in {*one.bound, *other.bound} or (name and one.effects != other.effects):
            return None
        parent = module.rpartition(".")[0]
        found = {(parent, "")} if parent else set()
        body, others = (each.bound.get(name, []) if name else each.body for each in (one, other))
        if name and not body and not others:  # a module of a package
            below = f"{module}.{name}"
            return {*found, (below, ""), (module, "")} if below in self._old else None
        if [*map(ast.dump, body)] != [*map(ast.dump, others)]:
            return None
        for node in (each for statement in body for each in _outside(statement, _declared_global(statement))):
            used = self._used(one, node)
            if used is None:
                return None
            found |= used
        return found

    def _used(self, module: _Module, node: ast.AST) -> set[tuple[str, str]] | None:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            return None if _DYNAMIC & {*names} else {(name, "") for name in names}
        if isinstance(node, ast.ImportFrom):
            source, names = self._source(module.name, node), [alias.name for alias in node.names]
            return None if source in _DYNAMIC or (_DYNAMIC | {"*"}) & {*names} else {(source, name) for name in names}
        if isinstance(node, ast.Name):
            if node.id in _DYNAMIC:
                return None
            return {(module.name, node.id)} if node.id in module.bound else set()
        return None if isinstance(node, ast.Attribute) and node.attr in _DYNAMIC else set()

    def _source(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = any(each.startswith(f"{module}.") for each in (*self._old, *self._new))
        parts = module.split(".")[: None if package and node.level == 1 else -(node.level - package)]
        return ".".join([*parts, *([node.module] if node.module else [])])

    def _module(self, name: str, *, new: bool) -> _Module | None:
        if (new, name) not in self._parsed:
            source = (self._new if new else self._old).get(name)
            try:
                self._parsed[new, name] = None if source is None else _Module(name, source)
            except (SyntaxError, ValueError):
                self._parsed[new, name] = None
        return self._parsed[new, name]


def _declared_global(statement: ast.stmt) -> frozenset[str]:
    return frozenset(name for node in ast.walk(statement) if isinstance(node, ast.Global) for name in node.names)


def _outside(node: ast.AST, shared: frozenset[str], own: frozenset[str] = frozenset()) -> Iterator[ast.AST]:
    """A node and all in it, but for names that are parameters of a function around them.

    Args:
        node: where to look.
        shared: names that some function in the statement declares global.
        own: parameters of the functions around the node.
    """
    if isinstance(node, ast.Name) and node.id in own:
        return
    yield node
    if isinstance(node, ast.ClassDef):  # a name that its body binds is not looked up in the function around it
        own = frozenset()
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from _outside(child, shared, own)
        return
    of = node.args
    names = {each.arg for each in (*of.posonlyargs, *of.args, *of.kwonlyargs, of.vararg, of.kwarg) if each is not None}
    body = node.body if isinstance(node.body, list) else [node.body]
    for child in ast.iter_child_nodes(node):
        inside = any(child is each for each in body)
        yield from _outside(child, shared, own | (names - shared) if inside else own)


def _binds(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement at the top level binds, or changes a part of."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield (alias.asname or alias.name).partition(".")[0]
        elif isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            root = _root(node)
            if root is not None:
                yield root


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def _makes_a_job(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
    if not isinstance(value, ast.Call):
        return False
    called = value.func
    return (isinstance(called, ast.Name) and called.id == "Job") or (
        isinstance(called, ast.Attribute) and called.attr == "Job"
    )


def _concerns(statement: ast.Expr, jobs: set[str]) -> bool:
    """Whether an expression is a text, or tells a job something."""
    return isinstance(statement.value, ast.Constant) or _root(statement.value) in jobs


__all__ = ["same_functions"]
