"""Creates and deletes the topics of a job, fences its slots, and removes what purged jobs leave on Kafka."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

import msgspec
import structlog

from coordinator.loop.side_effects import Needed, Rewired, Since, Trimmed
from queues.admin import create_links, delete_links, held_positions, last_commits, topics, widen_topics
from queues.audit import audit
from queues.confirmed_end import read_all
from queues.dead_letter_topics import forget, letters_left
from queues.losses import audit_differs
from queues.membership import remove_static_member
from queues.renewal import Renewals
from queues.rewired import drop_links, end_transaction, fence_slots
from queues.topic_ids import topic_ids
from queues.trim import trim_links
from sardonyx.connectors.files.rolling import RollingFiles
from sardonyx.connectors.registry import files_output
from sardonyx.core.back_pressure import with_default
from sardonyx.core.changing import changes_queues, rewiring
from sardonyx.core.changing_at import begins_at, passed, readers
from sardonyx.core.errors import InputError, OutputError, SardonyxError, SetupError
from sardonyx.core.events import LastCommits, LinkFacts
from sardonyx.core.graph import Graph, graph_of
from sardonyx.core.resizing import facts_then, left_unread, queues, resized
from sardonyx.core.slot import Slot
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.core.taking_over import begun, carried, offsets
from sardonyx.job.validate import validate
from sardonyx.runtime.background import NotReturned, PatientCalls
from sardonyx.runtime.failpoints import failpoint
from sardonyx.runtime.settings import Settings

log = structlog.get_logger()

_COUNTED = 1_000_000
"""Unread rows that an audit of the leader counts at most. A link with more is left for a later round: its last rows
will not be read soon."""

SETTLES = 60.0
"""Seconds within which the files of an ended job are published or removed, unless their folder does not answer."""
_AGAIN = {"SX-OUTPUT-FULL", "SX-OUTPUT-WRITE", "SX-OUTPUT-AWAY"}
"""Codes of the failures after which files are published later: the topics that list them must not be deleted before."""


class KafkaLinks:
    """The side effects of the coordinator on Kafka; see :class:`coordinator.loop.side_effects.SideEffects`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._renewals = Renewals(settings)
        self._settling = PatientCalls("settle", SETTLES)
        self._read: dict[str, LastCommits] = {}
        """By job, what was read of its groups by attempts to delete its links that failed."""

    def create_links(self, job: str, spec: JobSpec) -> dict[str, LinkFacts]:
        # The client has done so, too, but a request in the inbox may come from any program. The core asks only what no later
        # version may answer differently. What is found here is logged as an event.
        validate(spec, import_functions=False)
        return self._made(graph_of(spec, self._settings.deployment, job), spec)

    def _made(self, graph: Graph, spec: JobSpec) -> dict[str, LinkFacts]:
        """Create the links. Those between two tasks get the default bound of the cluster."""
        links = create_links(self._settings, graph, spec)
        return with_default(graph, links, self._settings.coordinator.max_backlog)

    def topic_ids(self, job: str, spec: JobSpec) -> dict[str, str]:
        graph = graph_of(spec, self._settings.deployment, job)
        return topic_ids(self._settings, {link.topic for link in graph.links if link.kind == "input"})

    def read_links(self, job: str, spec: JobSpec) -> LastCommits:
        return last_commits(self._settings, graph_of(spec, self._settings.deployment, job), job)

    def delete_links(self, job: str, spec: JobSpec, *, keeps_states: bool = True) -> LastCommits:
        graph = graph_of(spec, self._settings.deployment, job)
        # A later reading of a task's group replaces an earlier one. The next attempt may find some groups gone already.
        before, found = self._read.get(job, LastCommits()), last_commits(self._settings, graph, job)
        merged = LastCommits(before.counts | found.counts, before.positions | found.positions)
        self._read[job] = merged
        delete_links(self._settings, graph, job, lambda: self._settled(graph, job), keeps_states=keeps_states)
        # A group that an earlier coordinator deleted, and whose counts no log entry holds, had read records; their letters stay.
        letters = letters_left(self._settings, graph, merged.counts)
        # Last: what raises is tried again, when the groups are gone. Another leadership of this process may delete the same links
        # in another thread, and may have removed the entry.
        self._read.pop(job, None)
        return msgspec.structs.replace(merged, letters=letters)

    def change_links(self, job: str, spec: JobSpec, rewired: Rewired) -> tuple[dict[str, LinkFacts], Since]:
        validate(spec, import_functions=False)
        before, after = (graph_of(each, self._settings.deployment, job) for each in (rewired.before, spec))
        found, resizes = rewiring(before, after), resized(rewired.before, spec)
        links = self._made(after, spec) if changes_queues(before, after, resizes=resizes) else {}
        failpoint("change-made")
        stages = [stage for stage in before.stages if stage.name not in rewired.goes_on]
        fence_slots(self._settings, job, stages, rewired.facts)
        failpoint("change-fenced")
        self._refuse_passed(job, rewired, spec, before)
        beside = {link.topic for link in found.new if link.kind == "input"}
        readers = [stage for stage in before.stages if any(link.topic in beside for link in stage.ingress)]
        held = held_positions(self._settings, [*stages, *(each for each in readers if each not in stages)], job)
        since = {stage.name: offsets(stage, held[stage.name], rewired.facts) for stage in stages}
        if resizes:
            failure = left_unread(job, before, held, rewired.facts)
            if failure is not None:
                raise SardonyxError.from_failure(failure)
            widen_topics(self._settings, {link.topic: spec.partitions for link in queues(after)})
            failpoint("change-widened")
            links = facts_then(after, spec.partitions, links, held, rewired.facts)
        links = begun(found.new, links, before.stages, held, rewired.facts)
        return carried(links, found, held, rewired.facts), since

    def _refuse_passed(self, job: str, rewired: Rewired, new: JobSpec, before: Graph) -> None:
        """Raises SX-JOB-CHANGE-PASSED if a change at a time would come too late. What it parts gets no row by now."""
        begins = begins_at(rewired.before, new)
        if begins is not None:
            sources = readers(before, new)
            failure = passed(job, begins, sources, held_positions(self._settings, sources, job), rewired.facts)
            if failure is not None:
                raise SardonyxError.from_failure(failure)

    def drop_links(self, job: str, spec: JobSpec, rewired: Rewired) -> None:
        graph = graph_of(rewired.before, self._settings.deployment, job)
        found = rewiring(graph, graph_of(spec, self._settings.deployment, job))
        ended = msgspec.structs.replace(graph, stages=found.ended)
        kept = [link.topic for link in found.gone if rewired.lends and link.kind == "state"]
        drop_links(self._settings, job, found, lambda: [*kept, *self._settled(ended, job)])

    def trim_links(self, job: str, spec: JobSpec, needed: Needed) -> Trimmed:
        graph = graph_of(spec, self._settings.deployment, job)
        self._renewals.look(graph, job)
        before, checkpoint = trim_links(self._settings, graph, job, spec, needed)
        return Trimmed(len(before), checkpoint)

    def audit_link(self, job: str, spec: JobSpec, facts: Mapping[str, LinkFacts], link: str) -> InputError | None:
        graph = graph_of(spec, self._settings.deployment, job)
        tally = audit(self._settings, graph, job, facts, {link}, _COUNTED)[link]
        return audit_differs(next(each for each in graph.links if each.name == link), tally)

    def forget(self, jobs: Collection[str]) -> None:
        forget(self._settings, jobs)

    def _settled(self, graph: Graph, job: str) -> list[str]:
        """What :meth:`_settle_files` does, for as long as its folders answer. Few threads work on the links of all jobs, and a
        share that hangs must not take them away from the others.

        Raises:
            OutputError: ``SX-OUTPUT-AWAY``: it has not ended yet, and goes on; the next call waits for it. What else it raises.
        """
        key = job, *(stage.name for stage in graph.stages)
        try:
            return self._settling.call(key, partial(self._settle_files, graph, job))
        except NotReturned as late:
            raise OutputError(
                "SX-OUTPUT-AWAY",
                f"the files that job {job} has left are not all published or removed after {SETTLES:.0f} s",
                cause="a share hangs, or there are very many of them",
                fix="bring the share back, or mount it again; the coordinator waits until then",
                where={"job": job},
            ) from late

    def _settle_files(self, graph: Graph, job: str) -> list[str]:
        """Publish or remove the temporary files that the file outputs of an ended job have left, in folders that this machine can
        see.

        Returns: the topics that still list rows to publish, for which this machine cannot do it.

        Raises:
            OutputError: a folder cannot be written to now, as when its disk is full. Call it again: what is listed is published
                then.
            SetupError: ``SX-KAFKA-UNREACHABLE``.
        """
        kept: list[str] = []
        for stage in graph.stages:
            parts = next((link for link in stage.egress if link.kind == "parts"), None)
            if parts is None or stage.last.connector != "files":
                continue
            try:
                self._settle_task(stage.last, job, parts.topic, bounded=graph.bounded)
            except SetupError:
                raise
            except SardonyxError as error:
                if error.code in _AGAIN:
                    raise
                log.error(
                    "committed_rows_not_published",
                    job=job,
                    task=stage.last.name,
                    topic=parts.topic,
                    code=error.code,
                    error=error.message,
                    fix=error.fix,
                )
                kept.append(parts.topic)
        return kept

    def _settle_task(self, task: TaskSpec, job: str, topic: str, *, bounded: bool) -> None:
        output = files_output(task, job, bounded=bounded)
        # A call that was interrupted, or that of another leader, may have deleted the topic.
        if not (output.unsettled or isinstance(output, RollingFiles)) or topic not in topics(self._settings):
            return
        listed = read_all(self._settings, topic)
        if output.unsettled:
            output.settle(listed)
        elif isinstance(output, RollingFiles) and (count := output.out_of_sight(listed)):
            raise OutputError(
                "SX-OUTPUT-UNSEEN",
                f"{count} staged files of task {task.name} are committed and wait to be published, and the coordinator sees none",
                cause=f"{task.options['path']} is not shared with the coordinator's machine, or not mounted there now",
                fix="let coordinators see the folder; until the job is purged, the topic that the log names lists these files",
                where={"path": task.options["path"]},
            )

    def fence(self, slot: Slot, spec: JobSpec) -> None:
        deployment = self._settings.deployment
        stage = graph_of(spec, deployment, slot.job).stage(slot.task)
        ids = [stage.transactional_id(deployment, slot.job, slot.number)]
        if stage.marks:  # the peer may have left its seal open
            ids.append(stage.sealing_id(deployment, slot.job))
        for transactional_id in ids:
            end_transaction(self._settings, transactional_id)

    def remove_static_member(self, slot: Slot, spec: JobSpec) -> None:
        deployment = self._settings.deployment
        stage = graph_of(spec, deployment, slot.job).stage(slot.task)
        remove_static_member(
            self._settings, stage.group(deployment, slot.job), stage.member(slot.number), stage.ingress
        )
