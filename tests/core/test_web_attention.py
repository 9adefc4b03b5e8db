"""What the page of the deployment says needs attention, without services."""

from __future__ import annotations

import time

import msgspec
from web_site import EVENTS, Running, Site, file_like

from sardonyx.client.lags import LinkLag
from sardonyx.client.views import JobView, TaskView
from sardonyx.core.events import AnyEvent, Evicted, LettersClaimed, PeerBorn
from sardonyx.web.overview import OLD, ClusterOverview, JobOverview
from sardonyx.web.sight import Sample, Samples


def test_what_stands_still_needs_attention_the_weightiest_first() -> None:
    """A job without peers, and a deployment without a leader, each with a command that would help."""
    site = Site(Running(EVENTS[:5], leader=None))
    view = site.get("/api/v1/cluster").json(ClusterOverview)
    assert [(each.code, each.level, each.help) for each in view.attention] == [
        ("no-live-peers", "bad", "sardonyx peer"),
        ("not-led", "bad", "sardonyx coordinator"),
    ]
    assert view.attention[0].job == "j-1"
    why = site.get("/api/v1/jobs/j/overview").json(JobOverview)
    assert [reason.code for reason in why.reasons if reason.holds] == ["not-led", "no-live-peers"]
    led = Site(Running(EVENTS[:4]))
    assert led.get("/api/v1/cluster").json(ClusterOverview).attention == []


def test_a_running_job_needs_attention_for_what_kafka_says_of_it() -> None:
    """A task that is late, one that is stuck, dead letters that no user has redone yet, and that Kafka does not tell."""

    def seen(
        *samples: tuple[float, int, int], dead: int = 0, problem: str = "", age: float = 0.0
    ) -> list[tuple[str, ...]]:
        """What draws attention after samples: their times, what the task had read, what was unread."""
        source = Running([*EVENTS[:4], LettersClaimed(at=14.0, job="j-1", task="read", letters=3)])
        past = time.time() - samples[-1][0] - age
        for at, read, unread in samples:
            task = TaskView(name="read", type="input", state="running", peers=1, rows_in=read, rows_out=read, dead=dead)
            lag = LinkLag(link="read.splits", reader="read", kind="splits", topic="t", records=unread, seconds=20.0)
            view = JobView(id="j-1", name="j", status="running", tasks=[task])
            source.said.add(Sample(at=past + at, view=view, lags=None if problem else [lag], problem=problem))
        told = Site(source).get("/api/v1/cluster").json(ClusterOverview).attention
        return [(each.code, each.level, each.job, each.task, each.help) for each in told]

    late, stuck = (("j-1", "read", "sardonyx job explain j-1"),) * 2
    slow = (30.0, 10, 100), (40.0, 20, 300)
    assert seen(*slow) == [("task-behind", "warn", *late)]
    assert seen(*((at, 10, 300) for at in (30.0, 40.0, 50.0, 60.0))) == [("task-stuck", "bad", *stuck)]
    assert seen((30.0, 10, 0), (40.0, 20, 0), dead=3) == [], "they were redone"
    letters = ("dead-letters", "warn", "j-1", "", "sardonyx dlq list j-1")
    assert seen((30.0, 10, 0), (40.0, 20, 0), dead=5) == [letters]
    away = ("kafka-away", "bad", "", "", "sardonyx doctor")
    assert seen((30.0, 10, 0), problem="SX-KAFKA-UNREACHABLE: it does not answer") == [away]
    assert seen(*slow, age=2 * OLD) == [], "it may be otherwise by now"


def test_several_deaths_on_one_machine_need_attention_and_evictions_do_not() -> None:
    """A peer that a user evicted, or that left, died of that."""
    born: list[AnyEvent] = [PeerBorn(at=1.0, peer=f"p{n}", host="h2") for n in range(3)]
    gone = EVENTS[4]
    died = [msgspec.structs.replace(gone, at=5.0, peer=f"p{n}") for n in range(3)]
    told = Site(file_like([*born, *died])).get("/api/v1/cluster").json(ClusterOverview).attention
    assert [each.text for each in told] == ["3 virtual peers of h2 died within 10 min"]
    evicted: list[AnyEvent] = [Evicted(at=3.0, peer=f"p{n}") for n in range(3)]
    assert not Site(file_like([*born, *evicted, *died])).get("/api/v1/cluster").json(ClusterOverview).attention


def test_what_kafka_said_of_a_job_is_judged_once_however_often_the_page_is_made() -> None:
    """With many jobs that run, most of what the page says of them is as it was."""
    samples = Samples()
    calls: list[float] = []

    def judged(sample: Sample) -> float:
        def judge() -> float:
            calls.append(sample.at)
            return sample.at

        return samples.judged(sample, judge)

    view = JobView(id="j-1", name="j", status="running", tasks=[])
    first, second = Sample(at=1.0, view=view), Sample(at=2.0, view=view)
    assert [judged(first), judged(first), judged(second), judged(second)] == [1.0, 1.0, 2.0, 2.0]
    assert calls == [1.0, 2.0]
