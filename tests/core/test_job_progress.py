"""The progress of jobs, step by step: read, everywhere, pending, and which task holds what; and as commands show it."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from queues import block
from queues.dead_letters import Letter, Origin
from queues.messages import FRONT_HEADER
from sardonyx import (
    Count,
    Job,
    blackhole,
    calendar,
    counted,
    event_time,
    everything,
    generator,
    hopping,
    kafka,
    tumbling,
)
from sardonyx.cli.progress_commands import lines_of, place_of, table_of, way_of
from sardonyx.client.progress import look_of, progress_of
from sardonyx.client.record_trace import RecordTrace, trace_of, with_letters, with_way
from sardonyx.client.record_windows import windows_in
from sardonyx.core.errors import Failure, SardonyxError
from sardonyx.core.events import Counts, LinkFacts
from sardonyx.core.front_text import LONGEST_FRONT
from sardonyx.core.fronts import Held
from sardonyx.core.graph import graph_of
from sardonyx.core.link_counts import with_told
from sardonyx.core.notes import TaskNote
from sardonyx.core.positions import LONGEST, Partition, Position
from sardonyx.testing import ClockedRun
from tests.core.job_progress_runs import DAY, hit, looked, progress, said, traced, traffic, values_in, written_in
from tests.sizes import histories

Begin = Callable[..., ClockedRun]


def test_rows_are_pending_as_long_as_their_window_is_open(sardonyx_clocked: Begin) -> None:
    """What is in an open window is held by its task, across a crash; what is in none, or late, is everywhere."""
    run = sardonyx_clocked(traffic())
    run.give("hits", [hit("10:00:10"), hit("10:00:50")])
    assert said(run) == [(2, 0, 2, ["per-user"])]
    run.crash("per-user")
    run.give("hits", [hit("10:01:10", "b")])
    assert said(run) == [(3, 2, 1, ["per-user"])]
    run.crash("per-user")
    run.give("hits", [hit("10:01:20")])
    run.give("hits", [hit("10:02:00")])
    assert said(run) == [(5, 4, 1, ["per-user"])]
    run.give("hits", [hit("10:00:30")])
    assert said(run) == [(6, 4, 2, ["per-user"])], "the late row is through, the one before it is not"
    run.clock("hits", f"{DAY}10:03:00")
    assert said(run) == [(6, 6, 0, [])]


def test_each_source_partition_has_its_own_progress(sardonyx_clocked: Begin) -> None:
    """Rows of one partition wait for the clock of another one; the offsets of each are told. A row that is held lets no
    partition go beyond where it stood when the row came.
    """
    run = sardonyx_clocked(traffic(), topics={"hits": 2})
    run.give("hits", [hit("10:00:10", "b")], partition=1)
    run.give("hits", [hit("10:05:00"), hit("10:05:01")], partition=0)
    assert said(run) == [(2, 0, 2, ["per-user"]), (1, 0, 1, ["per-user"])]
    run.give("hits", [hit("10:01:10", "b")], partition=1)
    run.give("hits", [hit("10:02:10", "b")], partition=1)
    assert said(run) == [(2, 0, 2, ["per-user"]), (3, 1, 2, ["per-user"])]


def test_windows_after_windows_and_joins_hold_rows(sardonyx_clocked: Begin) -> None:
    """A row that has left one window is in the next one; a row of a join waits until nothing can pair with it."""
    job = traffic()
    longer = job.window("per-hour", tumbling("1 h"), after="per-user", group_by="user", aggregate={"n": Count()})
    job.output("hours", kafka("hours"), after=longer)
    run = sardonyx_clocked(job)
    run.give("hits", [hit("10:00:10")])
    run.give("hits", [hit("10:02:00")])
    assert said(run) == [(2, 0, 2, ["per-hour"])]
    run.give("hits", [hit("11:00:00")])
    run.clock("hits", f"{DAY}11:00:30")
    assert said(run) == [(3, 2, 1, ["per-user"])]

    shop = Job("shop", partitions=1, lineage=True)
    views, orders = (
        shop.input(name, kafka(name, schema="user string, at timestamp", start="earliest"), time=event_time("at"))
        for name in ("views", "orders")
    )
    shop.output("out", kafka("out"), after=shop.join("bought", views, orders, on="user", within="1 min"))
    run = sardonyx_clocked(shop)
    run.give("views", [hit("10:00:00")])
    run.give("orders", [hit("10:00:30")])
    assert [(each.source, each.everywhere, each.held_by) for each in progress(run).sources] == [
        ("views", 0, ["bought"]),
        ("orders", 0, ["bought"]),
    ]
    run.clock("views", f"{DAY}10:01:10")
    run.clock("orders", f"{DAY}10:01:10")
    assert [each.everywhere for each in progress(run).sources] == [1, 0]


@pytest.mark.parametrize(
    ("window", "options", "everywhere"),
    [
        (counted(3), {}, 0),
        (everything(), {"emit": "changes"}, 2),
    ],
)
def test_windows_without_bounds(sardonyx_clocked: Begin, window: Any, options: dict[str, Any], everywhere: int) -> None:
    """A row is through with the result that counts it: when the window is full, or with each batch, or so often."""
    run = sardonyx_clocked(traffic(window, **options))
    run.give("hits", [hit("10:00:10"), hit("10:00:50")])
    assert said(run)[0][:2] == (2, everywhere)
    run.give("hits", [hit("11:00:50")])
    assert said(run)[0][:2] == (3, 3)


def test_progress_reaches_the_end(sardonyx_clocked: Begin, seed: int) -> None:
    """Whatever comes in whatever order, and wherever tasks crash. Where each batch states a front, it never falls."""
    rng = random.Random(seed)
    for _ in range(8):
        run = sardonyx_clocked(traffic(), topics={"hits": 2}, batch_size=rng.choice([1, 3, 100]))
        before = [0, 0]
        given = [0, 0]
        for minute in range(12):
            number = rng.randrange(2)
            rows = [hit(f"10:{minute:02}:{rng.randrange(60):02}", rng.choice("abc")) for _ in range(rng.randint(0, 4))]
            run.give("hits", rows, number)
            given[number] += len(rows)
            if rng.random() < 0.3:
                run.crash(rng.choice(["hits", "per-user"]), rng.choice(["settled", "applied", "committed"]))
            now = [each.everywhere or 0 for each in progress(run).sources]
            assert all(old <= new for old, new in zip(before, now, strict=True)), (seed, before, now)
            before = now
        run.end()
        assert [each.read or 0 for each in progress(run).sources] == given
        assert not any(each.pending for each in progress(run).sources)


def test_a_record_is_traced_to_the_window_that_holds_it(sardonyx_clocked: Begin) -> None:
    """Each task says whether the record is through it, and the window's task by which clock it is out."""
    run = sardonyx_clocked(traffic())
    run.give("hits", [hit("10:00:10")])
    run.give("hits", [hit("10:01:10")])
    assert [(each.task, each.state) for each in traced(run, 0).tasks] == [
        ("hits", "through"),
        ("per-user", "through"),
    ]
    held = traced(run, 1)
    assert [(each.task, each.state) for each in held.tasks] == [("hits", "through"), ("per-user", "held")]
    cells = [list(column.cells) for column in way_of(held).columns]
    assert cells[1] == ["through", "held"]
    assert cells[2][1] == "it may be in rows that the task holds, until the clock is 2026-11-23T10:02:00Z"
    unread = traced(run, 2, end=3)
    assert [each.state for each in unread.tasks] == ["unread", "waiting"]


def test_a_record_is_followed_from_batch_to_batch(sardonyx_clocked: Begin) -> None:
    """The task that reads it tells its batch, and what that wrote; the window's task tells the batch that took it in, and that it
    may still hold it.
    """
    job = Job("way", partitions=2, lineage=True)
    hits = job.input("hits", kafka("hits", schema="user string, at timestamp", start="earliest"), time=event_time("at"))
    found = job.window("per-user", tumbling("1 min"), after=hits, group_by="user", aggregate={"hits": Count()})
    job.output("out", kafka("out"), after=found)
    job.output("kept", blackhole(), after=job.distinct("one", after=hits, by="user", within="1 h"))
    run = sardonyx_clocked(job)
    run.give("hits", [hit("10:00:10"), hit("10:00:20", "b")])
    run.give("hits", [hit("10:00:30")])
    engine = run._engine
    last = with_way(traced(run, 2), engine.graph, looked(run), written_in(run), values=values_in(run))
    tasks = {each.task: each for each in last.tasks}
    (batch,) = tasks["hits"].batches
    assert [(each.link, each.partition, each.start, each.end) for each in batch.read] == [("hits.topic", 0, 2, 3)]
    assert (batch.rows, batch.peer) == (1, "test-0")
    assert {each.link for each in tasks["hits"].outputs} == {"hits.per-user", "hits.one"}
    assert all(each.sure and each.rows == 1 for each in tasks["hits"].outputs)
    begin = round(datetime(2026, 11, 23, 10, tzinfo=UTC).timestamp()) * 1_000_000
    assert tasks["per-user"].windows == [(begin, begin + 60_000_000)]
    assert "; its window is 2026-11-23T10:00:00Z to 2026-11-23T10:01:00Z" in str(list(way_of(last).columns[2].cells))
    assert tasks["one"].windows == []
    (took,) = tasks["per-user"].batches
    assert [each.link for each in took.read] == ["hits.per-user"]
    assert tasks["per-user"].outputs == []
    assert "what it gives of it from now on" in tasks["per-user"].unknown[0]
    first = with_way(traced(run, 0), engine.graph, looked(run), written_in(run))
    tasks = {each.task: each for each in first.tasks}
    assert not any(each.sure for each in tasks["hits"].outputs)
    said = [line for each in first.tasks for line in lines_of(each)]
    assert any(
        "hits: worked in a batch of 2 rows at " in line and "with hits.topic[0]@0-1, by peer" in line for line in said
    )
    assert any("hits: what was made of it is among what was written to hits.per-user[" in line for line in said)
    assert any(line.startswith("per-user: not known: what it gives of it from now on") for line in said)


def test_rows_of_several_windows_may_be_in_any_of_them(sardonyx_clocked: Begin) -> None:
    """The trace names all windows of the rows of the record's messages, without those that have closed. If Kafka has deleted the
    messages, the trace does not name a window.
    """
    run = sardonyx_clocked(traffic(window=hopping("1 min", every="30 s")))
    run.give("hits", [hit("10:00:10"), hit("10:02:20", "b")])
    found = with_way(traced(run, 1), run._engine.graph, looked(run), written_in(run), values=values_in(run))
    task = next(each for each in found.tasks if each.task == "per-user")
    assert task.state == "held"
    begin = round(datetime(2026, 11, 23, 10, tzinfo=UTC).timestamp())
    assert [((start // 1_000_000) - begin, (end - start) // 1_000_000) for start, end in task.windows] == [
        (90, 60),
        (120, 60),
    ]
    cells = str(list(way_of(found).columns[2].cells))
    assert "; in some of 2 windows, 2026-11-23T10:01:30Z to 2026-11-23T10:03:00Z" in cells
    gone = with_way(traced(run, 1), run._engine.graph, looked(run), written_in(run), values=lambda *_: None)
    assert all(each.windows == [] for each in gone.tasks)


def as_they_are(rows: pa.Table) -> pa.Table:
    return rows


def test_rows_that_are_not_combined_are_told_by_their_times() -> None:
    """The trace takes the times from the column that the window uses. If a row has no time, or a newer release wrote the message,
    the trace does not name a window.
    """
    job = traffic(hopping("1 min", every="30 s"), aggregate=None, fn=as_they_are)
    stage = graph_of(job.spec(), "d", "traffic-1").stage("per-user")
    window, (link,) = stage.task.window, stage.ingress
    assert window is not None
    assert not link.combined
    begin = datetime(2026, 11, 23, 10, tzinfo=UTC)

    def message(*seconds: int | None, column: str = "at", form: int | None = None) -> bytes:
        times = [None if each is None else begin + timedelta(seconds=each) for each in seconds]
        rows = pa.table({"user": ["a"] * len(times), column: pa.array(times, pa.timestamp("us", "UTC"))})
        if form is not None:
            rows = rows.replace_schema_metadata({block._FORMAT_KEY: str(form).encode()})
        return block.encode(rows)[0].value

    start = round(begin.timestamp()) * 1_000_000
    told = windows_in(window, link, [message(10, 20), message(95)])
    assert told is not None
    assert [(low - start) // 1_000_000 for low, _ in told] == [-30, 0, 60, 90]
    assert {high - low for low, high in told} == {60_000_000}
    for unknown in (message(10, None), message(10, column="when"), message(10, form=block.FORMAT + 1)):
        assert windows_in(window, link, [message(10), unknown]) is None
    assert windows_in(window, msgspec.structs.replace(link, row_time=None), [message(10)]) is None


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize(
    ("window", "size", "every", "options"),
    [
        (tumbling("1 min"), 60, 60, {}),
        (tumbling("1 min"), 60, 60, {"allowed_lateness": "2 min"}),
        (hopping("2 min", every="30 s"), 120, 30, {"grace": "40 s"}),
        (hopping("50 s", every="20 s"), 50, 20, {}),
        (calendar("hour"), 3600, 3600, {}),
    ],
)
def test_no_window_that_holds_a_record_is_left_out(
    sardonyx_clocked: Begin,
    rng: random.Random,
    window: Any,
    size: int,
    every: int,
    options: dict[str, Any],
    batch_size: int,
) -> None:
    """Whatever came in whatever order, late or not: among the windows that are told are all of the record's own that may still
    take it, and none that has closed. Of a batch with one row they are exactly its own.
    """
    waits = {"grace": 40, "allowed_lateness": 120}
    kept = sum(waits[name] for name in options if name in waits)
    exact, told = 0, 0
    for _ in range(2):
        run = sardonyx_clocked(traffic(window, **options), batch_size=batch_size)
        times: list[int] = []
        for minute in range(5):
            fresh = [rng.randrange(max(0, minute * 60 - 90), minute * 60 + 60) for _ in range(rng.randint(1, 4))]
            run.give("hits", [hit(f"10:{at // 60:02}:{at % 60:02}", rng.choice("abc")) for at in fresh])
            times += fresh
        begin = int(datetime.fromisoformat(f"{DAY}10:00:00+00:00").timestamp())
        for offset, at in enumerate(times):
            found = with_way(
                traced(run, offset), run._engine.graph, looked(run), written_in(run), values=values_in(run)
            )
            task = next(each for each in found.tasks if each.task == "per-user")
            if task.state != "held" or not task.windows:
                continue
            (link,) = run._engine.graph.stage("per-user").ingress
            closed = run._engine.tasks["per-user"].positions[Partition(link.topic, task.batches[0].read[0].partition)]
            last = (begin + at) // every * every
            own = {
                (start * 1_000_000, (start + size) * 1_000_000)
                for start in range(last - size // every * every, last + 1, every)
                if start <= begin + at < start + size and (start + size + kept) * 1_000_000 > closed.clock.seen
            }
            assert own <= {*task.windows}, (at, own, task)
            assert all(end + kept * 1_000_000 > closed.clock.seen for _, end in task.windows)
            if task.batches[0].rows == 1 and len(task.batches) == 1:
                assert own == {*task.windows}, (at, own, task)
                exact += 1
            told += 1
    assert told, "no record was held at the end"
    assert exact or batch_size > 1, "no batch had one row"


def test_a_record_that_does_not_exist_is_refused(sardonyx_clocked: Begin) -> None:
    """A partition that the topic does not have, and an offset that no record has yet; the message says what there is. Where a
    broker tells an end before what was read, what was read counts.
    """
    run = sardonyx_clocked(traffic(), topics={"hits": 2})
    run.give("hits", [hit("10:00:10"), hit("10:00:20")])
    for wrong, says in (
        ({"partition": 2, "offset": 0}, "hits has no partition 2: it has 2; they are counted from 0"),
        (
            {"partition": 0, "offset": 2, "end": 2},
            "hits[0] has no record at offset 2 yet: its records end before offset 2",
        ),
        (
            {"partition": 0, "offset": 2, "end": 1},
            "hits[0] has no record at offset 2 yet: its records end before offset 2",
        ),
        (
            {"partition": 1, "offset": 0, "end": 0},
            "hits[1] has no record at offset 0 yet: its records end before offset 0",
        ),
    ):
        with pytest.raises(SardonyxError) as raised:
            traced(run, **wrong)
        assert raised.value.code == "SX-TRACE-RECORD"
        assert f"{raised.value.message}: {raised.value.cause}" == says
        assert raised.value.fix
    assert traced(run, 0).tasks[0].state == "through"
    assert traced(run, 2, end=3).tasks[0].state == "unread"
    assert traced(run, 0, partition=1, end=1).tasks[0].state == "unread"


def test_a_source_that_a_job_does_not_read_is_refused(sardonyx_clocked: Begin) -> None:
    """The sources that it reads are named."""
    run = sardonyx_clocked(traffic())
    with pytest.raises(SardonyxError) as raised:
        trace_of("j-1", run._engine.graph, looked(run), ("clicks", 0, 0), lambda _: 0)
    assert raised.value.code == "SX-TRACE-SOURCE"
    assert "hits" in raised.value.cause


def test_the_dead_letters_of_a_record_are_found() -> None:
    """Only of tasks that read the source and keep letters, and only those with the record's own place."""
    job = Job("dead", partitions=1, lineage=True)
    read = job.input("read", kafka("hits", format="raw", start="earliest"), on_error="dead_letter")
    job.output("out", kafka("out", format="raw"), after=read)
    graph = graph_of(job.spec(), "d", "dead-1")
    found = RecordTrace(job="dead-1", lineage=True, source="hits", partition=0, offset=7, tasks=[])
    failure = Failure("SX-FUNCTION", "it raised")
    stored = [
        SimpleNamespace(
            offset=number, letter=Letter("read", "raw", "ValueError", 1, failure, Origin("hits", 0, offset))
        )
        for number, offset in ((3, 6), (5, 7))
    ]
    letters = SimpleNamespace(each=lambda job, task: stored if (job, task) == ("dead-1", "read") else [])
    (letter,) = with_letters(found, graph, lambda: letters).letters  # type: ignore[arg-type, return-value]
    assert (letter.task, letter.number, letter.code, letter.error) == ("read", 5, "SX-FUNCTION", "it raised")
    other = msgspec.structs.replace(found, source="elsewhere")
    assert not with_letters(other, graph, lambda: pytest.fail("nothing is to be read")).letters


@pytest.mark.parametrize(
    ("text", "place"),
    [("hits[3]@4711", ("hits", 3, 4711)), ("a.b-c[0]@0", ("a.b-c", 0, 0)), ("rows.splits[1]@2", ("rows.splits", 1, 2))],
)
def test_a_record_is_named_by_its_place(text: str, place: tuple[str, int, int]) -> None:
    assert place_of(text) == place


@pytest.mark.parametrize("text", ["hits", "hits[3]", "hits@4", "hits[a]@4", "[3]@4", "hits[3]@-1"])
def test_what_names_no_record_is_refused(text: str) -> None:
    """The message shows how a record is named."""
    with pytest.raises(SardonyxError) as raised:
        place_of(text)
    assert (raised.value.code, raised.value.fix) == ("SX-USAGE", "write for example 'hits[3]@4711'")


def test_an_input_that_is_split_counts_its_splits(sardonyx_clocked: Begin) -> None:
    """A source without a topic is the list of its splits."""
    job = Job("gen", partitions=1, lineage=True)
    rows = job.input("rows", generator(10))
    job.output("out", kafka("out"), after=rows)
    graph = graph_of(job.spec(), "d", "gen-1")
    link = graph.stage("rows").ingress[0]
    held = {"rows": {Partition(link.topic, 0): Position(3)}}
    facts = {each.name: LinkFacts(1) for each in graph.links}
    (found,) = progress_of("gen-1", graph, look_of(graph, facts, held, held, {})).sources
    assert (found.source, found.unit, found.read, found.everywhere) == ("rows.splits", "splits", 3, 3)


def test_a_job_without_times_has_progress_too(sardonyx_clocked: Begin) -> None:
    """Statements go through its links, with fronts and without a clock; it ends as it would without them."""
    job = Job("plain", partitions=2, lineage=True)
    job.output("out", blackhole(), after=job.input("rows", generator(10)))
    run = sardonyx_clocked(job)
    assert not run._engine.graph.timed
    for number in range(1, 4):
        run.give("rows", [{"n": number}])
        assert said(run)[0] == (number, number, 0, [])
        out = run._engine.tasks["out"].positions.values()
        assert {position.front for position in out} == {((number, 0),)}
    run.end()
    assert said(run)[0] == (3, 3, 0, [])


def test_a_source_with_hundreds_of_partitions_has_progress(sardonyx_clocked: Begin) -> None:
    """Its fronts are coarser in statements and positions, which stay short. Progress is never beyond what is in windows, moves,
    and reaches the end.
    """
    count = histories(250, whole=500)
    run = sardonyx_clocked(traffic(), topics={"hits": count})
    rows = [3 + number * 7 % 5 for number in range(count)]

    def fill(minute: int) -> None:
        for number, seconds in enumerate(rows):
            for second in range(seconds):
                row = hit(f"10:{minute:02}:{second:02}")
                run._engine.topics.append(Partition("hits", number), msgspec.json.encode(row), None)

    fill(1)
    run.give("hits", [])
    assert {each.everywhere for each in progress(run).sources} == {0}
    fill(2)
    run.give("hits", [])
    found = [each.everywhere or 0 for each in progress(run).sources]
    assert all(everywhere <= given for everywhere, given in zip(found, rows, strict=True))
    fill(3)
    run.give("hits", [])
    found = [each.everywhere or 0 for each in progress(run).sources]
    assert all(0 < everywhere <= 2 * given for everywhere, given in zip(found, rows, strict=True)), found[:20]
    texts = [position.metadata() for task in run._engine.tasks.values() for position in task.positions.values()]
    assert max(map(len, texts)) <= LONGEST
    between = run._engine.graph.stage("per-user").ingress[0].topic
    fronts = [dict(each.headers() or ()).get(FRONT_HEADER, b"") for each in run._engine.topics.all_of(between)]
    assert 300 < max(map(len, fronts)) <= LONGEST_FRONT
    run.end()
    assert not any(each.pending for each in progress(run).sources)


def test_a_job_that_does_not_ask_writes_nothing_more(sardonyx_clocked: Begin) -> None:
    """Its positions and statements are what they are without lineage; progress holds what is known without it."""
    run = sardonyx_clocked(traffic(lineage=False))
    run.give("hits", [hit("10:00:10")])
    held = [position for task in run._engine.tasks.values() for position in task.positions.values()]
    assert held
    assert all((position.front, position.held) == (None, None) for position in held)
    assert not any("front" in position.metadata() for position in held)
    found = progress(run)
    assert not found.lineage
    assert [(each.read, each.everywhere, each.held_by) for each in found.sources] == [(1, None, ["per-user"])]


def test_the_offsets_of_a_task_that_ended_come_from_its_note() -> None:
    """The brokers forget positions one day; then the note of the task has them."""
    graph = graph_of(traffic().spec(), "d", "traffic-1")
    facts = {link.name: LinkFacts(1 if link.kind != "internal" else 2) for link in graph.links}
    between = graph.stage("per-user").ingress[0].topic
    held = {
        "hits": {Partition("hits", 0): None},
        "per-user": {
            Partition(between, 0): Position(9, Counts(7), front=((5,),), held=Held(60, ((4,),))),
            Partition(between, 1): Position(3, Counts(1), front=((6,),)),
        },
    }
    notes = {"hits": TaskNote("complete", 5, counts=Counts(8, 8), positions={"hits": [8]})}
    (found,) = progress_of("traffic-1", graph, look_of(graph, facts, held, held, notes)).sources
    assert (found.read, found.everywhere, found.pending, found.held_by) == (8, 4, 4, ["per-user"])
    assert with_told(Position(0), [1]).told == (1,)


def test_the_table_names_what_is_held() -> None:
    """A line for each source partition: what is not known is said so, and splits are called splits."""
    graph = graph_of(traffic(lineage=False).spec(), "d", "traffic-1")
    facts = {link.name: LinkFacts(1 if link.kind != "internal" else 2) for link in graph.links}
    held: dict[str, dict[Partition, Position | None]] = {
        "hits": {Partition("hits", 0): Position(1_200, Counts(8, 8), told=(8,)), Partition("hits", 1): None},
        "per-user": {Partition(graph.stage("per-user").ingress[0].topic, 0): None},
    }
    table = table_of(progress_of("traffic-1", graph, look_of(graph, facts, held, held, {})))
    cells = [list(column.cells) for column in table.columns]
    assert cells[0] == ["hits[0]", "hits[1]"]
    assert cells[1:5] == [["1,200", "-"], ["not known", "-"], ["-", "-"], ["per-user", "-"]]
