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


_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """The text with its control characters written out, except newlines and tabs. What a record or an error quotes could else
    move the cursor of a terminal, hide lines, or more.
    """
    return text.translate(_CONTROLS)


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


def time_text(time: int) -> str:
    """A time in microseconds since 1970, as ISO 8601 in UTC. One that no calendar has, as a number."""
    seconds, rest = divmod(time, 1_000_000)
    days, second = divmod(seconds, 86_400)
    # Days since 1 March of the year 0; an era has 400 years. The algorithm is Howard Hinnant's (civil_from_days).
    era, of_era = divmod(days + 719_468, 146_097)
    year = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    year += 400 * era + (month >= 10)
    if not 0 < year < 10_000:
        return f"{time:,} us"
    fraction = f".{rest:06}".rstrip("0") if rest else ""
    month += 3 if month < 10 else -9
    return f"{year:04}-{month:02}-{day:02}T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}{fraction}Z"
