"""What peers and clients did, seen in two lists of children: requests in ``/inbox``, births and deaths in ``/pulse``.

The watches decide nothing: they note that there is something to read, and wake the loop. Two lists are watched, however many
peers there are. After a reconnection both are read again, because a watch that fired meanwhile is lost.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice, zip_longest
from typing import Any

import msgspec
import structlog
from msgspec.structs import force_setattr

from coordinator.core.state import Peer, State
from coordinator.loop.election import Leadership
from coordinator.loop.leader_metrics import REFUSED
from coordinator.loop.limits import DEFAULT, Limits
from coordinator.loop.log_writer import PendingEntry
from sardonyx.core import node_paths
from sardonyx.core.effects import Delete
from sardonyx.core.events import (
    Acked,
    AnyEvent,
    Completed,
    Declined,
    Exhausted,
    Left,
    PeerBorn,
    PeerDied,
    Request,
    TaskFailed,
    WithSpec,
    Yielded,
    decode_request,
    encode_event,
)
from sardonyx.core.names import AUTHOR, is_tag, numbered
from sardonyx.core.notes import PulseNote
from sardonyx.core.spec import JobSpec
from sardonyx.zookeeper.errors import TransactionFailed
from sardonyx.zookeeper.session import Watch
from sardonyx.zookeeper.transactions import ENTRY_LIMIT

SHOWN = 200
"""Bytes of an unreadable request that the log shows."""

DEEPEST = 64
"""Levels of lists and objects in a task's options or params."""
NAME = 255
"""Characters of a daemon's or host's name that are kept."""
TAGS = 32
"""Tags of a peer that are kept."""
GROWTH = 8
"""How many times longer a request can be in the log than in the inbox; numbers grow to less than four times."""

OF_PEERS = frozenset(
    kind.__struct_config__.tag for kind in (Acked, Declined, Exhausted, Completed, TaskFailed, Yielded, Left)
)
"""Kinds of requests that peers make."""

REMEMBERED = 20_000
"""Requests whose uuids are known, so that one whose writer lost the reply and sent it again is not taken twice."""

log = structlog.get_logger()


class Intake:
    """Reads what happened since it was read last.

    Args:
        leadership: the epoch under which unreadable requests are removed, and its session.
        wake: called, from kazoo's thread, when there is something to read.
        limits: how much is read at a time, and how often the list of pulses.
    """

    def __init__(self, leadership: Leadership, *, wake: Callable[[], None], limits: Limits = DEFAULT) -> None:
        self._leadership = leadership
        self._zk = leadership.zk
        self._limits = limits
        self._taken: OrderedDict[str, None] = OrderedDict()  # a dict would search ever longer for its oldest key
        self._wake = wake
        self.left: set[str] = set()
        """Requests that were read and stay in the inbox, because they cannot be removed."""
        self._requests_came = True
        self._all_requests = False
        self._pulses_changed = True
        self._pulses_not_before = 0.0
        self._pulses_by = math.inf

    def due(self) -> float | None:
        """When to call :meth:`begin` even if nothing wakes the loop, by the monotonic clock; None: not at any time."""
        wanted = max(self._pulses_not_before, -math.inf if self._pulses_changed else self._pulses_by)
        return None if wanted == math.inf else wanted

    def read_pulses_by(self, when: float) -> None:
        """Have :meth:`begin` read the pulses at that time, by the monotonic clock, whether or not they changed."""
        self._pulses_by = min(self._pulses_by, when)

    def remember(self, request: str) -> None:
        """A request of this uuid is in the log; if it comes again, it is left out. Empty: none."""
        if request:
            self._taken[request] = None
        if len(self._taken) > REMEMBERED:
            self._taken.popitem(last=False)

    def read_requests_again(self) -> None:
        """Have the next :meth:`begin` read the whole inbox, whether or not something came."""
        self._requests_came = self._all_requests = True

    def read_again(self) -> None:
        """Have the next :meth:`begin` read both lists, whether or not something changed."""
        self._requests_came = self._pulses_changed = True
        self._wake()

    def begin(self, state: State, at: float) -> Scan:
        """Read the lists that changed or are due, and begin to read the requests.

        The caller must append all that the scan gives (:class:`coordinator.loop.log_writer.LogWriter`), which removes the
        requests, before it calls this again.

        Args:
            state: as it is decided so far.
            at: the time that the events carry.
        """
        # A list is read only if it has changed, or is due. The flags are cleared before reading: what changes from now on sets
        # them again. The flag of the requests first: when a request is seen, its writer's pulse was announced before it.
        requests_came, self._requests_came = self._requests_came, False
        wanted: dict[str, Watch] = {}
        due = self.due()
        if due is not None and self._zk.runtime.now() >= due:
            wanted |= self._watch_of_pulses()
        # After the pulses: a peer that is found dead there sent its requests before, so they are seen here.
        if requests_came:
            wanted[node_paths.INBOX] = self._on_request
        lists = dict(zip(wanted, self._zk.lists(wanted), strict=True))
        born: list[str] = []
        died: list[str] = []
        pulses = lists.get(node_paths.PULSE)
        if pulses is not None:
            pause = min(self._limits.pulse_pause * len(pulses), self._limits.longest_pulse_pause)
            self._pulses_not_before = self._zk.runtime.now() + pause
            born, died = self._born_and_died(pulses, state)
        names = lists.get(node_paths.INBOX, [])
        if died and not requests_came:
            names = self._zk.children(node_paths.INBOX, watch=self._on_request)
        return Scan(self, born, self._fair_share(names), died, at)

    def _fair_share(self, names: Sequence[str]) -> list[str]:
        """The requests that this turn takes, in their order: all of peers, and of clients some, from each author in turn."""
        everything, self._all_requests = self._all_requests, False
        ordered = sorted(names, key=numbered)
        if everything or len(ordered) <= self._limits.client_requests:
            return ordered
        taken = set(fair_share(ordered, self._limits.client_requests))
        if len(taken) < len(ordered):
            log.warning("requests_postponed", count=len(ordered) - len(taken), consequence="the next turn takes more")
            self._requests_came = True
            self._wake()
        return [name for name in ordered if name in taken]

    def _watch_of_pulses(self) -> dict[str, Watch]:
        """To be called right before the list of pulses is read."""
        self._pulses_changed, self._pulses_by = False, math.inf
        return {node_paths.PULSE: self._on_pulse}

    def _born_and_died(self, names: list[str], state: State) -> tuple[list[str], list[str]]:
        """Peers that have a pulse and are not known, and peers that should have one and have none."""
        alive, known, dead = set(names), state.peers.keys(), state.by_state["dead"].keys()
        self._remove_leftovers([name for name in sorted(alive & dead) if _is_over(state.peers[name])])
        return sorted(alive - known), [name for name in sorted(known - alive) if not _is_over(state.peers[name])]

    def _remove_leftovers(self, names: list[str]) -> None:
        """Remove the pulses of peers that are dead. Such a peer comes back under another name when its pulse is gone.

        There are two ways to such a pulse: a peer lost the reply, created its pulse again, and was taken for dead in between; or
        a request said in the peer's name that it leaves.
        """
        for name in names:
            try:
                self._leadership.commit([Delete(node_paths.pulse(name))])
            except TransactionFailed as error:  # it went by itself
                log.debug("pulse_already_gone", peer=name, error=repr(error.reason))

    def read_late_pulses(self, state: State, known: Set[str]) -> list[str]:
        """Peers that have a pulse now, and are neither in the state nor in ``known``.

        Who is dead is found by the next :meth:`begin`, because requests are still to be read that such a peer sent before.
        """
        (names,) = self._zk.lists(self._watch_of_pulses())
        born, _ = self._born_and_died(names, state)
        self._pulses_changed = True
        return [name for name in born if name not in known]

    @property
    def pulses_changed(self) -> bool:
        """Whether the list of pulses has changed since it was read."""
        return self._pulses_changed

    def births(self, names: Sequence[str], at: float) -> list[PendingEntry]:
        """The births of these peers, as their pulses tell them; of those that are gone again, none."""
        found = self._zk.read_many(map(node_paths.pulse, names))
        births = []
        for name in names:
            data = found.get(node_paths.pulse(name))
            if data is None:
                continue
            note = PulseNote.read(data)
            if note is None:
                log.warning("pulse_unreadable", peer=name, data=data[:SHOWN], consequence="its peer has no host")
            births.append(PendingEntry(_birth(at, name, note or PulseNote())))
        return births

    def readable(
        self, requests: Iterable[tuple[str, str]], found: Mapping[str, bytes], at: float
    ) -> list[PendingEntry]:
        """The requests that exist, can be read, and were not taken before; the others are removed.

        Args:
            requests: path and uuid of each.
            found: by path, the data of those that exist.
            at: the time that the events carry.
        """
        entries = []
        for path, request in requests:
            data = found.get(path)
            if data is None:
                continue
            name = path.rpartition("/")[2]
            if request in self._taken:
                log.info("request_already_taken", request=name)
                REFUSED.add(reason="repeated")
                self._remove(name)
                continue
            try:
                event = _decoded(data)
            except ValueError as error:
                log.warning("request_unreadable", request=name, error=str(error), data=data[:SHOWN])
                REFUSED.add(reason="unreadable")
                self._remove(name)
                continue
            force_setattr(event, "at", at)  # nothing else refers to it yet
            self.remember(request)
            entries.append(PendingEntry(event, name, request))
        return entries

    def _remove(self, name: str) -> None:
        """A request that cannot be removed, because it has a node below it, is left there; it must not end the leadership."""
        try:
            self._leadership.commit([Delete(f"{node_paths.INBOX}/{name}")])
        except TransactionFailed as error:
            log.warning("request_not_removed", request=name, error=error.message)
            self.left.add(name)

    def _on_request(self, event: Any) -> None:
        """In kazoo's thread: only signals. A session event counts as well, because it takes the watch away."""
        del event
        self._requests_came = True
        self._wake()

    def _on_pulse(self, event: Any) -> None:
        """As :meth:`_on_request`."""
        del event
        self._pulses_changed = True
        self._wake()


class Scan:
    """What happened up to one moment: births, then requests in their order, then deaths. Made by :meth:`Intake.begin`.

    So a peer is born before it asks for anything, and what it asked for before it died is handled before its death.
    While the caller works on what :meth:`read` gave, ZooKeeper is asked for the next requests.

    Args:
        intake: reads the nodes.
        born: peers that have a pulse and are not known.
        names: of the requests that are to be read, in order.
        died: peers that have no pulse any more.
        at: the time that the events carry.
    """

    def __init__(self, intake: Intake, born: list[str], names: Sequence[str], died: list[str], at: float) -> None:
        self._intake = intake
        self._at = at
        self._born = set(born)
        self._ready = intake.births(born, at)
        self._deaths = [PendingEntry(PeerDied(at=at, peer=name)) for name in died]
        self._uuids = {f"{node_paths.INBOX}/{name}": numbered(name)[1] for name in names}
        self._most = intake._limits.requests  # noqa: SLF001 - the two are one thing
        self._portions = intake._zk.read_ahead(list(self._uuids), most=self._most)  # noqa: SLF001

    def read(self, state: State) -> list[PendingEntry]:
        """The next entries, some hundreds if there are so many; none at the end.

        Args:
            state: as it is decided so far. A peer that is neither in it nor born in this scan has its pulse looked for, so the
                state may lag behind what was read.
        """
        ready, self._ready = self._ready, []
        while len(ready) < max(1, self._most // 2):
            portion = next(self._portions, None)
            if portion is None:
                deaths, self._deaths = self._deaths, []
                return [*ready, *deaths]
            paths, found = portion
            requests = self._intake.readable([(path, self._uuids[path]) for path in paths], found, self._at)
            ready += self._late_births(requests, state)
            ready += requests
        return ready

    def _late_births(self, requests: list[PendingEntry], state: State) -> list[PendingEntry]:
        """Births of peers that ask for something and whose pulses may exist, though they were not seen yet."""
        if not self._intake.pulses_changed or not any(
            _is_unknown(entry.event, state, self._born) for entry in requests
        ):
            return []
        late = self._intake.read_late_pulses(state, self._born)
        self._born.update(late)
        return self._intake.births(late, self._at)


def _birth(at: float, name: str, note: PulseNote) -> PeerBorn:
    """A pulse is any program's text, so what is kept of it is limited."""
    return PeerBorn(
        at=at,
        peer=name,
        daemon=note.daemon[:NAME],
        host=note.host[:NAME],
        pid=note.pid,
        version=note.version[:NAME],
        format=note.format,
        tags=tuple(sorted({tag for tag in note.tags[:TAGS] if is_tag(tag)})),
    )


def stamped(event: AnyEvent, at: float) -> AnyEvent:
    """The event with the time at which the coordinator took it in."""
    return msgspec.structs.replace(event, at=at)


def _decoded(data: bytes) -> Request:
    """The request in an inbox node. Raises ``ValueError`` (msgspec's errors are such) for anything else."""
    if len(data) > ENTRY_LIMIT:
        raise ValueError(f"{len(data):,} bytes; {ENTRY_LIMIT:,} is the most")
    try:
        request = decode_request(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if isinstance(request, WithSpec):
        _refuse_deep(request.spec)
    # What other writers sent may grow on its way into the log: 1e15 is 1000000000000000.0 there.
    if len(data) > ENTRY_LIMIT // GROWTH and len(encode_event(request)) > ENTRY_LIMIT:
        raise ValueError(f"more than {ENTRY_LIMIT:,} bytes as it would be in the log")
    return request


def _refuse_deep(spec: JobSpec) -> None:
    """What is nested must stay readable from anywhere: the interpreter's own limit depends on the depth of the caller."""
    level: list[Any] = [value for task in spec.catalog for value in (task.options, task.params)]
    for _ in range(DEEPEST):
        level = [
            below
            for value in level
            if isinstance(value, dict | list)
            for below in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise ValueError(f"options or params are nested more than {DEEPEST} levels deep")


def _is_over(peer: Peer) -> bool:
    """Whether the peer is dead, and no decision to remove its pulse is under way."""
    return peer.state == "dead" and not peer.pulse_due


def _is_unknown(event: AnyEvent, state: State, born: Set[str]) -> bool:
    """Whether it is about a peer that is neither known nor just born."""
    peer = getattr(event, "peer", None)
    return peer is not None and peer not in state.peers and peer not in born


def fair_share(names: Iterable[str], most: int) -> Iterator[str]:
    """All requests of peers, and at most so many of clients: the first of each author, the second of each, and so on. Pure.

    Args:
        names: of requests, in their order. The order of an author's requests is kept.
        most: how many of clients.
    """
    authors: dict[str, list[str]] = {}
    for name in names:
        if kind_in(name) in OF_PEERS:
            yield name
        else:
            authors.setdefault(numbered(name)[1][:AUTHOR], []).append(name)
    rounds = zip_longest(*authors.values())
    yield from islice((name for each in rounds for name in each if name is not None), most)


def kind_in(name: str) -> str:
    """The kind of event that the name of a request gives; empty if the name is not that of a request."""
    front = name.rpartition("-")[0].removesuffix("-")
    return front.rpartition("-")[0]
