"""Arguments that a function of the public interface does not have: collected as problems, not raised one by one.

Python raises a bare ``TypeError`` for the first mistyped keyword. A job from YAML gets every mistake at once, each with the
nearest known key. The functions by which a job is written in Python do the same with :func:`match_arguments`, and keep their
typed signatures for editors and type checkers.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sardonyx.core.errors import SardonyxError
from sardonyx.core.text import nearest
from sardonyx.runtime.source_location import calling_code


class Matched(NamedTuple):
    """Arguments that a function can be called with."""

    values: dict[str, Any]
    """By parameter. A required parameter that was not given is None: validation says what is missing."""
    problems: tuple[SardonyxError, ...]
    """One for each argument that the function does not have, with the user's line."""


def match_arguments(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any], *, called: str, code: str
) -> Matched:
    """Sort the arguments of a call by parameter.

    The value of a mistyped keyword is taken for the parameter that was probably meant. The job is refused anyway; this way the
    rest is checked as it was meant, and one mistake gives one problem.

    Args:
        signature: what the function takes; all parameters can be given by name.
        args: the positional arguments.
        kwargs: the keyword arguments.
        called: the function as the user writes it, such as ``job.task()``.
        code: of the problems.
    """
    positional = [name for name, each in signature.parameters.items() if each.kind is each.POSITIONAL_OR_KEYWORD]
    values = dict(zip(positional, args, strict=False))
    wrong: list[tuple[str, str]] = []
    if len(args) > len(positional):
        few = f"it takes {len(positional)} without a name" if positional else "it takes none without a name"
        wrong.append(
            (f"{called} was given {len(args)} arguments without a name, but {few}", "write the others as name=value")
        )
    for name, value in kwargs.items():
        if name in values:
            wrong.append((f"{called} was given {name} twice, the first time without its name", f"write {name} once"))
        elif name in signature.parameters:
            values[name] = value
        else:
            meant = nearest(name, signature.parameters)
            hint = f"; did you mean {meant!r}?" if meant else ""
            takes = ", ".join(signature.parameters) or "none"
            fix = f"write {meant}=..." if meant else f"remove it, or choose from its arguments: {takes}"
            wrong.append((f"{called} has no argument {name!r}{hint}", fix))
            if meant and meant not in kwargs:
                values.setdefault(meant, value)
    missing = (name for name, each in signature.parameters.items() if each.default is each.empty)
    values |= {name: None for name in missing if name not in values}
    if not wrong:
        return Matched(values, ())
    at = calling_code()
    problems = (SardonyxError(code, message, cause=f"at {at}", fix=fix, where=at.where()) for message, fix in wrong)
    return Matched(values, tuple(problems))
