"""The random histories alone reach all that the deciding core can do: each condition in it has been true, and been false.

Measured on Python's instructions, so that each part of an ``and`` counts, and a loop's end, as well as the branches of an
``if``. What has been seen in full is no longer looked at; that makes it quick.
"""

from __future__ import annotations

import dis
import itertools
import linecache
import random
import sys
from collections.abc import Iterator
from functools import cache
from types import CodeType, FrameType, FunctionType
from typing import Any

import msgspec
import pytest
from history_maker import TIMERS, History
from scenario_runner import World

from coordinator.core import admission, changeset, decide, scheduling, timers
from coordinator.core.explain import explain
from coordinator.core.state import new_state
from sardonyx.core import resuming
from sardonyx.core.errors import Failure, InternalError
from sardonyx.core.events import (
    FORMAT,
    TOO_OLD,
    Acked,
    Declined,
    Evicted,
    Exhausted,
    JobStopped,
    JobSubmitted,
    LinkFacts,
    LinksCreated,
    PeerBorn,
    PeerDied,
    RulesRaised,
)
from sardonyx.core.graph import graph_of
from tests.compat.make import SPEC
from tests.core import test_resume_windows

MODULES = [decide, changeset, scheduling, timers, admission, resuming]
HISTORIES = 5000
"""At most; all is reached much sooner."""
SEED = "of the core"
SETTLED = {
    "peer.assignment is not None",  # for the type checker: who holds this very assignment has one
    "peer.assignment is None",
    "free > 0",  # only tests ask when no peer is free
    "except graphlib.CycleError as error:",  # nothing else is raised there
    # Among so few peers another job almost always lacks some as well: test_scheduling.py::test_one_job_has_more_than_its_share
    "lacking",
    "if not under or not (lacking or any(_exceeds(wanted[name], spare) for name, spare in over.items())):",
    "any(_exceeds(wanted[name], spare) for name, spare in over.items())",
    "except InputError as error:",  # nothing else is raised there
    # For a job that has not ended, or is not submitted yet: only clients ask. test_job_diff.py, test_job_diff_random.py
    "if self.ended:",
    '"completed" if graph.bounded else "stopped"',
    '{"job": job, "resumes": resumes} if job else {"resumes": resumes}',
}
"""Conditions that come out in one way only."""


def functions() -> Iterator[FunctionType]:
    """All that the modules define, also in their classes."""
    for module in MODULES:
        own = [found for found in vars(module).values() if getattr(found, "__module__", "") == module.__name__]
        members = [member for found in own if isinstance(found, type) for member in vars(found).values()]
        for found in [*own, *(getattr(member, "fget", member) for member in members)]:
            if isinstance(found, FunctionType) and found.__code__.co_filename == module.__file__:
                yield found


def nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested(constant)


def is_condition(code: CodeType, found: dis.Instruction) -> bool:
    return (found.opname == "FOR_ITER" or "_IF_" in found.opname) and text_of(code, found) not in SETTLED


def text_of(code: CodeType, found: dis.Instruction) -> str:
    """The condition as it stands in the source, or the line where it begins."""
    where = found.positions
    line = linecache.getline(code.co_filename, where.lineno)
    return line[where.col_offset : where.end_col_offset] if where.lineno == where.end_lineno else line.strip()


class Watch:
    """Which outcomes of which conditions are still to be seen; a condition is a jump that need not be taken."""

    def __init__(self) -> None:
        self.behind: dict[CodeType, dict[int, int]] = {}
        """Offset of each conditional jump -> that of the instruction behind it, which comes next if it does not jump."""
        self.unseen: dict[CodeType, set[tuple[int, bool]]] = {}
        for function in functions():
            for code in nested(function.__code__):
                row = [found for found in dis.get_instructions(code) if found.opname != "EXTENDED_ARG"]
                jumps = [pair for pair in itertools.pairwise(row) if is_condition(code, pair[0])]
                self.behind[code] = {jump.offset: behind.offset for jump, behind in jumps}
                self.unseen[code] = {(jump.offset, taken) for jump, _ in jumps for taken in (False, True)}

    def __call__(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        """For sys.settrace: called with each new frame."""
        code = frame.f_code
        unseen = self.unseen.get(code)
        if not unseen:
            return None
        behind, last = self.behind[code], -1
        frame.f_trace_opcodes, frame.f_trace_lines = True, False

        def look(frame: FrameType, event: str, _argument: Any) -> Any:
            nonlocal last
            if event == "opcode":
                if last in behind:
                    unseen.discard((last, frame.f_lasti != behind[last]))
                last = frame.f_lasti
            return look

        return look

    def missing(self) -> list[str]:
        """What has not been seen: where, the condition, and whether its jump."""
        return [
            f"{code.co_filename}:{jump.positions.lineno}: {text_of(code, jump)}: {jump.opname} {'' if taken else 'not '}taken"
            for code, unseen in self.unseen.items()
            for jump in dis.get_instructions(code)
            for taken in (False, True)
            if (jump.offset, taken) in unseen
        ]


def two_releases() -> None:
    """Peers that decline what they cannot read, one after the other; the random histories have peers of one release only."""
    facts = {link.name: LinkFacts(1) for link in graph_of(SPEC, "test", "copy-1").links}
    begin = [
        PeerBorn(peer="old"),
        JobSubmitted(job="copy-1", spec=SPEC),
        LinksCreated(job="copy-1", links=facts),
    ]
    state = decide.replay(enumerate(begin, 1), new_state("test"))
    for peer in ("old", "new"):
        place = state.peers[peer].assignment
        assert place is not None
        declined = Declined(peer=peer, assignment=place.id, error=Failure(TOO_OLD, "too old"))
        decide.decide(state, state.n + 1, declined)
        if peer == "old":
            decide.decide(state, state.n + 1, PeerBorn(peer="new", format=FORMAT))
    upgraded_peers()


def upgraded_peers() -> None:
    """Peers whose births an older release logged: their job needs newer ones, and then they say what they are."""
    facts = {link.name: LinkFacts(3) for link in graph_of(SPEC, "test", "copy-1").links}
    options = {name: value for name, value in SPEC.catalog[0].options.items() if name != "end"}
    endless = msgspec.structs.replace(SPEC.catalog[0], options=options)
    tagged = msgspec.structs.replace(SPEC, tags=["gpu"])
    begin = [
        *(PeerBorn(peer=f"P{n}") for n in range(4)),
        JobSubmitted(job="copy-1", spec=msgspec.structs.replace(SPEC, catalog=[endless, *SPEC.catalog[1:]])),
        LinksCreated(job="copy-1", links=facts),
        JobStopped(job="copy-1"),
    ]
    state = decide.replay(enumerate(begin, 1), new_state("test", rules=1))
    for name in list(state.jobs["copy-1"].tasks["out"].peers)[1:]:  # all but the first wait when the rules are raised
        place = state.peers[name].assignment
        assert place is not None
        for event in (Acked(peer=name, assignment=place.id), Exhausted(peer=name, assignment=place.id)):
            decide.decide(state, state.n + 1, event)
    for event in (
        RulesRaised(rules=2),
        *(JobSubmitted(job=f"{name}-1", spec=msgspec.structs.replace(tagged, name=name)) for name in ("one", "two")),
        LinksCreated(job="one-1", links=facts),
        *(PeerBorn(peer=f"P{n}", format=FORMAT, tags=("gpu",) * n) for n in range(2)),
        PeerDied(peer="P2"),
        PeerBorn(peer="P2", format=FORMAT),
        Evicted(peer="P0"),
    ):
        decide.decide(state, state.n + 1, event)
    found = {name: (peer.state, peer.format, len(peer.tags)) for name, peer in state.peers.items()}
    assert found == {"P0": ("revoked", 7, 0), "P1": ("acking", 7, 1), "P2": ("dead", 0, 0), "P3": ("idle", 0, 0)}


@cache
def just_gave() -> list[World]:
    """Worlds that are seldom among so few peers and events. One job has given peers to a second one, and a third one lacks some.
    Then the second has given peers to the third, and a fourth one lacks some. And two jobs share five peers: the one that would
    have three has two, and the other one gives none for that.
    """
    worlds: list[World] = []
    begin = [
        *("a is submitted: in -> out; in never ends", "the links of a are made", "8 peers are born"),
        *("b is submitted: in -> out; in never ends", "the links of b are made", "1 s pass"),
        *("the peers that are to give their tasks up do", "the offers are acked"),
        *("c is submitted: in -> out; in never ends", "the links of c are made"),
    ]
    further = [
        *("1 s pass", "the peers that are to give their tasks up do", "the offers are acked"),
        *("d is submitted: in -> out; in never ends", "the links of d are made"),
    ]
    rounded = [
        *("a is submitted: in -> out; in never ends", "the links of a are made"),
        *("b is submitted: in -> out; in never ends", "the links of b are made"),
        *("a takes at most 2 peers", "5 peers are born", "the offers are acked", "a takes at most 4 peers", "1 s pass"),
    ]
    for sentences in (begin, begin + further, rounded):
        worlds.append(World())
        for sentence in sentences:
            worlds[-1].say(sentence)
    return worlds


def reread(history: History) -> None:
    """All that the core is asked in a history, from its log, by one that remembers less in the end."""
    log, state = history.world.log, new_state("test")
    late = len(log) * 3 // 4
    for remembered, entries in ((1000, log[:late]), (1, log[late:])):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(changeset, "REMEMBERED_DEAD", remembered)
            patch.setattr(changeset, "REMEMBERED_PURGED", remembered)
            for n, event in entries:
                timers.due(state, event.at, TIMERS)
                timers.expired_jobs(state, event.at, TIMERS)
                timers.next_due(state, TIMERS)
                decide.replay([(n, event)], state)
                decide.unfinished(state)
    for job in state.jobs:
        explain(state, job)
    assert decide.replay([]).n == 0
    two_releases()
    for status in ("stopped", "completed"):
        test_resume_windows.refusal(status)
    for world in just_gave():
        timers.due(world.state, world.now, TIMERS)
        timers.next_due(world.state, TIMERS)
    raised = decide.replay(log[: len(log) // 2], new_state("test", rules=1))
    for rules in (2, 2, 3):
        decide.decide(raised, raised.n + 1, RulesRaised(rules=rules))
    with pytest.raises(InternalError, match="SX-LOG-ORDER"):
        decide.decide(state, state.n, log[0][1])


@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="each Python has instructions of its own; these are 3.11's")
def test_random_histories_reach_every_condition() -> None:
    """Of every condition in the deciding core, and of every part of one, both outcomes occur.

    The seed is always the same. A few outcomes occur in one history of two thousand: with a seed of the session, all of them
    would miss one now and then.
    """
    watch, before = Watch(), sys.gettrace()
    assert sum(map(len, watch.unseen.values())) > 350, "the conditions are found"
    for number in range(HISTORIES):
        history = History(random.Random(f"{SEED}/{number}"))
        history.unkind(history.rng.randint(5, 100))
        sys.settrace(watch)
        try:
            reread(history)
        finally:
            sys.settrace(before)
        if not any(watch.unseen.values()):
            return
    raise AssertionError("\n".join([f"{HISTORIES} random histories from {SEED}/0 on never saw", *watch.missing()]))
