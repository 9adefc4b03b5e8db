"""What stands in the log in the place of an event about which the coordinator cannot decide. Pure.

A decision that ends in an error is a defect, and would end the same way in each coordinator that replays the log. So one job
would stop all the others. The leader finds here which job to fail so that the log can be decided, and puts that into the log in
the place of the event (:class:`sardonyx.core.events.SetAside`), before anything is decided after it. A process that replays the
log then decides the same, also a release without the defect.
"""

from __future__ import annotations

import traceback as tracebacks
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from coordinator.core.decide import Undecided, decide
from coordinator.core.scheduling import Offer
from coordinator.core.state import State
from coordinator.core.stored_state import decode_state
from sardonyx.core.errors import Failure
from sardonyx.core.events import AnyEvent, PlainEvent, PolicySet, SetAside, happened, kind_of
from sardonyx.core.text import shorten

FIRST_RULES = 4
"""The rules from which on coordinators know such an entry."""
TRIED = 50
"""So many remedies are tried, at most: each takes a tenth of a second where there are thousands of peers."""
MOST = 4_000
"""Characters of a traceback that are kept: its end."""


def set_aside(before: bytes, undecided: Undecided) -> SetAside | None:
    """What can stand in the place of an event; None: nothing helps, or the rules are too old for it.

    Args:
        before: the state before the event, encoded.
        undecided: the error in its decision.
    """
    event = undecided.event
    state = decode_state(before)
    if state.rules < FIRST_RULES or isinstance(event, SetAside):
        return None
    error = undecided.__cause__ or undecided
    trace = "".join(tracebacks.format_exception(error))[-MOST:]
    for job, decided in islice(_remedies(state, event, error), TRIED):
        failure = _failure(undecided, error, job)
        found = SetAside(at=event.at, event=event, error=failure, job=job, decided=decided, traceback=trace)
        try:
            decide(decode_state(before), undecided.n, found)
        except Undecided:
            continue
        return found
    return None


def _remedies(state: State, event: PlainEvent, error: BaseException) -> Iterator[tuple[str, bool]]:
    """Which job may fail, the likeliest first, and whether the event is decided then.

    The event's own job comes first, without the event. If that does not help, or if it has none, some job is at fault that was
    to get peers because of the event: one that was just looked at comes first, then the one that was submitted last. A choice of
    the scheduler is left out alone.
    """
    own = concerned(state, event)
    if own or isinstance(event, PolicySet):
        yield own, False
    others = dict.fromkeys([*_looked_at(state, error), *reversed(state.plans)])
    yield from ((job, True) for job in others if job != own)


def _looked_at(state: State, error: BaseException) -> Iterator[str]:
    """The jobs that variables named where the error was raised, the innermost first."""
    for frame, _ in reversed(list(tracebacks.walk_tb(error.__traceback__))):
        for value in frame.f_locals.values():
            job = value.job if isinstance(value, Offer) else value
            if isinstance(job, str) and job in state.plans:
                yield job


def concerned(state: State, event: AnyEvent) -> str:
    """The job that an event names, or that its peer works for; empty if there is none."""
    plain = happened(event)
    peer = state.peers.get(getattr(plain, "peer", ""))
    held = None if peer is None else peer.assignment
    return getattr(plain, "job", "") or ("" if held is None else held.job)


def _failure(undecided: Undecided, error: BaseException, job: str) -> Failure:
    frames = tracebacks.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return Failure(
        "SX-LOG-SET-ASIDE",
        shorten(
            f"the coordinator could not decide about {kind_of(undecided.event)}, entry {undecided.n} of its log: "
            f"{type(error).__name__}: {error}",
            500,
        ),
        cause="a defect in the coordinator; so that all other jobs go on, it has set the entry aside"
        + (f" and failed job {job}" if job else ""),
        fix=f"report it with the file of `sardonyx log export -o FILE`; `sardonyx log show {undecided.n}` shows the entry",
        where={**({"job": job} if job else {}), **undecided.where, "at": place},
    )
