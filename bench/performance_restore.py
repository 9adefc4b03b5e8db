"""How long a peer that takes over needs until it goes on: a million keys of state, after SIGKILL."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
import numpy as np
import orjson
from confluent_kafka import Consumer, TopicPartition
from performance_track import Feed, Track, fill
from performance_watch import Daemons, daemons
from performance_windows import explain
from races import Row
from topic_to_topic import PARTITIONS, SCHEMA

from sardonyx import Count, Job, event_time, kafka, tumbling
from sardonyx.client.views import JobView
from sardonyx.core.errors import SardonyxError
from sardonyx.job.load import load_job
from sardonyx.runtime.child_process import ChildProcess

SOON = 3.0
"""Seconds beyond the session of the one that died, within which the first commit shall come."""
AT_ONCE = 1.0
"""The same, with a standby, until all partitions go on."""
RATE = 200
"""Records a second that come all the time."""
STORES = ("memory", "rocksdb")


class Restored(NamedTuple):
    """A takeover."""

    first: float
    """Seconds from the kill to the first commit."""
    whole: float
    """The same to the first commit after the last partition was restored."""
    view: JobView
    """Of the job, which has ended."""

    @property
    def times(self) -> tuple[float, float]:
        return self.first, self.whole


def restore(track: Track, runs: int) -> list[Row]:
    """From SIGKILL of the peer that has the state to the first commit of the one that takes over.

    ZooKeeper counts a session from the last sign of life, which was up to a third of the timeout before the kill. So the
    first commit can come before the timeout is over: nothing can be measured beyond it
    then, and the ratio is that of whole times.
    """
    rows = []
    limit = track.settings.zookeeper.session_timeout + SOON
    for store in STORES:
        first = Row(f"restore of {track.records:,} keys, {store}", f"the session and {SOON:g} s", 1, unit="s")
        whole = Row(f"the same, all partitions, {store}", f"the session and {SOON:g} s", None, unit="s")
        for _ in range(runs):
            for row, took in zip((first, whole), restored(track, store).times, strict=True):
                row.ours.append(took)
                row.theirs.append(limit)
                row.ratios.append(limit / took)
        rows += [first, whole]
        explain(track, [first], f"restore-{store}", lambda where, store=store: restored(where, store).view)
    for row in rows:
        print(row.line(), flush=True)
    return rows


def standby(track: Track, runs: int) -> list[Row]:
    """The same where another process has followed the state, beside a restore, each in turn."""
    rows = []
    limit = track.settings.zookeeper.session_timeout + AT_ONCE
    for store in STORES:
        name = f"takeover of {track.records:,} keys by a standby, all partitions, {store}"
        goal = Row(name, f"the session and {AT_ONCE:g} s", 1, unit="s")
        beside = Row(name, "a restore", None, unit="s")
        for number in range(runs):
            found = {way: restored(track, store, way).whole for way in ((1, 0) if number % 2 else (0, 1))}
            for row, theirs in ((goal, limit), (beside, found[0])):
                row.ours.append(found[1])
                row.theirs.append(theirs)
                row.ratios.append(theirs / found[1])
        rows += [goal, beside]
    for row in rows:
        print(row.line(), flush=True)
    return rows


def keyed_job(source: str, target: str, store: Any, standby: int) -> Job:
    """A count per id and day, told again whenever it changes, of a topic without an end. One peer has all of the state."""
    job = Job("bench-restore", partitions=PARTITIONS)
    read = job.input("read", kafka(source, schema=SCHEMA, start="earliest"), time=event_time("at"), max_peers=1)
    found = job.window(
        "work",
        tumbling("1 day"),
        after=read,
        group_by="id",
        aggregate={"hits": Count()},
        emit="changes",
        store=store,
        standby=standby,
        max_peers=1,
    )
    job.output("write", kafka(target), after=found, max_peers=1)
    return job


def restored(track: Track, store: str, standby: int = 0) -> Restored:
    """Kill the peer that has the state. ``standby``: whether the one that takes over has followed the state. If metrics go to a
    file, that one writes it last.
    """
    event = "state_followed" if standby else "state_restored"
    live = dataclasses.replace(track, source=track.target())
    target = live.target()
    fill(live.settings, live.source, live.records)
    with daemons(live, 3, count=2) as found:
        handle = found.client.submit(load_job(keyed_job(live.source, target, store, standby)))
        until("all keys are in the state", lambda: taken(found) >= live.records)
        with Feed(live, RATE) as feed:
            until("records come", lambda: taken(found) > live.records)
            owner, heir = sorted(found.peers, key=lambda peer: -len(told(peer, "batch_committed")))
            if standby:
                until("the state is followed", lambda: len(told(heir, "standby_ready")) == PARTITIONS)
            killed = time.time()
            owner.signal(signal.SIGKILL)
            until("the state is restored", lambda: len(told(heir, event)) == PARTITIONS)
            last = told(heir, event)[-1]["at"]
            until("it goes on", lambda: any(batch["at"] > last for batch in told(heir, "batch_committed")))
        keys = sum(line["count"] for line in told(heir, event))
        hits = counts(live, target, feed.fed)
        handle.kill()
        with contextlib.suppress(SardonyxError):
            handle.await_completion(60)
        view = handle.status()
    # Besides the keys, each partition notes how long its windows wait for late rows.
    assert keys == live.records + PARTITIONS, f"{keys} keys were restored"
    assert (hits == 1 + (np.arange(live.records) < feed.fed)).all(), "windows that count wrongly"
    commits = [batch["at"] for batch in told(heir, "batch_committed")]
    session = live.settings.zookeeper.session_timeout
    first, whole = (min(at for at in commits if at > since) - killed for since in (killed, last))
    seconds = [line["seconds"] for line in told(heir, event)]
    way = "with a standby" if standby else "without a standby"
    beyond = [max(took - session, 0.0) for took in (first, whole)]
    print(
        f"  {store}, {way}: {beyond[0]:.2f} s beyond the session, all partitions {beyond[1]:.2f} s; each took {seconds} s",
        flush=True,
    )
    return Restored(first, whole, view)


def taken(found: Daemons) -> int:
    """Rows that the window's task has committed."""
    return sum(int(batch["rows_in"]) for batch in found.batches("work"))


def told(peer: ChildProcess, event: str) -> list[dict[str, Any]]:
    """Lines of a daemon's log about the window's task, or no task; ``at`` is when, in seconds since 1970."""
    lines = [line for line in str(peer.log_path and peer.log_path.read_text()).splitlines() if f'"{event}"' in line]
    found = [line for line in map(msgspec.json.decode, lines) if line.get("task", "work") == "work"]
    return [line | {"at": datetime.fromisoformat(line["timestamp"]).timestamp()} for line in found]


def until(what: str, reached: Callable[[], bool], seconds: float = 300) -> None:
    """Wait for something, and raise if it does not happen."""
    deadline = time.time() + seconds
    while not reached():
        assert time.time() < deadline, f"within {seconds:g} s this did not happen: {what}"
        time.sleep(0.1)


def counts(track: Track, topic: str, fed: int) -> np.ndarray:
    """What was last said of each id, when all have been counted or nothing more comes within a minute."""
    settings = {"group.id": topic, "isolation.level": "read_committed"}
    consumer = Consumer({**track.settings.kafka.client(), **settings})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found = np.zeros(track.records, np.int64)
    quiet = time.time()
    try:
        while found.sum() < track.records + fed and time.time() < quiet + 60:
            for message in consumer.consume(10_000, 0.5):
                row = orjson.loads(message.value())
                found[row["id"]] = max(found[row["id"]], row["hits"])
                quiet = time.time()
        return found
    finally:
        consumer.close()
