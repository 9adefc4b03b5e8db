"""What all runs under faults share: work beside the run, faults on threads of their own, and lines on stderr."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from typing import ParamSpec

from tests.faults.cluster import now
from tests.faults.scene import NotNow

P = ParamSpec("P")


class Striking:
    """The base of a run.

    Args:
        seed: of every choice.
    """

    def __init__(self, seed: int) -> None:
        self._began = now()
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self.trouble: list[str] = []
        """Why the run is red."""
        self._missed: list[str] = []
        """Kinds of faults that were tried and did not strike."""

    def _beside(self, work: Callable[P, None], *given: P.args, **more: P.kwargs) -> threading.Thread:
        """A thread that does some work; not started yet."""

        def done() -> None:
            try:
                work(*given, **more)
            except Exception as error:  # noqa: BLE001 - whatever it was, the run is red
                self._wrong(f"{work.__name__}: {type(error).__name__}: {error}")

        return threading.Thread(target=done, daemon=True)

    def _striking(
        self, kind: str, verb: Callable[[random.Random], str], struck: Callable[[str, float], None]
    ) -> threading.Thread:
        """Bring a fault about on a thread of its own.

        Args:
            kind: of the fault, for people.
            verb: brings it about, returns when it is over, and says whom it hit.
            struck: called then, with that and when it began.
        """
        rng = random.Random(self._rng.random())

        def strike() -> None:
            began = now()
            try:
                whom = verb(rng)
            except NotNow as reason:
                self._tell(f"{kind}: did not strike: {reason}")
                with self._lock:
                    self._missed.append(kind)
                return
            except Exception as error:  # noqa: BLE001 - whatever it was, the run is red
                self._wrong(f"{kind}: {type(error).__name__}: {error}")
                return
            struck(whom, began)

        thread = threading.Thread(target=strike, daemon=True)
        thread.start()
        return thread

    def _wrong(self, what: str) -> None:
        self.trouble.append(what)
        self._tell(f"trouble: {what}")

    def _tell(self, what: str) -> None:
        sys.stderr.write(f"{now() - self._began:7.1f} s  {what}\n")
        sys.stderr.flush()
