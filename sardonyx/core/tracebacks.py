"""What a user's code raises: its traceback without the frames of Sardonyx, Spark and the import system; as an error of ours."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path

from sardonyx.core.errors import FunctionError, SardonyxError

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("sardonyx", "spark_tasks", "peer", "queues", "sentinel", "coordinator")


def user_traceback(error: BaseException) -> str:
    """A traceback with only the user's frames, also in the errors that it came from. A syntax error shows just its line."""
    shown = traceback.TracebackException.from_exception(error, compact=True)
    queue: list[traceback.TracebackException | None] = [shown]
    while queue:
        part = queue.pop()
        if part is not None:
            part.stack[:] = [frame for frame in part.stack if not is_machinery(frame.filename)]
            queue += [part.__cause__, part.__context__]
    if not shown.stack and shown.__cause__ is None and shown.__context__ is None:
        return "".join(shown.format_exception_only())
    return "".join(shown.format())


@contextlib.contextmanager
def user_errors(code: str, what: str, when: str, *, fix: str, where: Mapping[str, str]) -> Iterator[None]:
    """Turn an exception of a user's class into an error with the user's traceback. Sardonyx's own errors pass unchanged.

    Args:
        code: of the error.
        what: what raised it, as in "connector shop:Ledger".
        when: as in "read was called".
        fix: what to do.
        where: of the error.
    """
    try:
        yield
    except SardonyxError:
        raise
    except Exception as error:
        raise FunctionError(
            code,
            f"{what} raised {type(error).__name__} when {when}: {error}",
            fix=fix,
            traceback=user_traceback(error),
            where=where,
        ) from error


def is_machinery(filename: str) -> bool:
    """Whether frames of this file say nothing to a user."""
    return filename.startswith(_machinery())


@functools.cache
def _machinery() -> tuple[str, ...]:
    folders = [_ROOT / package for package in _PACKAGES]
    for package in ("pyspark", "py4j"):
        with contextlib.suppress(ImportError, ValueError):  # a package that cannot be imported has no frames either
            spec = importlib.util.find_spec(package)
            if spec is not None and spec.origin is not None:
                folders.append(Path(spec.origin).parent)
    folders.append(Path(importlib.util.__file__).parent)
    return ("<frozen importlib", *(str(folder / "_")[:-1] for folder in folders))
