"""Which peers of a job have worked on one batch for long, or wait for a service: why it is slow, or seems to stand still."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from sardonyx.client.batch_times import OfTask
from sardonyx.core import node_paths
from sardonyx.core.notes import PulseNote
from sardonyx.core.text import counted
from sardonyx.core.units import duration

if TYPE_CHECKING:
    from coordinator.core.state import State
    from sardonyx.zookeeper.session import ZooKeeperSession


def long_batches(zk: ZooKeeperSession, state: State, job: str) -> list[OfTask]:
    """Say on which batches the peers of a running job sit, and for how long. The one that began first comes first.

    A peer tells of a batch in its pulse when it has worked on it for ten seconds.
    """
    return list(in_words(state, job, _pulses(zk, state, job), time.time()))


def services_away(zk: ZooKeeperSession, state: State, job: str) -> list[str]:
    """Say which tasks of a running job wait for a service that does not answer, and since when. Their peers tell so likewise."""
    return list(away_in_words(state, _pulses(zk, state, job), time.time()))


def _pulses(zk: ZooKeeperSession, state: State, job: str) -> dict[str, bytes | None]:
    peers = [peer for task in state.jobs[job].tasks.values() for peer in task.peers]
    pulses = zk.read_many(node_paths.pulse(peer) for peer in peers)
    return {peer: pulses.get(node_paths.pulse(peer)) for peer in peers}


def away_in_words(state: State, pulses: Mapping[str, bytes | None], now: float) -> Iterator[str]:
    """Make the sentences of :func:`services_away` from the pulses of the peers: one for each task and error. Pure."""
    found: dict[tuple[str, str], list[tuple[float, str, str]]] = {}
    for peer, data in pulses.items():
        away, place = _note(data).away, state.peers[peer].assignment
        if away is not None and place is not None and away.assignment == place.id:
            found.setdefault((place.task, away.code), []).append((away.since, peer, away.message))
    for (task, code), waits in sorted(found.items(), key=lambda each: min(each[1])):
        since, peer, message = min(waits)
        others = f" and {counted(len(waits) - 1, 'other')}" if len(waits) > 1 else ""
        words = message.partition("\n")[0].removesuffix(".")
        yield f"task {task} waits, for {duration(max(now - since, 0.0))}: {code}: {words} (peer {peer}{others})"


def in_words(state: State, job: str, pulses: Mapping[str, bytes | None], now: float) -> Iterator[OfTask]:
    """Make the sentences of :func:`long_batches` from the pulses of the peers. Pure."""
    found = []
    for peer, data in pulses.items():
        batch = _note(data).batch
        place = state.peers[peer].assignment
        if batch is None or place is None or batch.assignment != place.id:  # the pulse may tell of the task before
            continue
        links = state.plans[job].graph.stage(place.task).ingress
        of = "split" if any(link.kind == "splits" for link in links) else "row"
        took = duration(max(now - batch.since, 0.0))
        first = ", where Spark has to start first" if batch.starts_spark else ""
        words = f"task {place.task} sits on one batch of {counted(batch.rows, of)}, for {took}, at peer {peer}{first}"
        found.append((batch.since, OfTask(place.task, words)))
    return (said for _, said in sorted(found))


def _note(data: bytes | None) -> PulseNote:
    return PulseNote.read(data or b"{}") or PulseNote()


__all__ = ["away_in_words", "in_words", "long_batches", "services_away"]
