"""Jobs on real services under seeded faults: ``python -m tests.faults.harness --seed 7 --faults 40 --shape all``.

The last line is one JSON object; the exit code is 1 if a record was lost, doubled or out of order. Above it stand the seed
and each fault, so that a red run can be had again.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from sardonyx.core import node_paths
from sardonyx.core.notes import JobNote
from sardonyx.zookeeper.errors import ZooKeeperAway
from tests.faults import rollback
from tests.faults.change_run import ChangeRun
from tests.faults.cluster import SESSION, Cluster, now
from tests.faults.disk import can_mount
from tests.faults.figures import spread, takeovers, zombie_commits
from tests.faults.flow import Flow, Verdict
from tests.faults.scene import Scene
from tests.faults.shapes import AT_A_TIME, SHAPES
from tests.faults.striking import Striking
from tests.faults.verbs import FAMILIES, KINDS
from tests.waiting import PATIENCE, until

FRUITLESS = 3
"""Rounds one after the other in which nothing struck; after these no more is tried."""
CHANGE = "change"
"""The shape of a job that is changed all the time, which has runs of its own (:mod:`tests.faults.change_run`)."""
LANES = 3
"""Faults at a time, at most."""
GRAPHS = "graph", "superstep"
"""Families of faults that can strike a graph several times."""
VOTES = "kill at vote", "kill at voted"
"""Strike where one task passes records to another: a job of one task has no votes."""
GAP = 0.4, 1.6
"""Seconds between the beginnings of two."""
PER_SUPERSTEP = 15
"""Seconds that a job may end later for each fault in a superstep: they come one after the other."""
ESTIMATE = 3.0
"""Seconds that a fault takes in the mean; for the pace of made-up records."""


@dataclass
class Options:
    """What is asked for."""

    seed: int = 7
    faults: int = 40
    shapes: tuple[str, ...] = tuple(SHAPES)
    store: str = "memory"
    """Where the state of tasks is at hand."""
    records: int = 40_000
    peers: int = 4
    coordinators: int = 2
    spark: int = 0
    families: tuple[str, ...] = FAMILIES
    lanes: int = LANES
    servers: int = 1


class Broken(Exception):
    """A job has failed, which none may."""


@dataclass
class Fault:
    """One that has struck."""

    kind: str
    whom: str
    began: float
    ended: float
    marks: list[tuple[Flow, int, int]] = field(default_factory=list)
    """(job, source, record): once each of these records has come out, all is going again."""
    counts: list[tuple[Flow, int]] = field(default_factory=list)
    commit: float | None = None
    """Seconds from its end to the next record that came out anywhere."""
    recovered: float | None = None
    """Seconds from its end until from every source a record had come out that was fed after it."""


class Run(Striking):
    """One fault run.

    Args:
        options: what is asked for.
        folder: for logs, data and results.
    """

    def __init__(self, options: Options, folder: Path) -> None:
        super().__init__(options.seed)
        self._options = options
        self._folder = folder
        self.faults: list[Fault] = []
        self._share = 0.0
        self._stale: list[tuple[str, float]] = []

    def run(self) -> dict[str, Any]:
        """Play it; gives what the last line says."""
        options = self._options
        verdict: Counter[str] = Verdict()
        # One daemon may be gone, and all have their places.
        virtual = math.ceil(
            AT_A_TIME * sum(SHAPES[shape].stages for shape in options.shapes) / max(1, options.peers - 1)
        )
        with Cluster(
            self._folder,
            peers=options.peers,
            coordinators=options.coordinators,
            virtual=virtual,
            spark=options.spark,
            servers=options.servers,
        ) as cluster:
            self._tell("services, coordinators and peers are up")
            number = fruitless = 0
            while not number or len(self.faults) < options.faults:
                before = len(self.faults)
                self._round(cluster, number, options.faults - before, verdict)
                number += 1
                fruitless = 0 if len(self.faults) > before else fruitless + 1
                if self.trouble or fruitless == FRUITLESS:
                    break
            self._all_struck()
            calm, amid = takeovers(cluster)
            told = {
                "zombie_commits": zombie_commits(cluster, self._stale),
                "takeover_s": spread(calm),
                "takeover_amid_leaving_s": spread(amid),
                "processes": cluster.started,
                "jobs": number * len(options.shapes),
            }
        return self._result(verdict, told)

    def _round(self, cluster: Cluster, number: int, missing: int, verdict: Counter[str]) -> None:
        """One job of each shape, begun and ended, with what is missing of the faults in between."""
        options = self._options
        plan = self._plan(missing)
        seconds = max(10.0, ESTIMATE * missing)
        records = max(options.records // len(options.shapes), 400)
        disk = cluster.disk and cluster.disk.path
        flows = [
            Flow(cluster.services.kafka, shape, f"{shape.name}{number}", records, self._folder, seconds, disk)
            for shape in (replace(SHAPES[name], store=options.store) for name in options.shapes)
        ]
        scene = Scene(cluster, flows)
        self._share = 0.0
        helpers = [self._beside(work, scene) for work in (self._feed, self._look)]
        strikes = [self._strike(scene, kind) for kind in plan["begin"]]
        jobs = {flow: cluster.client.submit(str(flow.spec)).id for flow in flows}
        for helper in helpers:
            helper.start()
        try:
            self._until(
                cluster,
                jobs,
                lambda: all(flow.sight.count or flow.shape.late for flow in flows),
                "first records of every job",
                PATIENCE,
            )
            self._tell("every job is going")
            strikes += self._faults(scene, plan["run"])
            for strike in strikes:
                strike.join()
            scene.finishing.set()
            strikes = [self._strike(scene, kind) for kind in plan["end"]]
            self._tell("the last records go in")
            for flow in flows:
                flow.feed.finish()
            patience = 2 * PATIENCE + PER_SUPERSTEP * sum(KINDS[name].family == "superstep" for name in plan["end"])
            self._until(cluster, jobs, lambda: self._all_completed(cluster, jobs), "the jobs' ends", patience)
        except (AssertionError, Broken) as error:
            self._wrong(str(error))
        scene.finishing.set()
        scene.ended.set()
        for thread in (*strikes, *helpers):
            thread.join()
        self._stale += scene.stale
        for flow, job in jobs.items():
            found = flow.check(whole=not self.trouble)
            verdict.update(found)
            self._tell(f"{job}: {dict(found)}")
            for wrong in flow.wrong[:20]:
                self._tell(f"  wrong in {job}: {wrong}")

    def _all_struck(self) -> None:
        """A run in which less struck than was asked for proves nothing of what did not, and is no good one."""
        if len(self.faults) < self._options.faults:
            missed = ", ".join(sorted(self._missed)) or "none of those that were tried"
            self._wrong(f"{len(self.faults)} of {self._options.faults} faults struck; not struck: {missed}")

    def _plan(self, count: int) -> dict[str, list[str]]:
        """So many kinds of fault, by the phase that they strike in: what was planned before and did not strike, then each once
        before any comes twice, in an order of chance.
        """
        options, rng = self._options, self._rng
        possible = [
            name
            for name, kind in KINDS.items()
            if kind.family in options.families
            and kind.servers <= options.servers
            and (name != "kill spark" or options.spark)
            and (name != "kill at split" or "made" in options.shapes)
            and (name != "zombie upstream" or any(SHAPES[shape].inputs for shape in options.shapes))
            and (name not in VOTES or any(SHAPES[shape].stages > 1 for shape in options.shapes))
            and (kind.family != "files" or "files" in options.shapes)
            and (kind.family != "graph" or any(SHAPES[shape].late for shape in options.shapes))
            and (kind.family != "superstep" or any(SHAPES[shape].shared for shape in options.shapes))
            and (kind.family != "loop" or any(SHAPES[shape].loops for shape in options.shapes))
            and (name != "full disk" or (can_mount() and any(SHAPES[shape].files for shape in options.shapes)))
        ]
        if not possible:
            raise Broken(f"no fault of {', '.join(options.families)} can strike shapes {', '.join(options.shapes)}")
        chosen, self._missed = self._missed[:count], self._missed[count:]
        again = [name for name in possible if name not in chosen]
        while len(chosen) < count and again:
            chosen += rng.sample(again, len(again))[: count - len(chosen)]
            # who goes on with a graph computes and gives, too, and can be killed there again
            again = [name for name in possible if KINDS[name].phase == "run" or KINDS[name].family in GRAPHS]
        return {phase: [name for name in chosen if KINDS[name].phase == phase] for phase in ("begin", "run", "end")}

    def _faults(self, scene: Scene, plan: list[str]) -> list[threading.Thread]:
        strikes: list[threading.Thread] = []
        for number, kind in enumerate(plan):
            until(
                lambda: sum(s.is_alive() for s in strikes) < self._options.lanes,
                what="a fault's end",
                timeout=2 * PATIENCE,
            )
            self._share = 0.9 * number / len(plan)
            strikes.append(self._strike(scene, kind))
            if self._options.lanes == 1:
                strikes[-1].join()
                self._got_over(kind)
            scene.hold(self._rng.uniform(*GAP))
        return strikes

    def _got_over(self, kind: str) -> None:
        def over() -> bool:
            return all(fault.recovered is not None or not fault.marks for fault in self.faults)

        until(over, what=f"{kind} to be got over")

    def _strike(self, scene: Scene, kind: str) -> threading.Thread:
        def struck(whom: str, began: float) -> None:
            fault = Fault(kind, whom, began, now())
            if not scene.finishing.is_set() and KINDS[kind].phase == "run":
                going = [flow for flow in scene.flows if not flow.shape.late]
                fault.marks = [(f, source, sent) for f in going for source, sent in enumerate(f.feed.sent)]
                fault.counts = [(flow, flow.sight.count) for flow in going]
            with self._lock:
                self.faults.append(fault)
            self._tell(f"fault {len(self.faults)}: {kind}: {whom} ({fault.ended - fault.began:.1f} s)")

        return self._striking(kind, lambda rng: KINDS[kind].verb(scene, rng), struck)

    # Beside the faults

    def _feed(self, scene: Scene) -> None:
        while not scene.finishing.wait(0.1):
            with scene.feeding:
                for flow in scene.flows:
                    flow.step(self._share)

    def _look(self, scene: Scene) -> None:
        """When each fault was got over; and seats that have become free for whatever reason are filled."""
        looked = now()
        while not scene.ended.wait(0.02):
            with self._lock:
                waiting = [fault for fault in self.faults if fault.recovered is None and fault.marks]
            for fault in waiting:
                if fault.commit is None and any(flow.sight.count > count for flow, count in fault.counts):
                    fault.commit = now() - max(fault.ended, scene.up)
                if all(flow.sight.through.get(source, -1) >= mark for flow, source, mark in fault.marks):
                    fault.recovered = now() - max(fault.ended, scene.up)
            if now() - looked > 1:
                looked = now()
                scene.cluster.mend()

    def _until(
        self, cluster: Cluster, jobs: dict[Flow, str], condition: Callable[[], bool], what: str, timeout: float
    ) -> None:
        """Wait, unless a job fails."""

        def looked() -> bool:
            for job in jobs.values():
                self._status(cluster, job)
            return condition()

        until(looked, what=what, timeout=timeout)

    def _all_completed(self, cluster: Cluster, jobs: dict[Flow, str]) -> bool:
        return all(self._status(cluster, job) == "completed" for job in jobs.values())

    def _status(self, cluster: Cluster, job: str) -> str:
        """Raises Broken if the job has failed."""
        try:
            data = cluster.client.zk.read(node_paths.job_status(job))
        except ZooKeeperAway:
            return ""
        note = msgspec.json.decode(data, type=JobNote) if data else None
        if note is not None and note.status == "failed":
            raise Broken(f"{job} has failed: {note.error}")
        return note.status if note else ""

    # The report

    def _result(self, verdict: Counter[str], told: dict[str, Any]) -> dict[str, Any]:
        recovered = [fault.recovered for fault in self.faults if fault.recovered is not None]
        commits = [fault.commit for fault in self.faults if fault.commit is not None]
        return {
            "records_in": verdict["in"],
            "records_out": verdict["out"],
            "lost": verdict["lost"],
            "doubled": verdict["doubled"],
            "out_of_order": verdict["out_of_order"],
            "wrong_windows": verdict["wrong_windows"],
            "faults": dict(sorted(Counter(fault.kind for fault in self.faults).items())),
            "recover_s": spread(recovered),
            "seed": self._options.seed,
            "recover_by_kind": self._by_kind() if self._options.lanes == 1 else {},
            "next_commit_s": spread(commits),
            "stopped_past_every_timeout": len(self._stale),
            **told,
            "shapes": list(self._options.shapes),
            "store": self._options.store,
            "trouble": self.trouble,
            "seconds": round(now() - self._began, 1),
        }

    def _by_kind(self) -> dict[str, dict[str, float | int]]:
        """Of faults one after the other: each is got over before the next."""
        times: dict[str, list[float]] = {}
        for fault in self.faults:
            if fault.recovered is not None:
                times.setdefault(fault.kind, []).append(fault.recovered)
        return {kind: spread(found) for kind, found in sorted(times.items())}


def good(result: dict[str, Any]) -> bool:
    """Whether everything is exactly as promised."""
    wrong = ("lost", "doubled", "out_of_order", "wrong_windows", "zombie_commits")
    return not any(result[key] for key in wrong) and not result["trouble"]


def run(options: Options) -> dict[str, Any]:
    """One fault run; its logs stay if it is red."""
    folder = Path(tempfile.mkdtemp(prefix="sardonyx-faults-"))
    sys.stderr.write(f"seed {options.seed}: {options}\nlogs: {folder}\n")
    result = (ChangeRun if options.shapes == (CHANGE,) else Run)(options, folder).run()
    if good(result):
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
    return result


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--faults", type=int, default=Options.faults)
    parser.add_argument("--shape", default="all", help=f"all, some of {','.join(SHAPES)}; {CHANGE} or rollback alone")
    parser.add_argument("--store", choices=("memory", "rocksdb", "sql"), default=Options.store)
    parser.add_argument("--records", type=int, default=Options.records, help="over all shapes")
    parser.add_argument("--peers", type=int, default=Options.peers)
    parser.add_argument("--coordinators", type=int, default=Options.coordinators)
    parser.add_argument("--spark", type=int, default=0, help="how many of the peers run Spark")
    parser.add_argument("--kinds", default="all", help=f"all, or some of {','.join(FAMILIES)}")
    parser.add_argument("--lanes", type=int, default=LANES, help="faults at a time; 1 waits for recovery")
    parser.add_argument("--cluster", type=int, default=1, help="servers of ZooKeeper, and of Kafka")
    given = parser.parse_args()
    if given.shape == "rollback":
        told = rollback.run(given.seed, given.faults, given.peers)
        sys.stdout.write(json.dumps(told) + "\n")
        return 1 if told["wrong"] else 0
    shapes = "all" if given.shape == CHANGE else given.shape
    for what, words, known in (("--shape", shapes, SHAPES), ("--kinds", given.kinds, FAMILIES)):
        unknown = set(words.split(",")) - {"all", *known}
        if unknown:
            parser.error(f"{what}: there is no {', '.join(sorted(unknown))}; all, or some of {','.join(known)}")
    options = Options(
        seed=given.seed,
        faults=given.faults,
        store=given.store,
        shapes=tuple(SHAPES) if given.shape == "all" else tuple(given.shape.split(",")),
        records=given.records,
        peers=given.peers,
        coordinators=given.coordinators,
        spark=given.spark,
        families=FAMILIES if given.kinds == "all" else tuple(given.kinds.split(",")),
        lanes=given.lanes,
        servers=given.cluster,
    )
    result = run(options)
    sys.stdout.write(json.dumps(result) + "\n")
    return 0 if good(result) else 1


if __name__ == "__main__":
    sys.exit(main())


__all__ = ["SESSION", "Fault", "Options", "Run", "good", "run"]
