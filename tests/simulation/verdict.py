"""How a history ends that goes wrong: by the word of the simulation, or by an error that no code should raise.

Only the first counts where a test shows that the simulation notices a defect. A patch that takes a safeguard out may be stale:
then it raises by itself, and shows nothing.
"""

from __future__ import annotations

import traceback
from pathlib import Path

from coordinator.core.decide import Undecided
from sardonyx.core.errors import InternalError

TESTS = Path(__file__).parent.parent


class Wrong(AssertionError):
    """The simulation says so: one of its oracles does, a rule of the coordinator's own, or nothing moves any more."""


class Stuck(Wrong):
    """Nothing can happen any more, or the same things happen without end."""


class Unforeseen(Exception):
    """A process of the history has raised what is not an error of Sardonyx: a defect of the product, or of a patch."""


def says_so(error: BaseException) -> bool:
    """Whether this is the simulation's word: an assertion in its code, or a rule that the coordinator checks."""
    if isinstance(error, Undecided):
        return error.__cause__ is not None and says_so(error.__cause__)
    if isinstance(error, InternalError | Wrong):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, AssertionError) and bool(frames) and Path(frames[-1].filename).is_relative_to(TESTS)


def word_of(error: BaseException) -> str:
    """What it says, or the condition that does not hold."""
    return str(error) or str(traceback.extract_tb(error.__traceback__)[-1].line)


__all__ = ["Stuck", "Unforeseen", "Wrong", "says_so", "word_of"]
