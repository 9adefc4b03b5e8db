"""The leader audits the links of jobs without end in turn, rests in between, and fails no job in doubt."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest
import structlog
from msgspec.structs import replace

from coordinator.core.decide import decide
from coordinator.core.explain import explain
from coordinator.core.state import State, new_state
from coordinator.loop.link_auditor import LinkAuditor
from coordinator.loop.side_effects import for_rules_3
from queues.losses import audit_differs
from sardonyx.core.errors import InputError
from sardonyx.core.events import JobChanged, JobSubmitted, LinkFacts, LinkLost, LinksCreated
from sardonyx.core.graph import graph_of
from sardonyx.core.link_counts import LinkTally
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.runtime.clock import Runtime
from tests.waiting import PATIENCE

pytestmark = pytest.mark.usefixtures("threads_end")

LOST = InputError("SX-LINK-LOSS", "Link mark.write has lost 5 rows")


class Clock(Runtime):
    """Time passes when a test says so."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at


class Kafka:
    """Says of each link what a test wants, in its turn; an audit takes so many seconds."""

    def __init__(self, clock: Clock, *answers: InputError | Exception | None, takes: float = 0.0) -> None:
        self.clock, self.answers, self.takes = clock, list(answers), takes
        self.asked: list[str] = []

    def audit(self, job: str, _spec: JobSpec, _facts: Mapping[str, LinkFacts], link: str) -> InputError | None:
        self.asked.append(f"{job} {link}")
        self.clock.at += self.takes
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, InputError) or answer is None:
            return answer
        raise answer


class Stand:
    """An auditor, and the state that it looks at."""

    def __init__(self, *answers: InputError | Exception | None, every: float = 60.0, takes: float = 0.0) -> None:
        self.clock = Clock()
        self.kafka = Kafka(self.clock, *answers, takes=takes)
        self.found: list[LinkLost] = []
        self.auditor = LinkAuditor(self.kafka.audit, self.found.append, every, self.clock)
        self.state: State = new_state("test", 4)

    def deliver(self, *events: Any) -> None:
        for event in events:
            decide(self.state, self.state.n + 1, event)

    def runs(self, job: str, *, end: str | None = None) -> None:
        spec = spec_of(job, end)
        links = {link.name: LinkFacts(2) for link in graph_of(spec, "test", job).links}
        self.deliver(JobSubmitted(job=job, spec=spec), LinksCreated(job=job, links=links))

    def round(self) -> None:
        """Let the next audit come due, and wait for its end."""
        self.clock.at = max(self.clock.at, self.auditor.due)
        self.auditor.look(self.state)
        done = threading.Event()
        self.auditor._worker.submit("audit", lambda _: done.set() is None)
        assert done.wait(PATIENCE)


def spec_of(name: str, end: str | None = None) -> JobSpec:
    return JobSpec(
        name=name,
        workflow=[("orders", "mark"), ("mark", "write"), ("mark", "other")],
        catalog=[
            TaskSpec(name="orders", type="input", connector="kafka", options={"topic": "orders", "end": end}),
            TaskSpec(name="mark", type="function", fn="m:f"),
            TaskSpec(name="write", type="output", connector="blackhole"),
            TaskSpec(name="other", type="output", connector="blackhole"),
        ],
    )


@pytest.fixture
def stands() -> Any:
    made: list[Stand] = []

    def make(*answers: InputError | Exception | None, **fields: float) -> Stand:
        made.append(Stand(*answers, **fields))
        return made[-1]

    yield make
    for stand in made:
        stand.auditor.close()


def test_links_take_turns(stands: Any) -> None:
    """Those of all jobs without end, one at a time; a job that ends by itself is compared at its end."""
    stand = stands()
    stand.runs("b")
    stand.runs("a")
    stand.runs("ends", end="latest")
    for _ in range(5):
        stand.round()
    links = ["a mark.other", "a mark.write", "b mark.other", "b mark.write"]
    assert stand.kafka.asked == [*links, links[0]]


def test_none_is_audited_before_it_is_due_nor_if_that_is_not_wanted(stands: Any) -> None:
    stand, never = stands(), stands(every=0.0)
    for each in (stand, never):
        each.runs("a")
        each.auditor.look(each.state)
        assert each.kafka.asked == []
    assert never.auditor.due == float("inf")
    never.clock.at = 1e9
    never.auditor.look(never.state)
    assert never.kafka.asked == []


@pytest.mark.parametrize(("takes", "rests"), [(0.5, 60.0), (10.0, 190.0)])
def test_it_rests_nineteen_times_as_long_as_it_works(takes: float, rests: float, stands: Any) -> None:
    stand = stands(takes=takes)
    stand.runs("a")
    stand.round()
    assert stand.auditor.due == stand.clock.at + rests


def test_what_two_audits_find_fails_the_job(stands: Any) -> None:
    """`explain` and the coordinator's log say so."""
    stand = stands(None, LOST, LOST)
    stand.runs("a")
    stand.round()
    assert stand.found == []
    with structlog.testing.capture_logs() as told:
        stand.round()
    (event,) = stand.found
    assert (event.job, event.link, event.revision, event.error.code) == ("a", "mark.write", 1, "SX-LINK-LOSS")
    (line,) = [line for line in told if line["event"] == "link_lost"]
    assert (line["job"], line["link"], line["code"]) == ("a", "mark.write", "SX-LINK-LOSS")
    stand.deliver(event)
    assert stand.state.jobs["a"].status == "failed"
    reasons = explain(stand.state, "a").reasons
    assert [reason.error.code for reason in reasons if reason.error] == ["SX-LINK-LOSS"]
    assert reasons[0].error is not None
    assert "has lost 5 rows" in reasons[0].error.message
    stand.deliver(event)  # again, and late
    assert stand.state.jobs["a"].status == "failed"


@pytest.mark.parametrize("answers", [(LOST, None), (OSError("away"),), (LOST, OSError("away"))])
def test_no_job_fails_in_doubt(answers: Any, stands: Any) -> None:
    """If a second audit does not confirm the finding, or gives no answer, the next link has its turn."""
    stand = stands(*answers)
    stand.runs("a")
    stand.round()
    stand.round()
    assert stand.found == []
    assert stand.kafka.asked[-1] == "a mark.write"


def test_a_finding_about_a_job_that_was_changed_since_changes_nothing(stands: Any) -> None:
    stand = stands(LOST, LOST)
    stand.runs("a")
    stand.round()
    (event,) = stand.found
    stand.deliver(JobChanged(job="a", spec=replace(spec_of("a"), failure_limit=9), revision=1))
    stand.deliver(LinksCreated(job="a", links={}, revision=2))
    assert stand.state.jobs["a"].revision == 2
    stand.deliver(event)
    assert stand.state.jobs["a"].status == "running"


@pytest.mark.parametrize(
    ("tally", "said"),
    [
        (
            LinkTally(90, 105, unread=10, lost=5, twice=0),
            "has lost 5 rows: task mark has written 105, task write has read 90",
        ),
        (
            LinkTally(90, 99, unread=10, lost=0, twice=1),
            "has 1 row too many: task mark has written 99, task write has read 90",
        ),
        (LinkTally(90, 100, unread=10, lost=0, twice=0), None),
        (LinkTally(90, None), None),
        (LinkTally(90, 100), None),
    ],
)
def test_what_an_audit_says(tally: LinkTally, said: str | None) -> None:
    link = next(link for link in graph_of(spec_of("a"), "test", "a").links if link.name == "mark.write")
    error = audit_differs(link, tally)
    if said is None:
        assert error is None
    else:
        assert error is not None
        assert said in error.message
        assert "and 10 more stand there unread" in error.message
        assert error.code == ("SX-LINK-LOSS" if tally.lost else "SX-LINK-TWICE")


def test_the_release_before_gets_no_field_that_it_does_not_know() -> None:
    event = LinksCreated(job="a", links={"a.b": LinkFacts(2, max_backlog=5)}, topics={"t": "id"})
    assert for_rules_3(event) == LinksCreated(job="a", links={"a.b": LinkFacts(2)})
