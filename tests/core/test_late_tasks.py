"""Why a running job is slow: which task is late with what, and what it lacks."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from sardonyx.client import late_tasks
from sardonyx.client.batch_times import OfTask
from sardonyx.client.lags import LinkLag
from sardonyx.client.late_tasks import in_words
from sardonyx.client.verdict import cap_of
from sardonyx.client.views import TaskView
from sardonyx.core.spec import TaskSpec


def lag(link: str, records: int | None, seconds: float | None, *, splits: bool = False) -> LinkLag:
    unit = "splits" if splits else "records"
    reader = link.partition(".")[2]
    return LinkLag(link=link, reader=reader, kind="internal", topic=link, records=records, seconds=seconds, unit=unit)


def task(name: str, peers: int) -> TaskView:
    return TaskView(name=name, type="function", state="running", peers=peers)


@pytest.mark.parametrize(
    ("before", "after", "peers", "words"),
    [
        (
            100,
            300,
            2,
            "more rows come than it reads, and it can take no more peers than 2 (the unread rows become more by 100 a second)",
        ),
        (
            100,
            300,
            1,
            "(the unread rows become more by 100 a second); it has 1 of the 2 peers that it can take",
        ),
        (300, 100, 1, "at this rate it has read all in 1.0 s (the unread rows become fewer by 100 a second)"),
        (100, 100, 1, "what is unread does not shrink; it has 1 of the 2 peers that it can take"),
        (None, 100, 2, "whether it catches up is not known yet"),
    ],
)
def test_a_late_task_says_what_it_lacks(before: int | None, after: int, peers: int, words: str) -> None:
    first, second = [lag("a.b", before, 40.0)], [lag("a.b", after, 42.0)]
    ((_, said),) = in_words(first, second, 2.0, [task("a", 1), task("b", peers)], {"a": 2, "b": 2})
    assert said.startswith("task b is late with a.b: its oldest unread row has waited for 42")
    assert words in said


def test_a_queue_that_hardly_changes_is_said_to_change_by_no_rate() -> None:
    """One row less within some seconds is no whole row a second."""
    ((_, said),) = in_words([lag("a.b", 300, 40.0)], [lag("a.b", 299, 42.0)], 4.0, [task("b", 1)], {"b": 2})
    assert said.endswith("at this rate it has read all in 19 min 56 s")


def test_the_latest_comes_first_and_only_what_is_late_is_said() -> None:
    """Splits wait since the job began, however fast they are read; of a task without a peer the log says why."""
    lags = [
        lag("x.a", 5, 12.0),
        lag("a.b", 9, 80.0),
        lag("a.c", 9, 3.0),
        lag("a.d", 9, 99.0),
        lag("x.e", 9, 99.0, splits=True),
    ]
    said = in_words(lags, lags, 2.0, [task("a", 1), task("b", 1), task("c", 1), task("d", 0), task("e", 1)], {})
    assert [task for task, _ in said] == ["b", "a"]


def test_a_task_that_a_full_queue_holds_is_not_called_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows come than it reads because it pauses: who holds it is said elsewhere. Of two looks one is enough."""
    looks = [[lag("x.a", 100, 40.0), lag("a.b", 900, 40.0)], [lag("x.a", 300, 42.0), lag("a.b", 950, 42.0)]]

    def held(at: int) -> list[OfTask]:
        left: list[Any] = list(looks)
        handle: Any = SimpleNamespace(
            lag=lambda holds: left.pop(0),
            status=lambda live: SimpleNamespace(tasks=[task("a", 1), task("b", 1)]),
            spec=lambda: None,
        )

        def full(lags: Sequence[LinkLag]) -> list[str]:
            return ["a"] if lags is looks[at] else []

        return late_tasks.late_tasks(handle, {}, full)

    monkeypatch.setattr(late_tasks, "APART", 0.0)
    for at in (0, 1):
        ((_, said),) = held(at)
        assert said.startswith("task b is late with a.b")


@pytest.mark.parametrize(
    ("declared", "cap"),
    [
        ({}, "what it reads has 2 partitions, and two peers never share one"),
        ({"max_peers": 5}, "what it reads has 2 partitions, and two peers never share one"),
        ({"max_peers": 2}, "its max_peers is 2"),
        ({"consumption": "sequential"}, "it is sequential"),
    ],
)
def test_a_late_task_that_can_take_no_more_peers_says_what_caps_them(declared: dict[str, Any], cap: str) -> None:
    """Its partitions, if nothing else: more peers would find nothing to read."""
    known = {"b": cap_of(TaskSpec(name="b", type="function", fn="m:f", **declared), 2)}
    first, second = [lag("a.b", 100, 40.0)], [lag("a.b", 300, 42.0)]
    ((_, said),) = in_words(first, second, 2.0, [task("b", 2)], {"b": 2}, known)
    assert f"and it can take no more peers than 2, since {cap} (the unread rows become more by 100 a second)" in said
