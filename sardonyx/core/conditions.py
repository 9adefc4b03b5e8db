"""The condition of an edge as data: a function with parameters, or all of, any of or the opposite of other conditions.

From Onyx's flow conditions, whose predicates take parameters and are combined by ``:and``, ``:or`` and ``:not``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from sardonyx.core.secrets import masked, refers
from sardonyx.core.text import listed


class Condition(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True, rename={"not_": "not"}
):
    """A condition that is more than the name of a function. It says one of ``fn``, ``all_of``, ``any_of`` and ``not_``."""

    fn: str | None = None
    """``module:function``, which says of each row whether it holds."""
    params: dict[str, Any] = {}
    """Keyword arguments for ``fn``: plain JSON data."""
    all_of: list[Where] | None = None
    any_of: list[Where] | None = None
    not_: Where | None = None
    """It holds where this one does not. So for each row one of the two holds."""


Where = str | Condition
"""A condition: ``module:function``, or a function with parameters, or several conditions together."""


def parts_of(where: Where) -> list[Where]:
    """The conditions of which one is made; none if it is a function."""
    if isinstance(where, str):
        return []
    return [*(where.all_of or ()), *(where.any_of or ()), *([] if where.not_ is None else [where.not_])]


def functions_in(where: Where) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each ``module:function`` of a condition, with the parameters that it is given, in the order in which they are written."""
    if isinstance(where, str):
        yield where, {}
    elif where.fn is not None:
        yield where.fn, where.params
    for part in parts_of(where):
        yield from functions_in(part)


def wrong_in(where: Where) -> Iterator[str]:
    """What is wrong with how a condition is made."""
    if isinstance(where, str):
        return
    said = [name for name in ("fn", "all_of", "any_of", "not_") if getattr(where, name) is not None]
    if len(said) != 1:
        yield f"a condition says one of fn, all_of, any_of and not; this one says {listed(said) or 'none of them'}"
    if where.params and where.fn is None:
        yield "a condition without fn has params, which nothing takes"
    if refers(where.params):
        yield "params of a condition refer to a secret, which only functions and connectors are given"
    if [] in (where.all_of, where.any_of):
        yield "all_of and any_of need at least one condition"
    for part in parts_of(where):
        yield from wrong_in(part)


def condition_text(where: Where | None) -> str:
    """A condition for people, such as ``job:is_late(minutes=15) and not job:is_typo``; empty: there is none."""
    return "" if where is None else _text(where)


def _text(where: Where) -> str:
    if isinstance(where, str):
        return where
    if where.fn is not None:
        given = (
            f"{name}={msgspec.json.encode(value).decode()}" for name, value in sorted(masked(where.params).items())
        )
        return f"{where.fn}({', '.join(given)})"
    if where.not_ is not None:
        return f"not {_within(where.not_)}"
    word = " and " if where.all_of is not None else " or "
    return word.join(map(_within, parts_of(where)))


def _within(where: Where) -> str:
    """As a part of another condition: in brackets, unless it is a function or the opposite of a condition."""
    several = not isinstance(where, str) and where.fn is None and where.not_ is None
    return f"({_text(where)})" if several else _text(where)


__all__ = ["Condition", "Where", "condition_text", "functions_in", "parts_of", "wrong_in"]
