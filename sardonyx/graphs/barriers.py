"""Supersteps that several shards do together: when one may be done, what its totals are, and when the last one was. Pure.

A shard that has done a superstep tells all others so by a *marker*, which has its totals. A superstep may be done when the
markers of the one before it are there, of all shards. All shards read the same markers. So they find the same totals, and each of
them finds for itself, as all others do, whether the algorithm has ended. docs/design/supersteps.md says why that holds.
"""

from __future__ import annotations

from collections.abc import Mapping

from sardonyx.core.errors import InternalError
from sardonyx.core.graphing import GraphSpec
from sardonyx.graphs.compute import Reason
from sardonyx.graphs.ranks import ONE

Totals = Mapping[str, int]
"""What is counted of a superstep. Whole numbers of any size: their sum is the same in every order."""

FIRST = 2
"""The first superstep of an algorithm. In superstep 0 edges and vertices go to their homes, in superstep 1 they are numbered."""


class Barrier:
    """The markers that a shard has heard of.

    Args:
        shards: how many there are.
        told: by superstep and shard, what markers have said so far.
    """

    def __init__(self, shards: int, told: Mapping[int, Mapping[int, Totals]]) -> None:
        self._shards = shards
        self.told = {step: dict(totals) for step, totals in told.items()}

    def hear(self, step: int, shard: int, totals: Totals) -> None:
        """A marker has come."""
        self.told.setdefault(step, {})[shard] = totals

    def is_whole(self, step: int) -> bool:
        """Whether all shards have done a superstep, and all that they sent in it has come."""
        return len(self.told.get(step, ())) == self._shards

    def take(self, step: int) -> dict[str, int]:
        """The totals of a superstep that is whole, over all shards. Its markers are forgotten."""
        found: dict[str, int] = {}
        for totals in self.told.pop(step).values():
            for name, number in totals.items():
                found[name] = found.get(name, 0) + number
        return found


def check_order(next_step: int, step: int, sender: int) -> None:
    """What comes to a shard is of the superstep before its next one, or of the next one.

    Raises:
        InternalError: ``SX-GRAPH-BARRIER``.
    """
    if step not in (next_step - 1, next_step):
        raise InternalError(
            "SX-GRAPH-BARRIER",
            f"a message of superstep {step} has come to a shard of a graph that is about to do superstep {next_step}",
            cause=f"shard {sender} has sent it; no shard can be more than one superstep ahead",
            fix="report it, with the log of the job's peers",
        )


def verdict(spec: GraphSpec, done: int, totals: Totals) -> Reason | None:
    """Why an algorithm has ended; None: it goes on.

    Args:
        spec: says which algorithm.
        done: how many supersteps after its first it has done.
        totals: of the last superstep that is whole.
    """
    if spec.algorithm != "pagerank":
        return None if totals["sent"] else "quiescent"
    if spec.tolerance is not None and done and moved(totals) <= spec.tolerance:
        return "converged"
    return "limit" if done >= spec.most or not totals["vertices"] else None


def moved(totals: Totals) -> float:
    """PageRank: how far all ranks together moved in a superstep."""
    return float(totals.get("moved", 0)) / ONE


__all__ = ["FIRST", "Barrier", "Totals", "check_order", "moved", "verdict"]
