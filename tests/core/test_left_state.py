"""What a stopped job leaves for the one that goes on: said of each kind of state as it is."""

from __future__ import annotations

import msgspec
import pytest

from sardonyx.client.left_state import left_in_words
from sardonyx.core.iterating import IterateSpec
from sardonyx.core.joining import RelationSpec
from sardonyx.core.keyed import KeyedSpec
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.core.timing import WindowSpec

WINDOW = WindowSpec(kind="tumbling", size="1 min")
PLAIN = TaskSpec(name="plain", type="function", fn="m:f")


def task(name: str, **of: object) -> TaskSpec:
    return msgspec.structs.replace(PLAIN, name=name, **of)


def said(*tasks: TaskSpec) -> str:
    return left_in_words(JobSpec(name="j", workflow=[], catalog=[PLAIN, *tasks]))


@pytest.mark.parametrize(
    ("of", "words"),
    [
        ({"window": WINDOW}, "the open windows of a (their rows are in no result yet)"),
        (
            {"window": msgspec.structs.replace(WINDOW, emit="every 1 s")},
            "the open windows of a (their last results are yet to come)",
        ),
        (
            {"keyed": KeyedSpec()},
            "the states of the keys of a, with their timers (the results of the rows read are out)",
        ),
        ({"relation": RelationSpec(kind="join")}, "the rows of a that may still find partners (pairs found are out)"),
        (
            {"relation": RelationSpec(kind="join", how="left")},
            "the rows of a that may still find partners (pairs found are out; rows without a partner are in no result yet)",
        ),
        (
            {"relation": RelationSpec(kind="lookup")},
            "the table of a (results so far are out), and rows that wait there, if any (they are in no result yet)",
        ),
        ({"relation": RelationSpec(kind="distinct")}, "the keys that a has seen (the first row of each is out)"),
        ({"relation": RelationSpec(kind="latest")}, "the latest rows of a (they are out)"),
        ({"relation": RelationSpec(kind="latest", emit="final")}, "the latest rows of a (some are in no result yet)"),
        ({"iterate": IterateSpec()}, "the rows that a has collected (they may be in no result yet)"),
    ],
)
def test_each_kind_of_state_is_said_as_it_is(of: dict[str, object], words: str) -> None:
    """Open windows hold rows that no result has; the results of keyed state and of a table went out with the rows."""
    assert said(task("a", **of)) == words


def test_tasks_of_one_kind_are_said_together() -> None:
    assert said() == ""
    assert said(task("a", keyed=KeyedSpec()), task("w", window=WINDOW), task("b", keyed=KeyedSpec())) == (
        "the states of the keys of a and b, with their timers (the results of the rows read are out); "
        "the open windows of w (their rows are in no result yet)"
    )
