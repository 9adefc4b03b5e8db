"""Figures of fault runs, from what their processes have logged."""

from __future__ import annotations

import itertools
import math
import statistics
from bisect import bisect_left
from datetime import datetime
from typing import Any

from sardonyx.client.change import revisions
from sardonyx.client.job_handle import JobHandle
from tests.faults.cluster import GROUP, Cluster

Slot = tuple[object, object, object]
"""A job, a task, and the slot's number."""


def spread(seconds: list[float]) -> dict[str, float | int]:
    if not seconds:
        return {"of": 0}
    ordered = sorted(seconds)
    found = {"median": statistics.median(seconds), "max": ordered[-1]}
    found |= {f"p{part}": ordered[math.ceil(part / 100 * len(ordered)) - 1] for part in (95, 99)}
    return {**{name: round(value, 2) for name, value in found.items()}, "of": len(seconds)}


def _decided(cluster: Cluster, kind: str) -> dict[str, float]:
    """When an event of that kind was first decided of each peer."""
    decided: dict[str, float] = {}
    for log in cluster.folder.glob("coordinator*.log"):
        for line in cluster.lines(log.stem):
            if line.get("event") == "event_decided" and line.get("kind") == kind:
                decided.setdefault(str(line["peer"]), _at(line))
    return decided


def zombie_commits(cluster: Cluster, stale: list[tuple[str, float]]) -> int:
    """Commits that processes asked for after they woke up, and got, for peers that had been decided to be dead before.

    What was asked for before may be answered, or told of, after they woke up: that was no commit of a zombie's. Nor is a batch
    that was asked for before another peer had opened its slot. Kafka fences the zombie at that moment, which may be long after
    the death where brokers are away, and the successor reads the positions after it.
    """
    died, opened = _decided(cluster, "died"), _opened(cluster)
    found = 0
    for name, woke in stale:
        asked: dict[str, float] = {}
        slots: dict[str, tuple[Slot, float]] = {}
        for line in cluster.lines(name):
            peer = str(line.get("peer"))
            if line.get("event") == "task_accepted":
                slots[peer] = _slot(line), _at(line)
            elif line.get("event") == "commit_requested":
                asked[peer] = _at(line)
            elif line.get("event") in ("batch_committed", "task_sealed") and asked[peer] > woke > died.get(peer, woke):
                slot, since = slots[peer]
                taken = min((at for who, at in opened.get(slot, ()) if who != peer and at > since), default=math.inf)
                found += line["event"] == "task_sealed" or taken < asked[peer]
    return found


def _opened(cluster: Cluster) -> dict[Slot, list[tuple[str, float]]]:
    """By slot, which peers have opened it, and when by their logs: when they were given the first partitions after that."""
    found: dict[Slot, list[tuple[str, float]]] = {}
    for log in cluster.folder.glob("peer*.log"):
        accepted: dict[str, Slot] = {}
        for line in cluster.lines(log.stem):
            peer = str(line.get("peer"))
            if line.get("event") == "task_accepted":
                accepted[peer] = _slot(line)
            elif line.get("event") in ("partitions_assigned", "commit_requested") and peer in accepted:
                found.setdefault(accepted.pop(peer), []).append((peer, _at(line)))
    return found


def _slot(line: dict[str, Any]) -> Slot:
    return line["job"], line["task"], line["slot"]


def takeovers(cluster: Cluster) -> tuple[list[float], list[float]]:
    """Seconds from taking a slot whose holder died to the first batch committed there, of those that came to commit: while all
    others stayed, and while a peer was leaving in order, for which the group has rounds of its own.
    """
    died, left = _decided(cluster, "died"), sorted(_decided(cluster, "leave").values())
    holders: dict[Slot, str] = {}
    taken: dict[tuple[str, object, object], float] = {}
    lines = [line for log in cluster.folder.glob("peer*.log") for line in cluster.lines(log.stem) if "task" in line]
    calm: list[float] = []
    amid: list[float] = []
    for line in sorted(lines, key=_at):
        who, job, task = str(line.get("peer")), line.get("job"), line["task"]
        if line.get("event") == "task_accepted":
            slot = _slot(line)
            if died.get(holders.get(slot, ""), math.inf) < _at(line):
                taken[who, job, task] = _at(line)
            holders[slot] = who
        elif line.get("event") == "batch_committed" and (since := taken.pop((who, job, task), None)) is not None:
            rounds = bisect_left(left, since - GROUP) < bisect_left(left, _at(line))
            (amid if rounds else calm).append(_at(line) - since)
    return calm, amid


def standstills(cluster: Cluster, handle: JobHandle) -> dict[str, list[float]]:
    """Seconds of the longest pause between two batches that a task has committed around each change: of the tasks that the change
    touched, and of those that kept their peers. The deaths that come with each change count, too.
    """
    commits: dict[str, list[float]] = {}
    for log in cluster.folder.glob("peer*.log"):
        for line in cluster.lines(log.stem):
            if line.get("event") == "batch_committed" and line["job"] == handle.id:
                commits.setdefault(line["task"], []).append(_at(line))
    pauses = {task: list(itertools.pairwise(sorted(times))) for task, times in commits.items()}
    found: dict[str, list[float]] = {"touched": [], "untouched": []}
    for made in revisions(cluster.client, handle.id):
        for which, tasks in (("touched", made.changed), ("untouched", made.went_on)):
            for task in tasks if made.done is not None else ():
                own = [then - since for since, then in pauses.get(task, ()) if then > made.at and since < made.done]
                found[which] += [max(own)] if own else []
    return found


def _at(line: dict[str, Any]) -> float:
    return datetime.fromisoformat(line["timestamp"]).timestamp()


__all__ = ["spread", "standstills", "takeovers", "zombie_commits"]
