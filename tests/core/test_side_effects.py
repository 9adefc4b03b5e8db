"""Side effects run in order for each job, are tried again when they must be, and do not hold up other jobs."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from coordinator.loop import side_effects
from coordinator.loop.leader_metrics import SIDE_EFFECTS
from coordinator.loop.side_effects import LinksWork, LinksWorker, Rewired, Since
from sardonyx.core.effects import ChangeLinks, CreateLinks, DeleteLinks, DropLinks
from sardonyx.core.errors import TRACEBACK_KEPT, InputError, SetupError
from sardonyx.core.events import Counts, LastCommits, LinkFacts, LinksCreated, LinksDeleted, LinksDropped, LinksFailed
from sardonyx.core.spec import JobSpec
from sardonyx.runtime.clock import Condition, Runtime
from tests.waiting import PATIENCE

pytestmark = pytest.mark.usefixtures("threads_end")

SPEC = JobSpec(name="j", workflow=[], catalog=[])
FACTS = {"a.b": LinkFacts(4)}


class Script:
    """Links that answer as the test says, call by call; the last answer is repeated."""

    def __init__(
        self, create: list[Any] | None = None, delete: list[Any] | None = None, change: list[Any] | None = None
    ) -> None:
        self.calls: list[str] = []
        self._change = change or [(FACTS, {"t": {"orders": [7, None]}})]
        self._create = create or [FACTS]
        self._delete = delete or [LastCommits()]

    def create_links(self, job: str, spec: JobSpec) -> dict[str, LinkFacts]:
        return self._next(f"create {job}", self._create)

    def topic_ids(self, job: str, spec: JobSpec) -> dict[str, str]:
        return {}

    def read_links(self, job: str, spec: JobSpec) -> LastCommits:
        return self._next(f"read {job}", self._delete)

    def delete_links(self, job: str, spec: JobSpec, *, keeps_states: bool = True) -> LastCommits:
        return self._next(f"delete {job}", self._delete)

    def change_links(self, job: str, spec: JobSpec, rewired: Rewired) -> tuple[dict[str, LinkFacts], Since]:
        return self._next(f"change {job}", self._change)

    def drop_links(self, job: str, spec: JobSpec, rewired: Rewired) -> None:
        self._next(f"drop {job}", self._delete)

    def _next(self, call: str, answers: list[Any]) -> Any:
        self.calls.append(call)
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else answer


Start = Callable[[Any], tuple[LinksWorker, "queue.Queue[Any]"]]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[LinksWorker] = []

    def make(script: Any) -> tuple[LinksWorker, queue.Queue[Any]]:
        done: queue.Queue[Any] = queue.Queue()
        started.append(LinksWorker(script, done.put, pauses=(0.001, 0.002)))
        return started[-1], done

    with capture_logs():  # tracebacks of errors that are meant need not be drawn
        yield make
        for worker in started:
            worker.close()


def test_effects_end_as_events(start: Start) -> None:
    """Made and removed links come back with what was found."""
    worker, done = start(Script(delete=[LastCommits({"t": Counts(3, 2)}, {"t": {"orders": [7, None]}})]))
    worker.submit(LinksWork(1, CreateLinks("j1"), SPEC))
    assert done.get(timeout=PATIENCE) == LinksCreated(job="j1", links=FACTS)
    worker.submit(LinksWork(2, DeleteLinks("j1"), SPEC))
    assert done.get(timeout=PATIENCE) == LinksDeleted(
        job="j1", counts={"t": Counts(3, 2)}, positions={"t": {"orders": [7, None]}}
    )


def test_effects_of_a_change_end_as_events(start: Start) -> None:
    """They come back with the revision and where it took over. A refusal gives the change up; a deletion is never given up. What
    an entry of the log cannot hold of the offsets is left out.
    """
    rewired = Rewired(SPEC, {}, 2)
    wide = {"t": {"orders": [10**12] * 200_000}}
    worker, done = start(
        Script(
            change=[OSError("away"), (FACTS, {"t": {"orders": [7, None]}}), (FACTS, wide), InputError("SX-X", "no")],
            delete=[OSError("away")] * 12 + [None],
        )
    )
    worker.submit(LinksWork(1, ChangeLinks("j1"), SPEC, rewired))
    created = LinksCreated(job="j1", links=FACTS, revision=2, since={"t": {"orders": [7, None]}})
    assert done.get(timeout=PATIENCE) == created
    worker.submit(LinksWork(2, ChangeLinks("j1"), SPEC, rewired))
    assert done.get(timeout=PATIENCE) == LinksCreated(job="j1", links=FACTS, revision=2)
    worker.submit(LinksWork(3, ChangeLinks("j1"), SPEC, rewired))
    event = done.get(timeout=PATIENCE)
    assert isinstance(event, LinksFailed)
    assert (event.error.code, event.revision) == ("SX-X", 2)
    worker.submit(LinksWork(4, DropLinks("j1"), SPEC, rewired))
    assert done.get(timeout=PATIENCE) == LinksDropped(job="j1", revision=2)


def test_an_answer_of_ours_fails_the_job_at_once(start: Start) -> None:
    """A missing topic is not a passing failure: the job fails with job and code, after one attempt."""
    script = Script(create=[InputError("SX-KAFKA-TOPIC-MISSING", "no topic", where={"topic": "t"})])
    worker, done = start(script)
    worker.submit(LinksWork(1, CreateLinks("j1"), SPEC))
    event = done.get(timeout=PATIENCE)
    assert isinstance(event, LinksFailed)
    assert (event.error.code, event.error.where) == ("SX-KAFKA-TOPIC-MISSING", {"topic": "t", "job": "j1"})
    assert len(script.calls) == 1


def test_trouble_while_making_links_is_tried_again_a_few_times(start: Start) -> None:
    """A failure that is not an answer is tried again. If it stays, the job fails with the traceback, cut to fit the log."""
    before = attempts()
    worker, done = start(Script(create=[OSError("away"), OSError("away"), FACTS]))
    worker.submit(LinksWork(1, CreateLinks("j1"), SPEC))
    assert done.get(timeout=PATIENCE) == LinksCreated(job="j1", links=FACTS)
    script = Script(create=[OSError("x" * 100_000)])
    worker, done = start(script)
    worker.submit(LinksWork(1, CreateLinks("j2"), SPEC))
    event = done.get(timeout=PATIENCE)
    assert event.error.code == "SX-UNEXPECTED"
    assert len(event.error.traceback) <= TRACEBACK_KEPT
    assert len(script.calls) == side_effects.ATTEMPTS
    # Of the first job two and one; of the second one four, and the last.
    assert attempts() - before == {"createagain": 6, "createdone": 1, "createfailed": 1}


def attempts() -> Counter[str]:
    """As the metrics tell them."""
    found = SIDE_EFFECTS.taken().series
    return Counter({"".join(each.labels.values()): int(each.value) for each in found})


class Jumping(Runtime):
    """A clock that goes on by what is waited for, at once."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def condition(self) -> Condition:
        return _Passing(self)


class _Passing(threading.Condition):
    def __init__(self, clock: Jumping) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is None:
            return super().wait()
        self._clock.time += timeout
        return False


def test_a_job_whose_topics_the_coordinator_may_not_make_fails_within_ten_seconds() -> None:
    """Of pauses between the attempts; each of these is a few answers of Kafka. The job's error is that of the right."""
    done: queue.Queue[Any] = queue.Queue()
    script, clock = (
        Script(create=[SetupError("SX-KAFKA-DENIED", "User:c may not do this: Create on topic t")]),
        Jumping(),
    )
    worker = LinksWorker(script, done.put, runtime=clock)
    with capture_logs() as logged:
        worker.submit(LinksWork(1, CreateLinks("j1"), SPEC))
        event = done.get(timeout=PATIENCE)
        worker.close()
    assert isinstance(event, LinksFailed)
    assert event.error.code == "SX-KAFKA-DENIED"
    assert len(script.calls) == side_effects.ATTEMPTS
    assert clock.now() <= 8
    assert [each["attempt"] for each in logged] == list(range(1, side_effects.ATTEMPTS)), (
        "each attempt is logged at once"
    )


def test_removing_links_is_never_given_up(start: Start) -> None:
    """Whatever it raises, however often, it is tried again until it is done."""
    worker, done = start(Script(delete=[SetupError("SX-KAFKA-REFUSED", "no")] * 12 + [OSError("away"), LastCommits()]))
    worker.submit(LinksWork(1, DeleteLinks("j1"), SPEC))
    assert done.get(timeout=PATIENCE) == LinksDeleted(job="j1")


def test_a_jobs_effects_keep_their_order_and_jobs_do_not_wait_for_each_other(start: Start) -> None:
    """While one job's topics are being made or cannot be removed, others go on; its own later effects wait."""
    release = threading.Event()

    class Links(Script):
        def create_links(self, job: str, spec: JobSpec) -> dict[str, LinkFacts]:
            if job == "slow":
                release.wait(PATIENCE)
            return super().create_links(job, spec)

        def delete_links(self, job: str, spec: JobSpec, *, keeps_states: bool = True) -> LastCommits:
            if job.startswith("stuck"):
                raise OSError("no rights")
            return super().delete_links(job, spec, keeps_states=keeps_states)

    script = Links()
    worker, done = start(script)
    for n in range(3 * side_effects.THREADS):
        worker.submit(LinksWork(n, DeleteLinks(f"stuck{n}"), SPEC))
    worker.submit(LinksWork(20, CreateLinks("slow"), SPEC))
    worker.submit(LinksWork(21, DeleteLinks("slow"), SPEC))
    worker.submit(LinksWork(22, CreateLinks("quick"), SPEC))
    assert done.get(timeout=PATIENCE) == LinksCreated(job="quick", links=FACTS)
    assert script.calls == ["create quick"]
    release.set()
    assert [type(done.get(timeout=PATIENCE)) for _ in range(2)] == [LinksCreated, LinksDeleted]
    assert script.calls == ["create quick", "create slow", "delete slow"]


def test_more_facts_than_the_log_takes_fail_the_job(start: Start) -> None:
    """A job with far too many partitions fails with a clear error; it does not end the leadership."""
    wide = {f"a.{n}": LinkFacts(1000, [10**9] * 1000, [10**9] * 1000) for n in range(20)}
    worker, done = start(Script(create=[wide]))
    worker.submit(LinksWork(1, CreateLinks("j1"), SPEC))
    event = done.get(timeout=PATIENCE)
    assert event.error.code == "SX-JOB-TOO-MANY-PARTITIONS"
    assert "20,000 partitions" in event.error.message


def test_more_positions_than_the_log_takes_are_left_out(start: Start) -> None:
    """The job's end is not held up by positions that no entry of the log can hold; the counts are kept."""
    wide = {"t": {"orders": [10**12] * 10_000}}
    worker, done = start(Script(delete=[LastCommits({"t": Counts(3, 2)}, wide)]))
    worker.submit(LinksWork(1, DeleteLinks("j1"), SPEC))
    assert done.get(timeout=PATIENCE) == LinksDeleted(job="j1", counts={"t": Counts(3, 2)})


def test_what_ends_after_the_leadership_is_dropped(start: Start) -> None:
    """A result that comes when the worker is closed is dropped; the next leader does it again."""
    running, release = threading.Event(), threading.Event()

    def answer() -> dict[str, LinkFacts]:
        running.set()
        release.wait(PATIENCE)
        return FACTS

    worker, done = start(Script(create=[answer]))
    worker.submit(LinksWork(1, CreateLinks("j1"), SPEC))
    assert running.wait(PATIENCE)
    worker.close()
    release.set()
    with pytest.raises(queue.Empty):
        done.get(timeout=0.2)
