"""A history that goes wrong, with everything left out that it does not take."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from tests.simulation.plan import Plan, Tally

MOST = 300
"""Histories played to shrink one."""
KINDS = ("Error", "Wrong", "Stuck", "Unforeseen", ": SX-")
"""One of them is in the line of a traceback that says what went wrong."""


def shrunk(plan: Plan, played: Callable[[Plan], tuple[Tally, str]]) -> Plan:
    """The smallest plan found that fails in the same way: what goes first is tried first, again and again."""
    wanted = _kind(played(plan)[1])
    left = MOST
    smaller = True
    while smaller and left > 0:
        smaller = False
        for candidate in _smaller(plan):
            left -= 1
            if left < 0:
                break
            if _kind(played(candidate)[1]) == wanted:
                plan, smaller = candidate, True
                break
    return plan


def _kind(wrong: str) -> str:
    """What failures have in common that are one: the kind of error and the beginning of what it says."""
    lines = [line for line in wrong.splitlines() if line and not line[0].isspace()]
    return next((line[:60] for line in lines if any(kind in line for kind in KINDS)), "")


def _smaller(plan: Plan) -> Iterator[Plan]:
    """One step smaller, in every way."""
    half = len(plan.faults) // 2
    if half > 1:
        yield replace(plan, faults=plan.faults[:half])
        yield replace(plan, faults=plan.faults[half:])
    for at in range(len(plan.faults)):
        yield replace(plan, faults=plan.faults[:at] + plan.faults[at + 1 :])
    for at in range(len(plan.jobs)):
        if len(plan.jobs) > 1:
            yield replace(plan, jobs=plan.jobs[:at] + plan.jobs[at + 1 :])
    for name, least in (("doubled", 0.0), ("declines", 0.0), ("fails", 0.0), ("servers", 1), ("slow", 0.2)):
        if getattr(plan, name) != least:
            yield replace(plan, **{name: least})
    if plan.coordinators > 1:
        yield replace(plan, coordinators=plan.coordinators - 1)
    if len(plan.daemons) > 1:
        yield replace(plan, daemons=(*plan.daemons[:-2], plan.daemons[-2] + plan.daemons[-1]))
    for name, least in (("snapshot_every", 1000), ("keep_log", 100_000), ("keep_jobs", 1000), ("trim_every", 60.0)):
        if getattr(plan, name) != least:
            yield replace(plan, **{name: least})
