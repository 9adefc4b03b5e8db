"""What keeps time and state right, each taken out by a patch: the simulation must notice.

Most are safeguards of the product. The last ones are of Kafka, on which the product rests: without them the simulated broker
would show nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

import peer.prepared_task
import queues.reader
import sardonyx.core.going_back
from coordinator.core.job_changes import JobChanges
from peer.shards import Shards
from peer.state_keeper import TopicKeeper
from queues.batch import HeldPartition
from queues.messages import CLOCK_HEADER, Outgoing
from queues.quiet_times import QuietTimes
from sardonyx.core import progress
from sardonyx.core.checkpoints import Checkpoints
from sardonyx.core.clocks import END, SourceClock, Stating, task_clock
from sardonyx.core.cycles import Standing
from sardonyx.core.positions import Partition
from sardonyx.core.source_fronts import Fronts, HeldRows
from sardonyx.state.adopted import AdoptedState
from sardonyx.state.log import LogState, ShardLog
from sardonyx.state.messages import About
from sardonyx.state.restore import Restore
from sardonyx.state.share import Share
from tests.simulation.broker import OPEN, Broker, Entry, Group, Transaction
from tests.simulation.broker_clients import SimStateTopic, SimWriter
from tests.simulation.plan import Plan
from tests.simulation.timed_plans import (
    checkpoint_plan,
    damaged_plan,
    going_back_plan,
    lineage_plan,
    loop_plan,
    timed_plan,
)

Patch = pytest.MonkeyPatch


class Safeguard(NamedTuple):
    """``take_out``: by a patch. ``seed``: of a history that fails without it. ``says``: a piece of what the simulation says then.
    ``planned``: what draws histories.
    """

    take_out: Callable[[Patch], None]
    seed: int
    says: str
    planned: Callable[[str], Plan] = timed_plan

    @property
    def name(self) -> str:
        return self.take_out.__name__.strip("_")


# --- Clocks -----------------------------------------------------------------------------------------------------------


def _clock_begins_anew(patch: Patch) -> None:
    """A peer that takes a partition over does not go on with the clock that is committed with its position."""
    rewind = HeldPartition.rewind

    def forgets(held: HeldPartition) -> None:
        rewind(held)
        if held.committed is not None and not held.committed.drained:
            held.start = held.start._replace(position=held.committed._replace(clock=SourceClock()))
            held.clock = SourceClock()

    patch.setattr(HeldPartition, "rewind", forgets)


def _own_clock_alone(patch: Patch) -> None:
    """A peer states the clock of the partitions that it holds, and does not ask for those of others."""

    def clock(stating: Stating[Any], own: Any) -> int:
        found = task_clock(own.values())
        return stating.last if found is None else max(stating.last, found)

    patch.setattr(Stating, "clock", clock)


def _stated_before_the_rows(patch: Patch) -> None:
    """The statement of a clock stands before the rows that it is about."""
    write = SimWriter.write

    def first(writer: Any, messages: Any, *rest: Any) -> None:
        write(writer, sorted(messages, key=lambda each: not _is_statement(each)), *rest)

    patch.setattr(SimWriter, "write", first)


def _is_statement(message: Any) -> bool:
    return isinstance(message, Outgoing) and any(name == CLOCK_HEADER for name, _ in message.headers or ())


def _late_by_the_batch(patch: Patch) -> None:
    """Rows are late by the clock at the end of their batch, and not by their place in the log."""
    reads = Shards._reads

    def judged(shards: Shards, batch: Any, *given: Any) -> Any:
        last = {p.number: position.clock.value for p, position in batch.positions.items()}
        return {
            number: [read._replace(piece=read.piece._replace(in_force=last[number], clocks=None)) for read in of]
            for number, of in reads(shards, batch, *given).items()
        }

    patch.setattr(Shards, "_reads", judged)


def _idle_after_a_stop(patch: Patch) -> None:
    """Time in which a process was stopped counts as time in which nothing came."""
    patch.setattr(queues.reader, "_UNASKED", 1e9)


def _quiet_whatever_came_since(patch: Patch) -> None:
    """A partition counts as quiet from when an earlier reader found nothing, although rows have come since."""

    def since(times: QuietTimes, group: str, partition: Partition, _offset: int) -> float | None:
        known = times._known.get((group, partition))
        return None if known is None else known.since

    patch.setattr(QuietTimes, "since", since)


# --- State ------------------------------------------------------------------------------------------------------------


def _closed_with_more_to_do(patch: Patch) -> None:
    """The position says that all is closed, though results that were due did not fit into the batch."""
    plan = Shards.plan

    def planned(shards: Shards, batch: Any) -> Any:
        found = plan(shards, batch)
        clock = {p: batch.positions[p].clock.value for p in batch.positions}
        return found._replace(shards=[each._replace(closed=clock[each.partition], done=True) for each in found.shards])

    patch.setattr(Shards, "plan", planned)


def _state_kept_over_takeovers(patch: Patch) -> None:
    """A peer that gets a partition back goes on with the state that it had, although another peer had the partition meanwhile."""
    shard = Shards._shard

    def kept(shards: Shards, number: int, batch: Any) -> Any:
        found = shards._shards.get(number)
        if found is not None and found.log._planned is None:
            found.incarnation = batch.incarnations[shards._partitions(number)[0]]
        return shard(shards, number, batch)

    patch.setattr(Shards, "_shard", kept)


def _batches_of_former_assignments(patch: Patch) -> None:
    """A batch counts although its partition was another peer's since it was read."""

    def holds(reader: Any, batch: Any) -> bool:
        return bool(reader.member) and all(partition in reader._held for partition in batch.incarnations)

    patch.setattr(queues.reader.Reader, "holds", holds)


def _applied_before_the_commit(patch: Patch) -> None:
    """Changes are in the stores before their transaction has committed."""
    plan = Shards.plan

    def planned(shards: Shards, batch: Any) -> Any:
        found = plan(shards, batch)
        for number, (shard, answer, *rest) in list(shards._planned.items()):
            for name, changes in answer.changes.items():
                if changes.num_rows:
                    shard.stores.all[name].apply(changes)
            shards._planned[number] = (shard, answer._replace(changes={}), *rest)
        return found

    patch.setattr(Shards, "plan", planned)


def _log_outside_of_the_transaction(patch: Patch) -> None:
    """The state log is written before the transaction of the batch, and not in it."""
    write = SimWriter.write

    def apart(writer: Any, messages: Any, positions: Any, *rest: Any) -> None:
        state = [m for m in messages if isinstance(m, Outgoing) and m.topic.endswith(".state")]
        for message in state:
            log = writer._broker.logs[Partition(message.topic, message.partition)]
            log.append(Entry(message.value, tuple(message.headers or ()), at=writer._broker.sim.now))
        write(writer, [m for m in messages if m not in state], positions, *rest)

    patch.setattr(SimWriter, "write", apart)


def _read_to_the_stable_offset(patch: Patch) -> None:
    """A restore reads as far as committed records are known to stand, and not to the high watermark."""

    def end(topic: Any, partition: int) -> int:
        topic._runtime.sleep(0.01)
        return int(topic._log(partition).stable)

    patch.setattr(SimStateTopic, "end", end)
    _read_to_any_end(patch)


def _read_to_any_end(patch: Patch) -> None:
    """A restore takes the end that a broker tells, and does not compare what it has read with the position."""
    patch.setattr(SimStateTopic, "end_beyond", lambda _topic, _partition, end: end)
    patch.setattr(Restore, "finish", _unchecked(Restore.finish))


def _unchecked(finish: Callable[[Restore], LogState]) -> Callable[[Restore], LogState]:
    """A restore that ends wherever the log ends."""

    def finished(restore: Restore) -> LogState:
        restore._parts, restore._seq = [], restore._mark.seq
        return finish(restore)

    return finished


def _log_forgotten_too_soon(patch: Patch) -> None:
    """A round of restatement counts as complete with its first piece."""
    after = ShardLog._after
    patch.setattr(ShardLog, "_after", lambda self, seq, rows, begun, _: after(self, seq, rows, begun, None))


def _torn_logs(patch: Patch) -> None:
    """A restore takes what stands in the log for all that stood there."""

    def take(restore: Restore, message: Any, said: About) -> None:
        if said.seq <= restore._mark.seq:
            restore._parts.append((said, restore._entries(message, said)))
            if said.number == said.of:
                restore._seq = said.seq - 1
                restore._whole()

    patch.setattr(Restore, "_take", take)
    patch.setattr(Restore, "finish", _unchecked(Restore.finish))


def _lost_positions(patch: Patch) -> None:
    """A restore without a position gives empty stores."""
    take = Restore._take

    def taken(restore: Restore, message: Any, said: About) -> None:
        if not restore._without_position:
            take(restore, message, said)

    patch.setattr(Restore, "_take", taken)


# --- Lineage ----------------------------------------------------------------------------------------------------------


def _unread_links_forgotten(patch: Patch) -> None:
    """Progress counts what a task has read although something is unread after it."""
    patch.setattr(progress, "_is_read", lambda *_: True)


def _held_rows_forgotten(patch: Patch) -> None:
    """What is in open windows is not committed with the position of their shard."""
    patch.setattr(HeldRows, "merged", property(lambda _: None))


def _held_rows_lost_with_their_peer(patch: Patch) -> None:
    """A peer that takes a shard over believes that it holds nothing."""
    patch.setattr(HeldRows, "committed", classmethod(lambda cls, _: cls()))


def _rows_as_new_as_their_batch(patch: Patch) -> None:
    """Rows that a shard holds are put down with what was stated up to the end of their batch."""
    held = Shards._held

    def newer(shards: Shards, shard: Any, asked: Any, batch: Any, closed: int) -> HeldRows:
        return held(shards, shard, asked, replace(batch, before=batch.positions), closed)

    patch.setattr(Shards, "_held", newer)


def _own_front_alone(patch: Patch) -> None:
    """A peer states how far the partitions are that it holds, and does not ask for those of others."""
    front = Fronts.front

    def alone(fronts: Fronts, own: Any) -> Any:
        fronts._offsets.clear()
        fronts._fronts.clear()
        return front(fronts, own)

    patch.setattr(Fronts, "front", alone)


# --- Checkpoints ------------------------------------------------------------------------------------------------------


def _checkpoints_lost_with_their_peer(patch: Patch) -> None:
    """A peer that takes a partition over does not go on with the checkpoints that are committed with its position."""
    point = HeldPartition.commit_point
    patch.setattr(HeldPartition, "commit_point", lambda held: point(held)._replace(checkpoints=None))


def _undo_lost_with_their_peer(patch: Patch) -> None:
    """A peer that takes a shard over believes that its state is that of each checkpoint."""
    patch.setattr(TopicKeeper, "restored", _without_undo(TopicKeeper.restored))


def _without_undo(restored: Callable[..., ShardLog]) -> Callable[..., ShardLog]:
    def forgets(*given: Any) -> ShardLog:
        log = restored(*given)
        log.undo = {}
        return log

    return forgets


def _log_of_checkpoints_deleted(patch: Patch) -> None:
    """The log of state is kept for the state as it is, and not for checkpoints."""
    patch.setattr(Checkpoints, "low", property(lambda _: None))


# --- Going back -------------------------------------------------------------------------------------------------------


def _state_as_it_was_after_the_checkpoint(patch: Patch) -> None:
    """What a job begins with is the state at the bookmark, with the rows of later times."""
    fill = AdoptedState.fill

    def filled(adopted: AdoptedState, *given: Any) -> Any:
        at, adopted.at = adopted.at, None
        try:
            return fill(adopted, *given)
        finally:
            adopted.at = at

    patch.setattr(AdoptedState, "fill", filled)


def _inputs_give_rows_before_the_checkpoint(patch: Patch) -> None:
    """An input that is read again gives the rows, too, that the checkpoint holds."""
    read = peer.prepared_task.read_topic
    patch.setattr(peer.prepared_task, "read_topic", lambda *given, **more: read(*given[:5], None, **more))


def _read_again_from_too_late(patch: Patch) -> None:
    """A job that goes back reads on from where rows came last that a position knows of."""
    begin = sardonyx.core.going_back.begin_of
    patch.setattr(sardonyx.core.going_back, "begin_of", lambda known, _time: begin(known, END))


def _lent_state_forgotten(patch: Patch) -> None:
    """A job that has ended is forgotten with its logs of states, although another one begins with these."""
    patch.setattr(JobChanges, "_keep_state", lambda *_: None)


def _all_keys_in_each_shard(patch: Patch) -> None:
    """With another number of partitions, each shard goes on with the keys of all others, too."""
    patch.setattr(Share, "owns", lambda *_: True)


# --- Loops ------------------------------------------------------------------------------------------------------------


def _more_comes_into_a_loop(patch: Patch) -> None:
    """A loop ends when nothing is on its way in it, whether or not its inputs have ended."""
    patch.setattr(Standing, "quiescent", property(lambda found: found.read == found.written))


def _rows_in_a_loop_uncounted(patch: Patch) -> None:
    """A loop ends when its inputs have, whether or not rows are on their way in it."""
    patch.setattr(Standing, "quiescent", property(lambda found: not found.fed))


# --- Kafka's ----------------------------------------------------------------------------------------------------------


def _unfenced_members(patch: Patch) -> None:
    """A group takes positions from whom it has put out."""
    patch.setattr(Group, "refuses", lambda *_: None)


def _unfenced_producers(patch: Patch) -> None:
    """A producer goes on although another one has its transactional id, and has aborted what it had written: its positions come
    into a transaction of their own.
    """
    send_offsets, decide = Broker.send_offsets, Broker.decide
    instead: dict[Transaction, Transaction] = {}

    def sent(broker: Broker, transaction: Transaction, *given: Any) -> None:
        if transaction.state != "open":
            other = instead[transaction] = Transaction(transaction.id)
            broker.sim.at(OPEN, lambda: decided(broker, other, "aborted"))
        send_offsets(broker, instead.get(transaction, transaction), *given)

    def decided(broker: Broker, transaction: Transaction, state: str) -> None:
        found = instead.get(transaction, transaction)
        if found.state == "open":
            decide(broker, found, state)

    patch.setattr(SimWriter, "_check", lambda self: None)
    patch.setattr(Broker, "send_offsets", sent)
    patch.setattr(Broker, "decide", decided)


SAFEGUARDS = [
    Safeguard(_clock_begins_anew, 0, "the clock fell"),
    Safeguard(_own_clock_alone, 1, "comes after it"),
    Safeguard(_stated_before_the_rows, 0, "comes after it"),
    Safeguard(_late_by_the_batch, 3, "late rows, not"),
    Safeguard(_idle_after_a_stop, 55, "is called idle"),
    Safeguard(_quiet_whatever_came_since, 55, "s after a row"),
    Safeguard(_closed_with_more_to_do, 24, "windows that are closed"),
    Safeguard(_state_kept_over_takeovers, 6, "the state went from"),
    Safeguard(_batches_of_former_assignments, 44, "rows were read"),
    Safeguard(_applied_before_the_commit, 30, "windows count"),
    Safeguard(_log_outside_of_the_transaction, 66, "SX-STATE-POSITIONS-LOST"),
    Safeguard(_read_to_the_stable_offset, 150, "comes twice"),
    Safeguard(_read_to_any_end, 70, "windows count"),
    Safeguard(_log_forgotten_too_soon, 11, "windows count"),
    Safeguard(_torn_logs, 0, "windows count", damaged_plan),
    Safeguard(_lost_positions, 25, "comes twice", damaged_plan),
    Safeguard(_unread_links_forgotten, 0, "said to be everywhere", lineage_plan),
    Safeguard(_held_rows_forgotten, 0, "said to be everywhere", lineage_plan),
    Safeguard(_held_rows_lost_with_their_peer, 4, "said to be everywhere", lineage_plan),
    Safeguard(_rows_as_new_as_their_batch, 2, "said to be everywhere", lineage_plan),
    Safeguard(_own_front_alone, 2, "said to be everywhere", lineage_plan),
    Safeguard(_checkpoints_lost_with_their_peer, 0, " is not {", checkpoint_plan),
    Safeguard(_undo_lost_with_their_peer, 3, " is not {", checkpoint_plan),
    Safeguard(_log_of_checkpoints_deleted, 2, "has not all of the checkpoint", checkpoint_plan),
    Safeguard(_state_as_it_was_after_the_checkpoint, 1, " is not {", going_back_plan),
    Safeguard(_inputs_give_rows_before_the_checkpoint, 3, "rows too many", going_back_plan),
    Safeguard(_read_again_from_too_late, 1, "have not worked rows", going_back_plan),
    Safeguard(_lent_state_forgotten, 1, "states are lent", going_back_plan),
    Safeguard(_all_keys_in_each_shard, 4, "and should", going_back_plan),
    Safeguard(_more_comes_into_a_loop, 1, "rows were read", loop_plan),
    Safeguard(_rows_in_a_loop_uncounted, 13, "was complete with", loop_plan),
    Safeguard(_unfenced_members, 4, "the position fell"),
    Safeguard(_unfenced_producers, 46, "SX-LINK-LOSS"),
]
