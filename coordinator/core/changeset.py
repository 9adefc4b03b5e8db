"""The changes of one decision: the operations from which :mod:`coordinator.core.decide` builds it. Pure.

Every change of a state goes through a :class:`ChangeSet`. It keeps each node's note from before the first change. In the end it
returns as effects exactly what differs. The cost depends on what was changed, not on the size of the state.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from coordinator.core.job_changes import JobChanges
from coordinator.core.projection import encode_note
from coordinator.core.state import Task, plan_of
from sardonyx.core import node_paths
from sardonyx.core.changing import numbered, rewiring, taken_back
from sardonyx.core.effects import ChangeLinks, Delete, DropLinks, Set
from sardonyx.core.errors import Failure
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import graph_of
from sardonyx.core.notes import LinksNote
from sardonyx.core.positions import stopped
from sardonyx.core.resizing import awake, queues, resized
from sardonyx.core.spec import JobSpec, encode_spec


class ChangeSet(JobChanges):
    """The changes that one event makes: to peers and jobs, and, here, those by which a running job goes on by another spec."""

    __slots__ = ()

    def change(self, name: str, spec: JobSpec, goes_on: list[str]) -> None:
        """Have the peers of a job leave after their batches, but not those of some tasks; it then goes on by another spec."""
        job = self.job(name)
        job.next_spec, job.goes_on = spec, goes_on
        self.scale(name, {})

    def switch(self, name: str) -> None:
        """Have the tasks fenced that a change touches, on which no peer works, and the queues made that come by it."""
        self.job(name).switching = True
        self._outer.append(ChangeLinks(name))

    def keep_spec(self, name: str) -> None:
        """Go on by the present spec, since the next one cannot be carried out."""
        job = self.job(name)
        job.next_spec, job.goes_on, job.switching = None, [], False
        self.scale(name, {})

    def swap_spec(self, name: str, spec: JobSpec, links: Mapping[str, LinkFacts] | None = None) -> None:
        """Go on by the next spec. No peer works on a task that it touches. ``links``: the facts of all its links; None: no task
        reads or writes other ones than before, and none closes.
        """
        job = self.job(name)
        spec = awake(spec) if job.stopping else spec
        for each, task in job.tasks.items():
            task.taken_up = task.taken_up and each in job.goes_on
        before, job.spec, job.next_spec, job.goes_on, job.switching = job.spec, spec, None, [], False
        job.revision += 1
        if links is None and self.state.rules > 3:
            job.former = job.former or before
        else:
            job.former = None
        if spec != before:  # a stop may have woken it already
            self._made.append(Set(node_paths.job_spec(name), encode_spec(spec)))
        if links is not None and job.facts is not None:
            self._rewire(name, before, links, job.facts)
        self.state.plans[name] = plan_of(self.state, name)
        self._forgive(name)
        shares = ("priority", "weight", "percentage", "max_peers")
        self.scale(name, {each: getattr(spec, each) for each in shares if getattr(spec, each) != getattr(before, each)})
        if job.gone_spec is not None:
            self._outer.append(DropLinks(name))
        if self._all_complete(name):
            self.end(name, "stopped" if job.stopping else "completed")

    def _rewire(
        self, name: str, before: JobSpec, links: Mapping[str, LinkFacts], known: Mapping[str, LinkFacts]
    ) -> None:
        """Give a job the tasks and links of its new spec. What it keeps is as it was. Names of what goes are not used again."""
        job = self.job(name)
        old, new = (graph_of(spec, self.state.deployment, name) for spec in (before, job.spec))
        found = rewiring(old, new)
        facts = {
            link.name: replace(known.get(link.name) or links[link.name], carried=links[link.name].carried)
            for link in new.links
        }
        if resized(before, job.spec):
            facts |= {
                link.name: replace(
                    facts[link.name], partitions=links[link.name].partitions, clocks=links[link.name].clocks
                )
                for link in queues(new)
            }
        job.checkpoints = []  # they are of other tasks
        facts, job.places = numbered(old, new, facts, job.places, job.revision)
        job.facts = stopped(new, facts, closes=job.closes) if job.stopping else facts
        if job.facts != known:
            self._made.append(Set(node_paths.job_links(name), encode_note(LinksNote(job.facts, job.topics))))
        for task_name in found.removed:
            self.set_backing_off(name, task_name, backing_off=False)
            del job.tasks[task_name]
            self._touched.pop(node_paths.job_task(name, task_name), None)
            self._removed.append(Delete(node_paths.job_task(name, task_name)))
        tasks, job.tasks = job.tasks, {}
        for spec in job.spec.catalog:
            job.tasks[spec.name] = tasks.get(spec.name) or self._new_task(name, spec.name)
        for bound, stages in new.bound.items():
            states = {job.tasks[stage].state for stage in stages}
            self._task(name, bound).state = states.pop() if len(states) == 1 else "running"
        if found.gone:
            job.gone_spec = before
            job.retired = [*job.retired, *found.retired]

    def _new_task(self, job: str, name: str) -> Task:
        task = Task(self.n)
        self._touched[node_paths.job_task(job, name)] = (task, None)
        return task

    def _all_complete(self, name: str) -> bool:
        tasks = self.state.jobs[name].tasks
        return all(tasks[stage].state == "complete" for stage in self.state.plans[name].stages)

    def fail(self, name: str, error: Failure | None, *, begun: bool = True) -> None:
        """A job has failed. One that was changed is suspended: its queues and states are kept for the next change. If its peers
        are leaving for a change, the failure is dropped: the next version may do better. If no peer could begin by its present
        spec (``begun`` is false), it goes back to the one before.
        """
        job = self.job(name)
        if job.next_spec is None and job.revision == 1:
            self.end(name, "failed", error)
        elif job.next_spec is None and job.former is not None and not begun:
            self._take_back(name, job.former, error)
        elif job.next_spec is None:
            job.error = error
            self.scale(name, {"suspended": True})

    def _take_back(self, name: str, former: JobSpec, error: Failure | None) -> None:
        """No peer has worked by the present spec. Those that were to begin become idle; the others are on tasks that are the same
        by both.
        """
        job = self.job(name)
        for task in job.tasks.values():
            for peer in self.state.on_task(task):
                if self.state.peers[peer].state == "acking":
                    self.leave(peer, "release")
        revision = job.revision
        self.swap_spec(name, replace(former, keep=job.spec.keep))
        job.former, job.error = None, taken_back(name, revision, error)
