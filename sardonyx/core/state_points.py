"""Where the states of a job stood, for another job to go on from: see :mod:`sardonyx.core.going_back`. Pure data."""

from __future__ import annotations

import msgspec


class Adopted(msgspec.Struct, frozen=True):
    """The state of a task of an earlier job. ``topic``: of its log. ``marks``: by partition, a commit
    (:class:`sardonyx.state.messages.Mark`). ``at``: the time of the checkpoint that is taken of it, in microseconds; None: the
    state as the commit left it. ``begun``: the job that begins with it has no checkpoint at this time or before.
    """

    topic: str
    marks: list[tuple[int, int, int]]
    at: int | None
    begun: int


class CheckpointPoint(msgspec.Struct, frozen=True):
    """A complete checkpoint of an ended job, from which another one can go on.

    ``at``: its time, in microseconds. ``offsets``: by task and by topic of the user's that it reads, an offset in each partition
    before which no row of this time or later stands; None: where the job began. ``marks``: by task with state, as of
    :class:`Adopted`.
    """

    at: int
    offsets: dict[str, dict[str, list[int | None]]] = {}
    marks: dict[str, list[tuple[int, int, int]]] = {}


class EndPoint(msgspec.Struct, frozen=True):
    """Where the states of a job stood when it had been stopped, for another one to go on with.

    ``top``: no row that was worked is later, in microseconds. ``marks``: as of :class:`Adopted`, by task with state. ``clocks``:
    by link that a task reads, in each partition the greatest time, and the clock (:class:`sardonyx.core.clocks.SourceClock`).
    """

    top: int
    marks: dict[str, list[tuple[int, int, int]]] = {}
    clocks: dict[str, list[tuple[int, int]]] = {}


__all__ = ["Adopted", "CheckpointPoint", "EndPoint"]
