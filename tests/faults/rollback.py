"""A job on real services that users roll back again and again while processes die, and of which they replay ranges of time
meanwhile: ``make faults SHAPE=rollback``.

``FAULTS`` says how many rollbacks. Before each one the state at a checkpoint is compared: with what the rows before that time
make, and byte for byte with the state of a job beside it that has got these rows and no others. A replay of some range begins
before each rollback, and its results must be exactly those of the rows of the range. In the end the state must be that of all
rows, and each window must have come with all its rows, each time that it came: at least once, and at most once for each time that
the job came past it.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import signal
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from queues import topics
from sardonyx.client.job_handle import JobHandle
from sardonyx.core.errors import JobFailed, SardonyxError
from tests.faults.cluster import Cluster, now
from tests.faults.figures import spread
from tests.faults.replays import Replays
from tests.faults.rolled import (
    DELAY,
    PARTITIONS,
    START,
    WINDOW,
    Row,
    Window,
    at_of,
    clock_of,
    fence,
    kept_of,
    results_of,
    row_of,
    second_of,
    spec_of,
    states_of,
    windows_of,
    write,
)
from tests.waiting import PATIENCE, until

PACE = 40
"""Rows each second. Each is a second of event time later."""
STEPS = (
    "before-side-effect",
    "after-side-effect",
    "in-delete-links",
    "in-create-links",
    "before-append",
    "after-append",
)
"""Where the leader dies: one of them for each rollback. Then any process, now and then."""
BETWEEN = 1.0, 4.0
"""Seconds from one such death to the next."""


@dataclass
class Told:
    """What a run found."""

    rollbacks: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    took: list[float] = field(default_factory=list)
    """Seconds from the request of a rollback to the job that goes on being taken in."""
    wrong: list[str] = field(default_factory=list)
    states: int = 0
    """Checkpoints whose state was compared with that of a run which ended there."""
    windows: int = 0
    published: int = 0
    replays: Replays | None = None


class Reference:
    """The same job beside it, which is never rolled back. It gets the rows before a time, and no others until its state was
    compared.
    """

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._settings = cluster.settings
        path = folder / "reference.py"
        path.write_text(spec_of("reference", "before", "before-sums", 0))
        self._handle = cluster.client.submit(path)
        self._time = datetime.min.replace(tzinfo=UTC)

    def states(self, rows: list[Row], time: datetime) -> dict[str, list[bytes]] | None:
        """What it keeps once its clock is at a time. Its rows come in the order of time, so none is late."""
        more = [row for row in rows if self._time <= at_of(row) < time]
        write(self._settings, "before", sorted(more, key=at_of))
        fence(self._settings, "before", time)
        self._time = time
        until(lambda: clock_of(self._handle) >= micros(time), what="the job beside it", timeout=2 * PATIENCE)
        return states_of(self._handle)


def micros(time: datetime) -> int:
    return round(time.timestamp() * 1e6)


class RollbackRun:
    """One run.

    Args:
        seed: decides what dies, when, and how far back the job goes. When exactly a process dies is also decided by the machine.
        rollbacks: how many.
        peers: daemons.
        folder: for logs and data.
    """

    def __init__(self, seed: int, rollbacks: int, peers: int, folder: Path) -> None:
        self._rng = random.Random(seed)
        self._rollbacks, self._peers, self._folder = rollbacks, peers, folder
        self._rows: list[Row] = []
        self._over = threading.Event()
        self._busy = threading.Lock()
        self.told = Told()

    def run(self) -> Told:
        with Cluster(self._folder, peers=self._peers, coordinators=2, virtual=4, proxied=False) as cluster:
            for topic, partitions in (("given", PARTITIONS), ("before", PARTITIONS), ("sums", 2), ("before-sums", 2)):
                topics.create(cluster.settings, topic, partitions)
            path = self._folder / "job.py"
            path.write_text(spec_of("rolled", "given", "sums"))
            handle = cluster.client.submit(path)
            reference = Reference(cluster, self._folder)
            replays = Replays(cluster, random.Random(self._rng.random()), self._rows)
            replays.goes_on(handle, START)
            threads = [threading.Thread(target=each, args=(cluster,), daemon=True) for each in (self._feed, self._kill)]
            for thread in threads:
                thread.start()
            times = [START]
            try:
                while self.told.rollbacks < self._rollbacks and not self.told.wrong:
                    self._await_checkpoints(handle, times[-1])
                    begun = replays.begin()
                    handle, time = self._roll_back(cluster, handle, times[-1], reference)
                    if time != times[-1]:
                        times.append(time)
                        replays.goes_on(handle, time)
                    if begun is not None:
                        self.told.wrong += replays.wrong(begun)
            finally:
                self._over.set()
                for thread in threads:
                    thread.join()
            self._end(cluster, handle, times)
            self.told.replays = replays
        return self.told

    # What goes in, and who dies

    def _feed(self, cluster: Cluster) -> None:
        rng = random.Random(self._rng.random())
        while not self._over.is_set():
            rows = [row_of(len(self._rows) + n, rng) for n in range(PACE)]
            self._rows += rows
            write(cluster.settings, "given", rows)
            self._over.wait(1.0)

    def _kill(self, cluster: Cluster) -> None:
        rng = random.Random(self._rng.random())
        while not self._over.wait(rng.uniform(*BETWEEN)):
            with self._busy:
                seat = rng.choice([*cluster.peers, *cluster.coordinators])
                if seat.process is not None and not seat.process.gone:
                    seat.process.send(signal.SIGKILL)
                    self.told.kills[seat.kind] += 1
            cluster.mend()

    # Back, and forth

    def _await_checkpoints(self, handle: JobHandle, since: datetime) -> None:
        until(lambda: len(self._kept(handle, since)) >= 3, what="checkpoints to go back to", timeout=2 * PATIENCE)

    def _kept(self, handle: JobHandle, since: datetime) -> list[datetime]:
        """The checkpoints after a time."""
        with contextlib.suppress(SardonyxError):  # of a moment without links, or without a leader
            return [time for time in handle.checkpoints().times if time > since]
        return []

    def _roll_back(
        self, cluster: Cluster, handle: JobHandle, since: datetime, reference: Reference
    ) -> tuple[JobHandle, datetime]:
        """One rollback, to one of the last checkpoints after that of the one before."""
        wanted = self._rng.choice(self._kept(handle, since)[-3:] or [since])
        found = states_of(handle, wanted)
        if found is None:  # it has been thinned out meanwhile
            return handle, since
        self._compare(f"the state at {wanted}", found["keep"], wanted)
        self._same(wanted, found, reference.states(list(self._rows), wanted))
        step = self._rng.choice(STEPS)
        cluster.failpoints.arm(step, "kill")
        began = now()
        into = self._gone_back(cluster, handle, wanted)
        self.told.took.append(now() - began)
        cluster.failpoints.disarm(step)
        cluster.mend()
        if into is None:
            return handle, since
        self.told.rollbacks += 1
        note = into.sought()
        assert note is not None
        assert note.resumes_at is not None
        time = datetime.fromtimestamp(note.resumes_at / 1e6, UTC)
        sys.stderr.write(f"rolled back to {time:%H:%M}, {step}\n")
        return into, time

    def _gone_back(self, cluster: Cluster, handle: JobHandle, time: datetime) -> JobHandle | None:
        """The job that goes on; None: the checkpoint is not kept any more, and nothing was done."""
        try:
            return handle.rollback(time, 2 * PATIENCE)
        except JobFailed:  # it was thinned out in the last moment, and no earlier one is kept
            return cluster.client.submit(self._folder / "job.py", handle.id, "2100-01-01")
        except SardonyxError as error:
            if error.code != "SX-CHECKPOINT-UNKNOWN":
                raise
            return None

    def _compare(self, what: str, found: list[bytes], before: datetime | None) -> None:
        """The states of keys, as lines of text, must be those of the rows."""
        wanted = kept_of(row for row in list(self._rows) if before is None or at_of(row) < before)
        given = {each["key"][0]: each["states"] for each in map(json.loads, found)}
        for user in wanted.keys() | given.keys():
            own, kept = wanted.get(user, {}), given.get(user, {})
            if own != kept:
                seen, should = (Counter(dict(each.get("seen", []))) for each in (kept, own))
                lack, more = list(should - seen)[:5], list(seen - should)[:5]
                self.told.wrong.append(f"{what}: user {user}: lacks {lack}, has too many {more}")

    def _same(self, time: datetime, found: dict[str, list[bytes]], wanted: dict[str, list[bytes]] | None) -> None:
        """The state at a checkpoint must be that of a run which ended there, byte for byte."""
        for task, lines in (wanted or {}).items():
            if lines != found[task]:
                few, many = (
                    [line[:200] for line in set(one) - set(other)][:3]
                    for one, other in ((lines, found[task]), (found[task], lines))
                )
                self.told.wrong.append(f"the state of {task} at {time}: {many} in place of {few}")
        self.told.states += 1

    # In the end

    def _end(self, cluster: Cluster, handle: JobHandle, times: list[datetime]) -> None:
        """All rows are there, and no process dies any more."""
        cluster.mend()
        last = START + timedelta(seconds=len(self._rows) + 1_000)
        fence(cluster.settings, "given", last)
        target = micros(last - timedelta(seconds=DELAY))
        until(lambda: clock_of(handle) >= target, what="all rows to be worked", timeout=2 * PATIENCE)
        found = states_of(handle)
        assert found is not None
        self._compare("the state in the end", found["keep"], None)
        wanted = windows_of(self._rows)
        until(lambda: len(self._given(cluster)) >= len(wanted), what="all windows")
        self._judge(wanted, self._given(cluster), times)
        handle.kill()

    def _given(self, cluster: Cluster) -> dict[Window, list[int]]:
        found: dict[Window, list[int]] = {}
        for result in results_of(cluster.settings, "sums"):
            found.setdefault(result.window, []).append(result.hits)
        return found

    def _judge(self, wanted: dict[Window, int], given: dict[Window, list[int]], times: list[datetime]) -> None:
        passes = [second_of(time) for time in times]
        self.told.windows, self.told.published = len(wanted), sum(map(len, given.values()))
        for window in wanted.keys() | given.keys():
            hits, most = given.get(window, []), sum(time < window.begin + WINDOW for time in passes)
            if not 1 <= len(hits) <= most or set(hits) != {wanted.get(window)}:
                self.told.wrong.append(
                    f"window {tuple(window)} of {wanted.get(window)} rows came as {hits}, {most} times at most"
                )


def run(seed: int, rollbacks: int, peers: int = 3) -> dict[str, Any]:
    """One run; its logs stay if it is red."""
    folder = Path(tempfile.mkdtemp(prefix="sardonyx-rollback-"))
    sys.stderr.write(f"seed {seed}, {rollbacks} rollbacks\nlogs: {folder}\n")
    told = RollbackRun(seed, rollbacks, peers, folder).run()
    if not told.wrong:
        shutil.rmtree(folder, ignore_errors=True)
    replays = told.replays
    return {
        "seed": seed,
        "rollbacks": told.rollbacks,
        "replays": sum(replays.done.values()) if replays else 0,
        "replayed": {**replays.done, "windows": replays.windows} if replays else {},
        "states_compared": told.states,
        "kills": dict(told.kills),
        "windows": told.windows,
        "published": told.published,
        "rollback_s": spread(told.took),
        "replay_s": spread(replays.took if replays else []),
        "wrong": told.wrong[:10],
    }


__all__ = ["RollbackRun", "run"]
