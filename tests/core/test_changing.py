"""What of a running job can be changed in place, and how its queues are counted after that."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from sardonyx import Count, Job, State, event_time, kafka, tumbling
from sardonyx.core import link_counts
from sardonyx.core.changing import (
    NOTHING,
    change_failure,
    closing,
    draining,
    finished,
    not_given_up,
    numbered,
    obstacles,
    rewiring,
)
from sardonyx.core.events import Counts, LinkFacts
from sardonyx.core.graph import graph_of
from sardonyx.core.positions import Partition, Position
from sardonyx.core.spec import JobSpec
from sardonyx.core.taking_over import begun, offsets
from sardonyx.core.timing import TimeSpec
from sardonyx.core.untouched import untouched
from sardonyx.job.bundle import lost_names
from spark_tasks.conditions import nothing


def same(row: dict) -> dict:
    return row


def add(row: dict, seen: State[int]) -> dict:
    return {**row, "seen": seen.value}


def a_job(*parts: str, **settings: Any) -> JobSpec:
    """``read -> label -> pass -> out``, and what is named: ``log`` and ``audit`` after label, ``copy`` and ``grouped`` after
    read, ``more`` and ``bounded``: another input before pass; ``fused``: a task in label's batches; ``wide``: audit reads
    pass, too.
    """
    job = Job("growing", **{"partitions": 2, **settings})
    read = job.input("read", kafka("in", schema="n long"))
    label = job.task("label", same, after=read)
    after: list[Any] = [label]
    if "fused" in parts:
        after = [job.task("fused", same, after=label, fuse=True)]
    if "more" in parts:
        after.append(job.input("more", kafka("other", schema="n long")))
    if "bounded" in parts:
        after.append(job.input("bounded", kafka("other", schema="n long", end="latest")))
    out = job.task("pass", same, after=after)
    job.output("out", kafka("out"), after=out)
    if "log" in parts:
        job.output("logged", kafka("log"), after=job.task("log", same, after=label))
    if "audit" in parts:
        counted = job.keyed("audit", add, after=[label, out] if "wide" in parts else label)
        job.output("audited", kafka("audit"), after=counted)
    if "copy" in parts:
        job.output("copied", kafka("copy"), after=job.task("copy", same, after=read))
    if "grouped" in parts:
        job.output("kept", kafka("kept"), after=job.task("grouped", same, after=read, group_by="n"))
    return job.spec()


@pytest.mark.parametrize("parts", [["log"], ["audit"], ["copy"], ["more"], ["log", "audit", "copy"]])
def test_tasks_can_be_added_and_removed(parts: list[str]) -> None:
    """Whatever does not touch the queues that stay: after a task, after a topic, with a state, a new input."""
    old, new = a_job(), a_job(*parts)
    assert list(obstacles(old, new)) == []
    assert change_failure("j", old, new) is None
    found = rewiring(graph_of(new, "", ""), graph_of(old, "", ""))
    assert change_failure("j", new, old, [*found.removed, *found.names]) is None
    failure = change_failure("j", new, old)
    assert failure is not None
    assert failure.code == "SX-JOB-CHANGE-DROP"
    assert all(f"--drop {name}" in failure.fix for name in found.removed)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (["log"], ["log", "grouped"], "the queue read.label would be another one"),
        (["log"], ["log", "grouped"], "task read is a topic in place; by the new version it has a queue of its own"),
        ([], ["fused"], "the new task fused would run in the batches of task label"),
        (["fused"], [], "task fused runs in the batches of task label, which stays"),
        (["audit"], ["audit", "wide"], "task audit keeps a state, so the queues that it reads must stay"),
    ],
)
def test_what_would_touch_a_queue_that_stays_is_refused(old: list[str], new: list[str], text: str) -> None:
    """A topic that would be copied into queues, batches that would hold other tasks, and what a state rests on."""
    failure = change_failure("j", a_job(*old), a_job(*new), ["fused"])
    assert failure is not None
    assert failure.code == "SX-JOB-CHANGE"
    assert text in failure.message


def test_how_far_ahead_a_time_may_be_can_change() -> None:
    """Only the task that reads the topic stands still for it. A job of an earlier release, which has no limit, so takes that of
    this one with any other change; the delay and the rest of a time stay.
    """
    job = Job("timed", partitions=2)
    hits = job.input("hits", kafka("in", schema="n long, at timestamp", start="earliest"), time=event_time("at"))
    first = job.task("first", same, after=hits)
    windows = job.window("windows", tumbling("1 min"), after=first, aggregate={"n": Count()})
    job.output("out", kafka("out"), after=windows)
    new = job.spec()
    limited, unlimited, delayed = (
        replace(new, catalog=[replace(new.task("hits"), time=time), *new.catalog[1:]])
        for time in (new.task("hits").time, TimeSpec(column="at"), TimeSpec(column="at", delay="5 s"))
    )
    assert limited == new
    assert [*obstacles(unlimited, new)] == []
    facts = {link.name: LinkFacts(2) for link in graph_of(new, "", "").links}
    assert untouched(unlimited, new, ["first", "windows"], facts) == ["windows"]
    assert "time.delay" in {each.field for each in obstacles(delayed, new)}


def test_a_job_stays_one_that_ends_or_one_that_does_not() -> None:
    """The files of an output are named by that, and clocks of inputs that end rest on it."""
    bounded = Job("day", partitions=2)
    read = bounded.input("read", kafka("in", schema="n long", end="latest"))
    bounded.output("out", kafka("out"), after=bounded.task("pass", same, after=read))
    old = bounded.spec()
    bounded.output("kept", kafka("kept"), after=bounded.keyed("count", add, after="pass"))
    (found,) = obstacles(old, bounded.spec())
    assert (found.task, found.text) == ("count", "it has an input that ends, and all its clocks would begin or end")
    more = bounded.input("more", kafka("other", schema="n long"))
    bounded.output("all", kafka("all"), after=bounded.task("again", same, after=more))
    assert "more" in {found.task for found in obstacles(old, bounded.spec())}


def test_names_of_what_went_are_not_used_again() -> None:
    """A coordinator that was deposed may still delete what bears them."""
    found = list(obstacles(a_job(), a_job("log"), ["log", "label.log", "label.other"]))
    assert {(each.task, each.link) for each in found} == {("log", ""), ("", "label.log")}


def test_what_is_dropped_is_named_and_nothing_else() -> None:
    """Each task that goes, and each queue between tasks that stay; a queue that goes with its task may be named."""
    old = a_job("audit", "wide")
    new = a_job("audit")
    assert not_given_up(old, new, [])[0] == ["pass.audit"]
    assert not_given_up(a_job("log"), a_job(), ["log"]) == (["logged"], [])
    assert not_given_up(a_job("log"), a_job(), ["log", "logged", "label.log"]) == ([], [])
    assert not_given_up(a_job("log"), a_job(), ["log", "logged", "label", "lgo"]) == ([], ["label", "lgo"])


def test_what_is_to_be_read_first_gets_nothing_new() -> None:
    """The edges into it have a condition that no row meets, also those of a new input, which would never end. All its queues
    must be read, and those that it writes.
    """
    old, new = a_job("log", "more", "audit", "wide"), a_job()
    cut, links = draining(old, new, ["log", "logged", "more", "audit", "audited"])
    assert {name for name, route in cut.routes.items() if route.where == NOTHING} == {
        *("label.log", "label.audit", "pass.audit"),
    }
    assert sorted(links) == ["label.audit", "label.log", "pass.audit"]
    assert change_failure("j", old, replace(old, routes={"label.log": cut.routes["label.log"]})) is None
    cut, links = draining(old, a_job("log", "more", "audit"), ["pass.audit"])
    assert ([*cut.routes], links) == (["pass.audit"], ["pass.audit"])
    failure = change_failure("j", a_job("copy"), draining(a_job("copy"), a_job(), ["copy", "copied"])[0])
    assert failure is not None, "it reads a topic in place"
    assert "task read is a topic in place" in failure.message
    assert nothing(pa.table({"n": [1, 2]})).to_pylist() == [False, False]


def test_a_queue_closes_if_no_row_comes_to_it_any_more() -> None:
    """What writes to it must be fenced although it stays. It does not close if it is closed already, opens again, or goes."""
    old, new = a_job("log", "more", "audit", "wide"), a_job("log", "copy")
    cut, _ = draining(old, new, ["audit", "audited"])

    def closed(before: JobSpec, after: JobSpec) -> list[str]:
        return [stage.name for stage in closing(graph_of(before, "", ""), graph_of(after, "", ""))]

    assert closed(old, cut) == ["label", "pass"]
    assert "label" not in [stage.name for stage in rewiring(graph_of(old, "", ""), graph_of(cut, "", "")).touched]
    assert closed(cut, cut) == closed(cut, old) == closed(old, old) == closed(cut, new) == []
    other = replace(old, routes={"label.log": replace(old.route("label", "log"), where="m:some")})
    assert closed(old, other) == []


def test_what_takes_the_place_of_what_is_read_first_comes_at_once() -> None:
    """While what goes is read to its end, rows take the new ways: none is left out. The job is the new one, with what goes."""
    old, new = a_job("log"), a_job("audit")
    cut, links = draining(old, new, ["log", "logged"])
    assert {name for name, route in cut.routes.items() if route.where == NOTHING} == {"label.log"}
    assert links == ["label.log"]
    assert {task.name for task in cut.catalog} == {task.name for task in (*old.catalog, *new.catalog)}
    assert change_failure("j", old, cut) is None
    found = rewiring(graph_of(old, "", ""), graph_of(cut, "", ""))
    assert ([link.name for link in found.new if link.kind == "internal"], found.gone) == (["label.audit"], [])
    assert change_failure("j", cut, new, ["log", "logged"]) is None
    assert draining(cut, new, ["log", "logged"]) == (cut, links), "the same command again"


def between(*names: str) -> JobSpec:
    """``read -> label -> ... -> out``, with tasks in between."""
    job = Job("growing", partitions=2)
    last = job.task("label", same, after=job.input("read", kafka("in", schema="n long")))
    for name in names:
        last = job.task(name, same, after=last)
    job.output("out", kafka("out"), after=last)
    return job.spec()


def test_a_task_comes_between_two_others_and_goes_again() -> None:
    """What was written to a user's topic stays there, so nothing is given up, and the same edge may come back."""
    old, new = between(), between("middle")
    assert change_failure("j", old, new) is None
    retired = rewiring(graph_of(old, "", ""), graph_of(new, "", "")).retired
    assert retired == []
    cut, links = draining(new, old, ["middle"])
    assert links == ["label.middle"]
    assert {("label", "out"), ("label", "middle"), ("middle", "out")} <= {*cut.workflow}
    assert change_failure("j", new, cut, (), retired) is None
    assert change_failure("j", cut, old, ["middle"], retired) is None
    assert rewiring(graph_of(cut, "", ""), graph_of(old, "", "")).retired == ["label.middle", "middle"]


def test_code_that_is_drained_must_still_be_there() -> None:
    """Names of modules that travel with the job; what is installed elsewhere is not looked at."""

    def zipped(text: str) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("job.py", text)
        return buffer.getvalue()

    old = zipped("def log(row): ...\ndef other(row): ...\n")
    new = zipped("from elsewhere import taken as other\nlater = lambda row: row\n")
    names = ["job:log", "job:other", "job:later", "installed:log", "job:Gone.method"]
    assert lost_names(old, new, names) == ["job:log", "job:Gone.method"]
    assert lost_names(old, None, ["job:log", "installed:log"]) == ["job:log"]
    assert lost_names(None, new, ["job:log"]) == ["job:log"]


def test_a_new_reader_of_a_topic_begins_where_the_others_stand() -> None:
    """So it may take the place of one of them: also in partitions that were added to the topic, and after a checkpoint, whose
    rows the others leave out. Of a topic with an end it reads no more than they do.
    """
    before, after = (graph_of(spec, "", "") for spec in (a_job(), a_job("copy")))
    (stage,) = [stage for stage in before.stages if any(link.kind == "input" for link in stage.ingress)]
    found = rewiring(before, after)
    (new,) = [link for link in found.new if link.kind == "input"]
    held = {stage.name: {Partition("in", 0): Position(9), Partition("in", 1): None, Partition("in", 2): Position(4)}}
    links = {link.name: LinkFacts(3) for link in after.links}

    def of_new(**known: Any) -> LinkFacts:
        facts = {link.name: LinkFacts(2, start=[5, 6], **known) for link in before.links}
        assert offsets(stage, held[stage.name], facts) == {"in": [9, None, 4]}
        return begun(found.new, links, before.stages, held, facts)[new.name]

    assert of_new() == LinkFacts(3, start=[9, 6, 4])
    assert of_new(since=70) == LinkFacts(3, start=[9, 6, 4], since=70)
    assert of_new(end=[20, 30]) == LinkFacts(3, start=[9, 6, 4], end=[20, 30, 4])


def test_a_task_that_is_complete_gets_no_new_queue() -> None:
    """Neither after it nor before it. What goes may have been complete."""
    old, new = (graph_of(spec, "", "") for spec in (a_job(), a_job("log", "more")))
    assert finished(old, new, ["label"]) == "label"
    assert finished(old, new, ["pass"]) == "pass"
    assert finished(old, new, ["read", "out"]) == ""
    assert finished(new, old, ["label", "log", "pass"]) == ""


def test_rows_are_counted_by_numbers_that_are_not_given_twice() -> None:
    """What the positions say of a link is right after changes that add, remove and reorder links of its writer."""

    def made(before: JobSpec, after: JobSpec, facts: dict[str, LinkFacts], places: int, revision: int) -> Any:
        old, new = graph_of(before, "", ""), graph_of(after, "", "")
        known = {link.name: facts.get(link.name, LinkFacts(2)) for link in new.links}
        return new.stage("label"), *numbered(old, new, known, places, revision)

    first, second, third = a_job("log"), a_job("audit"), a_job("log", "audit")
    writer = graph_of(first, "", "").stage("label")
    assert [link.name for link in writer.counted] == ["label.pass", "label.log"]
    position = Position(5, Counts(rows_in=5))._replace(told=(3, 4))

    stage, facts, places = made(first, second, {}, 0, 2)
    position = link_counts.with_told(position, [10, 20], link_counts.places(stage, facts))
    assert position.told == (13, 4, 20)
    there: Any = {0: position}
    assert link_counts.written(stage, "label.audit", there, facts) == 20
    assert link_counts.written(stage, "label.pass", there, facts) == 13

    stage, facts, places = made(second, third, facts, places, 3)
    assert places == 4
    assert link_counts.written(stage, "label.log", there, facts) == 0, "it is another one than the first"
    position = link_counts.with_told(position, [1, 2, 3], link_counts.places(stage, facts))
    assert position.told == (14, 4, 23, 2)


def test_the_rows_of_a_link_that_was_added_are_known() -> None:
    """A task that has had no queue after it has counted nothing, and has written nothing to one that is added."""
    old = a_job()
    log = replace(old, workflow=[*old.workflow[:-1], ("pass", "out"), ("pass", "late")])
    log = replace(
        log, catalog=[*old.catalog, replace(old.task("label"), name="late"), replace(old.task("out"), name="end")]
    )
    log = replace(log, workflow=[*log.workflow, ("late", "end")])
    before, after = graph_of(old, "", ""), graph_of(log, "", "")
    facts, _ = numbered(before, after, {link.name: LinkFacts(2) for link in after.links}, 0, 2)
    stage = after.stage("pass")
    held: Any = {0: Position(9, Counts(rows_in=9))}
    assert link_counts.written(stage, "pass.late", held, facts) == 0
    assert link_counts.written(stage, "pass.late", held) is None, "without a change: an older release has written"
