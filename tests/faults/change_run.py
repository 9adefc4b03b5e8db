"""A job that is changed under load, with a death or a pause at every step: ``make faults SHAPE=change FAULTS=200``.

``FAULTS`` is how many changes there are. With each of them at least one fault comes; see :data:`STEPS`. The job ends, and counts
itself the rows of every queue. Beside that, each record must have come out once, each task must have worked it by one version,
and taps must have what the versions of the task before them have given.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coordinator.history import reader
from sardonyx.client.job_handle import JobHandle
from sardonyx.core.errors import Interrupted, SardonyxError
from sardonyx.core.events import LinksCreated
from sardonyx.zookeeper.errors import ZooKeeperAway
from tests.faults.cluster import Cluster, now
from tests.faults.figures import spread, standstills
from tests.faults.flow import Flow, Verdict
from tests.faults.growing import Growing, Step
from tests.faults.scene import Scene
from tests.faults.shapes import SOURCE, Shape
from tests.faults.sights import Sight
from tests.faults.striking import Striking
from tests.faults.verbs import KINDS, at_failpoint
from tests.waiting import PATIENCE, until

PEERS = 4
VIRTUAL = 4
PART = 0.75
"""Of the records, what goes in while the job is changed, if none of the changes is at a time. Those take more."""
A_CHANGE = 4.0
"""Seconds that a change takes in the mean; for the pace of the records."""

_LEADER = (
    "before-append",
    "after-append",
    "before-effects",
    "after-effects",
    "before-side-effect",
    "after-side-effect",
)
_CHANGE = ("in-create-links", "change-made", "change-fenced", "change-dropping")
_PEER = (
    "offered",
    "opened",
    "read",
    "cut",
    "checked",
    "applied",
    "begin",
    "written",
    "positions",
    "committed",
    "yield",
)

STEPS: dict[str, Callable[[Scene, random.Random], str]] = {
    **{f"kill at {point}": at_failpoint(point, "kill") for point in (*_LEADER, *_CHANGE, *_PEER)},
    **{
        f"stop at {point}": at_failpoint(point, "stop")
        for point in ("opened", "begin", "written", "positions", "change-made")
    },
    **{name: KINDS[name].verb for name in ("kill peer", "kill leader", "stop leader", "expire peer", "expire leader")},
}
"""The faults: at each step of a change, and of the batches that it interrupts."""

_RARE = {
    "kill at in-create-links": "rewires",
    "kill at change-dropping": "drops",
    **dict.fromkeys((f"kill at {point}" for point in ("change-made", "change-fenced")), ""),
    "stop at change-made": "",
    "kill at before-side-effect": "",
    "kill at after-side-effect": "",
}
"""Faults of what a change does in Kafka: some of them only where queues come or go, or where they go."""


class VersionSight(Sight):
    """What comes out, with the versions that have worked it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.rows: dict[int, dict[str, Any]] = {}

    def record(self, place: Any, value: bytes) -> None:
        row = json.loads(value)
        self.rows[row["id"]] = row
        self._note(place, row, row["id"], row["id"])

    def wanted(self, ids: Any) -> set[int]:
        return set(ids)


class ChangeFlow(Flow):
    """The job of such a run."""

    def __init__(self, kafka: str, records: int, folder: Path) -> None:
        super().__init__(kafka, Shape("change", 6, "pass\n"), "change", records, folder, 1.0)
        end = self.feed.end
        self.growing = Growing("change", self.feed.places[0].topic, self._out, end, self.folder)
        self.spec = self.growing.write(self.growing.version)
        self._make([self.growing.taps_out])

    def _new_sight(self) -> Sight:
        return VersionSight(self.shape)

    def wrong_versions(self, moments: list[tuple[int, LinksCreated]]) -> list[str]:
        """What is wrong with the versions of ``work`` and ``steady`` in the results, and with what taps have got.

        Args:
            moments: changes of the queues of ``work``: the version that has taken over, and what the log says about that.
        """
        assert isinstance(self.sight, VersionSight)
        rows = self.sight.rows
        found = self.growing.wrong(rows, (json.loads(value) for _, value in self._all(self.growing.taps_out)))
        numbers: dict[int, list[int]] = {}
        for number in rows:
            numbers.setdefault(number // SOURCE, []).append(number)
        for mine in numbers.values():
            versions = [rows[number]["work"] for number in sorted(mine)]
            if versions != sorted(versions):
                found.append(f"the versions of work go back and forth from {mine[0]} on")
        topic = self.feed.places[0].topic
        for version, event in moments:
            for source, offset in enumerate(event.since.get("work", {}).get(topic, [])):
                for number in numbers.get(source, ()):
                    later = self.feed.offset(number) >= (offset or 0)
                    if later != (rows[number]["work"] >= version):
                        found.append(f"{rows[number]} and the log disagree: version {version} took over at {offset}")
                        break
        return found


class ChangeRun(Striking):
    """One run.

    Args:
        options: seed, faults (how many changes) and records are taken from them.
        folder: for logs, data and results.
    """

    def __init__(self, options: Any, folder: Path) -> None:
        super().__init__(options.seed)
        self._options = options
        self._folder = folder
        self._struck: Counter[str] = Counter()
        self._took: list[float] = []
        self._made: Counter[str] = Counter()
        self._share = 0.0
        self._more = 0
        """How many times as many records as a change has were given besides, so that the clock comes to a time."""

    def run(self) -> dict[str, Any]:
        """Play it; gives what the last line says."""
        options = self._options
        with Cluster(self._folder, peers=PEERS, coordinators=options.coordinators, virtual=VIRTUAL) as cluster:
            self._tell("services, coordinators and peers are up")
            flow = ChangeFlow(cluster.services.kafka, options.records, self._folder)
            scene = Scene(cluster, [flow])
            handle = cluster.client.submit(str(flow.spec))
            helpers = [self._beside(work, scene) for work in (self._feed, self._fill)]
            for helper in helpers:
                helper.start()
            moments: list[tuple[int, LinksCreated]] = []
            try:
                until(lambda: flow.sight.count > 0, what="first records")
                self._tell("the job is going")
                moments = self._changes(scene, flow, handle)
                scene.finishing.set()
                self._tell("the last records go in")
                flow.feed.finish()
                until(lambda: self._ended(handle), what="the job's end", timeout=2 * PATIENCE)
            except (AssertionError, SardonyxError) as error:
                self._wrong(str(error))
            scene.finishing.set()
            scene.ended.set()
            for helper in helpers:
                helper.join()
            verdict = flow.check(whole=not self.trouble)
            wrong = flow.wrong_versions(moments) if not self.trouble else []
            for each in [*flow.wrong, *wrong][:40]:
                self._tell(f"  wrong: {each}")
            stood = standstills(cluster, handle)
            return self._result(verdict, wrong, stood, cluster.started)

    def _changes(self, scene: Scene, flow: ChangeFlow, handle: JobHandle) -> list[tuple[int, LinksCreated]]:
        """All changes, one after the other."""
        growing, total = flow.growing, self._options.faults
        state = reader.present(scene.cluster.client.zk)
        moments: list[tuple[int, LinksCreated]] = []
        for number in range(total):
            step = growing.step(self._rng, number)
            path = growing.write(step.version)
            strikes = [self._strike(scene, kind) for kind in self._kinds(growing, step)]
            self._share = PART * number / total
            began = now()
            at = None
            if step.at_a_time:
                revision, at = self._make_at(flow, handle, step, path)
            else:
                revision = self._make(handle, step, path)
            took = now() - began
            before = growing.version
            growing.done(step, at)
            for strike in strikes:
                strike.join()
            self._ended(handle)
            self._took.append(took)
            self._made[step.what.partition(" ")[0]] += 1
            self._tell(f"change {number + 1}: {step.what}: revision {revision} ({took:.1f} s)")
            created = [
                event for event in self._since(scene, state) if isinstance(event, LinksCreated) and event.revision
            ]
            if (
                created and step.version.work > before.work
            ):  # of a drain, the first change has it only if a tap comes with it
                comes = any(tap not in before.taps for tap in step.version.taps)
                moments.append((step.version.work, created[0 if comes or not step.drain else -1]))
            if self.trouble:
                break
        return moments

    def _since(self, scene: Scene, state: Any) -> list[Any]:
        while True:
            with contextlib.suppress(ZooKeeperAway):
                return reader.advance(scene.cluster.client.zk, state)

    def _make_at(self, flow: ChangeFlow, handle: JobHandle, step: Step, path: Path) -> tuple[int, int]:
        """Have a job changed at a time of its rows; gives the revision and the time. If the job has come there before the change
        is made, at a later one.

        The time is beyond all records that are given before the change is accepted, however long that takes.
        """
        part = flow.feed.end * PART / self._options.faults
        while True:
            given = flow.feed.end * self._share + part * (self._more + 1)
            at = max(*flow.feed.sent, math.ceil(given)) + math.ceil(part / 2)
            try:
                return self._make(handle, step, path, datetime.fromtimestamp(at / 1_000, UTC)), at
            except SardonyxError as error:
                if error.code != "SX-JOB-CHANGE-PASSED":
                    raise
                self._tell(f"  {step.what}: again: {error.message}")

    def _make(self, handle: JobHandle, step: Step, path: Path, at: datetime | None = None) -> int:
        """Have a job changed, whatever else goes wrong, as a user who gives the same command again."""
        made: list[int] = []
        more = self._more

        def change() -> bool:
            try:
                made.append(handle.change(path, "5 s", drop=step.drop, drain=step.drain, at=at))
            except Interrupted as error:
                if at is not None and error.code == "SX-JOB-CHANGE-PENDING" and self._more == more:
                    self._more += 1  # it is accepted, so the records may go on beyond that time
                return False
            except SardonyxError as error:
                if error.code not in ("SX-JOB-CHANGE-NOW", "SX-JOB-CHANGE-RIVAL", "SX-ZK-AWAY"):
                    raise
                return False
            return True

        until(change, what=f"the change: {step.what}", timeout=2 * PATIENCE)
        return made[0]

    def _kinds(self, growing: Growing, step: Step) -> list[str]:
        """One fault, or two: what did not strike before comes first, and then what came least often."""
        names = {task for task in (growing.version.middle, step.version.middle) if task}
        rewires = step.version.taps != growing.version.taps or step.version.middle != growing.version.middle
        goes = any(tap not in step.version.taps for tap in growing.version.taps)
        drops = bool(step.drop or step.drain or goes or len(names) > 1)
        able = [
            kind
            for kind in STEPS
            if (_RARE.get(kind) != "rewires" or rewires) and (_RARE.get(kind) != "drops" or drops)
        ]
        self._rng.shuffle(able)
        with self._lock:
            able.sort(key=lambda kind: (self._struck[kind], kind not in self._missed))
        return able[: 1 + (self._rng.random() < 0.3)]

    def _strike(self, scene: Scene, kind: str) -> threading.Thread:
        def verb(rng: random.Random) -> str:
            scene.hold(rng.choice([0.0, 0.0, 0.3, 0.8]) if kind not in _RARE else 0.0)
            return STEPS[kind](scene, rng)

        def struck(whom: str, _began: float) -> None:
            with self._lock:
                self._struck[kind] += 1
            self._tell(f"  {kind}: {whom}")

        return self._striking(kind, verb, struck)

    # Beside the changes

    def _feed(self, scene: Scene) -> None:
        """Records go in all the time, those of a change within the time that it takes."""
        share, since = (-1.0, 0), now()
        while not scene.finishing.wait(0.1):
            if (self._share, self._more) != share:
                share, since = (self._share, self._more), now()
            with scene.feeding:
                part = PART / self._options.faults * (self._more + min(1.0, (now() - since) / A_CHANGE))
                scene.flows[0].step(self._share + part)

    def _fill(self, scene: Scene) -> None:
        while not scene.ended.wait(1.0):
            scene.cluster.mend()

    def _ended(self, handle: JobHandle) -> bool:
        """Whether the job has completed. Raises if it has failed, or is suspended since it failed after a change."""
        try:
            view = handle.status(live=False)
        except SardonyxError:
            return False
        if view.status == "failed" or (view.status == "running" and view.error is not None):
            raise AssertionError(f"{handle.id} has failed: {view.error}")
        return view.status == "completed"

    def _result(
        self, verdict: Verdict, wrong: list[str], stood: dict[str, list[float]], processes: int
    ) -> dict[str, Any]:
        return {
            "records_in": verdict["in"],
            "records_out": verdict["out"],
            "lost": verdict["lost"],
            "doubled": verdict["doubled"],
            "out_of_order": 0,
            "wrong_windows": 0,
            "zombie_commits": 0,
            "wrong_versions": len(wrong),
            "changes": dict(sorted(self._made.items())),
            "faults": dict(sorted(self._struck.items())),
            "not_struck": sorted(set(STEPS) - {kind for kind, count in self._struck.items() if count}),
            "change_s": spread(self._took),
            "standstill_s": {which: spread(found) for which, found in stood.items()},
            "processes": processes,
            "seed": self._options.seed,
            "shapes": ["change"],
            "trouble": [*self.trouble, *wrong[:5]],
            "seconds": round(now() - self._began, 1),
        }


__all__ = ["ChangeRun"]
