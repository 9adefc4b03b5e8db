"""A peer that holds a producer makes sure that its assignment still stands, before it commits anything with it."""

from __future__ import annotations

import pytest

from peer.assignment import AssignmentHandle, AssignmentRevoked
from sardonyx.core.notes import Assignment


def handle_of(*answers: bool | None) -> AssignmentHandle:
    found = list(answers)
    return AssignmentHandle(Assignment(7, "j", "t", 0), lambda: True, stands=lambda: found.pop(0))


def test_an_assignment_that_stands_is_confirmed() -> None:
    """Also if ZooKeeper was away when it was asked first."""
    handle_of(True).confirm()
    handle_of(None, None, True).confirm()


def test_one_that_was_taken_away_ends_before_anything_is_committed() -> None:
    """Although the peer has not read that yet; or because it has, while ZooKeeper is away."""
    taken = handle_of(None, False)
    with pytest.raises(AssignmentRevoked):
        taken.confirm()
    assert not taken.revoked
    told = handle_of(None)
    told.revoke()
    with pytest.raises(AssignmentRevoked):
        told.confirm()
