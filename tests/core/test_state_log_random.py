"""The log of a shard in random histories: after any crash it gives the state, and it stays short."""

from __future__ import annotations

import pytest
from log_world import World, Wrong, longest, run

from sardonyx.state import messages
from sardonyx.state.log import ShardLog
from sardonyx.state.messages import Mark, Place
from sardonyx.state.restore import Restore
from tests.sizes import as_asked

HISTORIES = as_asked(300, whole=5_000)
"""``SARDONYX_HISTORIES=10000`` for a long run."""
CONTROLS = 1_000


@pytest.mark.parametrize("part", range(10))
def test_a_restore_after_any_crash_gives_the_state(part: int) -> None:
    """Random histories of commits, aborts and deaths at every point of a round."""
    for seed in range(part * HISTORIES // 10, (part + 1) * HISTORIES // 10):
        run(seed)


def test_the_log_is_at_most_four_times_the_state() -> None:
    """It has at most four rows for each entry that there was at once since it begins, 10,000 more, and four times the rows of
    the largest commit. So a job without end restores as quickly as a young one.
    """
    for seed in range(20):
        assert longest(seed) == 0, f"seed {seed}"


# --- Controls: without a safeguard, some history fails ----------------------------------------------------------------


class AgainLast(ShardLog):
    """Restates entries after the changes of the same commit."""

    def messages(self, changes, stores):
        made = super().messages(changes, stores)
        made.sort(key=lambda message: dict(message.headers)[messages.STATE] == b"again")
        return [
            message._replace(headers=[*message.headers, (messages.SEQ, b"%d %d/%d" % (self.planned.seq, n, len(made)))])
            for n, message in enumerate(made, start=1)
        ]


class LowAtTheEnd(ShardLog):
    """Asks for the new beginning of the log when a round ends."""

    def _after(self, seq, rows, begun, under_way):
        after = super()._after(seq, rows, begun, under_way)
        if begun is None or under_way is not None:
            return after
        return after._replace(mark=Mark(seq, self._end(), seq - 1), rows=rows)


class LowInAdvance(ShardLog):
    """Calls the log shorter when a round begins."""

    def _after(self, seq, rows, begun, under_way):
        return super()._after(seq, rows, begun, None)


class OnePhase(ShardLog):
    """Counts a commit when it is planned."""

    def messages(self, changes, stores):
        made = super().messages(changes, stores)
        self.committed()
        return made


class Never(ShardLog):
    """Restates nothing."""

    def _new_round(self, entries):
        return None


class Slow(ShardLog):
    """Restates one entry a commit, however many change."""

    def _to_restate(self, changed):
        return 1


class AppliesTooSoon(World):
    """Applies changes before their transaction is decided."""

    def planned(self, tables):
        for name, changed in tables.items():
            self.stores[name].apply(changed)


class ForgetsTheRound(World):
    """A peer that takes over goes on at the key that its predecessor came to, as if the round had begun now."""

    compares_logs = False

    def recover(self):
        super().recover()
        state = self.log.state
        if state.round is not None:
            place = Place(self.partition.end(), state.mark.seq)
            self.log.state = state._replace(round=state.round._replace(place=place, rows=0))


class EndsBeforeOpenTransactions(World):
    """Restores up to the last stable offset: another's open transaction may stand before what is committed."""

    def restore(self, stores):
        self.restores += 1
        restore = Restore(self.position, stores, topic="t.state", partition=0)
        restore.read(list(self.partition.committed(restore.start))[: None if self.restores % 2 else -1])
        return restore.finish()


@pytest.mark.parametrize("lacking", [AgainLast, LowAtTheEnd, LowInAdvance, OnePhase])
def test_without_a_safeguard_of_the_log_a_history_fails(lacking: type[ShardLog]) -> None:
    """The histories would find it."""
    assert first_failure(log=lacking) is not None


@pytest.mark.parametrize("lacking", [AppliesTooSoon, ForgetsTheRound, EndsBeforeOpenTransactions])
def test_without_a_safeguard_of_the_peer_a_history_fails(lacking: type[World]) -> None:
    """The histories would find it."""
    assert first_failure(world=lacking) is not None


@pytest.mark.parametrize("lacking", [Never, Slow])
def test_without_restatement_in_proportion_the_log_grows(lacking: type[ShardLog]) -> None:
    """The histories would find it."""
    assert any(longest(seed, lacking) > 0 for seed in range(20))


def first_failure(**lacking) -> str | None:
    for seed in range(CONTROLS):
        try:
            run(seed, **lacking)
        except Wrong as error:
            return str(error)
    return None
