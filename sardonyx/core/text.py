"""Small helpers for texts that people read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


def near(name: str, known: Iterable[Any]) -> str:
    """A hint at the known name that is most like ``name``, to append to a message; empty if none is like it."""
    found = difflib.get_close_matches(name, [one for one in known if isinstance(one, str)], 1)
    return f"; did you mean {found[0]!r}?" if found else ""
