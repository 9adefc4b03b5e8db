"""Joins on real services: each pair comes once and each left row without a partner once, whatever dies."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from sardonyx import Job, event_time, kafka
from sardonyx.testing import Cluster, kill_at

START = 1_764_000_000
"""Seconds since 1970 of the first row."""
DELAY = 4
BEFORE, AFTER = 2, 20
"""Seconds before and after a view in which an order belongs to it."""


def views(rng: random.Random, count: int) -> list[dict]:
    """Views of some users, out of order by no more than the delay, so none is late."""
    return [
        {"user": f"u{rng.randrange(count // 8)}", "at": _iso(number / 50 - rng.uniform(0, DELAY / 2)), "view": number}
        for number in range(count)
    ]


def orders(rng: random.Random, given: list[dict]) -> list[dict]:
    """Orders of every third view, some of them too late to belong to it."""
    found = []
    for view in given:
        if rng.random() < 0.33:
            at = datetime.fromisoformat(view["at"]).timestamp() - START + rng.uniform(0, AFTER * 1.3)
            found.append({"user": view["user"], "at": _iso(at), "order": view["view"]})
    return sorted(found, key=lambda row: datetime.fromisoformat(row["at"]))


def _iso(second: float) -> str:
    return datetime.fromtimestamp(START + round(second, 3), UTC).isoformat()


def expected(left: Iterable[dict], right: Iterable[dict]) -> Counter[tuple[int, int | None]]:
    """The pairs of a view and an order; None: the view has no order."""
    by_user: dict[str, list[tuple[float, int]]] = {}
    for row in right:
        by_user.setdefault(row["user"], []).append((datetime.fromisoformat(row["at"]).timestamp(), row["order"]))
    found: Counter[tuple[int, int | None]] = Counter()
    for row in left:
        at = datetime.fromisoformat(row["at"]).timestamp()
        partners = [order for when, order in by_user.get(row["user"], []) if -BEFORE <= round(when - at, 3) <= AFTER]
        found.update([(row["view"], order) for order in partners or [None]])
    return found


def joining(left: str, right: str, out: str) -> Job:
    job = Job("joining", partitions=3)
    sides = [
        job.input(
            name,
            kafka(topic, schema=f"user string, at timestamp, {name} long", start="earliest", end="latest"),
            time=event_time("at", delay=f"{DELAY} s"),
            batch_size=400,
        )
        for name, topic in (("view", left), ("order", right))
    ]
    within = (f"-{BEFORE} s", f"{AFTER} s")
    bought = job.join("bought", *sides, on="user", within=within, how="left", batch_size=300)
    job.output("out", kafka(out, key="user"), after=bought, batch_size=300)
    return job


def test_each_pair_comes_once_whatever_dies(seed: int, sardonyx_clusters: Callable[..., Cluster]) -> None:
    """Bounded inputs, and a SIGKILL between a commit and what follows it: what plain Python joins, and nothing twice."""
    quick = {"zookeeper.session_timeout": "2 s", "peer.session_timeout": "3 s"}
    rng = random.Random(f"{seed}/joins")
    left = views(rng, 3_000)
    right = orders(rng, left)
    with sardonyx_clusters(**quick) as cluster:
        topics, out = [cluster.topic("views", left), cluster.topic("orders", right)], cluster.topic("out")
        cluster.peers(6, faults=[kill_at("apply-state", 3)])
        cluster.run(joining(*topics, out), timeout="6 min")
        results = cluster.records(out)
    assert Counter((row["view"], row["order"]) for row in results) == expected(left, right), f"seed {seed}"
    assert all(row["join_time"] for row in results)
