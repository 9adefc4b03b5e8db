"""When windows give results before they close."""

from __future__ import annotations

from sardonyx.core.errors import FunctionError
from sardonyx.core.timing import length


class Emit:
    """What ``WindowSpec.emit`` says.

    ``by_rows``: a window gives a result after this many rows; 0: not for rows. ``every``: results come each time the
    clock reaches a multiple of this, in microseconds or in rows of an ordinal time; 0: they do not.

    Raises:
        FunctionError: ``SX-WINDOW-EMIT``, it is none of the four.
    """

    def __init__(self, text: str) -> None:
        self.by_rows = self.every = 0
        word, _, rest = text.partition(" ")
        try:
            if text == "changes":
                self.by_rows = 1
            elif word == "count":
                self.by_rows = int(rest)
            elif word == "every":
                self.every = int(rest) if rest.isdecimal() else length(rest)
            elif text != "final":
                raise ValueError(text)
        except ValueError as error:
            raise FunctionError(
                "SX-WINDOW-EMIT",
                f"{text!r} does not say when a window gives results",
                cause=str(error),
                fix='write "final", "changes", "every 10 s" or "count 100"',
            ) from error
        self.final = not (self.by_rows or self.every)
