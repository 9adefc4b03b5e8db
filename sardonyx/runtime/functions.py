"""A user's function as data: its name for the job spec, and what it takes. Imports no Spark.

A function travels as ``module:function`` and is imported again where it runs, so it must stand at the top level of a
module. The annotation of its first parameter says what it takes. We read it without running the annotation's imports:
names that stand only under ``if TYPE_CHECKING:`` are looked up in the module's source.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import linecache
import sys
import traceback
import typing
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from sardonyx.core.errors import FunctionError
from sardonyx.core.spec import function_of
from sardonyx.core.text import listed, near
from sardonyx.core.tracebacks import user_traceback
from sardonyx.runtime.environment_reads import environment_reads

TakesRows = Literal["arrow", "record"]
"""What a function takes that says something about each row: a ``pyarrow.Table``, or one ``dict`` at a time."""

Takes = Literal["dataframe", "arrow", "pandas", "record"]
"""``pyspark.sql.DataFrame``, ``pyarrow.Table``, ``pandas.DataFrame``, or one ``dict`` at a time."""

_MAY_BE = "pyspark.sql.DataFrame, pyarrow.Table, pandas.DataFrame or dict (one record at a time)"
_RECORDS = ("dict", "typing.Dict", "collections.abc.Mapping", "collections.abc.MutableMapping", "typing.Mapping")


def reference_text(fn: Callable[..., Any]) -> str:
    """``module:function`` as far as it is known; never raises. ``check_reference`` says whether it will do."""
    module = str(getattr(fn, "__module__", None) or type(fn).__module__)
    name = str(getattr(fn, "__qualname__", None) or f"<{type(fn).__qualname__} object>")
    return f"{_main_name() if module == '__main__' else module}:{name}"


def reference(fn: Callable[..., Any]) -> str:
    """The ``module:function`` under which a function can be imported again.

    A function of the script that runs (``__main__``) goes by the name of its file.

    Raises:
        FunctionError: ``SX-FN-NAME``, it has no such name: a lambda, a nested function, a bound object.
    """
    text = reference_text(fn)
    problem = check_reference(text)
    if problem is not None:
        raise problem
    return text


def check_reference(text: str) -> FunctionError | None:
    """Whether ``text`` can name a function that another process imports; the error if it cannot."""
    module, colon, name = text.partition(":")
    fix = "define it with def at the top level of a module, and pass values that vary as params"
    if colon and all(part.replace("-", "_").isidentifier() for part in module.split(".")) and name.isidentifier():
        return None
    if "<lambda>" in name:
        cause = "a lambda has no name to import it by"
    elif "<locals>" in name:
        cause = "a function inside another function cannot be imported by its name"
    elif not module or "<" in module:
        cause = "it was not defined in a file (an interactive session?), so peers cannot import it"
        fix = "write it into a file and import it from there; in a notebook begin its cell with `%%writefile NAME.py`"
    elif "." in name or "<" in name:
        cause = "it is not a function at the top level of a module (a method, a partial, an object)"
    else:
        cause = "a function is named as module:function"
    return FunctionError(
        "SX-FN-NAME",
        f"{text!r} does not name a function that peers can import",
        cause=cause,
        fix=fix,
        where={"function": text},
    )


def import_function(text: str) -> Callable[..., Any]:
    """The function that ``module:function`` names.

    Raises:
        FunctionError: ``SX-FN-NAME``, or ``SX-FN-IMPORT`` with the user's traceback if its module raised.
    """
    problem = check_reference(text)
    if problem is not None:
        raise problem
    module_name, _, name = text.partition(":")
    where = {"function": text}
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        missing = isinstance(error, ModuleNotFoundError) and (error.name or "") in _parents(module_name)
        if missing and isinstance(error, ModuleNotFoundError):
            cause = f"there is no module {error.name!r} next to the spec or among the installed packages"
            fix = "put the module next to the spec, or install it where the peers run"
        elif variables := _environment_read_by(error):
            cause = (
                f"importing it reads {listed(variables)} from the environment; "
                "peers import the job's modules without the environment in which the job was submitted"
            )
            fix = (
                "make the job in a function `def job() -> Job:`, which only the client calls; read the variable there, and "
                "pass its value to functions in params"
            )
        else:
            cause = f"importing module {module_name!r} raised {type(error).__name__}"
            fix = "correct what the traceback shows; every peer imports the module, so the import must work without preparation"
        raise FunctionError(
            "SX-FN-IMPORT",
            f"{text!r} cannot be imported: {type(error).__name__}: {error}",
            cause=cause,
            fix=fix,
            traceback="" if missing else user_traceback(error),
            where=where,
        ) from error
    fn = getattr(module, name, None)
    if not callable(fn):
        raise FunctionError(
            "SX-FN-IMPORT",
            f"module {module_name!r} has no function {name!r}",
            cause=f"it has {_functions_in(module)}",
            fix="correct the name after the colon",
            where=where,
        )
    return typing.cast("Callable[..., Any]", fn)


def with_functions(params: Mapping[str, Any], load: Callable[[str], Callable[..., Any]]) -> dict[str, Any]:
    """A task's params, with the functions in place of the references to them.

    Args:
        params: as in the job's spec.
        load: gives the function that ``module:function`` names.
    """
    found = dict(params)
    for key, value in params.items():
        reference = function_of(value)
        if reference is not None:
            found[key] = load(reference)
    return found


def _environment_read_by(error: BaseException) -> list[str]:
    """Variables of the environment that a module which failed to import reads, if that may be why it failed.

    The exception comes out of ``os.environ[...]``, or a module in its traceback reads the environment while it is imported.
    """
    found: list[str] = []
    for frame, _ in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if frame.f_globals.get("__name__") == "os" and isinstance(error, KeyError) and error.args:
            found.insert(0, str(error.args[0]))
        elif frame.f_code.co_name == "<module>":
            source = "".join(linecache.getlines(file, frame.f_globals))
            found += [read.variable for read in environment_reads(source) if read.variable]
    return list(dict.fromkeys(found))


def takes(fn: Callable[..., Any]) -> Takes:
    """What a function takes, by the annotation of its first parameter.

    Raises:
        FunctionError: ``SX-FN-ANNOTATION``, there is none, or it is none of the four.
    """
    name = getattr(fn, "__name__", str(fn))
    parameters = _parameters(fn)
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise _annotation_error(name, "it has no first parameter to give the rows to")
    first = parameters[0]
    if first.annotation is inspect.Parameter.empty:
        raise _annotation_error(name, f"its first parameter, {first.name!r}, has no annotation")
    if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
        raise _annotation_error(name, "it is async, and Spark workers call functions plainly")
    annotation: object = first.annotation
    dotted = _dotted(annotation, inspect.unwrap(fn)) if isinstance(annotation, str) else annotation
    kind = _kind(dotted)
    if kind is None:
        shown = annotation if isinstance(annotation, str) else _name_of(annotation)
        raise _annotation_error(name, f"its first parameter, {first.name!r}, is annotated {shown}")
    return kind


def takes_rows(fn: Callable[..., Any], params: Collection[str] = ()) -> TakesRows:
    """What a group function or a condition takes; it is called with that, and a condition with the params that its job gives it.

    Raises:
        FunctionError: ``SX-FN-ANNOTATION``, it is neither of the two; ``SX-FN-PARAMS``, it needs more than it is given, or
            does not take what it is given.
    """
    name = getattr(fn, "__name__", str(fn))
    may_be = "pyarrow.Table or dict (one record at a time)"
    try:
        kind = takes(fn)
    except FunctionError as error:
        raise _annotation_error(name, error.cause, may_be) from error
    if kind not in ("arrow", "record"):
        raise _annotation_error(name, "a DataFrame has no row for each answer to stand at", may_be)
    parameters = [parameter for parameter in _parameters(fn)[1:] if parameter.kind is not parameter.VAR_POSITIONAL]
    named = {each.name: each for each in parameters if each.kind is not each.VAR_KEYWORD}
    unknown = [name for name in params if name not in named]
    if unknown and len(named) == len(parameters):
        raise FunctionError(
            "SX-FN-PARAMS",
            f"function {name!r} has no parameter {unknown[0]!r}{near(unknown[0], named)}",
            fix=f"choose from the parameters that it has besides the rows: {', '.join(named) or 'none'}",
            where={"function": name},
        )
    needed = [each for each in named if named[each].default is inspect.Parameter.empty and each not in params]
    if needed:
        raise FunctionError(
            "SX-FN-PARAMS",
            f"function {name!r} needs the parameter {needed[0]!r}, which is not passed to it",
            cause="a group function is called with the rows only, and a condition with what functools.partial gives it",
            fix="give the parameter a default; for a condition, its value: where(functools.partial(condition, "
            f"{needed[0]}=...))",
            where={"function": name},
        )
    return kind


def _annotation_error(name: str, cause: str, may_be: str = _MAY_BE) -> FunctionError:
    return FunctionError(
        "SX-FN-ANNOTATION",
        f"function {name!r} has no annotation that says what it takes",
        cause=cause,
        fix=f"annotate its first parameter as {may_be}",
        where={"function": name},
    )


def _parameters(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # builtins that tell no signature
        return []


def _kind(annotation: object) -> Takes | None:
    """Sorts an annotation, given as an object or as the dotted name that it was imported by."""
    if typing.is_typeddict(annotation):
        return "record"
    name = annotation if isinstance(annotation, str) else _name_of(typing.get_origin(annotation) or annotation)
    root, _, last = name.rpartition(".")
    if name in _RECORDS:
        return "record"
    if last == "DataFrame" and root.split(".")[:2] == ["pyspark", "sql"]:
        return "dataframe"
    if last == "DataFrame" and root.split(".")[0] == "pandas":
        return "pandas"
    if last == "Table" and root in ("pyarrow", "pyarrow.lib"):
        return "arrow"
    return None


def _name_of(annotation: object) -> str:
    module = getattr(annotation, "__module__", "")
    name = getattr(annotation, "__qualname__", None)
    if name is None:
        return str(annotation)
    return str(name) if module == "builtins" else f"{module}.{name}"


def _dotted(annotation: str, fn: Callable[..., Any]) -> object:
    """The object that a string annotation names, or, if it is not imported at run time, its full dotted name."""
    try:
        node = ast.parse(annotation.strip(), mode="eval").body
    except SyntaxError:
        return annotation
    if isinstance(node, ast.Constant) and isinstance(node.value, str):  # "'DataFrame'" under future annotations
        return _dotted(node.value, fn)
    if isinstance(node, ast.Subscript):  # dict[str, Any]
        node = node.value
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return annotation
    scope: Mapping[str, Any] = getattr(fn, "__globals__", {})
    found: object = scope.get(node.id, getattr(builtins, node.id, None))
    if found is None:
        imported = _imports(fn).get(node.id, node.id)
        return ".".join([imported, *names])
    for name in names:
        found = getattr(found, name, None)
    return found


def _imports(fn: Callable[..., Any]) -> dict[str, str]:
    """What each imported name in the source of a function's module stands for, wherever the import is."""
    module = sys.modules.get(fn.__module__)
    try:
        source = inspect.getsource(module) if module else ""
    except (OSError, TypeError):
        return {}
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    found[alias.asname] = alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def _main_name() -> str:
    """The name by which peers can import what runs here as ``__main__``."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m package.module
        return str(spec.name)
    file = getattr(main, "__file__", None)
    return Path(file).stem if file else "<interactive>"


def _parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[: n + 1]) for n in range(len(parts))]


def _functions_in(module: object) -> str:
    names = [name for name, value in vars(module).items() if inspect.isfunction(value) and not name.startswith("_")]
    return ", ".join(names) or "no functions"
