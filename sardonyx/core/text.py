"""Helpers for texts that people read: the nearest known name, a shortened text, a number with its noun."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


def nearest(name: str, known: Iterable[Any], *, cutoff: float = 0.6) -> str | None:
    """The known name that is most similar to ``name``; None if none is similar enough.

    Args:
        name: what was written.
        known: the names that exist; what is not a string is skipped.
        cutoff: how similar a name must be, from 0 (any) to 1 (equal); see ``difflib.get_close_matches``.
    """
    found = difflib.get_close_matches(name, [one for one in known if isinstance(one, str)], 1, cutoff)
    return found[0] if found else None


def near(name: str, known: Iterable[Any], *, cutoff: float = 0.6) -> str:
    """``; did you mean 'known'?`` to append to a message; empty if no known name is similar. Arguments as :func:`nearest`."""
    found = nearest(name, known, cutoff=cutoff)
    return f"; did you mean {found!r}?" if found else ""


def shorten(text: str, most: int = 80, *, ellipsis: str = "...") -> str:
    """The text, or its beginning and ``ellipsis``: at most ``most`` characters in all."""
    return text if len(text) <= most else text[: max(0, most - len(ellipsis))] + ellipsis


def plural(number: int, one: str, many: str | None = None) -> str:
    """The noun or verb that fits a number: ``plural(2, "peer")`` is ``peers``, ``plural(1, "is", "are")`` is ``is``.

    Args:
        number: how many.
        one: the form for 1.
        many: the form for any other number; ``one`` with an ``s`` by default.
    """
    if number == 1:
        return one
    return f"{one}s" if many is None else many


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun: ``1 task``, ``1,200 tasks``. Arguments as :func:`plural`."""
    return f"{number:,} {plural(number, one, many)}"


def listed(names: Iterable[str], *, last: str = "and") -> str:
    """Names as a sentence lists them: ``a``, ``a and b``, ``a, b and c``."""
    *before, end = list(names) or [""]
    return f"{', '.join(before)} {last} {end}" if before else end
