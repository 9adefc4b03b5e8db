"""Creates and deletes the topics of a job, fences its slots, and removes what purged jobs leave on Kafka."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec
import structlog

from queues.admin import create_links, delete_links, last_commits, read_all
from queues.dead_letter_topics import forget, letters_left
from queues.membership import remove_static_member
from queues.transaction import TransactionalWriter
from queues.trim import trim_links
from sardonyx.connectors.registry import files_output
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import LastCommits, LinkFacts
from sardonyx.core.graph import Graph, graph_of
from sardonyx.core.slot import Slot
from sardonyx.core.spec import JobSpec
from sardonyx.job.validate import validate
from sardonyx.runtime.settings import Settings

log = structlog.get_logger()


class KafkaLinks:
    """The side effects of the coordinator on Kafka; see :class:`coordinator.loop.side_effects.SideEffects`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._read: dict[str, LastCommits] = {}
        """By job, what was read of its groups by attempts to delete its links that failed."""

    def create_links(self, job: str, spec: JobSpec) -> dict[str, LinkFacts]:
        # The client has done so, too, but anybody may write into the inbox. The core asks only what no later version may answer
        # differently. What is found here is logged as an event.
        validate(spec, import_functions=False)
        return create_links(self._settings, graph_of(spec, self._settings.deployment, job), spec)

    def delete_links(self, job: str, spec: JobSpec) -> LastCommits:
        graph = graph_of(spec, self._settings.deployment, job)
        # A later reading of a task's group replaces an earlier one. The next attempt may find some groups gone already.
        before, found = self._read.get(job, LastCommits()), last_commits(self._settings, graph, job)
        merged = LastCommits(before.counts | found.counts, before.positions | found.positions)
        self._read[job] = merged
        delete_links(self._settings, graph, job, lambda: self._settle_files(graph, job))
        # A group that an earlier coordinator deleted, and whose counts no log entry holds, had read records; their letters stay.
        letters = letters_left(self._settings, graph, merged.counts)
        # Last: what raises is tried again, when the groups are gone. Another leadership of this process may delete the same links
        # in another thread, and may have removed the entry.
        self._read.pop(job, None)
        return msgspec.structs.replace(merged, letters=letters)

    def trim_links(self, job: str, spec: JobSpec) -> int:
        return len(trim_links(self._settings, graph_of(spec, self._settings.deployment, job), job, spec))

    def forget(self, jobs: Collection[str]) -> None:
        forget(self._settings, jobs)

    def _settle_files(self, graph: Graph, job: str) -> None:
        """Publish or remove the temporary files that the file outputs of an ended job have left, in folders that this machine can
        see.
        """
        for stage in graph.stages:
            parts, task = next((link for link in stage.egress if link.kind == "parts"), None), stage.last
            if parts is None or task.connector != "files" or not Path(str(task.options["path"])).is_dir():
                continue

            output = files_output(task, job, bounded=graph.bounded)
            try:
                if output.unsettled:
                    output.settle(read_all(self._settings, parts.topic))
            except SardonyxError as error:  # the topics must be deleted all the same
                log.warning("temporary_files_not_settled", job=job, task=task.name, error=str(error))

    def fence(self, slot: Slot, spec: JobSpec) -> None:
        deployment = self._settings.deployment
        stage = graph_of(spec, deployment, slot.job).stage(slot.task)
        writer = TransactionalWriter(self._settings, stage.transactional_id(deployment, slot.job, slot.number))
        try:
            writer.open()
        finally:
            writer.close()

    def remove_static_member(self, slot: Slot, spec: JobSpec) -> None:
        deployment = self._settings.deployment
        stage = graph_of(spec, deployment, slot.job).stage(slot.task)
        remove_static_member(
            self._settings, stage.group(deployment, slot.job), stage.member(slot.number), stage.ingress
        )
