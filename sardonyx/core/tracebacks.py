"""The user's own traceback: what they wrote, without the frames of whoever called it."""

from __future__ import annotations

import traceback
from pathlib import Path

_OURS = str(Path(__file__).parents[1])


def user_traceback(error: BaseException) -> str:
    """A traceback that begins at the first frame of the user's code; for a syntax error just the line that has it."""
    first = error.__traceback__
    while first is not None and _is_machinery(first.tb_frame.f_code.co_filename):
        first = first.tb_next
    shown = traceback.TracebackException(type(error), error, first, compact=True)
    if first is None:
        return "".join(shown.format_exception_only())
    return "".join(shown.format(chain=error.__cause__ is not None))


def _is_machinery(filename: str) -> bool:
    return filename.startswith((_OURS, "<frozen importlib")) or "/importlib/" in filename
