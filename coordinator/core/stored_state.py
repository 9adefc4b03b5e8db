"""How a state is stored in a snapshot, and all in it that follows from what is stored. Pure.

The stored form is canonical: equal states encode to equal bytes, whether they came about live, by replay of the log, or from a
snapshot of this release; of the others :func:`same` tells.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from coordinator.core import peer_states
from coordinator.core.indexes import Kind
from coordinator.core.plan import GraphOf
from coordinator.core.state import LIVE, Job, Peer, State, plan_of
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import FORMAT, OLDEST, OLDEST_RULES, RULES, Scheduler
from sardonyx.core.graph import graph_of
from sardonyx.core.wire_types import ready_for_threads


@ready_for_threads
class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    deployment: str
    n: int
    turn: int
    order: int
    peers: dict[str, Peer]
    jobs: dict[str, Job]
    purged: list[str]
    scheduler: Scheduler = "turns"
    rules: int = 0
    # Left out if there is none: the release before does not know it.
    drained: list[str] | msgspec.UnsetType = msgspec.UNSET


@ready_for_threads
class _Format(msgspec.Struct):
    format: int = 0


def encode_state(state: State) -> bytes:
    """A state as canonical JSON bytes: equal states give equal bytes."""
    stored = _Stored(
        FORMAT,
        state.deployment,
        state.n,
        state.turn,
        state.order,
        state.peers,
        state.jobs,
        list(state.purged),
        state.scheduler,
        state.rules,
        state.drained or msgspec.UNSET,
    )
    return msgspec.json.encode(stored, order="deterministic")


def decode_state(data: bytes, graph: GraphOf = graph_of) -> State:
    """The reverse of :func:`encode_state`. It also reads the states of the release before this one: those say of a job that its
    peers must read :data:`OLDEST`, which all do.

    Args:
        data: the bytes.
        graph: makes the graphs of jobs. Who decodes many states of the same jobs may give one that remembers them.

    Raises:
        SardonyxError: SX-LOG-FORMAT, written by another version of Sardonyx, or no state at all. SX-VERSION-RULES: its rules are
            newer than those that this release knows.
    """
    try:
        stored = msgspec.json.decode(data, type=_Stored)
    except (msgspec.DecodeError, RecursionError) as error:
        _check_format(data)  # a state of another format may have other fields
        raise _unreadable(str(error)) from error
    if not OLDEST <= stored.format <= FORMAT:
        raise _other_format(stored.format)
    refuse_newer_rules(stored.rules)
    if stored.rules < OLDEST_RULES:
        raise _unreadable(older_rules(stored.rules))
    state = State(stored.deployment, stored.rules)
    state.n, state.turn, state.order = stored.n, stored.turn, stored.order
    state.peers = stored.peers
    state.jobs = dict(sorted(stored.jobs.items(), key=lambda item: item[1].number))
    for job in state.jobs.values():
        job.needs = job.needs if job.needs > OLDEST else 0
    state.purged = OrderedDict.fromkeys(stored.purged)
    state.scheduler = stored.scheduler
    state.drained = [] if stored.drained is msgspec.UNSET else stored.drained
    derive(state, graph)
    return state


def _check_format(data: bytes) -> None:
    try:
        found = msgspec.json.decode(data, type=_Format).format
    except (msgspec.DecodeError, RecursionError) as error:
        raise _unreadable(str(error)) from error
    if not OLDEST <= found <= FORMAT:
        raise _other_format(found)


def _other_format(found: int) -> SardonyxError:
    return _unreadable(f"it has format {found}, this version reads formats {OLDEST} to {FORMAT}")


def same(state: State, other: State) -> bool:
    """Whether two states are equal in all that is stored. Their bytes may differ: a state of the release before lacks fields,
    which are left out again when it is encoded.
    """
    names = [name for name in _Stored.__struct_fields__ if name != "format"]
    return all(getattr(state, name) == getattr(other, name) for name in names)


def derive(state: State, graph: GraphOf = graph_of) -> None:
    """Compute everything in a state that follows from what is stored."""
    state.by_state = {name: OrderedDict() for name in peer_states.STATES}
    state.plans, state.names, state.jobs_with_capacity, state.backing_off = {}, {}, set(), {}
    state.held, state.giving, state.short, state.queued = {}, {}, set(), set()
    state.requiring, state.restricted = set(), set()
    state.demands, state.floors = {}, 0
    state.forget_targets()
    for name, peer in sorted(state.peers.items(), key=lambda item: item[1].order):
        state.by_state[peer.state][name] = None
    for name, job in state.jobs.items():
        # JSON keeps keys sorted by name; decisions go through tasks as the catalog has them
        job.tasks = {task.name: job.tasks[task.name] for task in job.spec.catalog if task.name in job.tasks}
        if not job.ended:
            state.plans[name] = plan_of(state, name, graph)
            state.names[job.spec.name] = name
        if job.status == "running":
            state.jobs_with_capacity.add(name)
        for task_name, task in job.tasks.items():
            state.note_backoff(name, task_name, task)
    state.expirable = OrderedDict.fromkeys(expirable_jobs(state))
    state.missing = missing_peers(state)
    state.live_of, state.idle_of, state.idle_at = live_kinds(state), idle_kinds(state), idle_homes(state)
    state.stale = set(state.jobs_with_capacity)
    for name in state.jobs_with_capacity:
        peers = [state.peers[peer] for task in state.jobs[name].tasks.values() for peer in task.peers]
        state.held[name] = len(peers)
        if giving := sum(peer.yields == "share" for peer in peers):
            state.giving[name] = giving
        if any(peer.yields in ("idle", "turn") for peer in peers):
            state.short.add(name)
        if state.jobs[name].queued:
            state.queued.add(name)


def older_rules(rules: int) -> str:
    """What is wrong with rules that are older than those that this release knows."""
    return f"it is decided by rules {rules}, this version knows rules {OLDEST_RULES} to {RULES}"


def refuse_newer_rules(rules: int) -> None:
    """Raises SX-VERSION-RULES if these rules are newer than those that this release knows."""
    if rules > RULES:
        raise SardonyxError(
            "SX-VERSION-RULES",
            f"the deployment is decided by rules {rules}, and this release knows rules {OLDEST_RULES} to {RULES}",
            cause="a newer release of Sardonyx leads the deployment, or has led it",
            fix="upgrade this installation to that release; `sardonyx upgrade --check` shows who runs which",
        )


def live_kinds(state: State) -> dict[Kind, int]:
    peers = (state.peers[name] for one in LIVE for name in state.by_state[one])
    found: dict[Kind, int] = {}
    for peer in peers:  # ten thousand of them: a Counter takes twice as long
        if not peer.drained:
            kind = peer.kind
            found[kind] = found.get(kind, 0) + 1
    return found


def idle_kinds(state: State) -> dict[Kind, OrderedDict[str, None]]:
    found: dict[Kind, OrderedDict[str, None]] = {}
    for name in _free(state):
        found.setdefault(state.peers[name].kind, OrderedDict())[name] = None
    return found


def idle_homes(state: State) -> dict[tuple[Kind, str], OrderedDict[str, None]]:
    found: dict[tuple[Kind, str], OrderedDict[str, None]] = {}
    for name in _free(state):
        if state.peers[name].home:
            found.setdefault((state.peers[name].kind, state.peers[name].home), OrderedDict())[name] = None
    return found


def _free(state: State) -> list[str]:
    return [name for name in state.by_state["idle"] if not state.peers[name].drained]


def missing_peers(state: State) -> int:
    return sum(job.waits_for for job in state.jobs.values())


def expirable_jobs(state: State) -> list[str]:
    return sorted((name for name, job in state.jobs.items() if job.expirable), key=lambda name: state.jobs[name].n)


def _unreadable(why: str) -> SardonyxError:
    return SardonyxError(
        "SX-LOG-FORMAT",
        "the coordinator's stored state cannot be read",
        cause=why,
        fix="run the version of Sardonyx that wrote it, or start a new deployment under another name",
    )
