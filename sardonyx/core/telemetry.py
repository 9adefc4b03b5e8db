"""What peers tell of their batches on the deployment's telemetry topic, for those who look. No decision depends on it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from sardonyx.core.wire_types import ready_for_threads

PARTITION = 0
"""The topic has one partition: a reader reads all of it."""
KEPT = {
    "retention.ms": "3600000",
    "retention.bytes": str(256 << 20),
    "segment.ms": "600000",
    "cleanup.policy": "delete",
}
"""Kafka keeps an hour of it, and 256 MB at most."""
VERSION = 1

Outcome = Literal["committed", "dropped", "delayed"]
"""What became of a batch: ``dropped``: it is read again, perhaps by another peer; ``delayed``: a service is away."""


def topic_of(deployment: str) -> str:
    """The name of the topic. It has one dot, so it is never one of a job's, whose names have two or three."""
    return f"{deployment}.telemetry"


@ready_for_threads
class BatchTold(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One batch of a task, as the peer that worked on it tells."""

    job: str
    task: str
    peer: str
    slot: int
    assignment: int
    """The number of the log entry that gave the peer the task."""
    at: float
    """When it ended, seconds since 1970, by the clock of the peer's machine."""
    outcome: Outcome
    rows_in: int = 0
    rows_out: int = 0
    skipped: int = 0
    dead: int = 0
    late: int = 0
    seconds: dict[str, float] = {}
    """Duration of each step, to the tenth of a millisecond. ``wait``: for rows, and for reading them."""
    cause: str = ""
    """Why it was not committed."""
    made_from: str = ""
    """Of a job that keeps its lineage: which offsets it has read, as :mod:`sardonyx.core.batch_origins` writes it."""
    version: int = VERSION


def steps_of(seconds: Mapping[str, float]) -> dict[str, float]:
    """Durations as messages hold them: rounded, and without steps that took no time."""
    return {step: round(spent, 4) for step, spent in seconds.items() if spent >= 0.00005}


def read(value: bytes | None) -> BatchTold | None:
    """What a message says; None if it is not one of ours, or a newer release's."""
    try:
        told = msgspec.json.decode(value or b"", type=BatchTold)
    except msgspec.DecodeError:
        return None
    return told if told.version <= VERSION else None
