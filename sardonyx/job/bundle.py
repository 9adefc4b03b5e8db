"""A job's own modules as a zip: those beside the spec that it needs, the same bytes for the same files. No pickled code.

The zip is stored in ZooKeeper under its sha256 and put on the path of the peers that run the job.
"""

from __future__ import annotations

import ast
import hashlib
import io
import os
import re
import zipfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from sardonyx.core.errors import JobInvalid, SardonyxError
from sardonyx.core.job_diff import CodeChange

MAX_BYTES = 768 * 1024
"""A node in ZooKeeper holds up to 1 MiB, and the request around the zip needs room, too."""

_LEFT_OUT = frozenset({"__pycache__", "venv", "env", "site-packages", "dist-packages", "node_modules", "build", "dist"})
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can hold. Every file gets it, so that only the contents decide the hash."""
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

_IMPORTS = frozenset({"__import__", "import_module"})
_RUNS = frozenset({"exec", "eval"})
_IMPORTERS = frozenset({"importlib", "pkgutil", "runpy"})
"""Modules with which another one can import what its text does not name."""
_MODULE = re.compile(r"(\w+)[.:]\w")
"""The beginning of a text that may name something in a module, such as ``"helpers:fn"``."""


class Bundle(NamedTuple):
    """A zip of modules, and its hash."""

    data: bytes
    sha256: str


def build(root: Path, needed: Collection[str] | None = None) -> Bundle:
    """The zip of modules in ``root`` and of its packages.

    Args:
        root: the folder.
        needed: the names of those that go into it, as :func:`reached` finds them; None: all.

    Raises:
        JobInvalid: ``SX-JOB-CODE-TOO-LARGE``, with its largest files.
    """
    buffer = io.BytesIO()
    sizes: list[tuple[int, str]] = []
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(_modules(root, "", needed=needed)):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix, wherever it is made
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, (root / name).read_bytes())
            sizes.append((archive.getinfo(name).compress_size, name))
    data = buffer.getvalue()
    if len(data) > MAX_BYTES:
        largest = ", ".join(f"{name} ({size // 1024} KiB)" for size, name in sorted(sizes, reverse=True)[:5])
        raise JobInvalid(
            [
                SardonyxError(
                    "SX-JOB-CODE-TOO-LARGE",
                    f"the modules beside the spec make a zip of {len(data) // 1024} KiB; "
                    f"the limit is {MAX_BYTES // 1024} KiB",
                    cause=f"of {len(sizes)} modules in {root} the largest, zipped, are {largest}",
                    fix="move the spec into a folder with only the modules that it needs, or install them on the peers",
                    where={"path": root},
                )
            ]
        )
    return Bundle(data, hashlib.sha256(data).hexdigest())


def top_level(root: Path) -> set[str]:
    """The top-level names of the modules and packages in the bundle of ``root``."""
    return {Path(name).parts[0].removesuffix(".py") for name in _modules(root, "", deep=False)}


def reached(root: Path, names: Iterable[str]) -> set[str]:
    """The top-level names of the modules and packages in ``root`` that a job needs: what it names, and what these import. A
    package counts as a whole.

    The text of a module tells what it may import: by statements, and by texts such as ``"helpers:fn"``. If one of them imports
    by names that it computes, all modules are needed.

    Args:
        root: the folder.
        names: the modules that the job names.
    """
    own = top_level(root)
    found: set[str] = set()
    look = [*own.intersection(name.partition(".")[0] for name in names)]
    while look:
        top = look.pop()
        found.add(top)
        for name in _modules(root, "", needed={top}):
            named = _named((root / name).read_bytes())
            if named is None:
                return own
            look += named & own - found
    return found


def _named(source: bytes) -> set[str] | None:
    """The top-level modules that a module names; None: it computes such names."""
    try:
        nodes = [*ast.walk(ast.parse(source))]
    except (SyntaxError, ValueError):  # a module that nothing can import
        return set()
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {each[1] for each in [_MODULE.match(node.value)] if each}
        used = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if used in _IMPORTS or (isinstance(node, ast.Name) and used in _RUNS):
            return None
    return None if found & _IMPORTERS else found


def code_change(old: bytes | None, new: bytes | None) -> CodeChange:
    """In what the modules of two versions of a job differ. None: a version brings none."""
    before, after = (contents(data) if data else {} for data in (old, new))
    names = before.keys() | after.keys()
    changed = [name for name in names if before.get(name) != after.get(name)]
    same: set[str] = set()
    for name in changed:
        one, other = _definitions(before.get(name, b"")), _definitions(after.get(name, b""))
        same |= {f"{name}:{each}" for each in one.keys() & other.keys() if one[each] == other[each]}
    own = frozenset(name.partition(".")[0] for name in names)
    return CodeChange(own=own, modules=frozenset(changed), same=frozenset(same))


def lost_names(old: bytes | None, new: bytes | None, references: Iterable[str]) -> list[str]:
    """The functions and classes, as ``module:name``, that the modules of the old version have and those of the new one do not. A
    module that comes from elsewhere is not looked at.

    Args:
        old: the zip of the version before; None: it brings none, or its code is no longer there.
        new: that of the new version; None: it brings none.
        references: the names that are needed.
    """
    before, after = (contents(data) if data else {} for data in (old, new))
    found = []
    for name in references:
        module, _, attribute = name.partition(":")
        if (module in before or module in after) and attribute.partition(".")[0] not in _bound(after.get(module, b"")):
            found.append(name)
    return found


def _bound(source: bytes) -> set[str]:
    """The names that a module binds anywhere in its text."""
    try:
        nodes = [*ast.walk(ast.parse(source))]
    except (SyntaxError, ValueError):
        return set()
    names = {each.name for each in nodes if isinstance(each, _DEFINITIONS)}
    names |= {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    imported = [alias for each in nodes if isinstance(each, ast.Import | ast.ImportFrom) for alias in each.names]
    return names | {(alias.asname or alias.name).partition(".")[0] for alias in imported}


def _definitions(source: bytes) -> dict[str, str]:
    """The functions and classes at the top level of a module, each as text without comments and line numbers."""
    try:
        found = ast.parse(source).body
    except (SyntaxError, ValueError):  # a module of the job that nothing imports
        return {}
    return {each.name: ast.dump(each) for each in found if isinstance(each, _DEFINITIONS)}


def contents(data: bytes) -> dict[str, bytes]:
    """The modules in a zip of :func:`build`, by their names in Python."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {
            name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): archive.read(name)
            for name in archive.namelist()
        }


def _modules(folder: Path, prefix: str, *, deep: bool = True, needed: Collection[str] | None = None) -> Iterator[str]:
    """Paths, relative to the root, of the modules in a folder and in the packages below it; if ``needed`` says so, of some."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name in _LEFT_OUT:
                continue
            if needed is not None and entry.name.removesuffix(".py") not in needed:
                continue
            if entry.is_file() and entry.name.endswith(".py"):
                yield prefix + entry.name
            elif entry.is_dir() and not _loops(Path(entry.path)) and Path(entry.path, "__init__.py").is_file():
                inner = (
                    _modules(Path(entry.path), f"{prefix}{entry.name}/")
                    if deep
                    else [f"{prefix}{entry.name}/__init__.py"]
                )
                yield from inner


def _loops(folder: Path) -> bool:
    """Whether a folder is a link to one of its own parents."""
    return folder.is_symlink() and folder.resolve() in folder.absolute().parents
