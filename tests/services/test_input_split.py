"""Who splits an input that others may have split: with Kafka's answers given by the test."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from peer import input_split
from peer.batch_result import BatchDropped
from peer.input_split import InputSplitter
from sardonyx.core.errors import InputError
from sardonyx.core.positions import Partition, Position

FIRST = Partition("splits", 0)


def session(committed: Position | None) -> Any:
    """That of a peer which takes the first partition for its own, and for one without a position."""
    link = SimpleNamespace(topic=FIRST.topic, target="make", name="make")
    return SimpleNamespace(
        work=SimpleNamespace(source=object(), stage=SimpleNamespace(ingress=[link]), settings=None),
        reader=SimpleNamespace(held={FIRST: None}, committed_at={FIRST: committed}.__getitem__),
        meanwhile=lambda work: work(),
    )


@pytest.fixture(autouse=True)
def splits_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_split, "read_all", lambda _settings, _topic: ["a split"])


@pytest.mark.gate
def test_a_peer_that_was_put_out_of_its_group_leaves_the_splits_to_its_successor() -> None:
    """It may not have heard that the partition is another peer's now. The job goes on: nothing of it is lost."""
    with pytest.raises(BatchDropped, match="another peer has split the input"):
        InputSplitter(session(Position(0))).split_if_due()


def test_splits_without_a_position_are_never_written_again() -> None:
    """Kafka has forgotten what was committed: results would come a second time, so the job fails."""
    with pytest.raises(InputError) as caught:
        InputSplitter(session(None)).split_if_due()
    assert caught.value.code == "SX-INPUT-POSITIONS-LOST"
