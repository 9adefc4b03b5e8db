"""Code bundles: a job carries its own modules in a zip named by its hash, and their names never clash.

One daemon runs several jobs in one process, and two jobs may both have a module ``job`` or ``helpers``. So this module
imports a bundle's modules as members of the bundle's own package, ``_sx_<start of its hash>``. The loader rewrites the
import statements inside them: ``import helpers`` becomes ``import _sx_ab12.helpers as helpers`` if the bundle has
``helpers``. Everything else is plain Python: tracebacks, annotations, and functions that PySpark sends to its workers.
The workers import the same names.

A process frees a bundle that nothing has used for a while (:func:`free_unused`): its modules, its files, and what Spark holds
of it. A function that still runs keeps its module, because it refers to it.

The loader rewrites import statements only. ``importlib.import_module("helpers")`` searches only the installed packages.
``importlib.import_module(".helpers", __package__)`` works.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import linecache
import os
import sys
import tempfile
import threading
import time
import typing
import weakref
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from sardonyx.core.errors import FunctionError, SetupError
from sardonyx.runtime.functions import check_reference, import_function
from spark_tasks.failures import as_written, shown_traceback

_PREFIX = "_sx_"
_HASH_IN_NAME = 16

UNUSED = 600.0
"""Seconds for which a bundle is kept after its last use. A task that moves to another peer of the daemon finds it again."""

_lock = threading.Lock()
_bundles: dict[str, CodeBundle] = {}
"""The bundles of this process by their package."""
_shipped: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()
"""SparkContext -> packages that its workers can import."""


LARGEST_UNPACKED = 64 * 1024 * 1024
"""Bytes of a job's modules, unpacked: a zip of a few hundred KiB may hold a thousand times as much."""


class CodeBundle:
    """A zip of modules, identified by the sha256 of its content. :meth:`open` makes it; many threads may use it."""

    def __init__(self, path: Path, sha256: str, content: bytes) -> None:
        self.path = path
        self.sha256 = sha256
        self.package = _PREFIX + sha256[:_HASH_IN_NAME]
        """The package that holds its modules. It has the same name in every process."""
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            self._files = {info.filename: archive.read(info) for info in archive.infolist() if not info.is_dir()}
        self.modules = frozenset(name.split("/")[0].removesuffix(".py") for name in self._files if name.endswith(".py"))
        """Names of its top-level modules and packages."""
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()
        """Objects that need it as long as they live."""
        self.used_at = time.monotonic()
        """When it was needed last, as far as :func:`free_unused` has looked."""
        self.made: dict[Any, Any] = {}
        """What a worker has made of its functions, and keeps for further batches. It refers to the bundle's classes, and so to
        all that its modules have loaded: it goes with the bundle."""
        self._loaded: dict[str, Callable[..., Any]] = {}

    @classmethod
    def open(cls, source: Path | bytes, sha256: str, cache_dir: Path | None = None) -> CodeBundle:
        """Return the bundle in a file or in bytes. The same content gives the same object.

        If the source is bytes, this method stores them as a file.

        Args:
            source: a path to the zip, or its content.
            sha256: the hash that the content must have, as 64 hexadecimal digits.
            cache_dir: the directory that stores the zip as ``<sha256>.zip``. It is optional if the source is a path.

        Raises:
            SetupError: ``SX-CODE-HASH``, the content has another hash or is not a zip; ``SX-CODE-LARGE``, it is too large
                unpacked.
        """
        package = _PREFIX + sha256[:_HASH_IN_NAME]
        with _lock:
            known = _bundles.get(package)
            if known is not None and known.sha256 == sha256 and known.path.exists():
                known.used_at = time.monotonic()
                return known
            content = source if isinstance(source, bytes) else source.read_bytes()
            _check(content, sha256)
            path = source if isinstance(source, Path) and cache_dir is None else _keep(content, sha256, cache_dir)
            bundle = cls(path, sha256, content)
            _bundles[package] = bundle
            if _finder not in sys.meta_path:
                sys.meta_path.insert(0, _finder)
        return bundle

    def let_go(self, user: Any) -> None:
        """One of :attr:`users` needs it no more. It is still kept for a while."""
        self.users.discard(user)
        self.used_at = time.monotonic()

    def load(self, reference: str) -> Callable[..., Any]:
        """Return the function that ``module:function`` names. Later calls return the same object.

        The function comes from the bundle if the bundle has that module, else from an installed module.

        Raises:
            FunctionError: ``SX-FN-NAME``, or ``SX-FN-IMPORT`` with the user's traceback if the import raised.
        """
        if reference not in self._loaded:
            self._loaded[reference] = self._load(reference)
        return self._loaded[reference]

    def has_loaded(self, reference: str) -> bool:
        """Whether :meth:`load` has returned this function before."""
        return reference in self._loaded

    def _load(self, reference: str) -> Callable[..., Any]:
        problem = check_reference(reference)
        if problem is not None:
            raise problem
        if reference.partition(":")[0].partition(".")[0] not in self.modules:
            return import_function(reference)
        try:
            return import_function(f"{self.package}.{reference}")
        except FunctionError as error:
            raised = error.__cause__
            raise FunctionError(
                error.code,
                as_written(error.message),
                cause=as_written(error.cause),
                fix=error.fix,
                traceback=shown_traceback(raised) if raised is not None and error.traceback else "",
                where={**error.where, "function": reference},
            ) from raised

    def ship(self, spark: Any) -> None:
        """Let the workers of a Spark session import the bundle's modules. A second call does nothing.

        They get two files: the zip, and a module that opens it and has the same name as the package.
        """
        context = spark.sparkContext
        with _lock:
            packages = _shipped.setdefault(context, set())
            if self.package in packages:
                return
            _write(self._opener, _OPENER.format(zip=self.path.name, sha256=self.sha256).encode())
            context.addFile(str(self.path))
            context.addFile(str(self._opener))
            packages.add(self.package)

    @property
    def _opener(self) -> Path:
        return self.path.parent / f"{self.package}.py"

    def _free(self, spark: Any, *, of_worker: bool) -> None:
        """Remove its modules from this process, and its files from the disk and from Spark. Call it with the lock."""
        del _bundles[self.package]
        for name in list(sys.modules):
            if name.partition(".")[0] == self.package:
                del sys.modules[name]
        for file in list(linecache.cache):
            if file.startswith(f"{self.path}/"):
                linecache.cache.pop(file, None)
        if of_worker:
            return
        shipped = set[str]() if spark is None else _shipped.get(spark.sparkContext, set[str]())
        if self.package in shipped:
            from spark_tasks import workarounds

            workarounds.remove_file(spark.sparkContext, self.path.name)
            workarounds.remove_file(spark.sparkContext, self._opener.name)
            shipped.discard(self.package)
        self.path.unlink(missing_ok=True)
        self._opener.unlink(missing_ok=True)

    def source_of(self, fullname: str) -> tuple[str, bool, bytes] | None:
        """Find a module by its full name: its path in the zip, whether it is a package, its source. None: not here."""
        inner = fullname.partition(".")[2].replace(".", "/")
        for name, is_package in ((f"{inner}/__init__.py" if inner else "__init__.py", True), (f"{inner}.py", False)):
            if inner and name in self._files:
                return name, is_package, self._files[name]
        if not inner or any(name.startswith(f"{inner}/") and name.endswith(".py") for name in self._files):
            return f"{inner}/__init__.py".lstrip("/"), True, b""  # the root itself, or a folder without __init__.py
        return None

    def data(self, name: str) -> bytes | None:
        """Return the file that has this name in the zip."""
        return self._files.get(name)


def free_unused(spark: Any = None, *, of_worker: bool = False) -> int:
    """Free the bundles that nothing has used for :data:`UNUSED` seconds. Returns how many.

    A process needs to call this only before it opens a bundle: without new ones it does not grow.

    Args:
        spark: the session that the bundles were shipped with; None: no session runs.
        of_worker: whether this process is a worker of Spark, to which the files belong.
    """
    now = time.monotonic()
    with _lock:
        for bundle in _bundles.values():
            if bundle.users:
                bundle.used_at = now
        unused = [bundle for bundle in _bundles.values() if now - bundle.used_at > UNUSED]
        for bundle in unused:
            bundle._free(spark, of_worker=of_worker)  # noqa: SLF001 (of this module)
    if unused:
        _forget_types()
    if unused and of_worker:
        gc.unfreeze()  # a worker has all that it imported left out of garbage collections
    return len(unused)


def _forget_types() -> None:
    """Empty typing's caches. Of the last hundred annotations or so, such as ``State[Account]``, they keep the classes, which keep
    their modules: as many versions of a job would stay, with all that each of them has loaded.
    """
    # Python has no public way to empty them; its own tests do it like this. Without this list the classes stay until later
    # annotations take their places. That costs memory and changes no result.
    for clear in getattr(typing, "_cleanups", ()):
        clear()


def in_worker(package: str) -> CodeBundle:
    """Return the bundle of a package that :meth:`CodeBundle.ship` sent to this worker."""
    if package not in _bundles:
        importlib.import_module(package)
    bundle = _bundles[package]
    bundle.used_at = time.monotonic()
    return bundle


def open_in_worker(opener: str, zip_name: str, sha256: str) -> None:
    """Open a bundle that lies beside the module that calls this, and free those that this worker has not used for long."""
    free_unused(of_worker=True)
    CodeBundle.open(Path(opener).absolute().with_name(zip_name), sha256)


_OPENER = """\
from spark_tasks.code import open_in_worker

__path__ = []
open_in_worker(__file__, "{zip}", "{sha256}")
"""


def _check(content: bytes, sha256: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found == sha256 and zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > LARGEST_UNPACKED:
            raise SetupError(
                "SX-CODE-LARGE",
                f"the job's code takes {size:,} bytes unpacked; the limit is {LARGEST_UNPACKED:,}",
                cause="the zip was not made by `sardonyx job submit`, or a module holds much data",
                fix="read data from a file where it is needed, in place of a module",
                where={"sha256": sha256},
            )
        return
    raise SetupError(
        "SX-CODE-HASH",
        "the job's code in ZooKeeper is not the code that its spec names",
        cause=f"its SHA-256 is {found}, and the spec names {sha256}" if found != sha256 else "it is not a zip file",
        fix="submit the job again; if the error comes back, find out what changes the nodes in ZooKeeper",
        where={"sha256": sha256},
    )


def _keep(content: bytes, sha256: str, cache_dir: Path | None) -> Path:
    if cache_dir is None:
        raise ValueError("a bundle given as bytes needs a cache_dir")
    path = cache_dir / f"{sha256}.zip"
    if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
        _write(path, content)
    return path


def _write(path: Path, content: bytes) -> None:
    """Write the whole file or nothing, because other daemons on this machine may share the directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


class _Finder(importlib.abc.MetaPathFinder):
    """Finds ``_sx_*`` packages and the modules in them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        bundle = _bundles.get(fullname.partition(".")[0])
        found = bundle.source_of(fullname) if bundle else None
        if bundle is None or found is None:
            return None
        spec = importlib.machinery.ModuleSpec(
            fullname, _Loader(bundle), origin=f"{bundle.path}/{found[0]}", is_package=found[1]
        )
        spec.has_location = True
        return spec


_finder = _Finder()


class _Loader(importlib.abc.ExecutionLoader):
    """Loads one bundle's modules. Tracebacks get the lines that they show from ``get_source``."""

    def __init__(self, bundle: CodeBundle) -> None:
        self._bundle = bundle

    def is_package(self, fullname: str) -> bool:
        return self._find(fullname)[1]

    def get_filename(self, fullname: str) -> str:
        return f"{self._bundle.path}/{self._find(fullname)[0]}"

    def get_source(self, fullname: str) -> str:
        return importlib.util.decode_source(self._find(fullname)[2])

    def get_data(self, path: str) -> bytes:
        """Return a file in the zip by its full path (``pkgutil.get_data`` calls this)."""
        data = self._bundle.data(path.replace(os.sep, "/").removeprefix(f"{self._bundle.path.as_posix()}/"))
        if data is None:
            raise FileNotFoundError(path)
        return data

    def source_to_code(self, data: Any, path: Any = "<string>") -> Any:  # type: ignore[override]  # a static method there
        tree = _Imports(self._bundle).visit(ast.parse(data, path))
        return compile(tree, path, "exec", dont_inherit=True)

    def _find(self, fullname: str) -> tuple[str, bool, bytes]:
        found = self._bundle.source_of(fullname)
        if found is None:
            raise ImportError(f"no module {fullname!r} in {self._bundle.path}", name=fullname)
        return found


class _Imports(ast.NodeTransformer):
    """Points import statements at the bundle if it has the module that they name. Lines and columns stay the same."""

    def __init__(self, bundle: CodeBundle) -> None:
        self._bundle = bundle

    def visit_Import(self, node: ast.Import) -> ast.Import:
        names: list[ast.alias] = []
        for alias in node.names:
            top = alias.name.partition(".")[0]
            if top not in self._bundle.modules:
                names.append(alias)
                continue
            inside = f"{self._bundle.package}.{alias.name}"
            names.append(ast.copy_location(ast.alias(inside, alias.asname or top), alias))
            if alias.asname is None and top != alias.name:  # "import a.b" imports a.b and binds a
                names.append(ast.copy_location(ast.alias(f"{self._bundle.package}.{top}", top), alias))
        return ast.copy_location(ast.Import(names), node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        if node.level or node.module is None or node.module.partition(".")[0] not in self._bundle.modules:
            return node
        inside = f"{self._bundle.package}.{node.module}"
        return ast.copy_location(ast.ImportFrom(inside, node.names, 0), node)
