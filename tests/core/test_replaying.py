"""Rows of a range of time, worked once more: exactly those, and what is said of a replay before it is done."""

from __future__ import annotations

import json
import random
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from typer.testing import CliRunner

from sardonyx import Count, Job, Sum, blackhole, event_time, files, hopping, kafka, session, sql, tumbling
from sardonyx.cli.app import app
from sardonyx.cli.call import Call
from sardonyx.client.replay import Replay, _point_at, _refuse_cut
from sardonyx.core.clocks import NEVER
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import LinkFacts
from sardonyx.core.going_back import adopted_by, adopting, begin_of, begins_after, begins_at, points_of, state_topics
from sardonyx.core.graph import graph_of
from sardonyx.core.positions import next_offsets, of_inputs
from sardonyx.core.replaying import Offsets, check, check_worked, offsets_read, partial, replay_spec
from sardonyx.core.spec import JobSpec
from sardonyx.core.state_points import CheckpointPoint
from sardonyx.core.timing import WindowSpec
from sardonyx.job.validate_times import problems_of_times
from sardonyx.testing.clocked import ClockedRun
from tests import sizes
from tests.core.going_back_jobs import GRACE, MINUTE, PARTITIONS, START, at_of, engine_of, feed, held, job_run, micros
from tests.core.going_back_jobs import a_job as windows_of_windows
from tests.core.going_back_jobs import rows_of as rows_of_windows

BEGIN = micros(START)
COUNTS = (("hits", "hits"), ("slow", "rows"))
"""Tasks with windows, and the column with the number of their rows."""


def a_job(every: str | None = None, delay: int = 3_600) -> Job:
    """``delay``: in seconds; rows that are older are late."""
    job = Job("j", partitions=3, checkpoint_every=every)
    schema = "user long, n long, at timestamp"
    read = job.input("read", kafka("given", schema=schema, start="earliest"), time=event_time("at", delay=f"{delay} s"))
    totals = {"hits": Count(), "total": Sum("n")}
    hits = job.window("hits", tumbling("1 min"), after=read, group_by="user", aggregate=totals)
    job.output("out", kafka("sums"), after=hits)
    return job


def rows_of(rng: random.Random, count: int, disorder: int) -> list[tuple[int, dict[str, Any]]]:
    """Rows with the partition of each. Each is up to so many seconds older than its place says."""
    return [
        (
            rng.randrange(PARTITIONS),
            {
                "user": rng.randint(0, 3),
                "n": n,
                "at": datetime.fromtimestamp(BEGIN // 1_000_000 + n - rng.randint(0, disorder), UTC).isoformat(),
            },
        )
        for n in range(count)
    ]


def windows_of(
    rows: list[tuple[int, dict[str, Any]]], since: int, until: int
) -> dict[tuple[int, int], tuple[int, int]]:
    """By user and start of the window, what the rows of a range make."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for _, row in rows:
        if since <= at_of(row) < until:
            key = row["user"], at_of(row) // MINUTE
            hits, total = found.get(key, (0, 0))
            found[key] = hits + 1, total + row["n"]
    return found


def given_by(run: ClockedRun) -> dict[tuple[int, int], tuple[int, int]]:
    return {
        (row["user"], micros(row["window_start"]) // MINUTE): (row["hits"], row["total"]) for row in run.rows("hits")
    }


def replayed(
    before: ClockedRun, since: int, until: int, unbound: str = "", point: CheckpointPoint | None = None
) -> ClockedRun:
    """A run of the job that works rows of a run once more. Its topic holds what that of the earlier one holds.

    ``unbound``: a bound of time that is left out. ``point``: the checkpoint with whose states it begins.
    """
    old = engine_of(before)
    reached = {s.name: next_offsets(s, old.facts, of_inputs(s, held(before)[s.name])) for s in old.graph.stages}
    index = [begins_at(old.graph, held(before), since)]
    reads = offsets_read(old.graph, old.facts, reached, index, since)
    spec = replay_spec(old.spec, "again", since, until, reads, "again")
    if unbound:
        spec = changed(spec, "read", time=replace(spec.task("read").time, **{unbound: None}))
    run = job_run(spec)
    new = engine_of(run)
    for link in new.graph.links:
        if link.kind == "input":
            start, end = reads[link.source]
            new.facts[link.name] = replace(new.facts[link.name], start=start, end=end)
    topics = state_topics(old.graph)
    if point is not None:
        new.facts = adopting(new.graph, new.facts, adopted_by(point, topics), point.at, {}, old.facts)
    for place in old.topics.places():
        if place.topic in ("given", *topics.values()):
            for message in old.topics.read(place):
                new.topics.append(place, message.stored_value, message.stored_key, message.stored_headers)
    return run


@pytest.mark.parametrize("every", ["1 min", None])
@settings(max_examples=sizes.histories(3, whole=12), deadline=None)
@given(
    seed=st.integers(0, 10**6),
    disorder=st.sampled_from([0, 20, 90, 3_000]),
    first=st.integers(0, 8),
    size=st.integers(1, 6),
)
def test_a_replay_takes_exactly_the_rows_of_the_range(
    every: str | None, seed: int, disorder: int, first: int, size: int
) -> None:
    """However much they are out of order, wherever its index has it begin, and though peers crash."""
    rng = random.Random(seed)
    rows = rows_of(rng, 300, disorder)
    since = BEGIN + (first - 3) * MINUTE
    until = since + size * MINUTE
    with closing(job_run(a_job(every, disorder).spec())) as before:
        for begin in range(0, len(rows), 50):
            for partition in range(PARTITIONS):
                before.give("read", [row for place, row in rows[begin : begin + 50] if place == partition], partition)
        with closing(replayed(before, since, until)) as again:
            again.crash("hits", rng.choice(["settled", "applied", "committed"]))
            again.end()
            assert given_by(again) == windows_of(rows, since, until)


@pytest.mark.parametrize("seed", range(sizes.histories(1, whole=3)))
def test_a_replay_begins_with_the_states_of_a_job_that_went_on(seed: int) -> None:
    """It reads the log of the states of a job that has written much more since, up to the checkpoint. Each window that was open
    then, or begins in the range, counts its rows before the range and those of it. Peers crash.
    """
    rng = random.Random(seed)
    rows = rows_of_windows(seed, 700)
    with closing(job_run(windows_of_windows("j").spec())) as before:
        feed(before, rows[:400], rng)
        point = rng.choice(points_of(engine_of(before).graph, held(before), every_time=True))
        until = point.at + rng.randint(1, 3) * MINUTE
        feed(before, rows[400:], rng)
        with closing(replayed(before, point.at, until, point=point)) as again:
            again.crash("slow", rng.choice(["settled", "applied", "committed"]))
            again.end()
            found = {
                task: {(r["user"], micros(r["window_start"])): r[count] for r in again.rows(task)}
                for task, count in COUNTS
            }
    worked = [row for _, row in rows if at_of(row) < until]
    for (task, _), size in zip(COUNTS, (MINUTE * 3 // 2, MINUTE), strict=True):
        wanted = Counter((row["user"], at_of(row) // size * size) for row in worked)
        closing_later = {key: n for key, n in wanted.items() if key[1] + size + GRACE[task] > point.at}
        assert found[task] == closing_later, (task, point)


def test_a_running_job_can_be_replayed_from_each_time_that_it_keeps() -> None:
    """Also from those in which nothing happened, of which an ended job keeps the last one. From no other."""
    rows = rows_of_windows(1, 200)
    spec = a_job("1 min", 20).spec()
    with closing(job_run(spec)) as run:
        feed(run, rows, random.Random(1), crashes=False)
        run.clock("read", START + timedelta(minutes=9))
        graph, known = engine_of(run).graph, held(run)
    every, kept = points_of(graph, known, every_time=True), points_of(graph, known)
    assert {point.at for point in kept} < {point.at for point in every}
    for point in every:
        assert _point_at("j-1", every, point.at) == point
    for time in (micros(START) + 90_000_000, micros(START) + 60 * MINUTE):
        with pytest.raises(SardonyxError, match="SX-CHECKPOINT-UNKNOWN"):
            _point_at("j-1", every, time)
    with pytest.raises(SardonyxError, match="cannot be replayed with its states") as none:
        _point_at("j-1", [], micros(START))
    assert none.value.code == "SX-CHECKPOINT-UNKNOWN"
    assert "without `--with-state`" in none.value.fix


@pytest.mark.parametrize("every", ["1 min", None])
def test_an_index_of_times_says_where_to_begin(every: str | None) -> None:
    """Also of a job without checkpoints: for the last five minutes of half an hour, the first 23 are not read."""
    rows = rows_of(random.Random(2), 1_800, 20)
    since = BEGIN + 25 * MINUTE
    job = a_job(every, 30)
    with closing(job_run(job.spec())) as before:
        for begin in range(0, len(rows), 50):
            for partition in range(PARTITIONS):
                before.give("read", [row for place, row in rows[begin : begin + 50] if place == partition], partition)
        engine = engine_of(before)
        found = begins_at(engine.graph, held(before), since).offsets["read"]["given"]
        assert len(found) == PARTITIONS
        assert all(each is not None and each > 1_400 // PARTITIONS for each in found), found


def test_without_either_bound_rows_of_other_times_are_taken() -> None:
    """The control: the same comparison finds it if one of the two bounds is left out."""
    rows = rows_of(random.Random(1), 300, 90)
    since, until = BEGIN + MINUTE, BEGIN + 3 * MINUTE
    with closing(job_run(a_job().spec())) as before:
        for partition in range(PARTITIONS):
            before.give("read", [row for place, row in rows if place == partition], partition)
        for unbound in ("", "since", "until"):
            with closing(replayed(before, since, until, unbound)) as again:
                again.end()
                assert (given_by(again) == windows_of(rows, since, until)) == (not unbound), unbound


def misses(batches: list[list[int]], at: int, since: int, *, greedy: bool = False) -> bool:
    """Whether a row of a time or later is before where it is read from, when the job has read these batches.

    ``greedy``: reading begins after the first row of that time.
    """
    every, seen, begins, times = 60, NEVER, None, list[int]()
    for batch in batches:
        before, began = seen, len(times)
        times += batch
        seen = max(before, *batch)
        begins = begins_after(begins, began, (before, seen), every)
    graph = graph_of(a_job("1 min").spec(), "d", "j")
    facts = {link.name: LinkFacts(1, start=[0] if link.kind == "input" else None) for link in graph.links}
    begin = begin_of(begins, at)
    if greedy:
        begin = next((n + 1 for n, time in enumerate(times) if time >= at), len(times))
    points = [CheckpointPoint(at, {"read": {"given": [begin]}})]
    reads = offsets_read(graph, facts, {"read": {"given": [len(times)]}}, points, since)["read"]
    assert reads.end == [len(times)]
    return any(time >= since for time in times[: reads.start[0]])


def histories(rng: random.Random) -> list[list[list[int]]]:
    """Batches of a partition, with the times of their rows: they rise, out of order by up to two minutes."""
    return [[[20 * n + rng.randint(0, 120) for _ in range(5)] for n in range(30)] for _ in range(200)]


def test_no_row_of_the_range_is_before_where_it_is_read_from(seed: int) -> None:
    """By the index that checkpoints keep; of a checkpoint after the beginning of the range nothing is taken."""
    rng = random.Random(seed)
    for batches in histories(rng):
        at = rng.randint(0, 600)
        assert not misses(batches, at, at + rng.randint(-100, 200))


def test_an_index_that_begins_too_late_is_found_out(seed: int) -> None:
    """The control: what begins right after the first row of that time misses it."""
    assert all(misses(batches, 300, 300, greedy=True) for batches in histories(random.Random(seed)))


def test_what_several_tasks_read_of_an_input_is_read_from_the_first_to_the_last() -> None:
    """Partitions that were added while the job ran are among it, and none begins after its end."""
    job = Job("j")
    read = job.input("read", kafka("given", schema="n long, at timestamp", start="earliest"), time="at")
    for name in ("one", "two"):
        job.output(name, kafka(f"out-{name}"), after=job.task(f"f-{name}", keep_all, after=read))
    graph = graph_of(job.spec(), "d", "j")
    starts = iter([[5, 9], [7, 3]])
    facts = {link.name: LinkFacts(2, start=next(starts)) for link in graph.links if link.kind == "input"}
    reached = {"f-one": {"given": [10, 9]}, "f-two": {"given": [8, 20, 4]}}
    found = offsets_read(graph, facts, reached, [], BEGIN)["read"]
    assert found == Offsets([5, 3, 0], [10, 20, 4])
    assert found.records == 26


def keep_all(row: dict) -> dict:
    return row


def test_outputs_get_other_names_or_the_rows_once_more() -> None:
    """A word after the names of topics, folders and tables. To the same ones, files are appended. No end marker is written."""
    job = Job("j")
    read = job.input(
        "read", kafka("given", schema="n long, at timestamp", start="latest"), time=event_time("at", idle="1 min")
    )
    job.output("topic", kafka("sums", end_marker=True), after=read)
    job.output("folder", files("/data/sums", format="json", mode="overwrite"), after=read)
    job.output("table", sql("sqlite:////data/db", table="sums"), after=read)
    job.output("none", blackhole(), after=read)
    spec, reads = job.spec(), {"read": Offsets([3, 4], [5, 6])}
    again, same = (replay_spec(spec, "r", 7, 8, reads, outputs) for outputs in ("again", "same"))
    read_again = again.task("read")
    assert (read_again.options["start"], read_again.options["end"]) == ({"0": 3, "1": 4}, {"0": 5, "1": 6})
    assert (read_again.time.since, read_again.time.until, read_again.time.idle) == (7, 8, None)
    names = [
        task.options.get("topic") or task.options.get("path") or task.options.get("table") for task in again.catalog
    ]
    assert names == ["given", "sums.again", "/data/sums.again", "sums_again", None]
    assert same.task("topic").options["topic"] == "sums"
    assert same.task("folder").options["mode"] == "append"
    assert not any("end_marker" in task.options for task in (*again.catalog, *same.catalog))
    assert (again.name, replace(same, name="j").workflow) == ("r", spec.workflow)


@pytest.mark.parametrize(
    ("job", "outputs", "code"),
    [
        (a_job(), "again", ""),
        (a_job(), "same", ""),
        (a_job(), "again", "SX-REPLAY-RANGE"),
    ],
)
def test_a_range_has_a_beginning_before_its_end(job: Job, outputs: str, code: str) -> None:
    """Otherwise there is no such time."""
    if not code:
        check("j-1", job.spec(), 7, 8, outputs)
        return
    for until in (7, 6):
        with pytest.raises(SardonyxError, match=code):
            check("j-1", job.spec(), 7, until, outputs)


def changed(spec: JobSpec, task: str, **fields: Any) -> JobSpec:
    return replace(spec, catalog=[replace(each, **fields) if each.name == task else each for each in spec.catalog])


SPEC = a_job().spec()
TIME = SPEC.task("read").time


@pytest.mark.parametrize(
    ("spec", "outputs", "says"),
    [
        (changed(SPEC, "read", connector="files"), "again", "reads files"),
        (changed(SPEC, "read", time=None), "again", "no times that they keep"),
        (changed(SPEC, "read", time=replace(TIME, kind="wall")), "again", "no times that they keep"),
        (changed(SPEC, "out", connector="mine:Output"), "again", "a connector of your own"),
        (changed(SPEC, "out", connector="mine:Output"), "same", ""),
    ],
)
def test_what_cannot_be_replayed_says_why(spec: JobSpec, outputs: str, says: str) -> None:
    """Inputs that are read as a whole, rows whose times are made when they are read, outputs that cannot be named."""
    if not says:
        check("j-1", spec, 7, 8, outputs)
        return
    with pytest.raises(SardonyxError, match=says) as raised:
        check("j-1", spec, 7, 8, outputs)
    assert (raised.value.code, bool(raised.value.cause and raised.value.fix)) == ("SX-JOB-REPLAY", True)


@pytest.mark.parametrize(
    ("begins", "reads", "span", "says"),
    [
        (None, (None, None), (0, 90), ""),
        (20, (None, None), (20, 90), ""),
        (20, (None, None), (19, 90), "before 1970-01-01T00:00:20Z"),
        (None, (20, 60), (20, 60), ""),
        (20, (30, 60), (29, 60), "before 1970-01-01T00:00:30Z"),
        (None, (20, 60), (20, 61), "from 1970-01-01T00:01:00Z on"),
    ],
)
def test_rows_that_a_job_has_left_out_are_not_worked_in_part(
    begins: int | None, reads: tuple[int | None, int | None], span: tuple[int, int], says: str
) -> None:
    """Those before the checkpoint that it went on from, and those of times that a replay did not take: such a range is refused,
    as only some of these rows are among the records that the job has read. It names the bound that fits.
    """
    second = 1_000_000
    since, until = (each if each is None else each * second for each in reads)
    spec = changed(SPEC, "read", time=replace(TIME, since=since, until=until))
    facts = {"read-hits": LinkFacts(3, since=begins and begins * second), "hits-out": LinkFacts(3)}
    first, last = (each * second for each in span)
    if not says:
        check_worked("j-1", spec, facts, first, last)
        return
    with pytest.raises(SardonyxError, match=says) as raised:
        check_worked("j-1", spec, facts, first, last)
    assert raised.value.code == "SX-REPLAY-RANGE"
    assert f"{says.split()[1]}`" in str(raised.value.fix)


DAY = WindowSpec(kind="calendar", unit="day", zone="Europe/Berlin")


@pytest.mark.parametrize(
    ("window", "since", "until", "says"),
    [
        (WindowSpec(kind="tumbling", size="1 min"), "10:00", "10:30", ""),
        (WindowSpec(kind="tumbling", size="7 min"), "10:00", "10:30", "beginning of the range"),
        (WindowSpec(kind="tumbling", size="1 h"), "10:00", "10:30", "end of the range"),
        (WindowSpec(kind="session", gap="1 h"), "10:00", "10:30", ""),
        (DAY, "2026-11-25T23:00", "2026-11-26T23:00", ""),
        (DAY, "2026-11-26T00:00", "2026-11-26T23:00", "2026-11-25T23:00:00Z"),
    ],
)
def test_a_range_that_cuts_windows_is_refused(window: WindowSpec, since: str, until: str, says: str) -> None:
    """If they could be whole: the results of others would count a part of their rows. A bound that fits is named."""
    times = [text if "T" in text else f"2026-11-26T{text}" for text in (since, until)]
    first, last = (micros(datetime.fromisoformat(f"{text}+00:00")) for text in times)
    task = SPEC.task("hits")
    if not says:
        _refuse_cut("j-1", task, window, first, last)
        return
    with pytest.raises(SardonyxError) as raised:
        _refuse_cut("j-1", task, window, first, last)
    assert raised.value.code == "SX-REPLAY-RANGE"
    assert says in f"{raised.value.message} {raised.value.fix}"


def test_it_says_which_results_may_lack_rows() -> None:
    """Those of windows that overlap its ends whatever they are, of joins, and of states that begin empty."""
    job = Job("j")
    read = job.input("read", kafka("given", schema="user long, n long, at timestamp", start="earliest"), time="at")
    job.window("whole", tumbling("1 min"), after=read, group_by="user", aggregate={"n": Count()})
    job.window("hops", hopping("2 min", "1 min"), after=read, group_by="user", aggregate={"n": Count()})
    job.window("visits", session("1 min"), after=read, group_by="user", aggregate={"n": Count()})
    job.distinct("seen", after=read, by="n", within="5 min")
    for task in ("whole", "hops", "visits", "seen"):
        job.output(f"out-{task}", blackhole(), after=task)
    assert partial(job.spec(), with_state=False) == ["hops", "visits", "seen"]
    assert partial(job.spec(), with_state=True) == ["hops", "visits"]


def test_bounds_of_time_belong_to_topics() -> None:
    """`check` refuses them where rows could not be told to be of these times."""
    assert list(problems_of_times(changed(SPEC, "read", time=replace(TIME, since=7, until=8)))) == []
    for kind in ("wall", "ordinal"):
        spec = changed(SPEC, "read", time=replace(TIME, kind=kind, delay="0 s", column="added", since=7))
        assert any("since and until" in each.message for each in problems_of_times(spec))
    spec = changed(SPEC, "read", time=replace(TIME, until=7), connector="generator")
    assert any("since and until" in each.message for each in problems_of_times(spec))


def test_a_replay_says_what_it_does_and_asks_before_it_publishes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """On stderr. To other outputs it does not ask; to the same ones nothing is done without `--yes`, if there is no terminal."""
    ten, eleven = datetime(2026, 11, 26, 10, tzinfo=UTC), datetime(2026, 11, 26, 11, tzinfo=UTC)
    done: list[dict[str, Any]] = []

    class Client:
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None: ...

        def job(self, _: str) -> Any:
            return SimpleNamespace(replaying=self.replaying, replay=self.replay)

        def replaying(self, _since: str, _until: str, **wanted: Any) -> Replay:
            return Replay(
                job="j-2",
                since=ten,
                until=eleven,
                with_state=wanted["with_state"],
                outputs=wanted["outputs"],
                reads={"orders": 1_200},
                publishes=["out (kafka totals)"],
                partial=["visits"],
                resumes="j-1",
                deleted={"orders": 5} if wanted["kept"] else {},
            )

        def replay(self, _since: str, _until: str, **wanted: Any) -> Any:
            done.append(wanted)
            return SimpleNamespace(id="j-replay-1")

    monkeypatch.setattr(Call, "client", lambda _: Client())
    monkeypatch.setattr(Call, "job", lambda _, client, job: client.job(job))
    monkeypatch.setattr(Call, "patience", lambda *_: Client())
    span = ["job", "replay", "j", "--from", "2026-11-26T10:00Z", "--to", "2026-11-26T11:00Z"]
    other = CliRunner().invoke(app, span)
    assert (other.stdout, other.stderr.splitlines()) == (
        "j-replay-1\n",
        [
            "works the rows of job j-2 from 2026-11-26T10:00:00Z to before 2026-11-26T11:00:00Z once more, with empty states",
            "reads 1,200 records of orders, and leaves out the rows of other times",
            "what job j-1 had read, from which this one went on, is not worked",
            "only rows of these times count in the results of visits",
            "publishes: out (kafka totals)",
        ],
    )
    asked = CliRunner().invoke(app, [*span, "--outputs", "same", "--with-state", "--kept"])
    assert asked.exit_code != 0
    assert "SX-GO-BACK-ASK" in asked.stderr
    for line in (
        "is without records that are deleted, of which some may be of these times: 5 of orders",
        "with the states of 2026-11-26T10:00:00Z",
        "publishes again: out (kafka totals)",
    ):
        assert line in asked.stderr
    agreed = CliRunner().invoke(app, [*span, "--outputs", "same", "--yes", "--json"])
    assert (json.loads(agreed.stdout)["id"], json.loads(agreed.stdout)["reads"]) == ("j-replay-1", {"orders": 1_200})
    assert [each["outputs"] for each in done] == ["again", "same"]
    assert Counter(each["kept"] for each in done) == {False: 2}
