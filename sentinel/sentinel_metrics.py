"""What a peer daemon counts of the election of sentinels."""

from __future__ import annotations

from sardonyx.runtime.metrics import REGISTRY

VOTES = REGISTRY.counter(
    "sardonyx_sentinel_votes_total",
    "Votes of readers on which sentinel of a link counts, by outcome: won (theirs does), lost (one that was elected before), "
    "closed (the job has ended).",
    ["outcome"],
    most=3,
)
