"""How long records stay in the queues of a running job: the request, and the wait until a coordinator has processed it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sardonyx.client import waiting
from sardonyx.client.ids import asker
from sardonyx.core import node_paths
from sardonyx.core.errors import Interrupted, SardonyxError
from sardonyx.core.events import ENDED, LinksKept
from sardonyx.core.notes import JobNote
from sardonyx.core.spec import decode_spec
from sardonyx.core.units import seconds, written

if TYPE_CHECKING:
    from sardonyx.client.client import Client


def keep(
    client: Client, job: str, note: JobNote | None, duration: float | str, timeout: float | str | None
) -> str | None:
    """What :meth:`sardonyx.client.job_handle.JobHandle.keep` does. ``note``: the status of the job."""
    asked = math.ceil(seconds(duration))
    wanted = written(asked) if asked else None
    if note is not None and note.status in ENDED:
        raise SardonyxError(
            "SX-JOB-ENDED",
            f"job {job} is {note.status}, and its queues are deleted",
            fix="submit it again with `keep`",
            where={"job": job},
        )
    client.zk.request(LinksKept(job=job, seconds=asked, by=asker()))
    waiting.await_node(
        client.zk,
        node_paths.job_spec(job),
        lambda data: data is not None and decode_spec(data).keep == wanted,
        timeout,
        Interrupted(
            "SX-JOB-KEEP-PENDING",
            f"the request for job {job} was made, but no coordinator has processed it yet",
            cause="" if client.led() else "no coordinator leads this deployment",
            fix="start a coordinator (`sardonyx coordinator`) if none leads; it then processes the request",
            where={"job": job},
        ),
    )
    return wanted
