"""Why a job does not run: what the coordinator's state tells, and what lies outside it.

Outside are a coordinator that is missing or stalled, a Kafka that does not answer, what holds the clock of a job, which of
its tasks are held by full queues, sit on one batch or are late, where the time of their batches goes, and what is on its way
in its loops.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from coordinator.core.explain import explain
from coordinator.history import reader
from queues.connectivity import reach_kafka
from sardonyx.client.batch_times import batch_times
from sardonyx.client.clocks import lacking, waiting_rows, what_holds
from sardonyx.client.cycles import in_words
from sardonyx.client.held_tasks import held_tasks
from sardonyx.client.lags import LinkLag
from sardonyx.client.late_tasks import late_tasks
from sardonyx.client.long_batches import long_batches, services_away
from sardonyx.client.reasons import Outside, Why, kafka_away
from sardonyx.client.waiting import requests_waiting
from sardonyx.core import node_paths
from sardonyx.core.changing_at import pending
from sardonyx.core.errors import SardonyxError, SetupError
from sardonyx.core.events import ENDED
from sardonyx.core.notes import EpochNote
from sardonyx.core.text import counted
from sardonyx.core.units import duration
from sardonyx.runtime.settings import Settings
from sardonyx.zookeeper.session import ZooKeeperSession

if TYPE_CHECKING:
    from sardonyx.client.client import Client
    from sardonyx.client.job_handle import JobHandle

T = TypeVar("T")

LOOK = 5.0
"""Seconds that Kafka may take to answer before it counts as away."""

LATE = 5.0
"""Seconds after which a request that no coordinator has processed is a sign that the coordinator is stalled."""


def why(client: Client, job: str, *, look: bool) -> Why:
    """Do what :meth:`sardonyx.client.client.Client.explain` does."""
    zk = client.zk
    _, oldest = requests_waiting(zk)
    submitted = job in client.submitted()
    state = reader.present(zk)  # after the above: a request travels from there to here
    explanation = explain(state, job)
    outside = []
    ended = explanation.status in ENDED and all(reason.code != "topics-deleting" for reason in explanation.reasons)
    gone = explanation.status is None and not submitted
    if not ended and not gone and not client.led():
        text = "no coordinator leads this deployment; start one with `sardonyx coordinator`"
        outside.append(Outside("not-led", text))
    elif not ended and not gone and (words := _backlog(zk, oldest)):
        outside.append(Outside("backlog", words))
    if explanation.status == "running":
        outside += [Outside("service-away", words) for words in services_away(zk, state, job)]
    if explanation.status is None and submitted:
        outside.append(Outside("submitted", "it is submitted, and no coordinator has taken it in yet"))
    elif look and not ended and not gone and (away := _kafka_silent(client.settings)):
        outside.append(away)
    elif look and explanation.status == "running":
        outside += _told(client, job, _of_clocks)
        holds = _told(client, job, lambda handle: [hold.text for hold in held_tasks(client, handle.id)])
        outside += [Outside("held", words) for words in holds]
        plan = state.plans[job]
        long = long_batches(zk, state, job)
        late = _told(client, job, lambda handle: late_tasks(handle, plan.limit, partial(_held, client, handle.id)))
        outside += [Outside("long-batch", said.text) for said in long]
        outside += [Outside("late", said.text) for said in late]
        slow = [plan.graph.stage(name).task for name in dict.fromkeys(said.task for said in (*long, *late))]
        outside += _told(client, job, lambda handle: batch_times(client.settings, handle.id, slow))
    if look and any(reason.code == "loop-goes-on" for reason in explanation.reasons):
        outside += [Outside("loop-goes-on", words) for words in _told(client, job, _loops)]
    return Why(explanation, outside)


def _backlog(zk: ZooKeeperSession, oldest: str | None) -> str | None:
    """Describe a stalled coordinator, or return None.

    ``oldest`` was the oldest request a moment ago. We check that it is still queued, because its age alone is unreliable: the
    clocks of client and server may differ.
    """
    queued = None if oldest is None else zk.last_change(oldest)
    waited = 0.0 if queued is None else time.time() - queued[1]
    if waited < LATE:
        return None
    many, _ = requests_waiting(zk)
    requests = f"{counted(many, 'request')} {'is' if many == 1 else 'are'}"
    return f"{requests} not processed, for {duration(waited)}; look at the log of the coordinator{_leader(zk)}"


def _leader(zk: ZooKeeperSession) -> str:
    """Where the coordinator that won the last election runs, in words; empty if there was none."""
    data = zk.read(node_paths.EPOCH)
    return f" on {msgspec.json.decode(data, type=EpochNote).leader}" if data else ""


def _kafka_silent(settings: Settings) -> Outside | None:
    """Why Kafka does not answer, or cannot be asked; None if it answers, or if no address is configured."""
    if not settings.kafka.bootstrap_servers:
        return None
    quick = settings.kafka.model_copy(update={"connect_timeout": min(LOOK, settings.kafka.connect_timeout)})
    try:
        reach_kafka(settings.model_copy(update={"kafka": quick}))
    except SetupError as error:
        return kafka_away(error)
    return None


def _loops(handle: JobHandle) -> list[str]:
    """What is on its way in the loops of a job."""
    return [in_words(cycle) for cycle in handle.cycles()]


def _held(client: Client, job: str, lags: Sequence[LinkLag]) -> set[str]:
    """The tasks of a job that full queues hold, when this is unread on its links."""
    return {hold.task for hold in held_tasks(client, job, lags)}


def _told(client: Client, job: str, ask: Callable[[JobHandle], list[T]]) -> list[T]:
    """What Kafka tells of a job; nothing, if it cannot be asked."""
    if not client.settings.kafka.bootstrap_servers:
        return []
    try:
        return ask(client.job(job))
    except SardonyxError:
        return []


def _of_clocks(handle: JobHandle) -> list[Outside]:
    """What holds the clock of a running job, and which rows wait in it for a clock; nothing if it has none. Of a job that is
    changed at a time, what that waits for.
    """
    clocks, spec = handle.clock(), handle.spec()
    waits = pending(spec)
    lack = None if waits is None else lacking(spec, waits, clocks)
    held = what_holds(clocks)
    if waits is not None and lack is not None:
        held = f"its change at {waits.time} is not complete: {lack.text(waits)}"
    found = [] if held is None else [Outside("clock-held", held)]
    return [*found, *(Outside("rows-wait", each) for each in waiting_rows(clocks))]
