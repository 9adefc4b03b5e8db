"""Rows whose time is the timestamp of their record in Kafka."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from peer.row_times import timed
from queues.batch import Batch
from sardonyx import Count, Job, Max, kafka, kafka_time, tumbling
from sardonyx.core.clocks import SourceClock
from sardonyx.core.graph import graph_of
from sardonyx.core.positions import Partition
from sardonyx.testing import ClockedRun

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
DELAY = 5_000_000


def job() -> Job:
    made = Job("hits", partitions=2)
    read = made.input(
        "read", kafka("in", schema="user string", start="earliest"), time=kafka_time("at", delay="5 s", ahead="1 d")
    )
    counted = made.window(
        "count", tumbling("1 min"), after=read, group_by="user", aggregate={"n": Count(), "last": Max("at")}
    )
    made.output("out", kafka("out"), after=counted)
    return made


def test_a_window_counts_rows_by_when_they_were_written(sardonyx_clocked: Callable[..., ClockedRun]) -> None:
    """It closes when a record with a later timestamp is read; a row has its timestamp as a column."""
    run = sardonyx_clocked(job(), now=NOON)
    run.give("read", [{"user": "a"}])
    run.advance("59 s")
    run.give("read", [{"user": "a"}])
    run.advance("5 s")
    run.give("read", [{"user": "a"}])
    assert run.rows() == []
    run.crash("read")
    run.advance("1 s")
    run.give("read", [{"user": "b"}])
    (row,) = run.rows()
    assert (row["user"], row["n"], row["last"]) == ("a", 2, "2026-11-23T12:00:59.000000Z")
    run.end()
    assert sorted((row["user"], row["n"]) for row in run.rows()) == [("a", 1), ("a", 2), ("b", 1)]


class Stamped(NamedTuple):
    """A message, as far as its time goes."""

    milliseconds: int

    def timestamp(self) -> tuple[int, int]:
        return 1, self.milliseconds


def test_each_row_has_the_timestamp_of_its_own_record(seed: int) -> None:
    """Also where records beside it could not be decoded, or are too far ahead; the clock of each partition follows those that
    stay.
    """
    (link,) = graph_of(job().spec(), "d", "hits-1").stage("read").ingress
    assert link.time is not None
    rng, noon = random.Random(seed), round(NOON.timestamp() * 1000)
    for _ in range(50):
        spans = [(Partition("in", rng.randrange(2)), rng.randint(1, 6)) for _ in range(rng.randint(1, 5))]
        places = [place for place, count in spans for _ in range(count)]
        ahead = [rng.random() < 0.1 for _ in places]
        stamps = [noon + rng.randrange(-20_000, 20_000) + 2 * 86_400_000 * far for far in ahead]
        kept = np.array([rng.random() < 0.8 for _ in places])
        before = {Partition("in", 0): SourceClock(noon * 1000, noon * 1000 - DELAY)}
        rows = pa.table({"user": [str(number) for number in np.flatnonzero(kept)]})
        batch = Batch(spans={link.name: spans}, clocks=before)
        found = timed(link, link.time, rows, [Stamped(each) for each in stamps], kept, batch, noon / 1000)

        stay = [number for number in np.flatnonzero(kept) if not ahead[number]]
        clocks, in_force = {place: before.get(place, SourceClock()) for place, _ in spans}, []
        for number in stay:
            in_force.append(clocks[places[number]].value)
            clocks[places[number]] = clocks[places[number]].after(stamps[number] * 1000, DELAY)
        told: list[Any] = found.table.column("at").cast(pa.int64()).to_pylist()
        assert found.table["user"].to_pylist() == [str(number) for number in stay]
        assert told == [stamps[number] * 1000 for number in stay]
        assert {each.code for each in found.bad.values()} <= {"SX-TIME-AHEAD"}
        assert len(found.bad) == kept.sum() - len(stay)
        assert (found.clocks, found.in_force.tolist()) == (clocks, in_force)
