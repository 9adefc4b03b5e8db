"""What a task is like right now, in a word: the first row of a table that holds. Pure.

A task that a full queue holds lacks nothing itself: the word says so, and the text by whom it is held. Of all others the word
says whether they are late, and what they lack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import msgspec

from sardonyx.client.lags import LinkLag
from sardonyx.client.views import ShownState, TaskView
from sardonyx.core.spec import TaskSpec
from sardonyx.core.text import counted
from sardonyx.core.units import duration

LATE = 10.0
"""Seconds that the oldest unread row may wait before its reader counts as late."""
STILL = 30.0
"""Seconds without a committed row after which a task with peers and unread rows counts as stuck."""
FULL = 0.8
"""The share of the time in which the peers of a task have a batch in hand from which they count as fully busy."""

Word = Literal[
    "done",
    "stopped",
    "suspended",
    "backs off",
    "no peer",
    "stuck",
    "bottleneck",
    "behind",
    "catches up",
    "waits",
    "held",
    "bound",
    "keeps up",
    "works",
]
Level = Literal["ok", "warn", "bad", "info", "rest"]


class Facts(NamedTuple):
    """What is known of a task. None: not known."""

    state: ShownState
    bound: bool = False
    suspended: bool = False
    """Its job is suspended."""
    failed: bool = False
    """If so: because it failed after a change, and not because a user wants it."""
    backing_off: bool = False
    peers: int = 0
    limit: int | None = None
    """The most peers that it can take."""
    cap: str = ""
    """Why it can take no more, as of :func:`cap_of`."""
    unread: int | None = None
    seconds: float | None = None
    """How long its oldest unread row has waited."""
    growth: float | None = None
    """By how many rows a second what is unread grows; negative: it shrinks."""
    still: float | None = None
    """Seconds since it committed a row, while no full queue held it."""
    busy: float | None = None
    """The share of the last seconds in which its peers had a batch in hand, from 0 to 1."""
    held: str | None = None
    """What holds it, if a full queue does: as of :attr:`sardonyx.core.back_pressure.Hold.why`."""


def facts_of(
    task: TaskView,
    lags: Sequence[LinkLag],
    growth: Callable[[str], float | None],
    limit: int | None,
    *,
    suspended: bool = False,
    backing_off: bool = False,
    still: float | None = None,
    held: str | None = None,
    cap: str = "",
) -> Facts:
    """Put together what is known of a task and of the links that it reads.

    Args:
        task: as it is shown.
        lags: what is unread on its links.
        growth: by how many rows a second a link grows; None: that is not known.
        limit: the most peers that the task can take.
        suspended: whether its job is suspended.
        backing_off: whether it rests after a failure.
        still: seconds since it committed a row, while no full queue held it.
        held: what holds it, if a full queue does.
        cap: why it can take no more peers.
    """
    unread, growths = [lag.records for lag in lags], [growth(lag.link) for lag in lags]
    # A split waits since the job began, however fast the input is read: its age says nothing.
    waits = [lag.seconds for lag in lags if lag.seconds is not None and lag.unit == "records"]
    return Facts(
        state=task.state,
        bound=task.bound,
        suspended=suspended,
        backing_off=backing_off,
        peers=task.peers,
        limit=limit,
        unread=None if not lags or None in unread else sum(count or 0 for count in unread),
        seconds=max(waits, default=None),
        growth=None if not lags or None in growths else sum(each or 0.0 for each in growths),
        still=still,
        held=held,
        cap=cap,
    )


def cap_of(task: TaskSpec, limit: int) -> str:
    """Why a task can take no more peers than this, in words."""
    if task.consumption == "sequential":
        return "it is sequential"
    if task.max_peers == limit:
        return f"its max_peers is {limit}"
    return f"what it reads has {counted(limit, 'partition')}, and two peers never share one"


class Verdict(msgspec.Struct, frozen=True):
    """A word for a task, how serious it is, and what it means here."""

    word: Word
    level: Level
    text: str


def verdict(facts: Facts) -> Verdict:
    """The first row of the table that holds."""
    return next(Verdict(word, level, text(facts)) for word, level, holds, text in _TABLE if holds(facts))


def drains_in(facts: Facts) -> float | None:
    """Seconds until nothing is unread if it goes on like this; None if it does not shrink."""
    if facts.growth is None or facts.growth >= 0 or facts.unread is None:
        return None
    return facts.unread / -facts.growth


def _late(facts: Facts) -> bool:
    return bool(facts.unread) and facts.seconds is not None and facts.seconds >= LATE


def _grows(facts: Facts) -> bool:
    return facts.growth is not None and facts.growth > 0


def _full(facts: Facts) -> bool:
    """Whether it has all the peers that it can take."""
    return facts.limit is not None and facts.peers >= facts.limit


def _overworked(facts: Facts) -> bool:
    return facts.busy is not None and facts.busy >= FULL


def _cannot_follow(facts: Facts) -> str:
    why = [f"its peers are busy for {facts.busy:.0%} of the time"] if _overworked(facts) else []
    cap = f", since {facts.cap}" if facts.cap else ""
    why += [f"it can take no more peers than {facts.limit}{cap}"] if _full(facts) else []
    return f"{_waiting(facts)}, more rows come than it reads, and {' and '.join(why)}"


def _deserted(facts: Facts) -> bool:
    return facts.peers == 0 and not facts.bound and (bool(facts.unread) or facts.state == "running")


def _waiting(facts: Facts) -> str:
    return f"its oldest unread row has waited for {duration(facts.seconds or 0.0)}"


def _catching_up(facts: Facts) -> str:
    left = drains_in(facts)
    return _waiting(facts) + ("" if left is None else f"; at this rate it has read all in {duration(left)}")


def _rests(facts: Facts) -> str:
    return "it has not begun" if facts.state == "pending" else "it has read all that there is"


def _behind(facts: Facts) -> str:
    trend = ", and more rows come than it reads" if _grows(facts) else ", and what is unread does not shrink"
    return _waiting(facts) + ("; whether it catches up is not known yet" if facts.growth is None else trend)


def _young(facts: Facts) -> str:
    return "it goes on" if facts.seconds is None else "what it has not read is young"


_Row = tuple[Word, Level, Callable[[Facts], bool], Callable[[Facts], str]]
_TABLE: tuple[_Row, ...] = (
    ("done", "rest", lambda f: f.state == "complete", lambda _: "it is complete"),
    ("stopped", "rest", lambda f: f.state == "stopped", lambda _: "its job ended before it was complete"),
    (
        "suspended",
        "rest",
        lambda f: f.suspended,
        lambda f: (
            "its job failed after a change, and is suspended: change it again, and then resume it"
            if f.failed
            else "a user suspended its job: it goes on from here when that is resumed"
        ),
    ),
    ("backs off", "warn", lambda f: f.backing_off, lambda _: "it failed, and is offered again after a pause"),
    (
        "bound",
        "rest",
        lambda f: f.bound,
        lambda _: "no peer runs it: it is a topic in place, or fused with another task",
    ),
    ("held", "info", lambda f: f.held is not None, lambda f: f"it pauses: {f.held}"),
    ("no peer", "bad", _deserted, lambda _: "no virtual peer is on it"),
    (
        "stuck",
        "bad",
        lambda f: f.peers > 0 and bool(f.unread) and f.still is not None and f.still >= STILL,
        lambda f: f"it has peers and unread rows, and has committed nothing for {duration(f.still or 0.0)}",
    ),
    (
        "bottleneck",
        "warn",
        lambda f: _late(f) and _grows(f) and (_overworked(f) or _full(f)),
        _cannot_follow,
    ),
    ("catches up", "info", lambda f: _late(f) and f.growth is not None and f.growth < 0, _catching_up),
    ("behind", "warn", _late, _behind),
    ("waits", "rest", lambda f: f.unread == 0 or (f.state == "pending" and not f.peers), _rests),
    ("keeps up", "ok", lambda f: f.unread is not None, _young),
    ("works", "ok", lambda _: True, lambda _: "what it has not read is not known"),
)
