"""The state of a task of an earlier job, with which the shards of a job begin that goes on from there. Pure.

Nothing is copied beforehand. A shard reads the log of the earlier job up to a commit, and puts the undo of a checkpoint on top.
From then on it writes its own log, and its first round of restatement brings the whole state into it. Until that is through, the
shard is made again from both logs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Protocol

import pyarrow as pa

from queues.messages import Logged
from sardonyx.core.errors import InputError
from sardonyx.core.going_back import FIRST_COMMIT
from sardonyx.core.state_points import Adopted
from sardonyx.state.base import Store
from sardonyx.state.log import SPARE, LogState
from sardonyx.state.messages import Mark, about
from sardonyx.state.restore import Restore
from sardonyx.state.share import Share
from sardonyx.state.undo import as_entries


class EarlierLog(Protocol):
    """The log of a state. The earlier job may still write to it."""

    def end(self, partition: int) -> int:
        """The offset after the last record."""
        ...

    def end_beyond(self, partition: int, end: int) -> int:
        """The same, of a log that should go on after ``end``: it waits a while for that, and otherwise returns ``end``."""
        ...

    def read(self, partition: int, start: int, end: int) -> Iterable[Logged]:
        """All committed messages from one offset to another."""
        ...


class OpenStores(Protocol):
    """The stores of a shard."""

    @property
    def all(self) -> Mapping[str, Store]:
        """By name."""
        ...

    def open(self, name: str, schema: pa.Schema) -> Store:
        """The store of this name, made if it is not there."""
        ...


class AdoptedState:
    """What a task begins with.

    Args:
        adopted: which log, and which commits of it.
        topic: that log.
        share: makes what a shard takes of all shards of the earlier job; None: each goes on with the one of its number.
    """

    def __init__(self, adopted: Adopted, topic: EarlierLog, share: Callable[[int], Share] | None = None) -> None:
        self._share = share
        self.at, self.begun = adopted.at, adopted.begun
        """As of :class:`~sardonyx.core.events.Adopted`."""
        self._adopted = adopted
        self._topic = topic

    def fill(self, number: int, stores: OpenStores, by_rows: Collection[str]) -> LogState | None:
        """Fill the stores of a shard, which are empty.

        Args:
            number: which shard.
            stores: of the shard: those whose columns are known.
            by_rows: the others that it may have.

        Returns:
            What :class:`sardonyx.state.restore.Restore` takes as ``begun``, to go on with the shard's own log; None if the
            checkpoint has no entry.

        Raises:
            InputError: ``SX-RESUME-GONE``: the log does not hold the checkpoint any more. ``SX-STATE-SHAPE``: the columns of a
                store are others now.
        """
        if self._share is None:
            self._read(number, stores, by_rows)
        else:
            share = self._share(number)
            for place in range(len(self._adopted.marks)):
                for turn in range(share.turns):
                    share.begin(turn)
                    self._read(place, stores, by_rows, share.takes)
            share.finish(stores.all)
        entries = sum(len(store) for store in stores.all.values())
        if not entries:
            return None
        rows = 2 * entries + SPARE + 1  # so a round of restatement begins with the first commit
        return LogState(Mark(*FIRST_COMMIT), rows)

    def _read(
        self,
        number: int,
        stores: OpenStores,
        by_rows: Collection[str],
        takes: Callable[[pa.Table], pa.Table] | None = None,
    ) -> None:
        """Add what a shard of the earlier job had, or what is taken of it. What its log holds after the commit is left out."""
        mark, topic = Mark(*self._adopted.marks[number]), self._adopted.topic
        if not mark.seq:
            return
        restore = Restore(
            mark,
            stores.all,
            topic=topic,
            partition=number,
            others=by_rows,
            make=stores.open,
            begun=LogState(Mark(mark.base)),  # the stores may hold what came of other shards
            takes=takes,
        )
        problem: InputError | None = None
        try:
            start, end = restore.start, self._topic.end(number)
            restore.read(_up_to(mark, self._topic.read(number, start, end), {"topic": topic}))
            # The commit is there. The end may be one that a broker told that had been replaced, and did not know it yet.
            while not restore.reached and (further := self._topic.end_beyond(number, end)) > end:
                restore.read(_up_to(mark, self._topic.read(number, end, further), {"topic": topic}))
                end = further
            restore.finish()
        except InputError as error:
            problem = error
        if problem is not None:
            raise _gone(problem, topic, number) if problem.code == "SX-STATE-TORN" else problem
        for name, undo in ({} if self.at is None else restore.undo.get(self.at, {})).items():
            changes = as_entries(undo, stores.all[name])
            stores.all[name].apply(changes if takes is None else takes(changes))


def _gone(problem: InputError, topic: str, number: int) -> InputError:
    return InputError(
        "SX-RESUME-GONE",
        "the state of the checkpoint that the job goes on from is gone",
        cause=f"the log of the earlier job does not hold it: {problem.cause}",
        fix="resume another checkpoint of it, or submit the job without `--resume`; of a replay, ask for a later `--from`",
        where={"topic": topic, "partition": number},
    )


def _up_to(mark: Mark, messages: Iterable[Logged], where: dict[str, object]) -> Iterator[Logged]:
    return itertools.takewhile(lambda message: about(message, where).seq <= mark.seq, messages)


__all__ = ["AdoptedState", "OpenStores"]
