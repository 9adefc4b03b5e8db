"""Time and windows in the graph: what links know, the log of the state, and the drawing."""

from __future__ import annotations

import pytest
from window_jobs import (
    a_job,
    each,
    found,
    whole,
)

from sardonyx import (
    Count,
    Job,
    Sum,
    blackhole,
    counted,
    event_time,
    kafka,
    kafka_time,
    ordinal,
    tumbling,
    wall,
)
from sardonyx.cli.graph_text import draw
from sardonyx.core.graph import Graph, graph_of
from sardonyx.core.timing import RowTime, TimeSpec
from sardonyx.job.parse import read


def graph(job: Job) -> Graph:
    return graph_of(job.spec(), "d", "j")


def test_links_into_a_window_know_what_their_writers_combine_by():
    """The window, its key, and the column with a row's time; the input with times runs, as it must look at its rows."""
    made = graph(whole())
    links = {link.name: link for link in made.links}
    assert links["hits.per-user"].window == whole().spec().task("per-user").window
    assert links["hits.per-user"].group_by == ["user"]
    assert links["hits.per-user"].row_time == links["clicks.per-user"].row_time == RowTime(column="at")
    assert links["per-user.best"].row_time == RowTime(column="window_time")
    assert links["per-user.best"].by_key
    assert links["per-user.fix"].window is None
    assert (links["hits.topic"].time, links["clicks.topic"].time) == (
        TimeSpec(column="at", ahead="1 day"),
        TimeSpec(kind="kafka", column="at", delay="5 s", idle="1 min"),
    )
    assert made.bound == {}
    assert [stage.name for stage in made.stages if any(link.by_key for link in stage.ingress)] == ["per-user", "best"]


def test_the_reader_of_an_input_that_is_bound_in_place_knows_its_times():
    """A function reads the user's topic itself, so its link says where the times come from."""
    job = Job("bound")
    rows = job.input("in", kafka("in", start="earliest"), time=kafka_time("at"))
    more = job.task("more", each, after=rows)
    job.output("out", blackhole(), after=job.window("w", counted(5), after=more, aggregate={"n": Count()}))
    made = graph(job)
    assert made.bound == {"in": ["more"]}
    (link,) = made.stage("more").ingress
    assert (link.kind, link.time) == ("input", TimeSpec(kind="kafka", column="at"))
    assert made.stage("w").ingress[0].row_time == RowTime(column="at")


@pytest.mark.parametrize(
    ("time", "row_time"),
    [
        (event_time("n", unit="ms"), RowTime(column="n", unit="ms")),
        (wall("w"), RowTime(column="w")),
        (ordinal("nr"), RowTime(column="nr", ordinal=True)),
        (None, None),
    ],
)
def test_where_the_time_of_a_row_stands(time, row_time):
    """By the input; a window that needs no time takes rows without one."""
    made = graph(a_job(counted(5), time=time))
    assert made.stage("per-user").ingress[0].row_time == row_time


def test_the_results_of_windows_over_numbers_have_numbers():
    """Results of windows by number are from right before their end, too."""
    job = Job("nested")
    rows = job.input("in", kafka("in", start="earliest"), time=ordinal("nr"))
    small = job.window("small", tumbling(10), after=rows, aggregate={"n": Count()})
    large = job.window("large", tumbling(100), after=small, aggregate={"n": Sum("n")})
    job.output("out", blackhole(), after=large)
    assert found(job) == []
    assert graph(job).stage("large").ingress[0].row_time == RowTime(column="window_time", ordinal=True)


def test_a_window_names_another_column_for_its_time():
    """The clock is that of the inputs; the column is the window's own."""
    job = Job("other")
    rows = job.input("in", kafka("in", start="earliest"), time=event_time("n", unit="ms"))
    other = job.window("w", tumbling("1 s"), after=rows, aggregate={"n": Count()}, time="seen")
    job.output("out", blackhole(), after=other)
    assert graph(job).stage("w").ingress[0].row_time == RowTime(column="seen")
    untimed = a_job(counted(5), time=None)
    data = untimed.data()
    data["catalog"][1]["window"] = {**data["catalog"][1]["window"], "time": "at"}
    spec, _ = read(data)
    assert graph_of(spec, "d", "j").stage("per-user").ingress[0].row_time == RowTime(column="at"), (
        "first and last go by it"
    )


def test_a_window_has_a_log_of_its_state():
    """A link of its own that the job makes and no sentinel ends; late rows that become dead letters have one, too."""
    made = graph(a_job(late="dead_letter"))
    links = {link.name: link for link in made.stage("per-user").egress}
    assert list(links) == ["per-user.out", "per-user.dead", "per-user.state"]
    state = links["per-user.state"]
    assert (state.kind, state.topic, state.owned, state.has_sentinels) == ("state", "d.j.per-user.state", True, False)
    assert "hits.state" not in {link.name for link in made.links}
    assert made.timed


def test_the_drawing_shows_all_that_a_time_says():
    """The unit, the delay, when a partition is idle, what the clock does at rest, and how far ahead a row may be."""
    job = Job("timed")
    time = event_time("n", unit="ms", delay="2 s", idle="1 min", at_rest="wall", ahead="5 min")
    job.output("out", blackhole(), after=job.input("in", kafka("in", start="earliest"), time=time))
    text = "\n".join(draw(job.spec(), graph(job)))
    assert "time in n (ms), delay 2 s, idle after 1 min, at rest: wall, at most 5 min ahead" in text


def test_the_drawing_shows_times_and_windows():
    """What a window does stands on its line."""
    text = "\n".join(draw(whole().spec(), graph(whole())))
    assert "time in at" in text
    assert "time of Kafka in at, delay 5 s, idle after 1 min" in text
    assert (
        "tumbling 1 min: all collect(ms), hits count, p99 quantile(ms), slowest max(ms); emit every 10 s; grace 10 s; late: edge"
        in text
    )
    assert "late rows of per-user" in text
    assert "idle after 1 min, at most 1 day ahead" in text  # Kafka's times have this limit if the job says none
    assert "calendar day Europe/Berlin" in text
