"""How much of a link is unread, from what was seen of it; and how that is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queues.backlog import NO_BACKLOG, Backlog, PartitionScan, estimate_backlog, unscanned
from sardonyx.cli.tables import lag_cells, lag_legend
from sardonyx.client.lags import Lag, LinkLag
from sardonyx.client.views import JobView, TaskView, with_lag
from sardonyx.core.events import LinkFacts
from sardonyx.core.positions import Position

NOW = 1_000.0


@st.composite
def partitions(draw: st.DrawFn) -> tuple[PartitionScan, int]:
    """What was seen of a partition in which records stand among other things, and how many it holds."""
    start = draw(st.integers(0, 100))
    holds = draw(st.lists(st.booleans(), max_size=30))
    looked = draw(st.integers(0, len(holds)))
    since = NOW - draw(st.integers(0, 50)) if any(holds[:looked]) else None
    end = start + len(holds)
    reached = start + looked if any(holds[looked:]) else end
    return PartitionScan(start, end, reached, sum(holds[:looked]), since), sum(holds)


@given(st.lists(partitions(), min_size=1, max_size=4))
def test_what_is_called_exact_is_and_at_most_is_never_too_small(given: list[tuple[PartitionScan, int]]) -> None:
    """Whatever takes offsets besides, and however far was looked. An age only where every first record was seen."""
    seen, held = zip(*given, strict=True)
    found = estimate_backlog(seen, NOW, blocks=False)
    if found.precision == "exact":
        assert found.records == sum(held)
    else:
        assert found.precision == "at-most"
        assert (found.records or 0) >= sum(held)
    ages = [None if each.since is None else NOW - each.since for each in seen if each.left or each.records]
    assert found.seconds == (0 if not found.records else None if None in ages else max(age or 0 for age in ages))


@pytest.mark.parametrize(
    ("seen", "options", "expected"),
    [
        ([PartitionScan(5, 9, 9)], {}, NO_BACKLOG),  # nothing but ends of transactions
        ([PartitionScan(5, 9, 6, 100, 990.0)], {"counted": 70}, Backlog(70, "exact", 10.0)),
        ([], {"counted": 0}, NO_BACKLOG),
        (
            [PartitionScan(5, 9, 9)],
            {"counted": 70},
            Backlog(70, "exact", None),
        ),  # committed, and behind an open transaction
        ([PartitionScan(0, 10, 4, 100, 990.0)], {}, Backlog(250, "estimate", 10.0)),
        ([PartitionScan(0, 10, 0)], {}, Backlog(None, "unknown", None)),
        ([PartitionScan(0, 1, 1, 10, 1_001.0)], {}, Backlog(10, "exact", 0.0)),  # written by a clock that is fast
    ],
)
def test_rows_in_blocks_are_counted_or_estimated(
    seen: list[PartitionScan], options: dict[str, int], expected: Backlog
) -> None:
    """Counts win; all looked at is exact; else as dense as what was looked at, within what the counts allow; else unknown."""
    assert estimate_backlog(seen, NOW, blocks=True, **options) == expected


@pytest.mark.parametrize(
    ("number", "facts", "position", "end", "expected"),
    [
        (0, LinkFacts(1), None, 7, PartitionScan(0, 7, 0)),
        (0, LinkFacts(1, start=[3]), None, 7, PartitionScan(3, 7, 3)),
        (0, LinkFacts(1, start=[3], end=[5]), None, 7, PartitionScan(3, 5, 3)),
        (0, LinkFacts(1, start=[3], end=[50]), Position(4), 7, PartitionScan(4, 7, 4)),  # not written that far yet
        (0, LinkFacts(1, start=[3], end=[5]), Position(5), 7, PartitionScan(5, 5, 5)),
        (1, LinkFacts(1, start=[3]), None, 7, PartitionScan(0, 7, 0)),  # a partition that was added to a user's topic
        (1, LinkFacts(1, start=[3], end=[5]), None, 7, PartitionScan(0, 0, 0)),  # behind the end
    ],
)
def test_what_lies_before_a_reader(
    number: int, facts: LinkFacts, position: Position | None, end: int, expected: PartitionScan
) -> None:
    """From what it has committed, or where it is to begin, up to the end that was asked for, or what is decided."""
    assert unscanned(number, facts, position, end) == expected


def link(name: str, reader: str, lag: Backlog) -> LinkLag:
    return LinkLag(link=name, reader=reader, kind="internal", topic=name, **lag._asdict())


def test_a_task_that_reads_several_links_has_them_together() -> None:
    """Records add up, the longest wait counts, and it is known as well as the least known; others are left as they are."""
    tasks = [TaskView(name=name, type="function", state="running") for name in ("both", "one", "none")]
    found = [
        link("a", "both", Backlog(5, "exact", 3.0)),
        link("b", "both", Backlog(7, "at-most", 9.0)),
        link("c", "one", Backlog()),
    ]
    view = with_lag(JobView(id="j-1", name="j", status="running", tasks=tasks), found)
    assert view.task("both").lag == Lag(records=12, precision="at-most", seconds=9.0)
    assert view.task("one").lag == Lag()
    assert view.task("none").lag is None


def test_how_well_it_is_known_is_shown() -> None:
    """A mark before the number, explained once; splits are called so; a dash for what is not known."""
    lags = [
        Lag(records=1_234, precision="exact", seconds=185.0),
        Lag(records=1_234, precision="estimate", seconds=None),
        Lag(records=3, unit="splits", precision="at-most", seconds=2.0),
        Lag(records=0, precision="exact", seconds=0.0),
        Lag(),
    ]
    assert [lag_cells(lag) for lag in lags] == [
        ["1,234", "3 min 5 s"],
        ["~1,234", "-"],
        ["<=3 splits", "2.0 s"],
        ["0", "0 s"],
        ["-", "-"],
    ]
    assert [line[:2] for line in lag_legend(lags)] == ["~ ", "<="]
    assert lag_legend(lags[:1]) == []
