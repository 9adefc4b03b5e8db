"""The clocks of one assignment: what is stated in the links of a task, when, and when a quiet partition holds no other back.

Of a job that keeps its lineage, statements also say how far the sources have passed (:mod:`sardonyx.core.fronts`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from queues.messages import Outgoing, statement
from sardonyx.core.clocks import END, NEVER, SourceClock, Stating
from sardonyx.core.events import LinkFacts
from sardonyx.core.front_text import LONGEST_FRONT, fitted, front_text, told
from sardonyx.core.fronts import Front
from sardonyx.core.graph import Stage
from sardonyx.core.positions import Partition, Position
from sardonyx.core.source_fronts import Fronts, Sources
from sardonyx.runtime.clock import REAL, Runtime
from sardonyx.state.held_back import held_back
from sardonyx.state.kinds import less
from sardonyx.state.times import microseconds

if TYPE_CHECKING:
    from peer.slot_clients import SlotClients

EVERY = 0.2
"""Seconds from one statement of a clock that goes on to the next."""
FRONT_EVERY = 1.0
"""The same of a front. People look at it, and no window waits for it."""


class Timekeeper:
    """Decides what to state. It begins anew with the clients of a slot: what was stated before stays true.

    Args:
        stage: the task.
        facts: of the job's links, by name.
        clients: of the slot.
        peer: its name, for the messages.
        runtime: time.
        every: seconds from one statement of a clock that goes on to the next.
        front_every: the same of a front.
        sources: of the job, if it keeps its lineage.
    """

    def __init__(
        self,
        stage: Stage,
        facts: Mapping[str, LinkFacts],
        clients: SlotClients,
        peer: str,
        *,
        runtime: Runtime = REAL,
        every: float = EVERY,
        front_every: float = FRONT_EVERY,
        sources: Sources | None = None,
    ) -> None:
        self._clients = clients
        self._peer = peer
        self._runtime = runtime
        self._every = every
        self._places = [
            (link.topic, number)
            for link in stage.egress
            if link.kind == "internal"
            for number in range(facts[link.name].partitions)
        ]
        self._specs = {link.topic: link.time for link in stage.ingress if link.time is not None}
        self._goes_on_at_rest = stage.goes_on_at_rest
        self._held_back = held_back(stage.task)
        self._stating = Stating[Partition](clients.reader.everything)
        self._stated_at = 0.0
        self._open: int | None = None
        self._fronts = None if sources is None else Fronts(sources, stage, clients.reader.everything)
        self._front_every = front_every
        self._front_at = 0.0
        self._front: Front | None = None
        """What the open transaction states."""

    def after_batch(self, positions: Mapping[Partition, Position]) -> list[Outgoing]:
        """The statements for the transaction that commits these positions."""
        self._open = None
        if self._clients.reader.owed():
            return []  # the clocks of these partitions go before their results
        self._hear()
        own = self._clients.reader.clocks | {partition: position.clock for partition, position in positions.items()}
        return self._statements(self._stating.clock(self._reached(own)), positions)

    def between_batches(self) -> tuple[list[Outgoing], dict[Partition, Position]] | None:
        """What to commit while there is nothing to read: statements, and the positions of partitions that have become idle.

        None: nothing. The positions are never empty: they fence the transaction.
        """
        reader = self._clients.reader
        self._open = None
        if reader.owed():
            return None
        self._hear()
        quiet = self._quiet()
        idle = {
            partition: position._replace(clock=position.clock._replace(idle=True))
            for partition, position in reader.standing.items()
            if partition in quiet and not position.clock.idle
        }
        # Where partitions fall silent together, those that have had no row go first. What the others have had counts then.
        rowless = {partition: position.clock for partition, position in idle.items() if position.clock.value == NEVER}
        own = reader.clocks | {partition: position.clock for partition, position in idle.items()}
        reached = max(self._stating.clock(self._reached(clocks)) for clocks in (reader.clocks | rowless, own))
        messages = self._statements(max(reached, self._wall(own)), idle)
        positions = idle or {partition: position for partition, position in reader.held.items() if position is not None}
        return (messages, positions) if idle or (messages and positions) else None

    def committed(self) -> None:
        """The transaction with the last statements has committed."""
        if self._open is not None:
            self._stating.stated(self._open)
            self._stated_at = self._runtime.now()
            self._open = None
        if self._front is not None and self._fronts is not None:
            self._fronts.stated(self._front)
            self._front_at = self._runtime.now()
            self._front = None

    def _hear(self) -> None:
        """Ask what is committed for the partitions of others, if there are any. What this peer holds may be another's soon."""
        clients = self._clients
        self._stating.heard(self._reached(clients.reader.clocks))
        if self._fronts is not None:
            self._fronts.heard(clients.reader.held)
        if clients.clocks is not None:
            clients.clocks.check_partitions()
        if clients.clocks is None or len(clients.reader.held) == len(clients.reader.everything):
            return
        answer = clients.clocks.answer()
        if answer is not None:
            known = {p: position.clock for p, position in answer.items() if position is not None}
            self._stating.heard(self._reached(known))
            if self._fronts is not None:
                self._fronts.heard(answer)

    def _reached(self, clocks: Mapping[Partition, SourceClock]) -> Mapping[Partition, SourceClock]:
        """Up to where the results of this task are out. Windows give theirs ``grace`` after their end, and correct them within
        ``allowed_lateness`` after that, timers when they fire; of joins and the like see
        :func:`~sardonyx.state.held_back.held_back`.
        """
        behind = self._held_back
        if behind is None:
            return clocks
        return {p: SourceClock(value=less(clock.seen, behind)) for p, clock in clocks.items()}

    def _statements(self, clock: int, moved: Mapping[Partition, Position]) -> list[Outgoing]:
        """Sentinels say by themselves that nothing comes any more.

        Args:
            clock: to state.
            moved: the positions that the transaction commits, where they are not those that are committed already.
        """
        self._open = self._front = None
        if clock >= END or not self._places:
            return []
        self._front = self._new_front(moved)
        due = self._stating.last < clock and self._runtime.now() - self._stated_at >= self._every
        if not due and self._front is None:
            return []
        self._open = clock
        front = None if self._front is None else front_text(told(self._front, LONGEST_FRONT))
        return [statement(topic, number, clock, self._peer, front) for topic, number in self._places]

    def _new_front(self, moved: Mapping[Partition, Position]) -> Front | None:
        """What is to be stated of the sources; None: nothing yet, or nothing new."""
        if self._fronts is None or self._runtime.now() - self._front_at < self._front_every:
            return None
        front = fitted(self._fronts.front(self._clients.reader.held | dict(moved)))
        return front if self._fronts.adds(front) else None

    def _quiet(self) -> Collection[Partition]:
        """The partitions of inputs that have had no row for as long as their input says."""
        limits = {t: microseconds(spec.idle) / 1e6 for t, spec in self._specs.items() if spec.idle is not None}
        return self._clients.reader.quiet(limits) if limits else ()

    def _wall(self, own: Mapping[Partition, SourceClock]) -> int:
        """The clock of a task whose partitions are all idle, if its inputs go on with the machine's clock."""
        if not self._goes_on_at_rest or not self._stating.all_idle(own):
            return NEVER
        now = int(self._runtime.wall() * 1_000_000)
        specs = self._specs.values()
        return min(less(now, microseconds(spec.delay) + microseconds(spec.idle or "0 s")) for spec in specs)
