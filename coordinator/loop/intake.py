"""What peers and clients did, seen in two child lists: requests in ``/inbox``, births and deaths in ``/pulse``.

The watches decide nothing: they note that there is something to look at and wake the loop. Two lists are watched, however
many peers there are; after a reconnection both are read again, for a watch that fired meanwhile is lost.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice
from operator import itemgetter
from typing import Any

import msgspec
import structlog
from msgspec.structs import force_setattr

from coordinator.core.state import Peer, State
from coordinator.loop.election import Leadership
from coordinator.loop.event_log import Intake
from sardonyx.core import node_paths
from sardonyx.core.events import (
    AnyEvent,
    Delete,
    JobSubmitted,
    PeerBorn,
    PeerDied,
    PulseNote,
    Request,
    decode_request,
    encode_event,
)
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
GROWTH = 8
"""So many times longer, at most, is a request in the log than it was in the inbox; numbers grow to less than four times."""

REST, LONGEST_REST = 50e-6, 0.5
"""Seconds for each name in the list of pulses that it is left alone after a look, and at most: with many peers it is long, and
with many of them somebody always comes or goes. A look takes 2 to 3 us a name, so this is a twentieth of a leader's time; at
ten thousand peers a birth or death is seen up to half a second late."""

PORTION = 512
"""Requests that are read at a time, at most: enough that a portion's transactions are full, few enough that ZooKeeper has
something to do while they are decided."""

REMEMBERED = 20_000
"""Requests whose uuids are known, so that one whose writer had lost the reply and sent it again is not taken twice."""

log = structlog.get_logger()


class Watches:
    """Collects what happened since it was asked last.

    Args:
        leadership: whose tree it is.
        wake: called, from kazoo's thread, when there is something to collect.
    """

    def __init__(self, leadership: Leadership, *, wake: Callable[[], None]) -> None:
        self._leadership = leadership
        self._zk = leadership.zk
        self._taken: OrderedDict[str, None] = OrderedDict()  # a dict would look ever longer for its oldest key
        self._wake = wake
        self._requests_came = True
        self._pulses_changed = True
        self._pulses_rest = 0.0
        self._pulses_by = math.inf

    def due(self) -> float | None:
        """When :meth:`collect` should be asked even if nobody wakes the loop, by the monotonic clock; None: need not be."""
        wanted = max(self._pulses_rest, -math.inf if self._pulses_changed else self._pulses_by)
        return None if wanted == math.inf else wanted

    def look_by(self, when: float) -> None:
        """Have :meth:`collect` look at the pulses by then, by the monotonic clock, whether or not they changed."""
        self._pulses_by = min(self._pulses_by, when)

    def remember(self, request: str) -> None:
        """A request of this uuid stands in the log; should it come again, it is left out. Empty: none."""
        if request:
            self._taken[request] = None
        if len(self._taken) > REMEMBERED:
            self._taken.popitem(last=False)

    def collect(self, state: State, at: float) -> Iterator[list[Intake]]:
        """What happened, as events that carry the time ``at``: births, then requests in their order, then deaths.

        So a peer is born before it asks for anything, and what it asked for before it died is handled before its death.
        In portions, if it is much: while the caller works on one, ZooKeeper is asked for the next. The caller must append
        them all (:func:`coordinator.loop.event_log.append`), which removes the requests, before it calls this again.
        """
        # A list is read only if it has changed, or is due. The flags are taken down before reading: what changes from now on sets
        # them again. That of the requests first: when one is seen, the pulse of its writer has been told before it.
        requests_came, self._requests_came = self._requests_came, False
        wanted: dict[str, Watch] = {}
        due = self.due()
        if due is not None and self._zk.runtime.now() >= due:
            wanted |= self._look()
        # Behind the pulses: whoever was seen dead there put its requests in before, so they are seen here.
        if requests_came:
            wanted[node_paths.INBOX] = self._on_request
        lists = dict(zip(wanted, self._zk.lists(wanted), strict=True))
        born: list[str] = []
        died: list[str] = []
        if node_paths.PULSE in lists:
            self._pulses_rest = self._zk.runtime.now() + min(REST * len(lists[node_paths.PULSE]), LONGEST_REST)
            born, died = self._pulses(lists[node_paths.PULSE], state)
        names = lists.get(node_paths.INBOX, [])
        if died and not requests_came:
            names = self._zk.children(node_paths.INBOX, watch=self._on_request)
        told = set(born)
        held = self._births(born, at)
        for requests in self._requests(names, at):
            if self._pulses_changed and any(_is_strange(intake.event, state, told) for intake in requests):
                # Its pulse stands perhaps, and was left for later. Who is dead is left for later once more: see above.
                (standing,) = self._zk.lists(self._look())
                late = [name for name in self._pulses(standing, state)[0] if name not in told]
                told.update(late)
                held += self._births(late, at)
                self._pulses_changed = True
            held += requests
            if len(held) >= PORTION // 2:
                yield held
                held = []
        held += (Intake(PeerDied(at=at, peer=name)) for name in died)
        if held:
            yield held

    def ask_for_requests(self) -> None:
        """Have the next :meth:`collect` look at the inbox, whether or not something came."""
        self._requests_came = True

    def look_again(self) -> None:
        """Have :meth:`collect` look whether or not something changed."""
        self._requests_came = self._pulses_changed = True
        self._wake()

    def _look(self) -> dict[str, Watch]:
        """The list of pulses is about to be read."""
        self._pulses_changed, self._pulses_by = False, math.inf
        return {node_paths.PULSE: self._on_pulse}

    def _pulses(self, names: list[str], state: State) -> tuple[list[str], list[str]]:
        """Peers that have a pulse and are not known, and such as should have one and have none."""
        standing, known, dead = set(names), state.peers.keys(), state.by_state["dead"].keys()
        self._remove_leftovers([name for name in sorted(standing & dead) if _is_over(state.peers[name])])
        return sorted(standing - known), [name for name in sorted(known - standing) if not _is_over(state.peers[name])]

    def _remove_leftovers(self, names: list[str]) -> None:
        """Pulses of dead peers, which are none any more. Without their pulse they come back under another name.

        One may stand: a peer whose reply was lost puts its pulse up again, and it was taken for dead in between; or somebody
        else has said in a peer's name that it leaves.
        """
        for name in names:
            try:
                self._leadership.commit([Delete(node_paths.pulse(name))])
            except TransactionFailed as error:  # it has gone by itself
                log.debug("pulse had gone already", peer=name, reason=repr(error.reason))

    def _births(self, names: list[str], at: float) -> list[Intake]:
        found = self._zk.read_many(map(node_paths.pulse, names))
        births = []
        for name in names:
            data = found.get(node_paths.pulse(name))
            if data is None:  # gone again before it was seen
                continue
            try:
                note = msgspec.json.decode(data, type=PulseNote)
            except msgspec.DecodeError as error:
                log.warning("pulse cannot be read, its peer is born without a host", peer=name, reason=str(error))
                note = PulseNote()
            daemon, host = note.daemon[:NAME], note.host[:NAME]
            births.append(Intake(PeerBorn(at=at, peer=name, daemon=daemon, host=host, pid=note.pid)))
        return births

    def _requests(self, names: list[str], at: float) -> Iterator[list[Intake]]:
        ordered = sorted(((*_numbered(name), name) for name in names), key=itemgetter(0))
        waiting = iter(ordered)
        paths = [f"{node_paths.INBOX}/{name}" for _, _, name in ordered]
        for portion, found in self._zk.read_ahead(paths, most=PORTION):
            yield self._readable(portion, found, islice(waiting, len(portion)), at)

    def _readable(
        self, paths: Sequence[str], found: Mapping[str, bytes], ordered: Iterable[tuple[int, str, str]], at: float
    ) -> list[Intake]:
        """The requests that are there, can be read, and were not taken before; the others are removed."""
        intakes = []
        for path, (_, request, name) in zip(paths, ordered, strict=True):
            data = found.get(path)
            if data is None:
                continue
            if request in self._taken:
                log.info("request came a second time and is left out", request=name)
                self._remove(name)
                continue
            try:
                event = _decoded(data)
            except ValueError as error:
                log.warning(
                    "request cannot be read and is left out", request=name, reason=str(error), data=data[:SHOWN]
                )
                self._remove(name)
                continue
            force_setattr(event, "at", at)  # nobody else has seen it yet
            self.remember(request)
            intakes.append(Intake(event, name, request))
        return intakes

    def _remove(self, name: str) -> None:
        """What cannot be removed (somebody made a node below it) is left lying; it must not end the leadership."""
        try:
            self._leadership.commit([Delete(f"{node_paths.INBOX}/{name}")])
        except TransactionFailed as error:
            log.warning("request cannot be removed", request=name, reason=error.message)

    def _on_request(self, event: Any) -> None:
        """In kazoo's thread: only signals. A session event counts as well, for it takes the watch away."""
        del event
        self._requests_came = True
        self._wake()

    def _on_pulse(self, event: Any) -> None:
        """As :meth:`_on_request`."""
        del event
        self._pulses_changed = True
        self._wake()


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
    if isinstance(request, JobSubmitted):
        _hold_flat(request.spec)
    # Written by others than us it may grow on its way into the log: 1e15 is 1000000000000000.0 there.
    if len(data) > ENTRY_LIMIT // GROWTH and len(encode_event(request)) > ENTRY_LIMIT:
        raise ValueError(f"more than {ENTRY_LIMIT:,} bytes as it would stand in the log")
    return request


def _hold_flat(spec: JobSpec) -> None:
    """What is nested must be readable for ever, from anywhere: the interpreter's own limit depends on who asks."""
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
    """Whether it is dead, and its pulse not to be removed anyway."""
    return peer.state == "dead" and not peer.pulse_due


def _is_strange(event: AnyEvent, state: State, told: Set[str]) -> bool:
    """Whether it is about a peer that is neither known nor just told of."""
    peer = getattr(event, "peer", None)
    return peer is not None and peer not in state.peers and peer not in told


def _numbered(name: str) -> tuple[int, str]:
    """The number that ZooKeeper gave the request, and the uuid in front of it. What has no number comes first, and is found
    unreadable.
    """
    front, dash, number = name.rpartition("-")
    if not (dash and number.isdecimal()):
        return -1, ""
    if front.endswith("-"):  # ZooKeeper counts with 32 bits and a sign: behind the largest number comes the smallest
        front, number = front[:-1], f"-{number}"
    return int(number) & 0xFFFF_FFFF, front.rpartition("-")[2]
