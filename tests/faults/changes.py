"""The fault that a user changes a running job: a task comes, or what an earlier change has added goes."""

from __future__ import annotations

import random
from pathlib import Path

from msgspec.structs import replace

from sardonyx.client.client import Client
from sardonyx.client.job_handle import JobHandle
from sardonyx.core import node_paths
from sardonyx.core.errors import SardonyxError
from sardonyx.core.spec import JobSpec, TaskSpec, decode_spec
from sardonyx.job.load import LoadedJob
from tests.waiting import until

TAP = "tap"
"""How the names of added tasks begin. Each has a number that no other one of the job had."""

_OVER = {"SX-JOB-ENDED", "SX-JOB-GONE", "SX-JOB-CHANGE-NOW", "SX-JOB-CHANGE-RIVAL"}
"""Codes of errors after which the change is not wanted any more: the job has come to its end, or another fault has changed it."""


def change(client: Client, handle: JobHandle, rng: random.Random, timeout: float) -> str:
    """Have a job changed, whatever else goes wrong. Returns what was changed.

    A task that is added reads all that the task before it writes from then on. The job itself counts these rows, and fails if one
    of them is missing when it ends.

    Args:
        client: of the cluster.
        handle: the job.
        rng: chooses the task.
        timeout: seconds for all attempts.
    """
    wanted: list[tuple[JobSpec, list[str]]] = []

    def changed() -> bool:
        try:
            if not wanted:
                wanted.append(_next(_spec(client, handle.id), handle.status(live=False).revision, rng))
            spec, drop = wanted[0]
            handle.change(LoadedJob(spec, None, Path()), "5 s", drop=drop)
        except SardonyxError as error:
            return error.code in _OVER
        return True

    until(changed, what=f"{handle.id} to be changed", timeout=timeout)
    _, drop = wanted[0] if wanted else (None, [])
    return f"{handle.id}: {'without ' + ', '.join(drop) if drop else 'with a tap'}"


def _spec(client: Client, job: str) -> JobSpec:
    return decode_spec(client.zk.read(node_paths.job_spec(job)) or b"")


def _next(spec: JobSpec, revision: int, rng: random.Random) -> tuple[JobSpec, list[str]]:
    """The next version, and what goes by it."""
    taps = [task.name for task in spec.catalog if task.name.startswith(TAP)]
    if taps:
        catalog = [task for task in spec.catalog if task.name not in taps]
        return replace(spec, catalog=catalog, workflow=[edge for edge in spec.workflow if edge[1] not in taps]), taps
    sources = [task.name for task in spec.catalog if task.type != "output" and not task.fuse]
    source, name = rng.choice(sources), f"{TAP}{revision}"
    tap = TaskSpec(name=name, type="output", connector="blackhole")
    return replace(spec, catalog=[*spec.catalog, tap], workflow=[*spec.workflow, (source, name)]), []


__all__ = ["change"]
