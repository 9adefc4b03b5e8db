"""Reads from Kafka what decides whether a deployment can be restored: see :mod:`coordinator.core.restoring`."""

from __future__ import annotations

from collections.abc import Mapping

from coordinator.core.restoring import KafkaTraces, graphs, unknown_jobs
from coordinator.core.state import State
from queues import traces
from sardonyx.core.graph import graph_of
from sardonyx.runtime.settings import Settings


def traces_of(settings: Settings, state: State) -> dict[str, KafkaTraces]:
    """What Kafka holds of the running jobs of a state.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    found = {}
    for job, graph in graphs(state).items():
        topics = traces.topics_of(settings, graph)
        # Of a deployment that still runs, no position is before what begins, or after what ends.
        begins, _ = traces.bounds_of(settings, topics)
        positions = traces.positions_of(settings, graph, job)
        _, ends = traces.bounds_of(settings, topics)
        found[job] = KafkaTraces(topics, positions, begins, ends)
    return found


def jobs_since(settings: Settings, state: State) -> list[str]:
    """The ids of jobs that Kafka knows and the state does not."""
    return unknown_jobs(state, traces.names(settings))


def letters_of(settings: Settings, state: State, claimed: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    """By job and task, the offset after the last dead letter that was neither redone nor dropped; only tasks that have any.

    Args:
        settings: where Kafka is.
        state: with the jobs.
        claimed: by job and task, the first offset that no claim covers; 0 where it is missing.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``.
    """
    found = {}
    exist = set(traces.names(settings))
    for name, job in state.jobs.items():
        if job.refused:
            continue
        for link in graph_of(job.spec, state.deployment, name).links:
            if link.kind == "dead" and link.topic in exist:
                start = claimed.get((name, link.source), 0)
                if (end := traces.letters_end(settings, link.topic, start)) > start:
                    found[name, link.source] = end
    return found
