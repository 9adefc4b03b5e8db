"""The transactions that open and close the election of sentinels."""

from __future__ import annotations

from sardonyx.core.effects import Create, Delete
from sardonyx.zookeeper.transactions import TRANSACTION_LIMIT, weight
from sentinel import nodes


def test_each_job_gets_one_node() -> None:
    """However often it is named, and in as many transactions as needed."""
    assert nodes.opening(["a", "b", "a"]) == [[Create("/sentinel/a"), Create("/sentinel/b")]]
    assert nodes.opening([]) == []
    many = nodes.opening(f"job-{n}" for n in range(10_000))
    assert len(many) > 1
    assert all(sum(map(weight, operations)) <= TRANSACTION_LIMIT for operations in many)


def test_a_jobs_votes_are_deleted_with_its_node() -> None:
    """In one transaction, votes first: without its node no peer can vote."""
    votes = {"/sentinel/a": ["x.y", "y.z"], "/sentinel/b": []}
    assert nodes.closing(votes) == [
        [Delete("/sentinel/a/x.y"), Delete("/sentinel/a/y.z"), Delete("/sentinel/a"), Delete("/sentinel/b")]
    ]
    assert nodes.closing({}) == []
