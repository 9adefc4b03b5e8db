"""Names of jobs, tasks and deployments, and ids of jobs."""

from __future__ import annotations

import pytest

from sardonyx.core.names import is_job_id, is_name


@pytest.mark.parametrize("text", ["a", "Orders", "orders-2", "a_b", "a" * 60])
def test_names(text: str) -> None:
    """Every name can also be the id of a job, since an id begins with a name."""
    assert is_name(text)
    assert is_job_id(text)


@pytest.mark.parametrize("text", ["", "2nd", "-a", "_a", "a b", "a/b", "a.b", "\u00e4", "a\n", "a" * 81])
def test_what_is_no_name(text: str) -> None:
    """It could not be a part of a path in ZooKeeper and of a topic's name."""
    assert not is_name(text)
    assert not is_job_id(text)


def test_an_id_may_be_longer_than_a_name() -> None:
    """It is the job's name with a suffix."""
    assert not is_name("a" * 61)
    assert is_job_id("a" * 61)
