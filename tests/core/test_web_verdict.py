"""The verdict on a task: the first row of the table that holds, and what a graph tells from it."""

from __future__ import annotations

import pytest

from sardonyx.client.lags import LinkLag
from sardonyx.client.verdict import Facts, Verdict, drains_in, verdict
from sardonyx.client.views import JobView, TaskView
from sardonyx.web.graph_view import Edge, slowest_way
from sardonyx.web.sight import Sample, Samples

BUSY = Facts("running", peers=2, limit=2, unread=5000)


@pytest.mark.parametrize(
    ("facts", "word", "level"),
    [
        (Facts("complete", unread=3), "done", "rest"),
        (Facts("stopped"), "stopped", "rest"),
        (BUSY._replace(suspended=True, peers=0), "suspended", "rest"),
        (BUSY._replace(backing_off=True, peers=0), "backs off", "warn"),
        (Facts("running", bound=True, unread=4), "bound", "rest"),
        (BUSY._replace(seconds=60.0, growth=50.0, still=40.0, busy=1.0, held="b.c is full"), "held", "info"),
        (BUSY._replace(peers=0, held="b.c is full"), "held", "info"),
        (BUSY._replace(peers=0, suspended=True, held="b.c is full"), "suspended", "rest"),
        (BUSY._replace(peers=0), "no peer", "bad"),
        (Facts("running", peers=0), "no peer", "bad"),
        (Facts("pending", peers=0, unread=7), "no peer", "bad"),
        (BUSY._replace(still=40.0, seconds=60.0), "stuck", "bad"),
        (BUSY._replace(still=40.0, unread=0), "waits", "rest"),
        (BUSY._replace(seconds=12.0, growth=50.0), "bottleneck", "warn"),
        (BUSY._replace(seconds=12.0, growth=50.0, limit=8), "behind", "warn"),
        (BUSY._replace(seconds=12.0, growth=50.0, limit=None), "behind", "warn"),
        (BUSY._replace(seconds=12.0, growth=50.0, limit=8, busy=0.8), "bottleneck", "warn"),
        (BUSY._replace(seconds=12.0, growth=50.0, limit=8, busy=0.79), "behind", "warn"),
        (BUSY._replace(seconds=12.0, growth=-50.0, busy=1.0), "catches up", "info"),
        (BUSY._replace(seconds=12.0, growth=-50.0), "catches up", "info"),
        (BUSY._replace(seconds=12.0), "behind", "warn"),
        (BUSY._replace(seconds=12.0, growth=0.0), "behind", "warn"),
        (BUSY._replace(seconds=1.0, growth=50.0), "keeps up", "ok"),
        (Facts("pending"), "waits", "rest"),
        (Facts("running", peers=1, unread=0), "waits", "rest"),
        (Facts("running", peers=1), "works", "ok"),
    ],
)
def test_the_first_row_that_holds_gives_the_word(facts: Facts, word: str, level: str) -> None:
    """What is not known never makes a task look bad."""
    found = verdict(facts)
    assert (found.word, found.level) == (word, level)
    assert found.text


def test_a_queue_that_shrinks_says_when_it_is_read() -> None:
    """The time is what is unread by the rate at which that shrinks; of one that grows there is none."""
    assert drains_in(BUSY._replace(growth=-100.0)) == 50.0
    assert drains_in(BUSY._replace(growth=1.0)) is None
    assert "50 s" in verdict(BUSY._replace(seconds=20.0, growth=-100.0)).text


def test_a_bottleneck_says_whether_more_peers_would_help() -> None:
    """Its peers are busy, or it has all that it can take, or both."""
    late = BUSY._replace(seconds=12.0, growth=50.0)
    assert verdict(late).text.endswith("more rows come than it reads, and it can take no more peers than 2")
    assert verdict(late._replace(limit=8, busy=0.95)).text.endswith("and its peers are busy for 95% of the time")
    assert verdict(late._replace(busy=0.95)).text.endswith("for 95% of the time and it can take no more peers than 2")


def edge(source: str, target: str, seconds: float | None) -> Edge:
    judged = Verdict("keeps up", "ok", "")
    return Edge(source=source, target=target, link=None, kind=None, points=[], seconds=seconds, verdict=judged)


def test_the_slowest_way_has_the_largest_sum_of_waits() -> None:
    """It names the task before which most of it waits; links that are not known count as nothing."""
    edges = [edge("a", "b", 4.0), edge("b", "c", 20.0), edge("a", "d", 15.0), edge("d", "c", None), edge("c", "e", 1.0)]
    found = slowest_way(["a", "b", "d", "c", "e"], edges)
    assert found is not None
    assert (found.tasks, found.seconds, found.worst, found.waits_for) == (["a", "b", "c", "e"], 25.0, "c", None)


def test_the_slowest_way_says_whom_its_worst_task_waits_for() -> None:
    """A task that a full queue holds does not make the way slow: the one that it waits for does."""
    found = slowest_way(["a", "b", "c"], [edge("a", "b", 20.0), edge("b", "c", 4.0)], {"b": "c", "x": "y"})
    assert found is not None
    assert (found.worst, found.waits_for) == ("b", "c")


def test_there_is_no_slowest_way_while_nothing_is_late() -> None:
    """Some tenths of a second are no news."""
    assert slowest_way(["a", "b"], [edge("a", "b", 0.4)]) is None


def sample(at: float, rows: int, unread: int | None) -> Sample:
    task = TaskView(name="b", type="function", state="running", rows_in=rows, rows_out=rows)
    lag = LinkLag(link="a.b", reader="b", kind="internal", topic="t", records=unread)
    return Sample(at=at, view=JobView(id="j", name="j", status="running", tasks=[task]), lags=[lag])


def test_rates_are_differences_of_the_last_seconds() -> None:
    """A sample from long ago does not count; one sample alone tells no rate."""
    samples = Samples()
    samples.add(sample(0.0, 0, 0))
    assert samples.rates("b").rows_in is None
    for at in (100.0, 104.0, 110.0):
        samples.add(sample(at, int(at) * 10, int(at) * 5))
    assert samples.rates("b").rows_in == pytest.approx(10.0)
    assert samples.growth("a.b") == pytest.approx(5.0)
    assert samples.growth("x.y") is None


def test_a_task_is_as_busy_as_its_batches_fill_its_peers() -> None:
    """Not more than always, whatever the clocks of the peers say. Without telemetry it is not known, nor of a task whose batch
    may still be in hand; where nothing is unread, there is nothing to do.
    """
    samples = Samples()
    assert samples.busy("b", 2, 5) is None
    samples.worked = {"b": 1.5}
    assert samples.busy("b", 2, 5) == 0.75
    assert samples.busy("b", 1, 5) == 1.0
    assert samples.busy("b", 0, 5) is None
    assert samples.busy("c", 1, 5) is None
    assert samples.busy("c", 1, 0) == 0.0


def test_two_samples_tell_a_rate_although_kafka_answers_slowly() -> None:
    """If an answer takes long, the one before it may be older than the span of rates."""
    samples = Samples()
    samples.add(sample(100.0, 1000, 0))
    samples.add(sample(140.0, 1400, 0))
    assert samples.rates("b").rows_in == pytest.approx(10.0)


def test_a_task_that_commits_nothing_is_still_since_the_first_sample_with_its_counts() -> None:
    """And a task that is not counted is not known to be still."""
    samples = Samples()
    for at, rows in ((0.0, 1), (10.0, 7), (30.0, 7), (50.0, 7)):
        samples.add(sample(at, rows, 9))
    assert samples.rates("b").still == 40.0
    assert samples.rates("x").still is None
