"""A job of the deployment beside one that is to take its place."""

from __future__ import annotations

import graphlib
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from coordinator.core.admission import predecessor
from coordinator.core.state import Job
from sardonyx.client.ids import job_gone
from sardonyx.core import node_paths
from sardonyx.core.errors import SardonyxError
from sardonyx.core.graph import graph_of
from sardonyx.core.job_diff import JobDiff, job_diff
from sardonyx.core.predecessors import running
from sardonyx.core.spec import JobSpec
from sardonyx.job.bundle import code_change
from sardonyx.job.load import LoadedJob

if TYPE_CHECKING:
    from sardonyx.client.client import Client
    from sardonyx.client.job_handle import JobHandle
    from sardonyx.job import builder


def diff(client: Client, handle: JobHandle, job: builder.Job | LoadedJob | str | os.PathLike[str]) -> JobDiff:
    """What :meth:`sardonyx.client.job_handle.JobHandle.diff` does."""
    from coordinator.history import reader

    loaded = client.loaded(job)
    handle.await_resumable()
    jobs = reader.present(client.zk).jobs
    known = jobs.get(handle.id)
    if known is None and client.is_gone(handle.id):
        raise job_gone(handle.id)
    spec = handle.spec() if known is None else known.spec
    code = None if spec.code is None else client.zk.read(node_paths.code(spec.code))
    return compare(handle.id, spec, known, code, loaded, jobs)


def compare(
    job: str,
    spec: JobSpec,
    known: Job | None,
    code: bytes | None,
    loaded: LoadedJob,
    jobs: Mapping[str, Job] = MappingProxyType({}),
) -> JobDiff:
    """Compare a job of the deployment with one that is to take its place.

    What `job scale` has changed since the submission counts as changed.

    Args:
        job: its id.
        spec: of the job, as it is now.
        known: the job in the coordinator's state; None: no coordinator has processed its submission yet.
        code: the zip with its modules; None: it has none, or it is no longer there.
        loaded: the job that is to take its place.
        jobs: all in the coordinator's state.

    Raises:
        SardonyxError: ``SX-JOB-DIFF``: the job was refused, and has no graph.
    """
    before = running(spec) if known is None else predecessor(known, jobs)
    if known is not None and not known.refused:
        spec = replace(
            spec,
            priority=known.priority,
            weight=known.weight,
            percentage=known.percentage,
            max_peers=known.max_peers,
        )
    lost = spec.code is not None and code is None
    change = None if lost else code_change(code, loaded.code)
    try:
        graph_of(spec, "", "")
    except (graphlib.CycleError, KeyError) as error:
        raise SardonyxError(
            "SX-JOB-DIFF",
            f"job {job} cannot be compared: it was refused",
            cause="it was submitted without the client's validation, and has no valid graph",
            fix=f"name another job; `sardonyx job show {job}` says why it was refused",
            where={"job": job},
        ) from error
    return job_diff(spec, loaded.spec, before._replace(spec=spec), job=job, code=change)
