"""What `sardonyx clock` shows of a task never falls while its job runs, and is no older than what its readers were told."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from rich.console import Console

from sardonyx import Count, Job, event_time, kafka, ordinal, tumbling
from sardonyx.cli import clock_commands
from sardonyx.client.clocks import JobClock, Positions, TaskClock, clocks_of, sizes_of
from sardonyx.core.clocks import END, SourceClock
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import graph_of
from sardonyx.core.positions import Partition, Position
from sardonyx.testing import ClockedRun

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
AtRest = Literal["hold", "wall"]
Begin = Callable[..., ClockedRun]


def job(at_rest: AtRest = "hold") -> Job:
    made = Job("traffic", partitions=2)
    time = event_time("at", idle="1 min", at_rest=at_rest)
    hits = made.input("hits", kafka("in", schema="at timestamp", start="earliest"), time=time)
    counted = made.window("count", tumbling("1 min"), after=hits, aggregate={"n": Count()}, late="drop")
    made.output("out", kafka("out"), after=counted)
    return made


def hit(seconds: float) -> dict[str, Any]:
    """A row, so many seconds after noon."""
    return {"at": datetime.fromtimestamp(NOON.timestamp() + seconds, UTC).isoformat()}


def begun(begin: Begin, at_rest: AtRest) -> ClockedRun:
    return begin(job(at_rest), topics={"hits": 2}, now=NOON)


def shown(run: ClockedRun) -> JobClock:
    engine = run._engine
    known = {stage.name: engine.run_of(stage.name).answer() for stage in engine.graph.stages}
    return clocks_of("traffic-1", engine.graph, known, engine.time.wall(), engine.facts)


def tasks(run: ClockedRun) -> tuple[TaskClock, TaskClock]:
    """The input, and the window that reads it."""
    hits, count = shown(run).tasks
    return hits, count


def second(task: TaskClock) -> float | None:
    return None if task.clock is None else task.clock / 1e6 - NOON.timestamp()


def test_an_input_at_rest_that_goes_on_with_the_wall_is_where_its_readers_are(sardonyx_clocked: Begin) -> None:
    """Not where its last row was, eleven hours ago."""
    run = begun(sardonyx_clocked, "wall")
    run.give("hits", [hit(0)])
    run.advance("11 h")
    run.advance("1 s")
    hits, count = tasks(run)
    assert second(count) == 11 * 3600 - 59, "a minute less, the length of `idle`"
    assert hits.clock == count.clock
    assert hits.why == "all its partitions are idle, so it goes on with the machine's clock"
    run.give("hits", [hit(30)])
    hits, count = tasks(run)
    assert second(hits) == second(count) == 11 * 3600 - 59
    assert hits.held_by == ["in[0]"]
    assert hits.why == "it is behind the clock, which does not fall when an idle partition has rows again"


def test_an_input_that_holds_stands_where_its_readers_stand(sardonyx_clocked: Begin) -> None:
    """All is idle: the clock is what was stated last, and not the greatest of its partitions."""
    run = begun(sardonyx_clocked, "hold")
    run.give("hits", [hit(200)], partition=0)
    run.give("hits", [hit(50)], partition=1)
    run.advance("61 s")
    hits, count = tasks(run)
    assert second(hits) == second(count) == 50
    assert hits.why == 'all its partitions are idle, so the clock holds (`at_rest="wall"` lets it go on)'


def test_a_partition_that_is_no_longer_idle_sets_no_clock_back(sardonyx_clocked: Begin) -> None:
    """The clock went on without it, and its readers know."""
    run = begun(sardonyx_clocked, "hold")
    run.give("hits", [hit(100)], partition=0)
    run.give("hits", [hit(50)], partition=1)
    run.advance("61 s")
    run.give("hits", [hit(195)], partition=0)
    hits, count = tasks(run)
    assert second(hits) == second(count) == 195
    run.give("hits", [hit(45)], partition=1)
    hits, count = tasks(run)
    assert second(hits) == second(count) == 195
    assert hits.held_by == ["in[1]"]


def test_of_readers_that_lag_it_shows_what_they_have_heard() -> None:
    """More than that may fall: nothing else says where the clock of the input was, once an idle partition has rows again."""
    graph = graph_of(job().spec(), "d", "traffic-1")
    topic = graph.stage("count").ingress[0].topic

    def found(*hits: SourceClock) -> TaskClock:
        known: dict[str, Positions] = {
            "hits": {Partition("in", number): Position(5, clock=clock) for number, clock in enumerate(hits)},
            "count": {Partition(topic, 0): Position(5, clock=SourceClock(value=120)), Partition(topic, 1): None},
        }
        return clocks_of("traffic-1", graph, known, None).tasks[0]

    ahead = found(SourceClock(195, 195), SourceClock(45, 45, idle=True))
    assert (ahead.clock, ahead.held_by, ahead.why) == (120, [], "count has not read what it has stated since")
    assert found(SourceClock(195, 195), SourceClock(46, 46)).clock == 120
    assert found(SourceClock(195, END), SourceClock(46, 46, idle=True)).ended is False
    assert found(SourceClock(195, END), SourceClock(46, END)).ended


def test_of_a_task_without_readers_it_shows_the_partitions_that_are_not_idle() -> None:
    """No reader states its clock, so nothing else is known of it."""
    made = Job("copy", partitions=1)
    read = made.input("read", kafka("in", schema="at timestamp", start="earliest"), time=event_time("at", idle="1 min"))
    made.output("out", kafka("out"), after=made.task("same", lambda row: row, after=read))
    graph = graph_of(made.spec(), "d", "copy-1")

    def found(*clocks: SourceClock) -> int | None:
        positions: Positions = {
            Partition("in", number): Position(5, clock=clock) for number, clock in enumerate(clocks)
        }
        return clocks_of("copy-1", graph, {"same": positions}, None).clock

    assert found(SourceClock(195, 195), SourceClock(45, 45, idle=True)) == 195
    assert found(SourceClock(195, 195, idle=True), SourceClock(45, 45, idle=True)) == 195


def test_partitions_that_a_user_adds_hold_the_clock_that_is_shown() -> None:
    """They hold that of the task: without them the command would name others, or a clock that the job does not have."""
    graph = graph_of(job().spec(), "d", "traffic-1")
    hits, count = graph.stage("hits"), graph.stage("count")
    facts = {link.name: LinkFacts(2) for link in graph.links}
    there = {"in": [0, 1, 2], count.ingress[0].topic: [0, 1, 2, 3]}
    assert sizes_of(hits, facts, there) == {"in": 3}
    assert sizes_of(count, facts, there) == {count.ingress[0].topic: 2}, "a queue that had more partitions once"
    assert sizes_of(hits, facts, {}) == {"in": 2}, "the broker does not tell"
    known: dict[str, Positions] = {
        "hits": {
            Partition("in", number): Position(5, clock=SourceClock(195, 195)) if number < 2 else None
            for number in range(sizes_of(hits, facts, there)["in"])
        },
        "count": {Partition(count.ingress[0].topic, n): Position(5, clock=SourceClock(value=120)) for n in range(2)},
    }
    found = clocks_of("traffic-1", graph, known, None, facts).tasks[0]
    assert (found.clock, found.held_by, found.why) == (120, ["in[2]"], "nothing of it was read yet")
    made = Job("ends", partitions=2)
    read = made.input("hits", kafka("in", schema="at timestamp", start="earliest", end="latest"), time=event_time("at"))
    made.output("out", kafka("out"), after=made.task("same", lambda row: row, after=read))
    (ends,) = (each for each in graph_of(made.spec(), "d", "ends-1").stages if each.ingress[0].topic == "in")
    assert sizes_of(ends, {ends.ingress[0].name: LinkFacts(2, end=[9, 9])}, there) == {"in": 2}, (
        "it reads none that is added"
    )


def test_numbers_of_rows_are_shown_as_numbers_while_a_task_has_no_clock_yet() -> None:
    """They are no times, also before the clock of the whole job is known."""
    made = Job("rounds", partitions=1)
    read = made.input("read", kafka("in", schema="n long", start="earliest"), time=ordinal("number"))
    sums = made.window("sums", tumbling(10), after=read, aggregate={"rows": Count()}, late="drop")
    made.output("out", kafka("out"), after=sums)
    graph = graph_of(made.spec(), "d", "rounds-1")
    first, *others = graph.stages
    known: dict[str, Positions] = {
        first.name: {Partition("in", 0): Position(5000, clock=SourceClock(4999, 4999))},
        **{each.name: {Partition(each.ingress[0].topic, 0): None} for each in others},
    }
    found = clocks_of("rounds-1", graph, known, None)
    assert (found.clock, found.tasks[0].clock, found.ordinal) == (None, 4999, True)
    console = Console(file=io.StringIO(), width=200)
    lines: list[str] = []
    call: Any = SimpleNamespace(json=False, put=lines.append, console=console)
    clock_commands._show(call, found)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "4,999" in shown
    assert "1970" not in shown


def test_times_of_rows_say_that_they_are_in_utc() -> None:
    """Times of the wall clock, which the same commands show, are local and say none."""
    assert clock_commands.clock_text(1_795_687_200_500_000, ended=False, ordinal=False) == "2026-11-26T10:00:00.5Z"
    assert clock_commands.clock_text(4_999, ended=False, ordinal=True) == "4,999"
    assert clock_commands.clock_text(None, ended=True, ordinal=False) == "ended"


@pytest.mark.parametrize("at_rest", ["hold", "wall"])
def test_what_is_shown_never_falls(at_rest: AtRest, seed: int, sardonyx_clocked: Begin) -> None:
    """Random rows, crashes and silences: of each task, and of the job; and no input stands before its readers."""
    rng = random.Random(f"{seed}/{at_rest}")
    for _ in range(3):
        run, now = begun(sardonyx_clocked, at_rest), 0.0
        before: dict[str, int] = {}
        for _ in range(40):
            if rng.random() < 0.3:
                run.crash(rng.choice(["hits", "count"]), rng.choice(["settled", "applied", "committed"]))
            if rng.random() < 0.5:
                pause = rng.choice([1, 30, 61, 300])
                now += pause
                run.advance(pause)
            else:
                run.give("hits", [hit(max(now - rng.uniform(0, 200), 0))], partition=rng.randrange(2))
            found = shown(run)
            named = [*((task.task, task.clock) for task in found.tasks), ("the job", found.clock)]
            for name, clock in named:
                assert clock is not None or name not in before, name
                if clock is not None:
                    assert clock >= before.get(name, clock), name
                    before[name] = clock
            hits, count = found.tasks
            assert count.clock is None or (hits.clock is not None and hits.clock >= count.clock)


def test_watching_a_clock_ends_with_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends between two looks is no error. Other errors are, and so is a job that has ended before the first look."""
    monkeypatch.setattr(clock_commands, "_EVERY", 0.0)
    look = JobClock(job="j-1", clock=7, ended=False, behind_seconds=None, tasks=[])

    def watched(*answers: JobClock | SardonyxError) -> tuple[list[Any], list[str]]:
        left, shown, said = list(answers), [], list[str]()

        def clock() -> JobClock:
            answer = left.pop(0)
            if isinstance(answer, SardonyxError):
                raise answer
            return answer

        handle = SimpleNamespace(id="j-1", clock=clock, status=lambda live: SimpleNamespace(ended=live))
        call: Any = SimpleNamespace(
            client=nullcontext,
            job=lambda *_: handle,
            patience=nullcontext,
            json=True,
            put_json=shown.append,
            say=said.append,
        )
        clock_commands.clock(call, "j", watch=True)
        assert not left
        return shown, said

    gone = SardonyxError("SX-CLOCK-GONE", "no", cause="it is stopped")
    assert watched(look, look, gone) == ([look, look], ["job j-1 has no clock any more: it is stopped"])
    for answers in ([gone], [look, SardonyxError("SX-KAFKA-UNREACHABLE", "no")]):
        with pytest.raises(SardonyxError):
            watched(*answers)
