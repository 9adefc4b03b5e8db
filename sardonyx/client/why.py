"""Why a job does not run: what the coordinator's state tells, and what lies outside it.

Outside are a coordinator that is missing or stalled, a Kafka that does not answer, what holds the clock of a job, which of
its tasks are late, and what is on its way in its loops.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from coordinator.core.explain import explain
from coordinator.history import reader
from queues.connectivity import reach_kafka
from sardonyx.client.clocks import lacking, waiting_rows, what_holds
from sardonyx.client.cycles import in_words
from sardonyx.client.late_tasks import late_tasks
from sardonyx.client.views import Outside, Why
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

LOOK = 5.0
"""Seconds that Kafka may take to answer before it counts as away."""

LATE = 5.0
"""Seconds after which a request that no coordinator has processed is a sign that the coordinator is stalled."""


def why(client: Client, job: str, *, look: bool) -> Why:
    """As :meth:`sardonyx.client.client.Client.explain`."""
    zk = client.zk
    oldest = _oldest_request(zk)
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
    if explanation.status is None and submitted:
        outside.append(Outside("submitted", "it is submitted, and no coordinator has taken it in yet"))
    elif look and not ended and not gone and (words := _kafka_silent(client.settings)):
        outside.append(Outside("kafka-away", words))
    elif look and explanation.status == "running":
        outside += _of_clocks(client, job)
        outside += [Outside("late", words) for words in _late(client, job, state.plans[job].limit)]
    if look and any(reason.code == "loop-goes-on" for reason in explanation.reasons):
        outside += [Outside("loop-goes-on", words) for words in _loops(client, job)]
    return Why(explanation, outside)


def _oldest_request(zk: ZooKeeperSession) -> str | None:
    """The path of the request that has waited longest; None if none waits."""
    waiting = zk.children(node_paths.INBOX)
    first = min(waiting, key=lambda name: name.rpartition("-")[2], default=None)  # numbers of one width
    return None if first is None else f"{node_paths.INBOX}/{first}"


def _backlog(zk: ZooKeeperSession, oldest: str | None) -> str | None:
    """Describe a stalled coordinator, or return None.

    ``oldest`` was the oldest request a moment ago. We check that it is still queued, because its age alone is unreliable: the
    clocks of client and server may differ.
    """
    queued = None if oldest is None else zk.last_change(oldest)
    waited = 0.0 if queued is None else time.time() - queued[1]
    if waited < LATE:
        return None
    many = len(zk.children(node_paths.INBOX))
    requests = f"{counted(many, 'request')} {'is' if many == 1 else 'are'}"
    return f"{requests} not processed, for {duration(waited)}; look at the log of the coordinator{_leader(zk)}"


def _leader(zk: ZooKeeperSession) -> str:
    """Where the coordinator that won the last election runs, in words; empty if there was none."""
    data = zk.read(node_paths.EPOCH)
    return f" on {msgspec.json.decode(data, type=EpochNote).leader}" if data else ""


def _kafka_silent(settings: Settings) -> str | None:
    """Why Kafka does not answer; None if it does, or if no address is configured."""
    if not settings.kafka.bootstrap_servers:
        return None
    quick = settings.kafka.model_copy(update={"connect_timeout": min(LOOK, settings.kafka.connect_timeout)})
    try:
        reach_kafka(settings.model_copy(update={"kafka": quick}))
    except SetupError as error:
        return f"{error.message}: {error.cause}"
    return None


def _loops(client: Client, job: str) -> list[str]:
    """What is on its way in the loops of a job; nothing, if Kafka cannot be asked."""
    if not client.settings.kafka.bootstrap_servers:
        return []
    try:
        return [in_words(cycle) for cycle in client.job(job).cycles()]
    except SardonyxError:
        return []


def _late(client: Client, job: str, limits: Mapping[str, int]) -> list[str]:
    """Which tasks of a running job are late; nothing, if Kafka cannot be asked."""
    if not client.settings.kafka.bootstrap_servers:
        return []
    try:
        return late_tasks(client.job(job), limits)
    except SardonyxError:
        return []


def _of_clocks(client: Client, job: str) -> list[Outside]:
    """What holds the clock of a running job, and which rows wait in it for a clock; nothing if it has none, or it cannot be asked
    for. Of a job that is changed at a time, what that waits for.
    """
    if not client.settings.kafka.bootstrap_servers:
        return []
    try:
        handle = client.job(job)
        clocks = handle.clock()
        spec = handle.spec()
        waits = pending(spec)
        lack = None if waits is None else lacking(spec, waits, clocks)
    except SardonyxError:
        return []
    held = what_holds(clocks)
    if waits is not None and lack is not None:
        held = f"its change at {waits.time} is not complete: {lack.text(waits)}"
    found = [] if held is None else [Outside("clock-held", held)]
    return [*found, *(Outside("rows-wait", each) for each in waiting_rows(clocks))]
