"""When windows give results before they close."""

from __future__ import annotations

from sardonyx.core.errors import FunctionError
from sardonyx.core.timing import length

BY_WALL = " by wall"


class Emit:
    """What ``WindowSpec.emit`` says.

    ``by_rows``: a window gives a result after this many rows; 0: not for rows. ``every``: results come each time the
    clock reaches a multiple of this, in microseconds or in rows of an ordinal time; 0: they do not. ``by_wall``: the same by
    the clock of the machine, in microseconds.

    Raises:
        FunctionError: ``SX-WINDOW-EMIT``, it is none of these.
    """

    def __init__(self, text: str) -> None:
        self.by_rows = self.every = self.by_wall = 0
        word, _, rest = text.partition(" ")
        try:
            if text == "changes":
                self.by_rows = 1
            elif word == "count":
                self.by_rows = int(rest)
            elif word == "every" and rest.endswith(BY_WALL):
                self.by_wall = length(rest.removesuffix(BY_WALL))
            elif word == "every":
                self.every = int(rest) if rest.isdecimal() else length(rest)
            elif text != "final":
                raise ValueError(text)
        except ValueError as error:
            raise FunctionError(
                "SX-WINDOW-EMIT",
                f"{text!r} does not say when a window gives results",
                cause=str(error),
                fix='write "final", "changes", "every 10 s", "every 10 s by wall" or "count 100"',
            ) from error
        self.final = not (self.by_rows or self.every or self.by_wall)
