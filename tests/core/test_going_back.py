"""A job goes on from a checkpoint of another one: its state then and its results from then on are those of a run that never
stopped.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from coordinator.core.decide import decide
from coordinator.core.state import new_state
from peer.prepared_task import PreparedTask
from sardonyx import Count, Job, Max, blackhole, event_time, kafka, ordinal, tumbling
from sardonyx.core.checkpoints import Bookmark, Checkpoints
from sardonyx.core.clocks import NEVER
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import (
    FORMAT,
    OLDEST_RULES,
    RULES,
    Acked,
    AnyEvent,
    Checkpointed,
    Completed,
    Counts,
    Exhausted,
    JobStatus,
    JobStopped,
    JobSubmitted,
    LinkFacts,
    LinksCreated,
    LinksDeleted,
    LinksRead,
    PeerBorn,
    decode_event,
    encode_event,
)
from sardonyx.core.going_back import (
    KEPT,
    adopting,
    begin_of,
    begins_after,
    begins_of,
    forgotten,
    last_at,
    points_of,
    state_logs,
    state_topics,
)
from sardonyx.core.graph import graph_of
from sardonyx.core.positions import Partition, Position
from sardonyx.core.predecessors import Predecessor
from sardonyx.core.resuming import resume_problems
from sardonyx.core.spec import JobSpec
from sardonyx.core.state_points import Adopted, CheckpointPoint
from sardonyx.testing.clocked import ClockedRun
from sardonyx.testing.engine import DEPLOYMENT
from tests.core.going_back_jobs import (
    GRACE,
    MINUTE,
    START,
    a_job,
    at_of,
    closing_after,
    engine_of,
    feed,
    held,
    job_run,
    results,
    resumed,
    rows_of,
)
from tests.core.test_resume_windows import KEPT as STATES_KEPT
from tests.core.test_resume_windows import counting
from tests.sizes import histories


@pytest.mark.parametrize("seed", range(histories(1, whole=2)))
def test_it_goes_on_as_if_it_had_never_stopped(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a checkpoint that a killed job has kept, windows give the results that a run gives which was never stopped, from that
    time on; and a task that goes by the order of rows those that it gives when the rows before that time come first. Peers crash
    before and after. The other job has any number of partitions, and waits for late rows as long as it likes: no row comes of
    a window that had closed. If a log of the states is gone, it fails, and gives nothing.
    """
    monkeypatch.setattr(PreparedTask, "_positions_moved", lambda *_: False)  # asks Kafka, when a shard cannot be made
    rng = random.Random(seed)
    count = histories(350, whole=600)
    rows = rows_of(seed, count)
    cut = rng.randint(count // 2, count - 50)
    spec = a_job("before").spec()
    with closing(job_run(spec)) as stopped, closing(job_run(spec)) as whole:
        feed(stopped, rows[:cut], rng)
        points = points_of(engine_of(stopped).graph, held(stopped))
        assert points, "no checkpoint is complete"
        point = rng.choice(points)
        feed(whole, rows, random.Random(0), crashes=False)
        whole.end()
        after = a_job("after", rng.choice(["1 s", "100 s", "10 min"])).spec()
        after = replace(after, partitions=rng.choice([1, 2, 3, 5]))
        with closing(resumed(stopped, after, point)) as lost:
            topics, gone = engine_of(lost).topics, state_topics(engine_of(stopped).graph).values()
            for place in [each for each in topics.places() if each.topic in gone]:
                topics._logs[place].clear()
            with pytest.raises(SardonyxError, match="SX-RESUME-GONE"):
                feed(lost, rows[cut:], rng, crashes=False)
            assert not any(results(lost, task) for task in GRACE)
        with closing(resumed(stopped, after, point)) as again:
            feed(again, rows[cut:], rng)
            again.end()
            for task, grace in GRACE.items():
                assert results(again, task) == closing_after(results(whole, task), point.at, grace), (task, point)
            found = results(again, "seen")
    with closing(job_run(spec)) as parted:
        feed(parted, [each for each in rows if at_of(each[1]) < point.at], random.Random(0), crashes=False)
        before = results(parted, "seen")
        feed(parted, [each for each in rows if at_of(each[1]) >= point.at], random.Random(0), crashes=False)
        parted.end()
        assert found == results(parted, "seen") - before


@pytest.mark.parametrize("seed", range(histories(1, whole=2)))
@pytest.mark.parametrize("every", ["1 min", None])
def test_a_stopped_job_and_the_next_one_give_what_one_gives(seed: int, every: str | None) -> None:
    """All of it: the open windows of the one close in the other, with the rows of both, and what one has seen is known to the
    other. What is late for the one is late for the other. Peers crash. The other job has any number of partitions.
    """
    rng = random.Random(seed)
    count = histories(250, whole=500)
    rows = rows_of(seed, count, strays=True)
    cut = rng.randint(50, count - 20)
    spec = replace(a_job("before").spec(), checkpoint_every=every)
    with closing(job_run(spec)) as stopped, closing(job_run(spec)) as whole:
        feed(stopped, rows[:cut], rng)
        feed(whole, rows, random.Random(0), crashes=False)
        whole.end()
        after = replace(spec, name="after", partitions=rng.choice([1, 2, 3, 5]))
        with closing(resumed(stopped, after)) as again:
            feed(again, rows[cut:], rng)
            again.end()
            for task in (*GRACE, "seen"):
                assert results(stopped, task) + results(again, task) == results(whole, task), task


def test_the_next_job_counts_rows_on() -> None:
    """Where their times are their numbers: else they would be late until so many have come again. Records that are no rows have a
    number, too, wherever batches are cut and a job was stopped.
    """
    job = Job("numbered", partitions=2)
    read = job.input("read", kafka("given", schema="n long", start="earliest"), time=ordinal("nr"), on_error="skip")
    job.window("tens", tumbling(10), after=read, aggregate={"rows": Count(), "first": Max("n"), "last": Max("nr")})
    job.output("out", blackhole(), after="tens")
    spec, one = job.spec(), {"read": 1}
    rows: list[Any] = [b"broken" if n in (7, 23, 24, 25, 39) else {"n": n} for n in range(60)]
    with closing(job_run(spec, one)) as stopped, closing(job_run(spec, one)) as whole:
        stopped.give("read", rows[:25])
        whole.give("read", rows)
        whole.end()
        with closing(resumed(stopped, replace(spec, name="after"), inputs=one)) as again:
            again.give("read", rows[25:40])
            again.crash("read")
            again.give("read", rows[40:])
            again.end()
            assert results(stopped, "tens") + results(again, "tens") == results(whole, "tens")
            assert [row["rows"] for row in whole.rows("tens")] == [9, 10, 7, 9, 10, 10]


def test_what_was_closed_stays_closed_after_one_of_the_inputs_had_ended() -> None:
    """The next job does not know at once that nothing comes of that input any more. Until then what is late was late before."""
    job = Job("both", partitions=2)
    time = event_time("at")
    schema = "user long, at timestamp"
    live = job.input("live", kafka("live", schema=schema, start="earliest"), time=time)
    old = job.input("old", kafka("old", schema=schema, start="earliest", end="latest"), time=time)
    job.window("hits", tumbling("1 min"), after=[live, old], group_by="user", aggregate={"hits": Count()})
    job.output("out", blackhole(), after="hits")
    spec, inputs = job.spec(), {"live": 1, "old": 1}

    def row(second: int) -> list[dict[str, Any]]:
        return [{"user": user, "at": (START + timedelta(seconds=second)).isoformat()} for user in range(5)]

    def begun(run: ClockedRun) -> None:
        run.give("old", row(10))
        run.give("live", row(20))
        run.end("old")
        run.give("live", row(300))

    def goes_on(run: ClockedRun) -> None:
        run.give("live", row(30))
        run.give("live", row(310))
        run.end()

    with closing(job_run(spec, inputs)) as stopped, closing(job_run(spec, inputs)) as whole:
        begun(stopped)
        begun(whole)
        goes_on(whole)
        assert sorted(each["hits"] for each in whole.rows("hits")) == [2] * 10
        with closing(resumed(stopped, replace(spec, name="after"), inputs=inputs)) as again:
            goes_on(again)
            assert results(stopped, "hits") + results(again, "hits") == results(whole, "hits")


def test_no_row_of_a_time_stands_before_where_it_is_read_from(seed: int) -> None:
    """Whatever was thinned out. And what is read for a checkpoint of the past is not much more than what came since, however long
    the partition is.
    """
    rng = random.Random(seed)
    every, seen, begins, times = 60, NEVER, None, list[int]()
    while len(times) < 20_000:
        before, began = seen, len(times)
        times += [began + n + rng.randint(-100, 100) for n in range(rng.randint(1, 20))]
        seen = max(before, *times[began:])
        begins = begins_after(begins, began, (before, seen), every)
        if rng.random() < 0.05 and begins is not None:
            time = rng.randrange(0, seen)
            begin = begin_of(begins, time) or 0
            assert all(each < time for each in times[:begin])
            assert len(begins) <= KEPT
            assert Position.read(7, Position(7, begins=begins).metadata()).begins == begins
    back = {age: len(times) - (begin_of(begins, seen - age) or 0) for age in (500, 2_000, 8_000)}
    assert all(read < 4 * age for age, read in back.items()), back


def test_what_is_not_known_begins_where_the_job_did() -> None:
    """A partition without a fitting offset, and one that was added while the job ran."""
    spec = a_job("j").spec()
    graph = graph_of(spec, DEPLOYMENT, "j")
    facts = {link.name: LinkFacts(3, start=[5, 6, 7] if link.kind == "input" else None) for link in graph.links}
    point = CheckpointPoint(60 * MINUTE, {"read": {"given": [None, 9, 8, None]}})
    assert begins_of(point, graph, facts) == {"read": {"given": [5, 9, 8, 0]}}
    assert last_at([point], 60 * MINUTE - 1) is None
    assert last_at([point, replace(point, at=61 * MINUTE)], 62 * MINUTE).at == 61 * MINUTE


def test_a_job_leaves_out_what_the_stopped_one_left_out() -> None:
    """However many follow each other; and no clock is before the time of that checkpoint. One that goes back has its own time."""
    graph = graph_of(a_job("j").spec(), DEPLOYMENT, "j")
    facts = {link.name: LinkFacts(3) for link in graph.links}
    read = {link.name for stage in graph.stages for link in stage.ingress}
    adopts = {name: Adopted("log", [(3, 0, 0)] * 3, None, 0) for name in (*GRACE, "seen")}
    clocks = {name: [(NEVER, NEVER), (70 * MINUTE, 65 * MINUTE), (50 * MINUTE, 40 * MINUTE)] for name in read}

    def goes_on(at: int | None, earlier: Mapping[str, LinkFacts]) -> dict[str, LinkFacts]:
        return adopting(graph, facts, adopts, at, {} if at is not None else clocks, earlier)

    def times(found: Mapping[str, LinkFacts]) -> dict[str, int]:
        return {name: each.since for name, each in found.items() if each.since is not None}

    after = goes_on(None, goes_on(60 * MINUTE, facts))
    for found in (after, goes_on(None, after)):
        assert times(found) == dict.fromkeys(read, 60 * MINUTE)
        begun = [(NEVER, 60 * MINUTE), (70 * MINUTE, 65 * MINUTE), (50 * MINUTE, 60 * MINUTE)]
        assert all(found[name].clocks == begun for name in read)
    assert times(goes_on(80 * MINUTE, after)) == dict.fromkeys(read, 80 * MINUTE)
    plain = goes_on(None, facts)
    assert times(plain) == {}
    assert all(plain[name].clocks == clocks[name] for name in read)


@pytest.mark.parametrize("rules", [OLDEST_RULES, RULES])
def test_the_coordinator_passes_on_what_is_left_out(rules: int) -> None:
    """A job goes on from a checkpoint, is stopped, and another one goes on from there. By rules before 4, that one leaves out
    nothing.
    """
    spec = replace(counting(), checkpoint_every="1 min")
    state = new_state("test", rules=rules)
    positions = {"read": {"t": [7] * 8}}
    point = CheckpointPoint(60_000_000, positions, STATES_KEPT.marks)

    def deliver(*events: AnyEvent) -> None:
        for event in events:
            decide(state, state.n + 1, event)

    def works(job: str, resumes: str = "", at: int | None = None) -> None:
        facts = {link.name: LinkFacts(8) for link in graph_of(spec, "test", job).links}
        submitted = JobSubmitted(job=job, spec=replace(spec, name=job[0]), resumes=resumes, resumes_at=at)
        deliver(submitted, LinksCreated(job=job, links=facts))

    def stops(job: str) -> None:
        deliver(JobStopped(job=job))
        while not state.jobs[job].ended:
            (peer,) = state.peers
            assignment = state.assignment(peer).id
            deliver(Acked(peer=peer, assignment=assignment), Exhausted(peer=peer, assignment=assignment))
            deliver(Completed(peer=peer, assignment=assignment, positions={}, counts=Counts()))
        deliver(LinksRead(job=job, positions=positions, checkpoints=[point], end=STATES_KEPT), LinksDeleted(job=job))

    deliver(PeerBorn(peer="P1", format=FORMAT))
    works("j-1")
    stops("j-1")
    works("k-1", "j-1", point.at)
    stops("k-1")
    works("l-1", "k-1")
    known = [{each.since for each in (state.jobs[job].facts or {}).values()} for job in ("j-1", "k-1", "l-1")]
    assert known == [{None}, {None, point.at}, {None, point.at} if rules > 3 else {None}]


def test_a_job_whose_positions_are_gone_goes_back_to_what_the_log_has(seed: int) -> None:
    """The job has run on since a checkpoint of it was logged, and has said its states anew. Kafka forgets what it has committed.
    From the logged checkpoint on it gives what a run gives that was never stopped.
    """
    rng = random.Random(seed)
    rows = rows_of(seed, 600)
    spec = a_job("before").spec()
    with closing(job_run(spec)) as stopped, closing(job_run(spec)) as whole:
        graph = engine_of(stopped).graph
        feed(stopped, rows[:300], rng)
        *_, point = points_of(graph, held(stopped))
        logged = decode_event(encode_event(Checkpointed(job="j", revision=1, point=point)))
        assert isinstance(logged, Checkpointed)
        feed(stopped, rows[300:550], rng)
        known = held(stopped)
        lost = {task: dict.fromkeys(places) for task, places in known.items()}
        assert points_of(graph, lost) == []
        assert forgotten(graph, lost)
        assert not forgotten(graph, known)
        feed(whole, rows, random.Random(0), crashes=False)
        whole.end()
        with closing(resumed(stopped, replace(spec, name="after"), logged.point)) as again:
            feed(again, rows[550:], rng)
            again.end()
            for task, grace in GRACE.items():
                assert results(again, task) == closing_after(results(whole, task), point.at, grace), (task, point)


def test_logs_of_states_are_kept_for_logged_checkpoints() -> None:
    """Whatever the positions say by now. A partition that has committed no state keeps all."""
    graph = graph_of(a_job("j").spec(), DEPLOYMENT, "j")
    stage = graph.stage("hits")
    topics = state_topics(graph)
    places = [Partition(stage.ingress[0].topic, number) for number in range(3)]
    kept = Checkpoints(kept=(Bookmark(0, 0, 9, 70, 1),))
    positions = [Position(5, state=(12, 90, 3), checkpoints=kept), Position(5, state=(2, 40, 1)), None]
    known = {each.name: dict.fromkeys(places) for each in graph.stages} | {
        "hits": dict(zip(places, positions, strict=True))
    }
    log = [Partition(topics["hits"], number) for number in range(3)]
    assert state_logs(graph.stages, known, []) == {log[0]: 70, log[1]: 40}
    point = CheckpointPoint(0, {}, {"hits": [(3, 60, 0), (1, 50, 0), (1, 7, 0)], "gone": [(1, 1, 1)]})
    assert state_logs(graph.stages, known, [point]) == {log[0]: 60, log[1]: 40}
    fewer = replace(point, marks={"hits": [(3, 80, 0)]})
    assert state_logs(graph.stages, known, [fewer, point]) == {log[0]: 60, log[1]: 40}


def test_a_job_whose_positions_are_gone_has_no_checkpoint_in_them() -> None:
    """Neither has one of which a task has committed nothing, nor one without `checkpoint_every`."""
    spec = a_job("j").spec()
    graph = graph_of(spec, DEPLOYMENT, "j")
    assert points_of(graph, {}) == []
    nothing = {stage.name: {Partition(link.topic, 0): None for link in stage.ingress} for stage in graph.stages}
    assert points_of(graph, nothing) == []
    assert points_of(graph_of(replace(spec, checkpoint_every=None), DEPLOYMENT, "j"), nothing) == []


def changed(spec: JobSpec, task: str, **fields: Any) -> JobSpec:
    catalog = [replace(each, **fields) if each.name == task else each for each in spec.catalog]
    return replace(spec, catalog=catalog)


SPEC = a_job("old").spec()
WINDOW = SPEC.task("hits").window


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (SPEC, ""),
        (changed(SPEC, "hits", batch_size=7), ""),
        (replace(SPEC, checkpoint_every="30 s"), ""),
        (replace(SPEC, checkpoint_every="7 min"), "is none of the new job"),
        (replace(SPEC, checkpoint_every=None), "is none of the new job"),
        (replace(SPEC, partitions=4), ""),
        (changed(SPEC, "hits", group_by=["n"]), "has no place in the new job"),
        (changed(SPEC, "hits", window=None, fn="m:f"), "has no place in the new job"),
        (changed(SPEC, "read", time=replace(SPEC.task("read").time, column="n", unit="s")), "from elsewhere"),
        (changed(SPEC, "read", time=replace(SPEC.task("read").time, kind="wall")), "no times that they keep"),
        (changed(SPEC, "read", time=None), "no times that they keep"),
        (changed(SPEC, "all", window=replace(SPEC.task("all").window, time="n")), "has no place in the new job"),
        (changed(SPEC, "hits", window=replace(WINDOW, emit="changes")), "before its windows close"),
        (changed(SPEC, "read", options={**SPEC.task("read").options, "topic": "other"}), "reads topic given"),
    ],
)
def test_what_cannot_go_on_from_a_checkpoint_says_why(spec: JobSpec, says: str) -> None:
    """A state without a place, rows whose times do not say whether they are in the checkpoint, results that would be missing."""
    marks = {name: [(3, 0, 0)] * 3 for name in ("hits", "slow", "seen", "all", "waited")}
    point = CheckpointPoint(60 * MINUTE, {"read": {"given": [1, 2]}}, marks)
    before = Predecessor(SPEC, "killed", checkpoints=[point])
    found = list(resume_problems("old-1", before, spec, 61 * MINUTE))
    assert any(says in each.problem for each in found) if says else found == []
    assert all(each.cause and each.fix for each in found)


@pytest.mark.parametrize("status", ["running", "killed"])
def test_rows_are_worked_once_more_beside_any_job(status: JobStatus) -> None:
    """Also beside one that runs, or that another one goes on from; but with all the states that it has, and no other."""
    marks = {name: [(3, 0, 0)] * 3 for name in ("hits", "slow", "seen", "all", "waited")}
    before = Predecessor(SPEC, status, links_gone=False, resumed_by="x-1")
    point = CheckpointPoint(60 * MINUTE, {}, marks)
    assert list(resume_problems("old-1", before, SPEC, replays=point)) == []
    fewer = CheckpointPoint(60 * MINUTE, {}, {"hits": marks["hits"]})
    found = list(resume_problems("old-1", before, SPEC, replays=fewer))
    assert [each.task for each in found if "has no place" in each.problem] == ["slow", "seen", "all", "waited"]
    changed_since = before._replace(spec=changed(SPEC, "seen", relation=None, fn="m:f"))
    found = list(resume_problems("old-1", changed_since, SPEC, replays=point))
    assert [each.task for each in found] == ["seen"]
    for known in (None, before._replace(refused=True)):
        (problem,) = resume_problems("old-1", known, SPEC, replays=point)
        assert problem.failure("old-1").code == "SX-JOB-REPLAY"
        assert "submit a job" in problem.fix
    failure = found[0].failure("old-1", "new-1")
    assert failure.message.startswith("job old-1 cannot be replayed with its states: ")
    assert (failure.code, failure.fix) == ("SX-JOB-REPLAY", "replay it without `--with-state`")


def test_a_task_by_another_time_than_the_inputs_cannot_go_back() -> None:
    """A row could be before the checkpoint by the one, and after it by the other. Nor can an input that is no topic."""
    other = changed(SPEC, "all", window=replace(SPEC.task("all").window, time="n"))
    point = CheckpointPoint(60 * MINUTE, {"read": {"given": [1, 2]}}, {name: [(3, 0, 0)] * 3 for name in GRACE})
    found = resume_problems("old-1", Predecessor(other, "stopped", checkpoints=[point]), other, 60 * MINUTE)
    assert any("goes by another time" in each.problem for each in found)
    files = changed(SPEC, "read", connector="generator", options={})
    found = resume_problems("old-1", Predecessor(files, "stopped", checkpoints=[point]), files, 60 * MINUTE)
    assert any("cannot be read again" in each.problem for each in found)


@pytest.mark.parametrize(
    ("known", "problem", "code"),
    [
        (Predecessor(SPEC, "running", links_gone=False), "it is running", "SX-JOB-RESUME"),
        (Predecessor(SPEC, "killed", resumed_by="x-1"), "x-1 has resumed it", "SX-JOB-RESUME"),
        (Predecessor(SPEC, "killed", resumed_by="?", successor_ended=True), "from a backup", "SX-JOB-RESUME"),
        (
            Predecessor(SPEC, "killed", resumed_by="x-1", successor_ended=True),
            "it has no checkpoint",
            "SX-CHECKPOINT-UNKNOWN",
        ),
    ],
)
def test_only_an_ended_job_that_no_other_one_goes_on_from(known: Predecessor, problem: str, code: str) -> None:
    """One whose successor has ended can be gone back to once more."""
    first = next(resume_problems("old-1", known, SPEC, 60 * MINUTE))
    assert problem in first.problem
    assert first.failure("old-1").code == code
