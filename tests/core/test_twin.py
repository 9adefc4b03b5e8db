"""``decide`` and its slow, dumb twin, which was written from the text alone, must agree on every event of every history.

Where they do not, one of them is wrong, or docs/coordination.md can be read in two ways. The number of random histories can
be raised with SARDONYX_TWIN_HISTORIES; a disagreement names its history, ``<seed>/<number>``, and prints the shortest
stretch of events that shows it, each as it would stand in the log.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from history_maker import History
from scenario_runner import World, run, scenario_files
from twin import Twin

from coordinator.core import admission, changeset, job_events, peer_changes, scheduling
from coordinator.core import decide as core
from coordinator.core.invariants import check
from coordinator.core.projection import project
from coordinator.core.state import State, Task, new_state
from sardonyx.core.changing import change_failure, rewired
from sardonyx.core.effects import OuterEffect
from sardonyx.core.errors import Failure
from sardonyx.core.events import (
    OLDEST_RULES,
    RULES,
    AnyEvent,
    BackoffEnded,
    Exhausted,
    JobKilled,
    JobPurged,
    JobSubmitted,
    LinkFacts,
    LinksDeleted,
    LinksFailed,
    PeerBorn,
    PeerDied,
    RulesRaised,
    SetAside,
    encode_event,
)
from sardonyx.core.graph import graph_of
from sardonyx.core.spec import JobSpec
from sardonyx.core.untouched import untouched
from tests.sizes import ALL, histories

HISTORIES = int(os.environ.get("SARDONYX_TWIN_HISTORIES") or histories(40, whole=60))
BATCHES = 4
MOST_TO_SHOW = 5_000

Entries = list[tuple[int, AnyEvent]]


@dataclass
class Disagreement:
    """The first event after which the two differ; ``differences`` are lines to be read."""

    entries: Entries
    differences: list[str]

    def __str__(self) -> str:
        log = [f"  {n} {encode_event(event).decode()}" for n, event in self.entries]
        return "\n".join([f"after these {len(log)} events", *log, "decide and its twin differ:", *self.differences])


def disagreement(entries: Entries, rules: int = RULES) -> Disagreement | None:
    """Play the events through both, from these rules on; None if they agree on all of them."""
    state, twin = new_state("test", rules), Twin(refusal, changeable, left_alone, rules)
    for count, (n, event) in enumerate(entries, start=1):
        before = twin.zk
        effects = [outer(effect) for effect in core.decide(state, n, event) if isinstance(effect, OuterEffect)]
        wanted = twin.take(n, json.loads(encode_event(event)))
        zk = {path: told(decoded(data)) for path, data in project(state).items()}
        if zk == twin.zk and effects == wanted:
            continue
        lines = [] if effects == wanted else [f"  outside the tree\n    decide {effects}\n    twin   {wanted}"]
        for path in sorted(zk.keys() | twin.zk.keys()):
            if zk.get(path, "absent") != twin.zk.get(path, "absent"):
                sides = [side.get(path, "absent") for side in (before, zk, twin.zk)]
                lines.append("  {}\n    before {}\n    decide {}\n    twin   {}".format(path, *map(ordered, sides)))
        return Disagreement(entries[:count], lines)
    return None


def shrunk(found: Disagreement, rules: int = RULES) -> Disagreement:
    """Leave out every event, and every stretch of events, without which they disagree as well."""
    for size in (16, 8, 4, 2, 1, 1):
        for start in reversed(range(0, len(found.entries), size)):
            found = disagreement(found.entries[:start] + found.entries[start + size :], rules) or found
    return found


def refusal(job: str, spec: dict[str, Any], taken_by: str | None) -> dict[str, Any] | None:
    """Which jobs are fit is not asked twice: the twin takes the coordinator's word for it."""
    error = admission.refusal(job, msgspec.convert(spec, JobSpec), taken_by)
    return None if error is None else dict(msgspec.to_builtins(error))


def changeable(old: dict[str, Any], new: dict[str, Any], drop: list[str], retired: list[str]) -> bool:
    """Nor is what of a running job can be changed."""
    return change_failure("", msgspec.convert(old, JobSpec), msgspec.convert(new, JobSpec), drop, retired) is None


def left_alone(
    old: dict[str, Any], new: dict[str, Any], same: list[str], facts: dict[str, Any], rules: int
) -> list[str]:
    """Nor is what a change leaves as it is."""
    known = msgspec.convert(facts, dict[str, LinkFacts])
    return untouched(msgspec.convert(old, JobSpec), msgspec.convert(new, JobSpec), same, known, rules)


def told(note: Any) -> Any:
    """A note as the twin has it: of the errors about resuming it knows only the codes, since their texts are no rules."""
    error = note.get("error") if isinstance(note, dict) else None
    if error is None or not error["code"].startswith(("SX-JOB-RESUME", "SX-JOB-REPLAY", "SX-RESUME", "SX-CHECKPOINT")):
        return note
    return note | {"error": {"code": error["code"]}}


def outer(effect: OuterEffect) -> tuple[str, str]:
    return type(effect).__name__, next(iter(msgspec.to_builtins(effect).values()))


def ordered(note: Any) -> str:
    return json.dumps(note, sort_keys=True)


@functools.lru_cache(maxsize=10_000)
def decoded(data: bytes) -> Any:
    return json.loads(data) if data else None


# Histories


@functools.lru_cache(maxsize=200)
def history(name: str) -> Entries:
    """A random history, as far as its faults go, and now and then to its good end."""
    made = History(random.Random(name), parts=True, restarts=True)
    made.unkind(made.rng.randint(5, 60))
    if made.rng.random() < 0.2:
        made.settle()
    return made.world.log


def disturbed(name: str) -> Entries:
    """The same history with events missing, in another order, said again at any time, also before their own, or meant for
    another assignment or job: they meet a world for which they were not made.
    """
    rng = random.Random(f"{name}/disturbed")
    entries = [entry for entry in history(name) if rng.random() > 0.05]
    for index, (n, _) in enumerate(entries):
        if rng.random() < 0.1:
            entries[index] = n, changed(rng.choice(entries)[1], rng.choice(entries)[1], rng.randint(1, n))
    return entries


def changed(event: AnyEvent, other: AnyEvent, number: int) -> AnyEvent:
    """The event, if it can be, about another's job or another assignment."""
    job = getattr(other, "job", "")
    if isinstance(event, JobKilled | JobPurged | LinksFailed | LinksDeleted | BackoffEnded) and job:
        return msgspec.structs.replace(event, job=job)
    return msgspec.structs.replace(event, assignment=number) if hasattr(event, "assignment") else event


def with_defects(name: str) -> Entries:
    """The same history, some of whose events could not be decided: each has failed its own job, another one, or none."""
    rng, jobs = random.Random(f"{name}/defects"), [""]
    entries = []
    for n, event in history(name):
        job = getattr(event, "job", "")
        jobs += [job] if job and isinstance(event, JobSubmitted) else []
        if rng.random() < 0.1:
            error = Failure("SX-LOG-SET-ASIDE", f"a defect at {n}")
            fails = rng.choice([job or jobs[-1], rng.choice(jobs)])
            event = SetAside(at=event.at, event=event, error=error, job=fails, decided=rng.random() < 0.4)  # noqa: PLW2901
        entries.append((n, event))
    return entries


@pytest.mark.parametrize("batch", range(BATCHES))
def test_they_agree_on_random_histories(batch: int, seed: int) -> None:
    """The whole tree, with the number in every node, and what is to be done outside it: the same after every event.

    Every other history is disturbed.
    """
    for number in range(batch, HISTORIES, BATCHES):
        name = f"{seed}/{number}"
        found = disagreement(disturbed(name) if batch % 2 else history(name))
        assert found is None, f"history {name}: {shrunk(found)}"


def test_they_agree_on_what_is_set_aside(seed: int) -> None:
    """Histories in which some events could not be decided. Every invariant holds after each event."""
    for number in range(HISTORIES // 2):
        name = f"{seed}/{number}"
        log = with_defects(name)
        found = disagreement(log)
        assert found is None, f"history {name}: {shrunk(found)}"
        state = new_state("test")
        for n, event in log:
            core.decide(state, n, event)
            check(state)


def test_they_agree_by_the_rules_before(seed: int) -> None:
    """A log is decided by the rules under which it begins until newer ones are raised: before rules 4 a decline holds for all
    peers, and no queue is fenced that closes.
    """
    for number in range(HISTORIES // 4):
        name = f"{seed}/rules/{number}"
        made = History(random.Random(name), rules=OLDEST_RULES)
        made.unkind(made.rng.randint(5, 60))
        made.deliver(RulesRaised(at=made.world.now, rules=made.rng.randint(OLDEST_RULES + 1, RULES)))
        made.unkind(made.rng.randint(5, 60))
        found = disagreement(made.world.log, rules=OLDEST_RULES)
        assert found is None, f"history {name}: {shrunk(found, rules=OLDEST_RULES)}"


@pytest.mark.parametrize("path", scenario_files(), ids=lambda path: path.stem)
def test_they_agree_on_scenarios(path: Path) -> None:
    """Each scenario, with its exact output, is what the text says."""
    world = World()
    run(path.read_text(), world)
    found = disagreement(world.log)
    assert found is None, str(found)


def test_they_agree_on_what_is_forgotten() -> None:
    """The last thousand dead peers and purged jobs are known by id, those before them are not; an odd id is never known."""
    spec = JobSpec(name="empty", workflow=[], catalog=[])
    jobs, peers = [f"j{number}" for number in range(1001)], [f"P{number}" for number in range(1001)]
    events: list[AnyEvent] = []
    for job, peer in zip(jobs, peers, strict=True):
        events += [JobSubmitted(job=job, spec=spec), JobPurged(job=job), PeerBorn(peer=peer), PeerDied(peer=peer)]
    events += [JobSubmitted(job=job, spec=spec) for job in (*jobs[:2], "9", "a b", "")]
    events += [PeerBorn(peer=peer) for peer in peers[:2]]
    found = disagreement(list(enumerate(events, start=1)))
    assert found is None, "\n".join(found.differences)


# A test that cannot fail shows nothing: rules of the core are broken on purpose, and the twin must object.

Break = Callable[[pytest.MonkeyPatch], None]


def _seals_at_once(patch: pytest.MonkeyPatch) -> None:
    def handler(made: changeset.ChangeSet, event: Exhausted) -> None:
        peer = made.state.peers.get(event.peer)
        if peer is not None and peer.state == "active" and made.state.assignment(event.peer).id == event.assignment:
            made.move(event.peer, "seal")

    patch.setitem(core._HANDLERS, Exhausted, handler)


def _slots_go_upward(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(peer_changes, "free_slots", lambda task: itertools.count(max(task.peers.values(), default=-1) + 1))


def _waiting_ones_are_left(patch: pytest.MonkeyPatch) -> None:
    right = changeset.ChangeSet.leave

    def leave(made: changeset.ChangeSet, name: str, trigger: Any, **more: Any) -> None:
        peer = made.state.peers[name]
        with pytest.MonkeyPatch.context() as inner:
            if peer.state == "active":
                inner.setattr(State, "on_task", lambda state, task: [])
            right(made, name, trigger, **more)

    patch.setattr(changeset.ChangeSet, "leave", leave)


def _jobs_take_no_turns(patch: pytest.MonkeyPatch) -> None:
    right = scheduling.next_offer

    def next_offer(state: State) -> scheduling.Offer | None:
        state.turn = 0
        return right(state)

    patch.setattr(scheduling, "next_offer", next_offer)


def _nobody_is_preempted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scheduling, "preemption", lambda state, name: None)


def _nothing_is_blocked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scheduling, "_blocked", lambda job, plan, stage: False)


def _tasks_never_wake(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(core._HANDLERS, BackoffEnded, lambda made, event: None)


def _slots_forget_their_homes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Task, "keep_home", lambda task, slot, home: None)


def _inputs_are_read_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_events, "finished", lambda before, after, complete, *, resizes: "")


def _rows_of_two_numbers_meet(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_events, "unprepared", lambda old, new: False)


def _no_slot_is_fenced(patch: pytest.MonkeyPatch) -> None:
    switch = changeset.ChangeSet.switch

    def at_once(changes: changeset.ChangeSet, name: str) -> None:
        spec = changes.state.jobs[name].next_spec
        assert spec is not None
        if rewired(changes.state.plans[name].graph, graph_of(spec, changes.state.deployment, name)):
            switch(changes, name)
        else:
            changes.swap_spec(name, spec)

    patch.setattr(changeset.ChangeSet, "switch", at_once)


SHOWS_SELDOM = pytest.mark.skipif(not ALL, reason="shows in few histories: make test-all")
BREAKS = [
    _seals_at_once,
    _slots_go_upward,
    _waiting_ones_are_left,
    pytest.param(_jobs_take_no_turns, marks=SHOWS_SELDOM),
    _nobody_is_preempted,
    _nothing_is_blocked,
    _tasks_never_wake,
    _slots_forget_their_homes,
    pytest.param(_inputs_are_read_again, marks=SHOWS_SELDOM),
    _rows_of_two_numbers_meet,
    _no_slot_is_fenced,
]


@pytest.mark.parametrize("broken", BREAKS, ids=lambda broken: broken.__name__.strip("_"))
def test_a_broken_rule_is_found(broken: Break, seed: int) -> None:
    """With one rule of the core broken, the two disagree soon.

    The rarest, that jobs take no turns, shows in one history of three hundred.
    """

    def played() -> Iterator[Disagreement | None]:
        for number in range(MOST_TO_SHOW):
            entries = history(f"{seed}/{number}")
            with pytest.MonkeyPatch.context() as patch:
                broken(patch)
                yield disagreement(entries)

    assert any(played()), f"{MOST_TO_SHOW} histories did not show it"
