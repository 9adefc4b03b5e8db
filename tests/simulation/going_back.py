"""Histories of jobs that follow each other: a user has one go back to a checkpoint, or stop and another one go on from there.

What carries that out is the product's own: the coordinator with its decisions, and the peers, which begin with the states of the
job before. The user looks, before a rollback, at the checkpoints that there are, as the client does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from msgspec.structs import replace

import sardonyx.state.log
from coordinator.core.state import Job
from peer.window_split import _checksums
from sardonyx.core.errors import SetupError
from sardonyx.core.events import JobRestarted, JobRolledBack, JobStopped, JobSubmitted, LastCommits
from sardonyx.core.going_back import end_of, points_of
from sardonyx.core.graph import Stage, graph_of
from sardonyx.core.positions import first_clock, of_inputs, total
from sardonyx.core.spec import JobSpec
from sardonyx.state.combine import keys_of
from tests.simulation.chain_oracle import ChainOracle
from tests.simulation.engine import SimRuntime
from tests.simulation.plan import Fault, Plan, Tally
from tests.simulation.time_oracle import Window
from tests.simulation.timed import TimedKafka, TimedWorld

ANY_TIME = 2**62
"""The last checkpoint of all is meant."""


class GoingBackKafka(TimedKafka):
    """What coordinators do on the broker for jobs that others go on from."""

    def read(self, runtime: SimRuntime, job: str, spec: JobSpec) -> LastCommits:
        """What the groups had committed last, once no member can commit any more."""
        runtime.sleep(self.sim.rng.random() * 0.05)
        self._fail_now_and_then()
        graph = graph_of(spec, "sim", job)
        groups = {stage.name: self.group(stage, job) for stage in graph.stages}
        for group in groups.values():
            group.look()
            if group.members:
                raise SetupError("SX-SIMULATED-BUSY", f"{group.name} has members")
        while any(group.unstable(group.partitions) for group in groups.values()):
            runtime.sleep(0.05)
        held = {name: group.positions() for name, group in groups.items()}
        return LastCommits(
            {name: total(found.values()) for name, found in held.items()},
            {stage.name: found for stage in graph.stages if (found := of_inputs(stage, held[stage.name]))},
            checkpoints=points_of(graph, held),
            end=end_of(graph, held),
        )

    def forget(self, runtime: SimRuntime, jobs: Collection[str]) -> None:
        """The logs of states of jobs that are forgotten go, too."""
        super().forget(runtime, jobs)
        self._delete_states(jobs)

    def drop_states(self, job: str) -> None:
        self.without_states.add(job)
        self._delete_states([job])

    def _delete_states(self, jobs: Collection[str]) -> None:
        topics = {
            link.topic for job in jobs if job in self.graphs for link in self.graphs[job].links if link.kind == "state"
        }
        for place, log in self.broker.logs.items():
            if place.topic in topics:
                log.delete_before(log.end)


class GoingBackWorld(TimedWorld):
    """One history of such jobs."""

    kafka: GoingBackKafka
    oracle: ChainOracle

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.asked: dict[str, str] = {}
        """By the id of a job that a user has asked for, the one that it is to go on from."""
        self.wanted: dict[str, int] = {}
        """By the id of such a job, the time of the checkpoint that it is to begin with, or a later one."""
        self.ending = False

    def tally(self) -> Tally:
        legs = [leg for leg in self.oracle.legs.values() if leg.before]
        back = sum(leg.at is not None for leg in legs)
        return replace(super().tally(), rollbacks=back, restarts=len(legs) - back)

    def begun(self, stage: Stage, number: int) -> tuple[Counter[Window], int, int | None]:
        """What the job before had counted of the keys of this shard, by the time from which the job goes on."""
        link = stage.ingress[0]
        leg = self.oracle.legs[self.oracle.job_of(link)]
        facts = leg.facts[link.name]
        before = self.oracle.base(leg, stage.name).counts
        own = Counter({w: n for w, n in before.items() if partition_of(w[0], facts.partitions) == number})
        return own, first_clock(facts, number).value, self.oracle.since(leg)

    def _make_kafka(self) -> GoingBackKafka:
        return GoingBackKafka(self.sim)

    def _make_oracle(self) -> ChainOracle:
        return ChainOracle(self.zookeeper, self.kafka, self)

    def _instrumented(self) -> Any:
        stack = ExitStack()
        stack.enter_context(super()._instrumented())
        # The state of the job before comes into a log of its own little by little, so peers die meanwhile.
        stack.enter_context(patch.object(sardonyx.state.log, "MOVED", 1))
        return stack

    # The user

    def latest(self) -> str:
        """The job that went on last."""
        return next(reversed(self.oracle.legs), self.plan.jobs[0].job)

    def _job_of(self, fault: Fault) -> str:
        del fault
        return self.latest()

    def _going_on(self, fault: Fault | None = None) -> Job | None:
        """The latest job, if it runs and no user has asked for another one. Otherwise the user tries again in a moment."""
        job = self.oracle.state.jobs.get(self.latest())
        if job is not None and job.status == "running" and not job.stopping:
            return job
        if fault is not None:
            self._again_soon(fault)
        return None

    def _again_soon(self, fault: Fault) -> None:
        if not self.settling:
            self.sim.at(0.3, partial(self._fault, fault))

    def _into(self) -> str:
        """A job that is to go on from the latest one."""
        name = f"j-{len(self.asked) + 1}"
        self.asked[name] = self.latest()
        return name

    def _restart(self, fault: Fault) -> None:
        """With another number of partitions perhaps."""
        known, job = self._going_on(fault), self.latest()
        if known is not None:
            spec = replace(known.spec, partitions=1 + fault.count % 3)
            self._ask(JobRestarted(job=job, into=self._into(), spec=spec, revision=known.revision))

    def _rollback(self, fault: Fault) -> None:
        """To one of the last two checkpoints that there are; the user waits for the first one."""
        known, job = self._going_on(fault), self.latest()
        if known is None:
            return
        graph = self.kafka.graphs[job]
        points = points_of(graph, {stage.name: self.kafka.group(stage, job).positions() for stage in graph.stages})
        if points:
            point = points[-2:][fault.count % 2 % len(points)]
            into = self._into()
            self.wanted[into] = point.at
            self._ask(JobRolledBack(job=job, into=into, to=point.at))
        else:
            self._again_soon(fault)

    def _stop_rest(self) -> None:
        self.ending = True
        self._resume_what_failed()

    def _resume_what_failed(self) -> None:
        """A job is submitted again that was refused since its checkpoint had gone. In the end the last one is stopped, and its
        windows close.
        """
        super()._resume_what_failed()
        for name, before in list(self.asked.items()):
            job = self.oracle.state.jobs.get(name)
            if job is not None and job.refused and before == self.latest():
                self.asked[name] = ""
                again = self._into()
                self.wanted[again] = ANY_TIME
                self._ask(JobSubmitted(job=again, spec=job.spec, resumes=before, resumes_at=ANY_TIME))
        if self.ending and self._going_on() is not None:
            self._ask(JobStopped(job=self.latest(), closes=True))


def partition_of(key: str, partitions: int) -> int:
    """The partition of a link that rows of a key go to."""
    _, keys = keys_of(pa.table({"k": [key]}), ["k"])
    return int(_checksums(keys)[0]) % partitions
