"""What forgotten jobs have left on Kafka is removed: dead letters, which stay as long as their job is known, and groups.

Only what the log says was forgotten is looked for, by its id; so no topic of a user's can be mistaken for one of these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import structlog

from sardonyx.core.spec import JobSpec
from sardonyx.runtime.clock import REAL, Runtime

PAUSE = 30.0
"""Seconds after which it is tried again if Kafka was away."""
LETTERS = "letters"
"""The format of an input that reads dead letters: ``queues.dead_letters.FORMAT``, which is not loaded here."""

log = structlog.get_logger()


def readers_of_letters(specs: Mapping[str, JobSpec]) -> dict[str, str]:
    """The jobs whose dead letters are read by any of these, each with one that reads them: ``sardonyx dlq redo`` made it.

    Args:
        specs: of jobs that have not ended, by id.
    """
    return {
        topic[1]: job  # <deployment>.<job>.<task>.dead
        for job, spec in specs.items()
        for task in spec.catalog
        if task.options.get("format") == LETTERS and len(topic := str(task.options.get("topic")).split(".")) == 4
    }


class Orphans:
    """Removes them in a thread of its own, which lives as long as there is something to do.

    Args:
        forget: removes what jobs of these ids have left; may be called again with the same result, raises if it could not.
        clockwork: time and threads.
    """

    def __init__(self, forget: Callable[[Collection[str]], None], runtime: Runtime = REAL) -> None:
        self._forget = forget
        self._runtime = runtime
        self._changed = runtime.condition()
        self._wanted: tuple[str, ...] = ()
        self._busy = False
        self._closed = False

    def sweep(self, forgotten: Collection[str]) -> None:
        """Begin to remove what these jobs have left. Does not wait."""
        with self._changed:
            self._wanted = _all(self._wanted, forgotten)
            if self._wanted and not self._busy and not self._closed:
                self._busy = True
                self._runtime.spawn("orphans", self._work)

    def close(self) -> None:
        """Begin nothing more; the next leader does it again."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._wanted or self._closed:
                    self._busy = False
                    return
                forgotten, self._wanted = self._wanted, ()
            try:
                self._forget(forgotten)
            except Exception as error:  # noqa: BLE001 - Kafka is away: again, for as long as it takes
                log.warning("what forgotten jobs have left cannot be removed yet", reason=str(error))
                with self._changed:
                    self._wanted = _all(forgotten, self._wanted)
                    if not self._closed:
                        self._changed.wait(PAUSE)


def _all(first: Collection[str], then: Collection[str]) -> tuple[str, ...]:
    """Each once: what is asked for while Kafka is away comes on top of what was asked for before."""
    return tuple(dict.fromkeys((*first, *then)))
