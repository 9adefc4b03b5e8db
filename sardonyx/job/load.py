"""From what a user names on the command line, or hands to the client, to a valid job with its code.

A spec is ``file.py``, ``file.py:name``, ``module:name``, a YAML, TOML or JSON file, or ``-`` (YAML on standard input). All of
them go through the same reader and the same validation.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import msgspec

from sardonyx.connectors.check_paths import check_places
from sardonyx.core.errors import Failure, JobInvalid, SardonyxError, SpecUnreadable
from sardonyx.core.plan import JobPlan, plan_of
from sardonyx.core.spec import JobSpec, encode_spec
from sardonyx.core.text import listed, near, plural
from sardonyx.core.tracebacks import user_traceback
from sardonyx.job import bundle, signatures
from sardonyx.job.builder import Job
from sardonyx.job.parse import read, unread_workflow
from sardonyx.job.validate import problems_of
from sardonyx.job.warn import warnings_of
from sardonyx.job.written import READERS, SPECS, from_yaml, text_of, text_of_input

_PACKAGES = frozenset({"sardonyx", "coordinator", "peer", "queues", "sentinel", "spark_tasks"})
"""Our own top-level packages. A file of one of these names beside a job would hide ours, or be hidden by it."""
_OUR_ROOT = Path(__file__).parents[2]
"""The folder that they are in."""
_TAKEN = frozenset({*sys.stdlib_module_names, *_PACKAGES, "conftest"})
"""Names that a spec cannot have, because another module is imported under them."""


_MODULES = re.compile(r'"(\w+)[.:]\w')
"""Texts in a spec that may name something in a module."""


class LoadedJob(NamedTuple):
    """A valid job, ready to be submitted."""

    spec: JobSpec
    """With absolute paths, and ``code`` set."""
    code: bytes | None
    """The zip of the job's own modules; None if its functions are all in installed packages."""
    base_dir: Path
    """What relative paths were relative to."""
    warnings: tuple[Failure, ...] = ()
    """What is probably not meant, though the job can run."""

    @property
    def plan(self) -> JobPlan:
        """How it runs: its operators, by what rule rows go between them, and how many peers it can use."""
        return plan_of(self.spec)

    def signed(self, key: Path | None) -> LoadedJob:
        """The job with its code signed by the private key in a file; None: as it is.

        Raises:
            SetupError: ``SX-CODE-SIGNER``, ``SX-SIGNED-MISSING``.
        """
        if key is None or self.code is None:
            return self
        code = signatures.signed(self.code, key)
        return self._replace(code=code, spec=msgspec.structs.replace(self.spec, code=hashlib.sha256(code).hexdigest()))


def load(argument: str | Job, *, places: bool = True) -> LoadedJob:
    """The job that ``argument`` names, validated.

    Args:
        argument: a spec as on the command line, or a job as for :func:`load_job`.
        places: whether to look at the files and directories that it names, too.

    Raises:
        SpecUnreadable: ``SX-SPEC-MISSING``, ``SX-SPEC-NO-JOB``, ``SX-SPEC-RAISED``, ``SX-SPEC-SYNTAX``, ``SX-SPEC-NAME``.
        JobInvalid: with every problem of the job.
    """
    if isinstance(argument, Job):
        return load_job(argument, places=places)
    if argument == "-":
        here = Path.cwd()
        return _finish(from_yaml(text_of_input(), "standard input"), base=here, root=here, places=places)
    target, name = _split(argument)
    path = Path(target).absolute()
    if path.suffix in READERS:
        data = READERS[path.suffix](text_of(path), str(path))
        return _finish(data, base=path.parent, root=path.parent, places=places)
    if path.suffix == ".py":
        text_of(path)
        return _from_module(lambda: _import_file(path), name, file=path, root=path.parent, places=places)
    is_module = all(part.isidentifier() for part in target.split("."))
    if path.is_file() or (path.is_dir() and not is_module):
        raise _no_spec(path)
    if is_module:
        return _from_named_module(target, name, places=places)
    fix = f"correct the name; a spec is {SPECS}"
    raise SpecUnreadable("SX-SPEC-MISSING", f"there is no file and no module {argument!r}", fix=fix)


def load_job(job: Job, *, places: bool = True) -> LoadedJob:
    """A job that was made in this process, validated. Paths are relative to the file in which it was made.

    Raises:
        JobInvalid: with every problem of the job.
    """
    file = job.location.file
    base = file.parent if file else Path.cwd()
    root = _root_of(file, job.location.module) if file else base
    return _finish(job, base=base, root=root, places=places)


# --- What is common to all ways ---------------------------------------------------------------------------------------


def _finish(written: object, *, base: Path, root: Path, places: bool) -> LoadedJob:
    """Read, validate, bundle.

    Args:
        written: a job from the builder, or the content of a YAML, TOML or JSON file.
        base: the folder that relative paths are relative to.
        root: the folder from which the job's own modules are imported.
        places: whether to look at the files and directories that the job names.
    """
    from_python = written if isinstance(written, Job) else None
    _refuse_namesakes(root)
    spec, found = read(written if from_python is None else from_python.data(), base)
    problems = [*([] if from_python is None else from_python.problems), *found]
    if from_python is None and not isinstance(written, dict):  # some other file: there is no job to look at
        raise JobInvalid(problems)
    with importable(root):
        found = problems_of(spec, functions={} if from_python is None else from_python.functions)
    if unread_workflow(problems):  # a task that an unreadable edge would have linked is not also without a link
        found = [each for each in found if each.code not in ("SX-JOB-NO-WAY-IN", "SX-JOB-NO-WAY-OUT")]
    problems += found
    code: bundle.Bundle | None = None
    try:
        code = _bundle(spec, root)
    except JobInvalid as error:
        problems += error.problems
    if places:
        unread = ("SX-JOB-CONNECTOR", "SX-JOB-SCHEMA", "SX-JOB-FIELD")
        leave = {problem.where.get("task", "") for problem in problems if problem.code in unread}
        try:  # only of tasks whose connectors are valid
            check_places(spec, leave=leave)
        except JobInvalid as error:
            problems += error.problems
    if problems:
        raise JobInvalid(problems)
    if code is not None:
        spec = msgspec.structs.replace(spec, code=code.sha256)
    return LoadedJob(spec, None if code is None else code.data, base, tuple(warnings_of(spec, root)))


def _bundle(spec: JobSpec, root: Path) -> bundle.Bundle | None:
    """The zip of the modules in ``root`` that the job needs, if something that it names is in one of them."""
    if _in_site_packages(root):
        return None
    own = bundle.top_level(root)
    needed = [reference.partition(":")[0] for reference in spec.references()]
    for module in needed:
        top = module.partition(".")[0]
        if top not in own and (root / top).is_dir() and (root / Path(*module.split("."))).with_suffix(".py").is_file():
            raise JobInvalid(
                [
                    SardonyxError(
                        "SX-JOB-CODE-NO-PACKAGE",
                        f"module {module!r} would not travel with the job: folder {top!r} is not a package",
                        cause="of the folders beside a spec, only packages go into the job's code",
                        fix=f"put an empty __init__.py into {root / top} (and into the folders between)",
                        where={"path": root / top},
                    )
                ]
            )
    if not own.intersection(module.partition(".")[0] for module in needed):
        return None
    texts = _MODULES.findall(encode_spec(spec).decode())  # a parameter may name one, too
    return bundle.build(root, bundle.reached(root, [*needed, *texts]))


@contextmanager
def importable(root: Path) -> Iterator[None]:
    """Within it, modules in ``root`` are imported before others of the same name.

    Raises:
        SpecUnreadable: ``SX-SPEC-NAME``, one of them has the name of a package of ours.
    """
    _refuse_namesakes(root)
    entry = str(root)
    sys.path.insert(0, entry)
    importlib.invalidate_caches()
    _forget_namesakes(root)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def _refuse_namesakes(root: Path) -> None:
    """A ``queues.py`` beside a job would be imported in place of our package ``queues``, or never at all.

    Raises:
        SpecUnreadable: ``SX-SPEC-NAME``, with every such file.
    """
    if not root.is_dir() or root.resolve() == _OUR_ROOT or _in_site_packages(root):
        return
    taken = sorted(_PACKAGES & bundle.top_level(root))
    if not taken:
        return
    files = [f"{name}.py" if (root / f"{name}.py").is_file() else f"{name}/" for name in taken]
    raise SpecUnreadable(
        "SX-SPEC-NAME",
        f"{listed(files)} beside a job cannot have {plural(len(files), 'this name', 'these names')}",
        cause=f"Sardonyx itself has {plural(len(taken), 'a package', 'packages')} called {listed(taken)}, "
        "and Python imports only one module of a name",
        fix=f"rename {root / files[0]}, for example to my_{files[0]}",
        where={"path": root / files[0]},
    )


def _forget_namesakes(root: Path) -> None:
    """Two jobs may each have a ``helpers.py``: the one of another job, already imported, must not be taken for this one's."""
    if not root.is_dir():
        return
    own = bundle.top_level(root)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        top = name.partition(".")[0]
        if top not in own or file is None or name == "__main__":
            continue
        # Not all that is below the root is this job's: another job may be in a folder of it.
        mine = Path(file) == root / f"{top}.py" or Path(file).is_relative_to(root / top)
        if not mine and not _in_site_packages(Path(file)) and top not in _TAKEN:
            del sys.modules[name]


def _in_site_packages(path: Path) -> bool:
    return bool({"site-packages", "dist-packages"} & set(path.parts))


# --- Python -----------------------------------------------------------------------------------------------------------


def _split(argument: str) -> tuple[str, str | None]:
    target, colon, name = argument.rpartition(":")
    return (target, name) if colon and name.isidentifier() else (argument, None)


def _from_named_module(target: str, name: str | None, *, places: bool) -> LoadedJob:
    def imported() -> ModuleType:
        try:
            return importlib.import_module(target)
        except ModuleNotFoundError as error:
            if error.name is None or not (target == error.name or target.startswith(f"{error.name}.")):
                raise
            raise SpecUnreadable(
                "SX-SPEC-MISSING",
                f"there is no module {target!r}",
                cause=f"it is neither in {Path.cwd()} nor installed",
                fix=f"correct the name; a spec is {SPECS}",
            ) from error

    with importable(Path.cwd()):
        module = _run(imported, f"module {target}")
    found = getattr(module, "__file__", None)
    file = Path(found).absolute() if found else Path.cwd() / target
    root = _root_of(file, target) if found else file.parent
    return _from_module(lambda: module, name, file=file, root=root, places=places)


def _from_module(
    imported: Callable[[], ModuleType], name: str | None, *, file: Path, root: Path, places: bool
) -> LoadedJob:
    def job() -> object:
        module = imported()
        found = getattr(module, name or "job", None)
        is_function = callable(found) and not isinstance(found, type | Job)
        if callable(found) and is_function:
            found = found()
        return found if isinstance(found, Job) else _no_job(module, name or "job", found, is_function=is_function)

    with importable(root):
        made = _run(job, str(file))
    return _finish(made, base=file.parent, root=root, places=places)


def _run(what: Callable[[], Any], where: str) -> Any:
    """Run a user's module. Whatever it raises becomes one error that begins with the user's own traceback.

    Args:
        what: runs it.
        where: the file, or the module, as the message names it.
    """
    try:
        return what()
    except SardonyxError:
        raise
    except SyntaxError as error:
        raise SpecUnreadable(
            "SX-SPEC-SYNTAX",
            f"{error.filename}, line {error.lineno}: {error.msg}",
            fix="correct the line that the traceback shows",
            traceback=user_traceback(error),
            where={"path": error.filename or where},
        ) from error
    except ModuleNotFoundError as error:
        raise SpecUnreadable(
            "SX-SPEC-RAISED",
            f"your file {where} raised {type(error).__name__}: {error}",
            cause=f"module {error.name!r} is neither beside your file nor installed here",
            fix="install it here and where the peers run, put it beside your file, or correct the import",
            traceback=user_traceback(error),
            where={"path": where},
        ) from error
    except (Exception, SystemExit) as error:
        raise SpecUnreadable(
            "SX-SPEC-RAISED",
            f"your file {where} raised {type(error).__name__}: {error}",
            cause="the code that makes the job failed",
            fix="correct what the traceback shows",
            traceback=user_traceback(error),
            where={"path": where},
        ) from error


def _import_file(path: Path) -> ModuleType:
    """The module of a file, imported afresh under its own name: its functions are imported so by the peers."""
    name = path.stem
    if not name.replace("-", "_").isidentifier() or name in _TAKEN:
        taken = name in _TAKEN
        raise SpecUnreadable(
            "SX-SPEC-NAME",
            f"a spec cannot be called {path.name}",
            cause=f"there is another module {name!r}" if taken else f"{name!r} cannot be imported by its name",
            fix="rename the file, for example to job.py",
            where={"path": path},
        )
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None  # noqa: S101 - a .py file always has one
    assert module_spec.loader is not None  # noqa: S101
    module = importlib.util.module_from_spec(module_spec)
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        module_spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise
    return module


def _no_job(module: ModuleType, name: str, found: object, *, is_function: bool) -> Job:
    jobs = [key for key, value in vars(module).items() if isinstance(value, Job)]
    file = getattr(module, "__file__", None) or module.__name__
    if is_function:
        wrong = f"the function {name!r} returned {type(found).__name__}, not a Job"
        fix = f"let {name}() return the Job"
    else:
        wrong = (
            f"{name!r} is not a Job but {type(found).__name__}" if hasattr(module, name) else f"there is no {name!r}"
        )
        fix = 'write job = Job("name") at the top level of the module, or a function job() that returns one'
    if jobs:
        fix = f"name it: {Path(file).name}:{jobs[0]}"
    others = f"it has the jobs {', '.join(jobs)}" if jobs else "there is no Job at the top level of the module"
    raise SpecUnreadable(
        "SX-SPEC-NO-JOB",
        f"{file} holds no job: {wrong}{near(name, jobs)}",
        cause=f"a spec holds a Job, or a function that returns one, called job; {others}",
        fix=fix,
        where={"path": file},
    )


def _no_spec(path: Path) -> SpecUnreadable:
    """The error for a path that is there, but cannot hold a job."""
    inside = sorted(each.name for each in path.glob("*.py")) if path.is_dir() else []
    kind = "a folder" if path.is_dir() else f"a {path.suffix or 'plain'} file"
    return SpecUnreadable(
        "SX-SPEC-NO-JOB",
        f"{path} is {kind}, which cannot hold a job",
        cause=f"it contains {', '.join(inside[:5])}" if inside else "jobs are written in Python, YAML, TOML or JSON",
        fix=f"name the file: {path / ('job.py' if 'job.py' in inside else inside[0])}"
        if inside
        else f"name another file; a spec is {SPECS}",
        where={"path": path},
    )


def _root_of(file: Path, module: str) -> Path:
    """The folder from which a module of this name is imported, if it is imported from this file."""
    depth = module.count(".") + (file.name == "__init__.py") if module != "__main__" else 0
    return file.parents[depth]
