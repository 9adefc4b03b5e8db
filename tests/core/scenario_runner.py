"""Scenario files: what happens, a sentence a line, ``----``, and exactly what the coordinator makes of it.

A file is a row of blocks parted by empty lines; lines that begin with ``#`` are for the reader. The output of a block is
each event with its number and effects, and in the end a line that pictures peers and jobs. ``pytest --rewrite`` writes the
outputs anew. (The idea is that of the datadriven tests of etcd's raft.)
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import msgspec

from coordinator.core import decide as core
from coordinator.core.invariants import check
from coordinator.core.projection import project
from coordinator.core.state import new_state
from coordinator.core.stored_state import decode_state, encode_state
from coordinator.core.timers import Timers, due, expired_jobs
from sardonyx.core.changing import NOTHING
from sardonyx.core.effects import Create, Delete, Effect, Set
from sardonyx.core.errors import Failure
from sardonyx.core.events import (
    FORMAT,
    Acked,
    AckTimedOut,
    AnyEvent,
    BackoffEnded,
    Checkpointed,
    Completed,
    Counts,
    Declined,
    Drained,
    Evicted,
    Exhausted,
    JobChanged,
    JobKilled,
    JobPurged,
    JobRestarted,
    JobRolledBack,
    JobScaled,
    JobStopped,
    JobSubmitted,
    Left,
    LettersClaimed,
    LinkFacts,
    LinkLost,
    LinksCreated,
    LinksDeleted,
    LinksDropped,
    LinksFailed,
    LinksKept,
    LinksRead,
    PeerBorn,
    PeerDied,
    PolicySet,
    Restored,
    SetAside,
    TaskFailed,
    Yielded,
    kind_of,
)
from sardonyx.core.graph import graph_of
from sardonyx.core.spec import CycleSpec, JobSpec, Route, TaskSpec
from sardonyx.core.state_points import CheckpointPoint
from sardonyx.core.timing import Bounds, RowTime, TimeSpec
from tests.cards import Cards

MINUTE = 60_000_000


class World:
    """The core, the tree as its effects make it, and the memory of who was told what.

    Args:
        times: how often each event is delivered.
        stride: the distance between the numbers of two different events, so that runs can be compared.
        snapshots: whether the state is stored and loaded after every event.
    """

    def __init__(self, *, times: int = 1, stride: int = 1, snapshots: bool = False) -> None:
        self.times, self.stride, self.snapshots = times, stride, snapshots
        self.state = new_state("test")
        self.cards = Cards()
        self.n = 0
        self.now = 0.0
        self.timers = Timers()
        self.zk: dict[str, bytes] = {}
        self.log: list[tuple[int, AnyEvent]] = []
        self.told: dict[str, int] = {}
        """Peer -> id of the last assignment that it saw, which it may have lost since."""

    def say(self, sentence: str) -> list[str]:
        """Let one thing happen; gives what came of it, a line each."""
        for pattern, action in _SENTENCES:
            found = re.fullmatch(pattern, sentence)
            if found:
                lines: list[str] = []
                for event in action(self, *found.groups()):
                    lines += [f"{self.n + self.stride} {kind_of(event)}", *self.deliver(event)]
                return lines
        raise AssertionError(f"no scenario can say: {sentence}")

    def deliver(self, event: AnyEvent) -> list[str]:
        """Hand an event to the core as often as asked, and hold what comes out against the rules."""
        self.n += self.stride
        lines = [f"  {line}" for line in map(show, self.decide(self.n, event))] or ["  nothing"]
        for again in range(1, self.times):
            self.decide(self.n + again, event)
        return lines

    def decide(self, n: int, event: AnyEvent) -> list[Effect]:
        before = {(j, t) for j, job in self.state.jobs.items() for t, x in job.tasks.items() if x.state == "complete"}
        effects = self.cards.decide(core.decide, self.state, n, event)
        self.log.append((n, event))
        for effect in effects:
            apply(self.zk, effect)
        check(self.state)
        assert self.zk == project(self.state), "the effects are the difference between the trees"
        stand = ((j, t) for j, t in before if j in self.state.jobs and t in self.state.jobs[j].tasks)
        assert all(self.state.jobs[j].tasks[t].state == "complete" for j, t in stand), "complete stays complete"
        if self.snapshots:
            self.state = decode_state(encode_state(self.state))
        self.told |= {name: peer.assignment.id for name, peer in self.state.peers.items() if peer.assignment}
        return effects

    def picture(self) -> str:
        """Peers with their places, and jobs with their tasks, in a line."""
        peers = [
            f"{name} {peer.state}{_place(peer.assignment)}{_YIELDS[peer.yields]}"
            for name, peer in sorted(self.state.peers.items())
        ]
        jobs = []
        for name, job in self.state.jobs.items():
            waits = f" (waits for {job.waits_for})" if job.waits_for else ""
            waits += " (queued)" * job.queued
            error = f" ({job.error.code})" if job.error else ""
            tasks = ", ".join(
                " ".join([task_name, task.state, *["(backing off)"] * task.backing_off, *self.state.on_task(task)])
                for task_name, task in job.tasks.items()
            )
            jobs.append(f"{name} {job.status}{waits}{error}: {tasks or 'no tasks'}")
        return "= " + " | ".join([", ".join(peers) or "nobody", *jobs])


def apply(zk: dict[str, bytes], effect: Effect) -> None:
    """Do to a dictionary what the service does to ZooKeeper, as strictly."""
    if isinstance(effect, Create):
        assert effect.path not in zk, f"{effect.path} is there already"
        parent = effect.path.rpartition("/")[0]
        assert parent in ("/job", "/peer-state") or parent in zk, f"{effect.path} comes before its parent"
        zk[effect.path] = effect.data
    elif isinstance(effect, Set):
        assert zk[effect.path] != effect.data, f"{effect.path} is set to what it is"
        zk[effect.path] = effect.data
    elif isinstance(effect, Delete):
        del zk[effect.path]


def show(effect: Effect) -> str:
    """An effect as a line."""
    if isinstance(effect, Create | Set):
        data = "<spec>" if effect.path.endswith("/spec") else effect.data.decode()
        return f"{type(effect).__name__.lower()} {effect.path} {data}".rstrip()
    if isinstance(effect, Delete):
        return f"delete {effect.path}"
    return (
        re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(effect).__name__).lower()
        + " of "
        + (getattr(effect, "job", "") or getattr(effect, "peer", ""))
    )


_YIELDS = {"": "", "idle": " (until idle)", "turn": " (turn over)", "share": " (to give back)"}


def _place(assignment: Any) -> str:
    return f" {assignment.job}/{assignment.task}#{assignment.slot}" if assignment else ""


# What can be said


def spec_of(name: str, text: str) -> JobSpec:
    """A job from ``read -> clean -> write, read -> audit; clean is sequential; 4 partitions``."""
    drawing, *remarks = [part.strip() for part in text.split(";")]
    paths = [[task.strip() for task in path.split("->")] for path in drawing.split(",")]
    edges = [(a, b) for path in paths for a, b in itertools.pairwise(path)]
    names = list(dict.fromkeys(task for path in paths for task in path))
    tasks: dict[str, dict[str, Any]] = {}
    for task in names:
        has_in, has_out = any(b == task for _, b in edges), any(a == task for a, _ in edges)
        kind = "input" if not has_in else "function" if has_out else "output"
        tasks[task] = {"type": kind, "connector": {"input": "generator", "output": "blackhole"}.get(kind)}
        if kind == "function":
            tasks[task]["fn"] = f"job:{task}"
    job: dict[str, Any] = {}
    for remark in remarks:
        for pattern, change in _REMARKS:
            found = re.fullmatch(pattern, remark)
            if found:
                change(job, tasks, *found.groups())
                break
        else:
            raise AssertionError(f"no scenario can say of a job: {remark}")
    catalog = [TaskSpec(name=task, **options) for task, options in tasks.items()]
    return JobSpec(name=name, workflow=edges, catalog=catalog, **job)


def _clocked(job: dict[str, Any], task: dict[str, Any]) -> None:
    job["checkpoint_every"] = "1 min"
    task["time"] = TimeSpec(column="at")


_TOPIC = {"connector": "kafka"}
_REMARKS: list[tuple[str, Any]] = [
    (r"(\w+) is sequential", lambda _, t, name: t[name].update(consumption="sequential")),
    (r"(\w+) is grouped by (\w+)", lambda _, t, name, key: t[name].update(group_by=[key])),
    (r"(\w+) takes at most (\d+)", lambda _, t, name, n: t[name].update(max_peers=int(n))),
    (r"(\w+) begins with (\d+)", lambda _, t, name, n: t[name].update(min_peers=int(n))),
    (r"(\w+) is a topic", lambda _, t, name: t[name].update(_TOPIC, options={"topic": name, "end": "latest"})),
    (r"(\w+) follows a job", lambda _, t, name: t[name].update(_TOPIC, options={"topic": name, "end": "marker"})),
    (r"(\w+) never ends", lambda _, t, name: t[name].update(_TOPIC, options={"topic": name})),
    (r"(\w+) writes a topic", lambda _, t, name: t[name].update(_TOPIC, options={"topic": name})),
    (r"(\w+) names no topic", lambda _, t, name: t[name].update(_TOPIC)),
    (r"(\w+) feeds back to (\w+)", lambda j, _, a, b: j.update(cycles=[CycleSpec(name="loop", back=[(a, b)])])),
    (r"its inputs stand still for (\d+) partitions?", lambda j, _, n: j.update(next_partitions=int(n))),
    (r"(\d+) partitions?", lambda j, _, n: j.update(partitions=int(n))),
    (r"(\w+) asks for (\S+)", lambda _, t, name, tag: t[name].update(tags=[tag])),
    (r"pool (\S+)", lambda j, _, tag: j.update(tags=[tag])),
    (r"priority (-?\d+)", lambda j, _, n: j.update(priority=int(n))),
    (r"weight ([\d.]+)", lambda j, _, n: j.update(weight=float(n))),
    (r"(\d+) percent", lambda j, _, n: j.update(percentage=float(n))),
    (r"at most (\d+) peers", lambda j, _, n: j.update(max_peers=int(n))),
    (r"(\w+) has times, and a checkpoint each minute", lambda j, t, name: _clocked(j, t[name])),
    (
        r"nothing goes from (\w+) to (\w+)",
        lambda j, _, a, b: j.setdefault("routes", {}).update({f"{a}.{b}": Route(where=NOTHING)}),
    ),
    (
        r"rows (from|before) (\d+) (go|went) from (\w+) to (\w+)",
        lambda j, _, side, at, verb, a, b: j.setdefault("routes", {}).update(
            {f"{a}.{b}": within(side, int(at), over=verb == "went")}
        ),
    ),
    (r"outlives (\d+) failures?", lambda j, _, n: j.update(failure_limit=int(n))),
]


def within(side: str, at: int, *, over: bool = False) -> Route:
    """An edge over which only rows from a time on go, or those before it; ``over``: they did so, and none goes any more."""
    since, before = (at, None) if side == "from" else (None, at)
    return Route(bounds=Bounds(time=RowTime(column="at"), since=since, before=before, over=over))


def facts_of(spec: JobSpec, job: str) -> dict[str, LinkFacts]:
    """Every link with as many partitions as the job asks for."""
    return {link.name: LinkFacts(partitions=spec.partitions) for link in graph_of(spec, "test", job).links}


def _error(text: str | None) -> Failure:
    return Failure("SX-TEST", text or "no reason given")


def _offset(text: str) -> int | None:
    return None if text == "?" else int(text)


def _pass(world: World, seconds: str) -> list[AnyEvent]:
    world.now += float(seconds)
    return _timers(world)


def _keep(world: World, jobs: str) -> list[AnyEvent]:
    world.timers = msgspec.structs.replace(world.timers, keep_jobs=int(jobs))
    return _timers(world)


def _timers(world: World) -> list[AnyEvent]:
    told = world.state, world.now, world.timers
    return [*due(*told), *expired_jobs(*told)]


def _links(world: World, job: str) -> list[AnyEvent]:
    return [LinksCreated(at=world.now, job=job, links=facts_of(world.state.jobs[job].spec, job))]


def _about(kind: type[Any]) -> Any:
    """A sentence of a peer about the assignment that it saw last, or about a given one."""
    return lambda world, peer, number=None: [
        kind(at=world.now, peer=peer, assignment=int(number) if number else world.told.get(peer, 0))
    ]


def _peer(kind: type[Any]) -> Any:
    return lambda world, peer: [kind(at=world.now, peer=peer)]


_SCHEDULERS: dict[str, Any] = {
    "in turns": "turns",
    "equally": "balanced",
    "greedily": "greedy",
    "by percent": "percentage",
}


def _changed(world: World, job: str) -> list[AnyEvent]:
    """It survives one failure less."""
    known = world.state.jobs[job]
    spec = msgspec.structs.replace(known.spec, failure_limit=max(known.spec.failure_limit - 1, 0))
    return [JobChanged(at=world.now, job=job, spec=spec, revision=known.revision)]


def _becomes(world: World, job: str, same: str | None, text: str, without: str | None) -> list[AnyEvent]:
    """It has other tasks, and what is named goes."""
    known = world.state.jobs[job]
    spec, drop = spec_of(job, text), (without or "").split(" and ") if without else []
    names = [task.name for task in known.spec.catalog] if same else []
    return [JobChanged(at=world.now, job=job, spec=spec, revision=known.revision, drop=drop, same=names)]


def _new_links(world: World, job: str) -> list[AnyEvent]:
    """All that the change touches stands at offset 7."""
    known = world.state.jobs[job]
    links = facts_of(known.next_spec or known.spec, job)
    stages = [stage for stage in graph_of(known.spec, "test", job).stages if stage.name not in known.goes_on]
    since = {stage.name: {link.topic: [7] * known.spec.partitions for link in stage.ingress} for stage in stages}
    return [LinksCreated(at=world.now, job=job, links=links, revision=known.revision + 1, since=since)]


def _aside(world: World, sentence: str, job: str = "", *, decided: bool = False) -> list[AnyEvent]:
    """A defect kept the coordinator from deciding about what a sentence says."""
    found = ((re.fullmatch(pattern, sentence), action) for pattern, action in _SENTENCES)
    match, action = next((match, action) for match, action in found if match)
    error = Failure("SX-LOG-SET-ASIDE", f"a defect: {sentence}")
    return [
        SetAside(at=event.at, event=event, error=error, job=job, decided=decided)
        for event in action(world, *match.groups())
    ]


def _all_ack(world: World) -> list[AnyEvent]:
    """Each peer that was offered a task accepts it; the events of one after the other, since each is decided at once."""
    acking = list(world.state.by_state["acking"])
    return [Acked(at=world.now, peer=peer, assignment=world.state.assignment(peer).id) for peer in acking]


def _all_yield(world: World) -> list[AnyEvent]:
    peers = [name for name, peer in world.state.peers.items() if peer.yields in ("turn", "share")]
    return [Yielded(at=world.now, peer=peer, assignment=world.state.assignment(peer).id) for peer in peers]


_P, _J = r"(P\w+)", r"([a-z][\w-]*)"
_SENTENCES: list[tuple[str, Any]] = [
    (rf"it is set aside that (.*), and {_J} fails", _aside),
    (rf"{_J} fails, so that it can be decided that (.*)", lambda w, j, text: _aside(w, text, j, decided=True)),
    (r"it is set aside that (.*)", _aside),
    (
        r"(P[\w, ]+) (?:is|are) born",
        lambda w, ps: [PeerBorn(at=w.now, peer=p, format=FORMAT) for p in re.findall(r"P\w+", ps)],
    ),
    (
        r"(P[\w, ]+) (?:is|are) born with (\S+)",
        lambda w, ps, tag: [PeerBorn(at=w.now, peer=p, tags=(tag,), format=FORMAT) for p in re.findall(r"P\w+", ps)],
    ),
    (
        r"(P[\w, ]+) (?:is|are) born in (\S+)",
        lambda w, ps, host: [
            PeerBorn(at=w.now, peer=p, host=host, pid=1, format=FORMAT) for p in re.findall(r"P\w+", ps)
        ],
    ),
    (
        r"(\d+) peers are born",
        lambda w, count: [
            PeerBorn(at=w.now, peer=f"P{len(w.state.peers) + k + 1:03}", format=FORMAT) for k in range(int(count))
        ],
    ),
    (rf"{_P} yields", lambda w, p: [Yielded(at=w.now, peer=p, assignment=w.told[p])]),
    (r"the peers that are to give their tasks up do", _all_yield),
    (r"the offers are acked", _all_ack),
    (
        r"peers are divided (equally|greedily|in turns|by percent)",
        lambda w, how: [PolicySet(at=w.now, scheduler=_SCHEDULERS[how])],
    ),
    (rf"{_J} gets priority (-?\d+)", lambda w, j, k: [JobScaled(at=w.now, job=j, priority=int(k))]),
    (rf"{_J} gets weight ([\d.]+)", lambda w, j, k: [JobScaled(at=w.now, job=j, weight=float(k))]),
    (rf"{_J} is suspended", lambda w, j: [JobScaled(at=w.now, job=j, suspended=True)]),
    (rf"{_J} is changed", _changed),
    (rf"{_J} becomes(, with the same code)?: (.*?)(?:, without (.*))?", _becomes),
    (rf"the new links of {_J} are made", _new_links),
    (
        rf"the new links of {_J} cannot be made: (.*)",
        lambda w, j, e: [
            LinksFailed(at=w.now, job=j, error=_error(e), revision=w.state.jobs[j].revision + 1),
        ],
    ),
    (
        rf"what {_J} had is deleted",
        lambda w, j: [LinksDropped(at=w.now, job=j, revision=w.state.jobs[j].revision)],
    ),
    (rf"{_J} is resumed", lambda w, j: [JobScaled(at=w.now, job=j, suspended=False)]),
    (rf"{_J} takes at most (\d+) peers", lambda w, j, k: [JobScaled(at=w.now, job=j, max_peers=int(k))]),
    (rf"{_P} dies", _peer(PeerDied)),
    (rf"{_P} leaves", _peer(Left)),
    (rf"{_P} is evicted", _peer(Evicted)),
    (rf"{_P} is drained", _peer(Drained)),
    (rf"{_P} is taken back", lambda w, p: [Drained(at=w.now, peer=p, back=True)]),
    (r"host ([\w-]+) is drained", lambda w, h: [Drained(at=w.now, host=h)]),
    (r"host ([\w-]+) is taken back", lambda w, h: [Drained(at=w.now, host=h, back=True)]),
    (rf"{_P} acks(?: assignment (\d+))?", _about(Acked)),
    (rf"{_P} is exhausted(?: on assignment (\d+))?", _about(Exhausted)),
    (rf"{_P} completes(?: assignment (\d+))?", _about(Completed)),
    (
        rf"{_P} completes with (\d+) rows in, (\d+) out",
        lambda w, p, i, o: [Completed(at=w.now, peer=p, assignment=w.told[p], counts=Counts(int(i), int(o)))],
    ),
    (rf"{_P} declines: (.*)", lambda w, p, e: [Declined(at=w.now, peer=p, assignment=w.told[p], error=_error(e))]),
    (
        rf"{_P} declines, which may pass: (.*)",
        lambda w, p, e: [Declined(at=w.now, peer=p, assignment=w.told[p], error=_error(e), passing=True)],
    ),
    (rf"{_P} fails: (.*)", lambda w, p, e: [TaskFailed(at=w.now, peer=p, assignment=w.told[p], error=_error(e))]),
    (
        rf"{_P} fails, which may pass: (.*)",
        lambda w, p, e: [TaskFailed(at=w.now, peer=p, assignment=w.told[p], error=_error(e), passing=True)],
    ),
    (
        rf"{_P} fails for good: (.*)",
        lambda w, p, e: [TaskFailed(at=w.now, peer=p, assignment=w.told[p], error=_error(e), fatal=True)],
    ),
    (
        rf"{_J}(?: named (\w+))? is submitted: (.*)",
        lambda w, j, name, text: [JobSubmitted(at=w.now, job=j, spec=spec_of(name or j, text))],
    ),
    (
        rf"{_J} resumes {_J}: (.*)",
        lambda w, j, before, text: [JobSubmitted(at=w.now, job=j, spec=spec_of(j, text), resumes=before)],
    ),
    (
        rf"{_P} completes at ([\d ]+) in (\w+)",
        lambda w, p, offsets, topic: [
            Completed(
                at=w.now, peer=p, assignment=w.told[p], positions={topic: [int(each) for each in offsets.split()]}
            )
        ],
    ),
    (rf"the links of {_J} keep records for (\d+) s", lambda w, j, s: [LinksKept(at=w.now, job=j, seconds=int(s))]),
    (
        rf"an audit finds rows lost on (\S+) of {_J}(?:, revision (\d+))?: (.*)",
        lambda w, link, j, n, e: [LinkLost(at=w.now, job=j, link=link, error=_error(e), revision=int(n or 1))],
    ),
    (rf"{_J} is stopped", lambda w, j: [JobStopped(at=w.now, job=j)]),
    (rf"{_J} is stopped and its windows close", lambda w, j: [JobStopped(at=w.now, job=j, closes=True)]),
    (rf"the links of {_J} are made", _links),
    (rf"the links of {_J} cannot be made: (.*)", lambda w, j, e: [LinksFailed(at=w.now, job=j, error=_error(e))]),
    (
        rf"{_J} goes on from {_J} at (\d+) min: (.*)",
        lambda w, j, before, at, text: [
            JobSubmitted(at=w.now, job=j, spec=spec_of(j, text), resumes=before, resumes_at=int(at) * MINUTE)
        ],
    ),
    (
        rf"{_J} works rows of {_J} once more, with its states at (\d+) min: (.*)",
        lambda w, j, before, at, text: [
            JobSubmitted(
                at=w.now, job=j, spec=spec_of(j, text), resumes=before, replays=CheckpointPoint(int(at) * MINUTE)
            )
        ],
    ),
    (
        rf"{_J} goes back to (\d+) min, as {_J}",
        lambda w, j, to, into: [JobRolledBack(at=w.now, job=j, into=into, to=int(to) * MINUTE)],
    ),
    (
        rf"{_J} is restarted as {_J}(?: by revision (\d+))?: (.*)",
        lambda w, j, into, n, text: [
            JobRestarted(at=w.now, job=j, into=into, spec=spec_of(j, text), revision=int(n or w.state.jobs[j].revision))
        ],
    ),
    (
        rf"the links of {_J} are read: (\w+) reads (\w+) from ([\d ?]+) for the checkpoint at (\d+) min",
        lambda w, j, t, topic, offsets, at: [
            LinksRead(
                at=w.now,
                job=j,
                checkpoints=[
                    CheckpointPoint(int(at) * MINUTE, {t: {topic: [_offset(text) for text in offsets.split()]}})
                ],
            )
        ],
    ),
    (
        rf"{_J} has a checkpoint at (\d+) min: (\w+) reads (\w+) from ([\d ?]+)",
        lambda w, j, at, t, topic, offsets: [
            Checkpointed(
                at=w.now,
                job=j,
                revision=w.state.jobs[j].revision,
                point=CheckpointPoint(int(at) * MINUTE, {t: {topic: [_offset(text) for text in offsets.split()]}}),
            )
        ],
    ),
    (rf"the links of {_J} are read", lambda w, j: [LinksRead(at=w.now, job=j)]),
    (rf"the links of {_J} are gone", lambda w, j: [LinksDeleted(at=w.now, job=j)]),
    (
        rf"the links of {_J} are gone, (\w+) had (\d+) rows in, (\d+) out",
        lambda w, j, t, i, o: [LinksDeleted(at=w.now, job=j, counts={t: Counts(int(i), int(o))})],
    ),
    (
        rf"the links of {_J} are gone, (\w+) had (\d+) dead letters?",
        lambda w, j, t, d: [LinksDeleted(at=w.now, job=j, counts={t: Counts(dead=int(d))})],
    ),
    (
        rf"the links of {_J} are gone, its groups were gone before, (\w+) holds (\d+) dead letters?",
        lambda w, j, t, d: [LinksDeleted(at=w.now, job=j, letters={t: int(d)})],
    ),
    (
        rf"(\d+) dead letters? of {_J}.s (\w+) (?:is|are) claimed",
        lambda w, k, j, t: [LettersClaimed(at=w.now, job=j, task=t, letters=int(k))],
    ),
    (rf"{_J} is purged with its dead letters", lambda w, j: [JobPurged(at=w.now, job=j, dead_letters=True)]),
    (
        rf"the links of {_J} are gone, (\w+) stood at ([\d ?]+) in (\w+)",
        lambda w, j, t, offsets, topic: [
            LinksDeleted(at=w.now, job=j, positions={t: {topic: [_offset(text) for text in offsets.split()]}})
        ],
    ),
    (
        rf"a backup is restored, and Kafka is past {_J}: (.*)",
        lambda w, j, e: [Restored(at=w.now, job=j, error=_error(e))],
    ),
    (rf"{_J} is killed", lambda w, j: [JobKilled(at=w.now, job=j)]),
    (rf"{_J} is purged", lambda w, j: [JobPurged(at=w.now, job=j)]),
    (
        rf"{_J} ends its back-off at (\w+) since failure (\d+)",
        lambda w, j, t, k: [BackoffEnded(at=w.now, job=j, task=t, failures=int(k))],
    ),
    (r"(\d+) ended jobs? (?:is|are) kept", _keep),
    (r"(\d+) s pass", _pass),
    (rf"{_P}.s timer for assignment (\d+) runs out", _about(AckTimedOut)),
]


# Files


def blocks(text: str) -> list[tuple[list[str], list[str], str]]:
    """(comment lines, sentences, expected output) of each block."""
    found = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        lines = block.split("\n")
        comments = [line for line in lines if line.startswith("#")]
        rest = [line for line in lines if not line.startswith("#")]
        cut = rest.index("----") if "----" in rest else len(rest)
        found.append((comments, rest[:cut], "\n".join(rest[cut + 1 :])))
    return found


def run(text: str, world: World) -> str:
    """Play a scenario; gives its text with the output as it came."""
    played = []
    for comments, sentences, _ in blocks(text):
        lines = list(comments)
        if sentences:
            output = [line for sentence in sentences for line in world.say(sentence)]
            lines += [*sentences, "----", *output, world.picture()]
        played.append("\n".join(lines))
    return "\n\n".join(played) + "\n"


def scenario_files() -> list[Path]:
    return sorted((Path(__file__).parent.parent / "scenarios").glob("*.txt"))
