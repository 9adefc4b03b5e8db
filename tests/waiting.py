"""Waiting for a condition with a deadline: what tests do instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

PATIENCE = 180.0
"""Seconds that a test waits for what is to come. It costs nothing when that comes, and a machine with other things to do may need
many times as long as an idle one. Less is named only where the promise is that something comes sooner.
"""


def until(condition: Callable[[], Found], *, what: str, timeout: float = PATIENCE) -> Found:
    """Ask until the answer is truthy, and return that answer.

    Args:
        condition: asked again and again, about every 20 ms; an ``AssertionError`` in it counts as "not yet".
        what: what is awaited, for the message when it never comes.
        timeout: seconds.

    Raises:
        AssertionError: with what was awaited, how long, and the last answer.
    """
    deadline = time.monotonic() + timeout
    while True:
        last: object
        try:
            answer = condition()
            if answer:
                return answer
            last = answer
        except AssertionError as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:g} s for {what}; last answer: {last!r}")
        time.sleep(0.02)
