"""How conditions of edges are written in Python: functions, with parameters, and combined by and, or and not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal


@dataclass(frozen=True)
class Combined:
    """Conditions that make one condition. Give it to ``where``, or combine it with others."""

    how: Literal["all_of", "any_of", "not"]
    parts: tuple[Condition, ...]


Condition = Callable[..., Any] | str | Combined
"""A function at the top level of a module, its name as ``module:function``, a ``functools.partial`` of such a function with
keyword arguments, or what :func:`all_of`, :func:`any_of` and :func:`not_` make of conditions."""


def all_of(*conditions: Condition) -> Combined:
    """Hold for the rows for which each of the conditions holds.

    They are asked in their order, and each only about the rows for which all before it hold. So a later one may rely on an
    earlier one: ``all_of(has_delay, is_late)``.
    """
    return Combined("all_of", conditions)


def any_of(*conditions: Condition) -> Combined:
    """Hold for the rows for which one of the conditions holds. Each is asked about the rows for which none before it holds."""
    return Combined("any_of", conditions)


def not_(condition: Condition) -> Combined:
    """Hold for the rows for which the condition does not, also where it gives null. So each row meets one of the two."""
    return Combined("not", (condition,))


def condition_data(given: object, named: Callable[[object], str]) -> str | dict[str, Any]:
    """A condition as a job file has it.

    Args:
        given: what was given to ``where``.
        named: gives the name of a function.

    Raises:
        TypeError: it is not a condition, or a ``partial`` fixes arguments by their position.
    """
    if isinstance(given, Combined):
        parts = [condition_data(part, named) for part in given.parts]
        return {given.how: parts[0] if given.how == "not" else parts}
    if isinstance(given, partial):
        if given.args:
            raise TypeError(f"a partial of a condition fixes keyword arguments only, not {given.args!r} by position")
        return {"fn": named(given.func), "params": dict(given.keywords)}
    return named(given)


__all__ = ["Combined", "Condition", "all_of", "any_of", "condition_data", "not_"]
