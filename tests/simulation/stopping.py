"""Histories of a job with clocks that has no end: a user stops it, and its windows close.

The stop comes when all rows are read, and most are still on their way: in a loop, or in queues with bounds. Half of the users
have suspended the job right before. What must be true then is what must be true of a job that ends by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sardonyx.core.events import JobScaled, JobStatus, JobStopped
from sardonyx.core.positions import Partition
from tests.simulation.time_oracle import TimeOracle
from tests.simulation.timed import TimedWorld


class StoppingOracle(TimeOracle):
    """Watches over a history of such a job."""

    ends: JobStatus = "stopped"

    def left_over(self, world: Any) -> list[str]:
        """Its user waits until all rows have come, and are read."""
        del world
        late = self.kafka.sim.now < max(row.comes for row in self._world.rows)
        return [*self._unread(), *(["rows are still to come"] if late else [])]

    def _unread(self) -> Iterator[str]:
        for submitted in self._world.plan.jobs:
            job = self.state.jobs.get(submitted.job)
            if job is None or job.status == "planning":
                yield f"{submitted.job} does not run yet"
                continue
            for stage in self.kafka.graphs[submitted.job].stages:
                for place, position in self.kafka.group(stage, submitted.job).positions().items():
                    if place.topic == "rows" and (position is None or position.offset < self._end(place)):
                        yield f"{place} is not read"

    def _end(self, place: Partition) -> int:
        return self.kafka.broker.logs[place].end


class StoppingWorld(TimedWorld):
    """One history of such a job."""

    def _make_oracle(self) -> StoppingOracle:
        return StoppingOracle(self.zookeeper, self.kafka, self)

    def _stop_rest(self) -> None:
        stop = JobStopped(job=self.plan.jobs[0].job, closes=True)
        if self.sim.rng.random() < 0.5:
            self._ask(stop)
            return
        self._ask(JobScaled(job=stop.job, suspended=True))
        self.sim.at(self.sim.rng.uniform(0.05, 3.0), lambda: self._ask(stop))
