"""Hypothesis drives the deciding core: whatever it lets happen, in whatever order, all rules hold, and bounded jobs end.

:mod:`history_maker` holds every event against the rules: the invariants, effects that are just what differs in the tree,
complete stays complete, no peer idles beside work, no job is stuck, each says how many peers it waits for, and an event twice
is one event. Here Hypothesis chooses what happens. A failure comes shrunk, as the shortest series of rules that shows it, with
the log that it made; it is played again by SARDONYX_SEED from the session's header, or by the ``@reproduce_failure`` that is
printed. SARDONYX_STATEFUL sets the number of histories.
"""

from __future__ import annotations

import os
import random
import re
import sys
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
from history_maker import FAILURE, History
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from scenario_runner import spec_of

from coordinator.core import changeset
from coordinator.core import decide as core
from coordinator.core.decide import replay
from coordinator.core.explain import explain
from coordinator.core.explanation import as_lines
from coordinator.core.state import Peer
from coordinator.core.stored_state import encode_state
from sardonyx.core.effects import CreateLinks, Effect
from sardonyx.core.errors import InternalError
from sardonyx.core.events import (
    Acked,
    AckTimedOut,
    AnyEvent,
    BackoffEnded,
    Completed,
    Counts,
    Declined,
    Event,
    Evicted,
    Exhausted,
    GraceEnded,
    JobKilled,
    JobPurged,
    JobSubmitted,
    Left,
    LinksCreated,
    LinksDeleted,
    LinksFailed,
    PeerBorn,
    PeerDied,
    PeerState,
    TaskFailed,
    decode_event,
    encode_event,
)

HISTORIES = int(os.environ.get("SARDONYX_STATEFUL", "150"))
STEPS = 60
OPEN_JOBS = 3

SHAPES = ["a -> b", "a -> b -> c", "a -> b, a -> c", "a -> c, b -> c -> d", "a -> b -> d, a -> c -> d"]
REMARKS = [
    "1 partition",
    "4 partitions",
    "outlives 2 failures",
    "a is a topic",
    "a begins with 2",
    "b begins with 3",
    "b takes at most 1",
    "b is sequential",
    "a never ends",
    "a names no topic",
]
specs = st.builds(
    lambda *parts: "; ".join([parts[0], *sorted(parts[1])]),
    st.sampled_from(SHAPES),
    st.sets(st.sampled_from(REMARKS), max_size=4),
)
"""Jobs, as scenarios tell of them; one in a few has no end, or is refused."""
names = st.sampled_from(["one", "two", "three"])
which = st.integers(0, 7)
"""One of those that there are, counted round."""

Place = tuple[str, int]
"""A peer, and the id of an assignment that it had, or has."""


class Coordination(RuleBasedStateMachine):
    """Peers, clients, ZooKeeper and Kafka, as unkind as the log allows; every event is delivered twice."""

    peers = Bundle("peers")
    jobs = Bundle("jobs")
    places = Bundle("places")

    @initialize(seed=st.integers(0, 9))
    def begin(self, seed: int) -> None:
        """``seed``: who is taken by the last fault, after which all behave."""
        self.seed = seed
        self.history = History(random.Random(seed), doubled=1.0)
        self.world = self.history.world

    @property
    def now(self) -> float:
        return self.world.now

    def deliver(self, event: AnyEvent) -> list[Effect]:
        effects = self.history.deliver(event)
        self.explains()
        return effects

    def those(self, *states: PeerState) -> list[str]:
        return sorted(name for name, peer in self.world.state.peers.items() if peer.state in states)

    def holds(self, place: Place) -> Peer | None:
        """The peer, if it holds this very assignment."""
        peer = self.world.state.peers.get(place[0])
        return peer if peer is not None and peer.assignment and peer.assignment.id == place[1] else None

    # Peers come and go

    @precondition(lambda self: len(self.history.pulses) < 6)
    @rule(target=peers)
    def born(self) -> str:
        event = self.history.birth()
        assert isinstance(event, PeerBorn)
        self.deliver(event)
        return event.peer

    @rule(peer=peers)
    def born_again(self, peer: str) -> None:
        """An id is used once."""
        assert self.deliver(PeerBorn(at=self.now, peer=peer, daemon="other")) == []

    @rule(peer=peers)
    def dies(self, peer: str) -> None:
        self.history.pulses.discard(peer)
        self.deliver(PeerDied(at=self.now, peer=peer))
        assert peer not in self.world.state.peers or self.world.state.peers[peer].state == "dead"

    @rule(peer=peers, how=st.sampled_from([Left, Evicted, GraceEnded]))
    def goes(self, peer: str, how: Callable[..., AnyEvent]) -> None:
        self.deliver(how(at=self.now, peer=peer))

    # What peers do

    @precondition(lambda self: self.those("acking"))
    @rule(target=places, who=which, aloud=st.sampled_from([True, True, True, False]))
    def acks(self, who: int, aloud: bool) -> Place:
        """``aloud``: the ack arrives; if not, it may come at any time."""
        return self.goes_on(Acked, self.one_of("acking", who=who), aloud)

    @precondition(lambda self: self.those("active"))
    @rule(target=places, who=which, aloud=st.sampled_from([True, True, True, False]))
    def exhausts(self, who: int, aloud: bool) -> Place:
        return self.goes_on(Exhausted, self.one_of("active", who=who), aloud)

    @precondition(lambda self: self.those("sealing"))
    @rule(target=places, who=which, aloud=st.sampled_from([True, True, True, False]))
    def completes(self, who: int, aloud: bool) -> Place:
        return self.goes_on(Completed, self.one_of("sealing", who=who), aloud)

    def goes_on(self, kind: Callable[..., AnyEvent], place: Place, aloud: bool) -> Place:
        if aloud:
            assert self.deliver(kind(at=self.now, peer=place[0], assignment=place[1])), "it was awaited"
        return place

    def one_of(self, *states: PeerState, who: int) -> Place:
        names = self.those(*states)
        name = names[who % len(names)]
        return name, self.world.state.assignment(name).id

    @precondition(lambda self: self.those("acking", "active", "sealing", "waiting"))
    @rule(target=places, who=which, fatal=st.sampled_from([False, False, False, True]))
    def fails(self, who: int, fatal: bool) -> Place:
        """In what it does, or in what it was offered."""
        place = self.one_of("acking", "active", "sealing", "waiting", who=who)
        said: dict[str, Any] = {"at": self.now, "peer": place[0], "assignment": place[1], "error": FAILURE}
        declines = self.world.state.peers[place[0]].state == "acking" and not fatal
        assert self.deliver(Declined(**said) if declines else TaskFailed(**said, fatal=fatal))
        return place

    @rule(
        place=places,
        other=st.none() | peers,
        kind=st.sampled_from([Acked, AckTimedOut, Exhausted, Completed, Declined, TaskFailed]),
    )
    def says(self, place: Place, other: str | None, kind: Callable[..., AnyEvent]) -> None:
        """Something about an assignment: in time or late, once more, or by another than who had it."""
        place = other or place[0], place[1]
        held = self.holds(place)
        said = {"error": FAILURE} if kind in {Declined, TaskFailed} else {}
        effects = self.deliver(kind(at=self.now, peer=place[0], assignment=place[1], **said))
        assert held or not effects, "what is not about the assignment that one has changes nothing"

    # Jobs

    @precondition(lambda self: sum(not job.ended for job in self.world.state.jobs.values()) < OPEN_JOBS)
    @rule(target=jobs, name=names, text=specs)
    def submits(self, name: str, text: str) -> str:
        self.history.submitted += 1
        job = f"{name}-{self.history.submitted}"
        self.deliver(JobSubmitted(at=self.now, job=job, spec=spec_of(name, text)))
        assert job in self.world.state.jobs
        return job

    @rule(job=jobs)
    def submits_again(self, job: str) -> None:
        """An id is used once, also if its job was purged."""
        assert self.deliver(JobSubmitted(at=self.now, job=job, spec=spec_of("again", SHAPES[0]))) == []

    @rule(job=jobs)
    def kills(self, job: str) -> None:
        self.deliver(JobKilled(at=self.now, job=job))
        assert job not in self.world.state.jobs or self.world.state.jobs[job].ended

    @rule(job=jobs)
    def purges(self, job: str) -> None:
        found = self.world.state.jobs.get(job)
        goes = found is not None and found.expirable
        self.deliver(JobPurged(at=self.now, job=job))
        assert (job in self.world.state.jobs) == (found is not None and not goes)

    @precondition(lambda self: self.history.to_run)
    @rule(at=which, fails=st.sampled_from([False, False, False, True]), again=st.sampled_from([False, False, True]))
    def does(self, at: int, fails: bool, again: bool) -> None:
        """Topics are made or removed, a pulse is taken. ``again``: its news will come once more."""
        effect = self.history.to_run[at % len(self.history.to_run)]
        if not again:
            self.history.to_run.remove(effect)
        event = self.history.end_of(effect, fails=fails)
        assert event is not None
        self.deliver(event)

    @rule(job=jobs, kind=st.sampled_from([LinksCreated, LinksFailed, LinksDeleted]))
    def tells(self, job: str, kind: type[Event]) -> None:
        """Events about topics that no job awaits, or no longer."""
        if kind is LinksDeleted:
            self.deliver(LinksDeleted(at=self.now, job=job, counts={"b": Counts(rows_in=1)}))
            return
        event = self.history.end_of(CreateLinks(job), fails=kind is LinksFailed)
        assert event is not None
        self.deliver(event)

    @rule(events=st.integers(1, 12))
    def goes_well(self, events: int) -> None:
        """So many times what is awaited comes, without which few histories would see the end of a job."""
        for _ in range(events):
            if self.history.to_run:
                self.does(0, fails=False, again=False)
            elif self.those("acking"):
                self.acks(0, aloud=True)
            elif self.those("sealing"):
                self.completes(0, aloud=True)
            elif self.those("active"):
                self.exhausts(0, aloud=True)

    @rule(kind=st.sampled_from([PeerDied, Left, Evicted, GraceEnded, JobKilled, JobPurged, LinksDeleted, JobSubmitted]))
    def about_nobody(self, kind: type[Event]) -> None:
        """An event about an unknown peer changes nothing, nor does one about an impossible id."""
        said: dict[str, Any] = {"job" if "job" in kind.__struct_fields__ else "peer": "no/id"}
        if kind is JobSubmitted:
            said["spec"] = spec_of("one", SHAPES[0])
        assert self.deliver(kind(at=self.now, **said)) == []

    # Time, and who leads

    @rule(seconds=st.sampled_from([1.0, 16.0, 70.0, 700.0, -3.0]))
    def passes(self, seconds: float) -> None:
        fired: list[Event] = []
        events = self.history.timers_after(seconds)
        while events:
            for event in events:
                assert seconds < 0 or event not in fired, "a timer runs out once"
                fired.append(event)
                self.deliver(event)
            events = self.history.timers_after(0.0) if seconds >= 0 else []

    @rule(job=jobs, task=st.sampled_from(["a", "b", "c"]), failures=st.integers(1, 3))
    def rested(self, job: str, task: str, failures: int) -> None:
        """A timer of any failure, also of one that has come since, or never."""
        self.deliver(BackoffEnded(at=self.now, job=job, task=task, failures=failures))

    @rule()
    def another_leads(self) -> None:
        before = encode_state(self.world.state)
        self.history.new_leader()
        assert encode_state(self.world.state) == before

    # Always

    def explains(self) -> None:
        """Every job, also those that are forgotten; and one that waits for peers says so."""
        state = self.world.state
        for job in [*state.jobs, *state.purged]:
            found = explain(state, job)
            assert found.reasons
            assert len(as_lines(found, self.now)) > len(found.reasons)
            if job in state.jobs and state.jobs[job].waits_for:
                assert found.reasons[0].code in {
                    "no-live-peers",
                    "queued-behind",
                    "peers-missing",
                    "takes-turns",
                    "no-tag",
                }

    def teardown(self) -> None:
        """If nothing went wrong, the end must be good as well. A failure is shown with the log that led to it."""
        error = sys.exception()
        try:
            if error is None:
                self.ends_well()
        except Exception as found:
            error = found
            raise
        finally:
            if error is not None:
                log = [f"{n} {encode_event(event).decode()}" for n, event in self.world.log]
                error.add_note("\n".join([*log, self.world.picture()]))

    def ends_well(self) -> None:
        """After the last fault everything bounded ends, and the log, read once more, gives the same bytes."""
        self.history.rng.seed(self.seed)  # whatever chance was used up before, so that the history can be made shorter
        self.history.settle()
        entries = [(n, decode_event(encode_event(event))) for n, event in self.world.log]
        assert encode_state(replay(entries, deployment="test")) == encode_state(self.world.state)


def options(histories: int = HISTORIES) -> settings:
    return settings(
        max_examples=histories,
        stateful_step_count=STEPS,
        suppress_health_check=list(HealthCheck),  # they measure a machine that is busy with other tests
        report_multiple_bugs=False,  # the shortest of them is enough
        database=None,
    )


TestCoordination = Coordination.TestCase
TestCoordination.settings = options()
TestCoordination.pytestmark = [pytest.mark.timeout(900)]  # a failure is being shrunk for five minutes at most


# A test that cannot fail shows nothing: rules of the core are broken on purpose.


def _late_is_in_time(patch: pytest.MonkeyPatch) -> None:
    """A peer with a task is heard, whichever assignment it speaks of."""

    def held(made: changeset.ChangeSet, event: Acked) -> Peer | None:
        peer = made.state.peers.get(event.peer)
        return peer if peer is not None and peer.assignment else None

    patch.setattr(core, "_held", held)


def _purged_jobs_come_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(changeset, "REMEMBERED_PURGED", 0)


def _tasks_never_wake(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(core._HANDLERS, BackoffEnded, lambda made, event: None)


@pytest.mark.parametrize("broken", [_late_is_in_time, _purged_jobs_come_back, _tasks_never_wake])
def test_a_broken_rule_is_found(broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """With one rule of the core broken, something that is held against every history no longer holds."""
    broken(monkeypatch)
    with pytest.raises((AssertionError, InternalError)):
        run_state_machine_as_test(Coordination, settings=settings(options(1000), phases=[Phase.generate]))


def test_a_failure_comes_shrunk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed is a series of few rules, the log that they made, and how to run them again."""
    monkeypatch.setitem(core._HANDLERS, JobKilled, lambda made, event: None)
    # What is printed is under test, and not how far Hypothesis gets from where chance begins: it gives up after a while.
    monkeypatch.setattr(hypothesis.core, "global_force_seed", 0)
    with pytest.raises((AssertionError, InternalError)) as caught:
        run_state_machine_as_test(Coordination, settings=settings(options(), phases=[Phase.generate, Phase.shrink]))
    told = "\n".join([capsys.readouterr().out, *caught.value.__notes__])
    rules = re.findall(r"^(?:\w+ = )?state\.(\w+)\(", told, flags=re.MULTILINE)
    assert {"begin", "submits", "kills"} <= set(rules), told
    assert len(rules) <= 6, told
    assert re.search(r'^\d+ {"kind":"kill",', told, flags=re.MULTILINE), told
    assert "@reproduce_failure(" in told
