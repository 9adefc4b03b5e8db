"""What a peer daemon runs and touches for jobs, if its settings say so: modules of functions (``peer.allow``), signed code
(``peer.signers``), places of files (``peer.files``). Who may submit a job names all of it in the spec, so the peer decides,
before it runs anything of what a job brings.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path
from urllib.parse import urlsplit

from sardonyx.connectors.declarations import paths_of
from sardonyx.core.errors import SetupError
from sardonyx.core.graph import Stage
from sardonyx.core.spec import TaskSpec, database_of
from sardonyx.core.text import listed
from sardonyx.core.untouched import used_by
from sardonyx.job.signatures import check_signed
from sardonyx.runtime.functions import import_function
from sardonyx.runtime.settings_sections import ALL_FILES, ALL_MODULES, PeerSettings
from spark_tasks.code import CodeBundle

_OURS = "sardonyx.pipeline.functions"
"""The module that tasks of pipelines name. They call only the functions in their params, which we check as all others."""


def takes_all_modules(settings: PeerSettings) -> bool:
    """Whether the daemon runs functions of every module, those that a job brings included."""
    return ALL_MODULES in settings.allow and not settings.signers


def takes_code(settings: PeerSettings, stage: Stage) -> bool:
    """Whether the daemon uses the modules that a job brings along, for this task. With signers only for one that names any."""
    return bool(used_by(stage)) if settings.signers else takes_all_modules(settings)


def open_code(settings: PeerSettings, data: bytes, sha256: str, folder: Path) -> CodeBundle:
    """The modules that a job brings along, if they are signed as the daemon wants it. Nothing of them is run yet.

    Args:
        settings: of the daemon.
        data: the zip.
        sha256: the hash that it must have.
        folder: in which it is kept.

    Raises:
        SetupError: ``SX-PEER-SIGNATURE``, ``SX-PEER-SIGNERS``, ``SX-SIGNED-MISSING``; ``SX-CODE-HASH``, ``SX-CODE-LARGE``.
    """
    if settings.signers:
        check_signed(data, settings.signers)
    return CodeBundle.open(data, sha256, folder)


def check_allowed(settings: PeerSettings, stage: Stage, code: CodeBundle | None = None) -> None:
    """Refuse a task that names what this daemon may not run or touch.

    Args:
        settings: of the daemon.
        stage: the task.
        code: what its job brings along, of :func:`open_code`; None: nothing that is used.

    Raises:
        SetupError: ``SX-PEER-MODULE``, ``SX-PEER-FILES``.
        FunctionError: ``SX-FN-IMPORT``: a function that may run cannot be imported.
    """
    if not takes_all_modules(settings):
        for reference in used_by(stage):
            _check_module(settings, stage.name, reference, code)
    if ALL_FILES not in settings.files:
        roots = [Path(root).resolve() for root in settings.files]
        for task in (stage.task, *stage.fused):
            for place in _places(task):
                _check_place(roots, settings.files, task.name, place)


def _check_module(settings: PeerSettings, task: str, reference: str, code: CodeBundle | None) -> None:
    """The module that is named must be allowed, or signed; and that in which the function is defined, too: a module that may be
    used may have imported a function of one that may not, such as one that starts programs.
    """
    named = reference.partition(":")[0]
    allowed = (_OURS, *(pattern for pattern in settings.allow if pattern != ALL_MODULES))
    brought = code is not None and named.partition(".")[0] in code.modules
    if not brought and not is_allowed(allowed, named):
        why = "" if settings.signers else "; modules that a job brings along count as not allowed"
        raise _refused(settings, task, reference, f"it is in the module {named}{why}")
    found = import_function(reference) if code is None else code.load(reference)
    defined = str(getattr(found, "__module__", None) or type(found).__module__)
    if code is not None and defined.partition(".")[0] == code.package:
        return
    if not is_allowed(allowed, defined):
        raise _refused(settings, task, reference, f"{named} has imported it from the module {defined}")


def is_allowed(allow: Iterable[str], module: str) -> bool:
    """Whether a pattern is the name of the module, or of a package around it. ``*`` stands for any characters."""
    return any(fnmatchcase(module, pattern) or fnmatchcase(module, f"{pattern}.*") for pattern in allow)


def _places(task: TaskSpec) -> Iterator[str]:
    """The files and folders that our connectors, and the database of a state, would open."""
    if task.connector == "files":
        yield from paths_of(task.options)
    if task.connector == "sql":
        yield from _file_of(str(task.options.get("url", "")))
    store = database_of(task)
    if store is not None:
        yield from _file_of(store.url)


def _file_of(url: str) -> Iterator[str]:
    """The file of a database; nothing if a server keeps it. Of a kind that is not known, its whole address."""
    scheme, _, rest = url.removeprefix("jdbc:").partition("://")
    if scheme not in ("postgresql", "postgres"):
        host, _, path = rest.partition("?")[0].partition("/")
        yield path if scheme == "sqlite" and not host and path else url


def _check_place(roots: Sequence[Path], given: Sequence[str], task: str, place: str) -> None:
    """It must lie below a root when links are followed. A pattern may match only what lies below the folder before it."""
    parts = Path(place).parts
    fixed = next((number for number, part in enumerate(parts) if has_magic(part)), len(parts))
    below = Path(*parts[:fixed]) if fixed else Path()
    climbs = os.pardir in parts[fixed:]
    resolved = below.resolve()
    if Path(place).is_absolute() and not climbs and any(resolved.is_relative_to(root) for root in roots):
        return
    raise SetupError(
        "SX-PEER-FILES",
        f"task {task} reads or writes {_shown(place)}, which this peer daemon may not touch",
        cause=f"its setting peer.files allows {listed(given)}",
        fix="give a path below one of these, or add the folder to peer.files and start the daemon again",
        where={"task": task, "path": _shown(place)},
    )


def _shown(place: str) -> str:
    parts = urlsplit(place)
    return place.replace(f"{parts.username}:{parts.password}@", "") if parts.password else place


def _refused(settings: PeerSettings, task: str, reference: str, why: str) -> SetupError:
    allow = [pattern for pattern in settings.allow if pattern != ALL_MODULES]
    limit = f"peer.allow allows {listed(allow)}" if allow else "peer.allow names no module"
    if settings.signers:
        limit = f"peer.signers allows modules that a job brings signed, and {limit}"
    return SetupError(
        "SX-PEER-MODULE",
        f"task {task} names {reference}, which this peer daemon does not run",
        cause=f"its setting {limit}; {why}",
        fix="install the module where peers run, add it to peer.allow, and start the daemon again",
        where={"task": task, "function": reference},
    )
