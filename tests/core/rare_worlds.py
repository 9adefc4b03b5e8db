"""What random histories of the deciding core seldom or never come to, each made by hand."""

from __future__ import annotations

import random
from functools import cache
from unittest.mock import Mock

import pytest
from history_maker import History
from msgspec.structs import replace
from scenario_runner import World, run, scenario_files

from coordinator.core import decide
from coordinator.core.state import new_state
from sardonyx.core import resuming
from sardonyx.core.errors import Failure, SardonyxError
from sardonyx.core.events import (
    FORMAT,
    OLDEST_RULES,
    TOO_OLD,
    UNKNOWN_JOB,
    Acked,
    Completed,
    Counts,
    Declined,
    JobChanged,
    JobKilled,
    JobStopped,
    JobSubmitted,
    LettersClaimed,
    LinkFacts,
    LinksCreated,
    LinksDeleted,
    LinksFailed,
    LinksRead,
    PeerBorn,
    TaskFailed,
    Yielded,
)
from sardonyx.core.graph import graph_of
from sardonyx.core.predecessors import Predecessor
from sardonyx.core.state_points import CheckpointPoint
from tests.compat.make import SPEC
from tests.core import test_resume_windows


def two_releases() -> None:
    """Peers that decline what they cannot read, one after the other; the random histories seldom have peers of two releases."""
    facts = {link.name: LinkFacts(2) for link in graph_of(SPEC, "test", "copy-1").links}
    begin = [
        *(PeerBorn(peer=peer) for peer in ("old", "also")),
        JobSubmitted(job="copy-1", spec=SPEC),
        LinksCreated(job="copy-1", links=facts),
    ]
    state = decide.replay(enumerate(begin, 1), new_state("test"))
    for peer in ("old", "also", "new"):
        place = state.peers[peer].assignment
        assert place is not None
        declined = Declined(peer=peer, assignment=place.id, error=Failure(TOO_OLD, "too old"))
        decide.decide(state, state.n + 1, declined)
        if peer == "also":
            decide.decide(state, state.n + 1, PeerBorn(peer="new", format=FORMAT + 1))


def half_made() -> None:
    """The event that a change's queues exist lacks one of them, or comes while peers have still to leave: the job waits on. In
    random histories it names all of them, and mostly comes in time.
    """
    for peers in ((), ("2 peers are born", "the offers are acked")):
        world = World()
        for sentence in (
            *("a is submitted: in -> out; in never ends", "the links of a are made", *peers),
            "a becomes: in -> out, in -> more; in never ends",
        ):
            world.say(sentence)
        decide.decide(world.state, world.state.n + 1, LinksCreated(job="a", links={}, revision=2))
        assert world.state.jobs["a"].next_spec is not None
        assert world.state.jobs["a"].switching is not bool(peers)


@cache
def just_gave() -> list[World]:
    """Worlds that are seldom among so few peers and events, and those of the scenarios.

    - ``begin``: one job has given peers to a second one, and a third one lacks some.
    - ``further``: then the second has given peers to the third, and a fourth one lacks some.
    - ``overtaken``: a job whose peers a more urgent one is to get loses its first.
    - ``rounded``: two jobs share five peers; the one that would have three has two, and the other one gives none for that.
    - ``cut``: a job is stopped while all that has not ended goes.
    - ``turned``: the queues of a job change only in their order.
    - ``shut``, ``unknown``: the rules before fence no queue that closes, and know no other number of partitions, no restart.
    - ``ended``: an input is read to its end while a task is added that would read it, too.
    - ``back``: a job goes back to a checkpoint.
    - ``declined``, ``waits``: a process has declined a task, and has a peer at the other one beside that of another process,
      which could take it, or whose task backs off.
    - ``resized``: a job gets another number of partitions.
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
    cut = [
        "a is submitted: first -> out, other -> log; first follows a job; other never ends; 1 partition",
        *("the links of a are made", "2 peers are born", "the offers are acked", "P001 is exhausted", "P001 completes"),
        "a becomes: first -> out; first follows a job; 1 partition, without other and log",
        *("1 s pass", "the peers that are to give their tasks up do", "a is stopped", "the new links of a are made"),
    ]
    turned = ["a is submitted: in -> mid, mid -> one, mid -> two; in never ends", "the links of a are made"]
    for order in ("mid -> two, mid -> one", "mid -> one, mid -> two"):
        turned += [f"a becomes: in -> mid, {order}; in never ends", "the new links of a are made"]
    shut = [
        *(
            "a is submitted: first -> one, other -> two -> three; first is a topic; other is a topic",
            "the links of a are made",
        ),
        "a becomes: first -> one, other -> two -> three; first is a topic; other is a topic; nothing goes from two to three",
        "a becomes: first -> one, other -> two -> three, two -> more; first is a topic; other is a topic",
        "the new links of a are made",
    ]
    ended = [
        *(
            "a is submitted: first -> one, other -> b; first is a topic; other is a topic; 1 partition",
            "the links of a are made",
        ),
        *("2 peers are born", "the offers are acked"),
        "a becomes, with the same code: first -> one, first -> new, other -> b; first is a topic; other is a topic; 1 partition",
        *("P001 is exhausted", "P001 completes", "the new links of a are made"),
    ]
    back = [
        "live is submitted: orders -> write; orders never ends; 2 partitions; orders has times, and a checkpoint each minute",
        *("the links of live are made", "live goes back to 5 min, as back"),
        "the links of live are read: write reads orders from 7 9 for the checkpoint at 4 min",
        "the links of live are gone",
    ]
    declined = [
        *("P1 is born in south", "P2 is born in west", "P3 is born in east"),
        *(
            "a is submitted: in -> b -> c; in never ends; 2 partitions",
            "the links of a are made",
            "the offers are acked",
        ),
        *("P1 dies", "P3 dies", "P4 is born in east", "P4 declines, which may pass: no", "P5 is born in east"),
    ]
    waits = [  # the peer of the task that waits cannot be followed by the one that has declined the other task
        *("P1 is born in east", "P2 is born in south"),
        *(
            "a is submitted: in -> b -> c; in never ends; 2 partitions",
            "the links of a are made",
            "the offers are acked",
        ),
        *("P3 is born in west", "the offers are acked", "P1 fails, which may pass: no", "P1 declines: no", "P2 dies"),
    ]
    other = ["3 partitions", "2 partitions; its inputs stand still for 3 partitions"]
    resized = [
        *("a is submitted: in -> mid -> out; in never ends; 2 partitions", "the links of a are made"),
        *(f"a becomes: in -> mid -> out; in never ends; {remark}" for remark in other),
        "the new links of a are made",
        f"a becomes: in -> mid -> out; in never ends; {other[0]}",
        "the new links of a are made",
        "a becomes: in -> mid -> out; in never ends; 3 partitions; its inputs stand still for 1 partition",
        "the new links of a are made",
        "a is stopped",
    ]
    unknown = [
        *("a is submitted: in -> out; in never ends; 2 partitions", "the links of a are made"),
        *(f"a becomes: in -> out; in never ends; {remark}" for remark in other),
        "a is restarted as b: in -> out; in never ends",
        "nobody ends its back-off at out since failure 1",
    ]
    overtaken = [
        *(
            "b is submitted: a -> c; 1 partitions",
            "the links of b are made",
            "2 peers are born",
            "the offers are acked",
        ),
        *("k is submitted: r -> s; priority 5", "the links of k are made", "P001 dies"),
    ]
    others = (rounded, cut, turned, shut, ended, back, declined, waits, resized, unknown)
    for sentences in (begin, begin + further, overtaken, *others):
        worlds.append(World())
        if sentences is shut or sentences is unknown:
            worlds[-1].state = new_state("test", rules=OLDEST_RULES)
        for sentence in sentences:
            worlds[-1].say(sentence)
    for path in scenario_files():
        worlds.append(World())
        run(path.read_text(), worlds[-1])
    return worlds


@cache
def with_defects() -> None:
    """Events that could not be decided, which random histories do not have: of jobs that go on, and of such that have ended and
    have queues of two versions, or states to be read. Once is enough.
    """
    submitted = "a is submitted: orders -> write; orders never ends; 2 partitions"
    begin = [f"{submitted}; orders has times, and a checkpoint each minute", "the links of a are made"]
    changed = [
        *("a is submitted: in -> out; in never ends", "the links of a are made"),
        *("a becomes: in -> out, in -> more; in never ends", "a is killed"),
    ]
    failed = [submitted, "it is set aside that the links of a are made, and a fails"]
    for sentences in ([*begin, "a is killed"], changed, failed):
        world = World(times=2, stride=2)
        again = ("it is set aside that the links of a are gone, and a fails", "a is purged", "a is purged")
        for sentence in (*sentences, *again, f"it is set aside that {submitted}, and b fails"):
            world.say(sentence)
            decide.unfinished(world.state)
    for error in (KeyboardInterrupt(), MemoryError(), ValueError(), SardonyxError("SX-VERSION-RULES", "newer")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(decide._HANDLERS, PeerBorn, Mock(side_effect=error))
            with pytest.raises((KeyboardInterrupt, MemoryError, SardonyxError)):
                decide.decide(new_state("test"), 1, PeerBorn(peer="p"))


@cache
def resumed() -> None:
    """Other jobs ask to go on from one, or to replay it: whatever it is, and whatever stands in the way. Random histories seldom
    come as far as to what the jobs read. Once is enough.
    """
    kept, positions = test_resume_windows.KEPT, {"read": {"t": [7] * 8}}
    point = CheckpointPoint(60_000_000, positions, kept.marks)
    counting = replace(test_resume_windows.counting(), checkpoint_every="1 min")
    read, count, drop = counting.catalog
    elsewhere = replace(counting, catalog=[replace(read, options={"topic": "u"}), count, drop])
    stateless = replace(counting, catalog=[read, replace(count, group_by=None, window=None, fn="m:f"), drop])
    whole = replace(SPEC, catalog=[replace(SPEC.catalog[0], connector="generator", options={}), SPEC.catalog[1]])
    apart = replace(SPEC, catalog=[SPEC.catalog[0], replace(SPEC.catalog[1], connector="blackhole", options={})])
    specs = (counting, elsewhere, stateless, whole, SPEC, apart)
    known = Predecessor(counting, "stopped", topics={"read": {"t"}}, checkpoints=[point], end=kept)
    befores: list[Predecessor | None] = [
        *(None, known, known._replace(refused=True), known._replace(links_gone=False), known._replace(closed=True)),
        *(known._replace(resumed_by=UNKNOWN_JOB), known._replace(resumed_by="k-1")),
        known._replace(resumed_by="k-1", successor_ended=True),
        *(known._replace(end=None), known._replace(status="completed"), known._replace(status="killed", topics={})),
        *(known._replace(spec=spec, status="stopped", end=None, topics={"in": {"a"}}) for spec in specs[1:]),
        *(known._replace(spec=spec, status="failed", end=None, topics={}) for spec in specs[1:]),
    ]
    for before in befores:
        for spec in specs:
            for at, replays in ((None, None), (point.at, None), (0, None), (None, point)):
                for reshards in (True, False):
                    for problem in resuming.resume_problems("j-1", before, spec, at, replays, reshards=reshards):
                        problem.failure("j-1", "j-2")


def unbegun() -> None:
    """A change leaves some tasks as they are, whose peers work on. A peer cannot begin with another one; or one of them fails."""
    for fails in (False, True):
        history = History(random.Random(0), doubled=0.0)
        spec = replace(test_resume_windows.counting(), failure_limit=0)
        state, graph = history.world.state, graph_of(spec, "test", "j-1")
        for number in range(len(graph.stages)):
            history.deliver(PeerBorn(peer=f"Q{number}", format=FORMAT))
        history.deliver(JobSubmitted(job="j-1", spec=spec))
        history.deliver(LinksCreated(job="j-1", links={link.name: LinkFacts(8) for link in graph.links}))
        for name in state.peers:
            history.deliver(Acked(peer=name, assignment=state.assignment(name).id))
        first, last = (
            next(iter(state.jobs["j-1"].tasks[stage.name].peers)) for stage in (graph.stages[0], graph.stages[-1])
        )
        catalog = [replace(task, batch_size=7) if task.name == graph.stages[0].name else task for task in spec.catalog]
        same = [stage.name for stage in graph.stages]
        history.deliver(JobChanged(job="j-1", spec=replace(spec, catalog=catalog), revision=1, same=same))
        history.deliver(Yielded(peer=first, assignment=state.assignment(first).id))
        history.deliver(LinksCreated(job="j-1", links={}, revision=2))
        assert state.jobs["j-1"].former is not None
        error = Failure("SX-TEST", "no module")
        if fails:
            history.deliver(TaskFailed(peer=last, assignment=state.assignment(last).id, error=error, fatal=True))
        else:
            history.deliver(Declined(peer=first, assignment=state.assignment(first).id, error=error))
        assert (state.jobs["j-1"].revision, state.jobs["j-1"].suspended) == ((2, True) if fails else (3, False))


def lent() -> None:
    """A job that was stopped with states, and others that go on with them. The jobs of random histories have none."""
    history = History(random.Random(0), doubled=0.0)
    world, spec = history.world, replace(test_resume_windows.counting(), checkpoint_every="1 min")
    facts = {link.name: LinkFacts(8) for link in graph_of(spec, "test", "j-1").links}
    for number in range(3):
        history.deliver(PeerBorn(peer=f"Q{number}", format=FORMAT))
    history.deliver(JobSubmitted(job="j-1", spec=spec))
    history.deliver(made := LinksCreated(job="j-1", links=facts, topics={"t": "first"}))
    history.deliver(JobStopped(job="j-1"))
    while not world.state.jobs["j-1"].ended:
        event = history._obedient()
        assert event is not None
        history.deliver(replace(event, counts=Counts(dead=2)) if isinstance(event, Completed) else event)
    kept, positions = test_resume_windows.KEPT, {"read": {"t": [7] * 8}}
    point = CheckpointPoint(60_000_000, positions, kept.marks)
    history.deliver(LinksRead(job="j-1", positions=positions, checkpoints=[point], end=kept))
    history.deliver(gone := LinksDeleted(job="j-1"))

    def goes_on(job: str, at: int | None = None) -> JobSubmitted:
        return JobSubmitted(job=job, spec=replace(spec, name=job[0]), resumes="j-1", resumes_at=at)

    def replays(job: str) -> JobSubmitted:
        return JobSubmitted(job=job, spec=replace(spec, name=job[0]), resumes="j-1", replays=point)

    for event, lends in (
        (replays("r-1"), True),
        (replays("s-1"), True),
        (JobSubmitted(job="o-1", spec=replace(spec, name="o")), True),
        (replace(made, job="o-1", revision=2), True),  # it has only one
        (LinksFailed(job="o-1", revision=2, error=Failure("SX-KAFKA", "no")), True),
        (JobKilled(job="r-1"), True),
        (JobKilled(job="s-1"), False),
        (JobKilled(job="o-1"), False),
        (goes_on("k-1"), True),
        (replace(made, job="k-1"), True),
        (goes_on("l-1", point.at), True),  # refused
        (made, True),  # again, and late
        (JobKilled(job="k-1"), False),
        (gone, False),
        (goes_on("l-3", point.at), True),
        (LinksCreated(job="l-3", links=facts, topics={"t": "second"}), False),
        (goes_on("l-2", point.at), True),
        (made, True),
        (gone, True),
        *((LettersClaimed(job="j-1", task=task.name, letters=2), True) for task in spec.catalog),
        (JobKilled(job="l-2"), False),
    ):
        history.deliver(event)
        assert world.state.jobs["j-1"].lends is lends, event
    history.deliver(JobSubmitted(job="m-1", spec=replace(spec, name="m")))
    history.deliver(replace(made, job="m-1"))
    history.deliver(JobKilled(job="m-1"))
    history.deliver(replace(gone, job="m-1"))
    history.deliver(LinksRead(job="m-1", positions=positions, checkpoints=[point]))
    assert not world.state.jobs["m-1"].read, "what comes after the links are gone counts for nothing"
