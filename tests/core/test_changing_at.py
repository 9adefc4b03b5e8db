"""A change at a time: the versions that it is made of, what is refused, and what is said of it."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from changed_at_jobs import AT, NOON, TIME, a_job, other, over, same, stages, table
from msgspec.structs import replace

from sardonyx import Count, Job, kafka, ordinal, tumbling, wall
from sardonyx.cli.diff_text import diff_lines
from sardonyx.client import change as client_change
from sardonyx.client.checkpoints import moment
from sardonyx.connectors.declarations import files
from sardonyx.core.changing import change_failure, closing, draining, rewiring
from sardonyx.core.changing_at import (
    begins_at,
    closed,
    complete,
    follows,
    going,
    leads_to,
    passed,
    pending,
    readers,
    settled,
    side_by_side,
    step_text,
    waits_text,
)
from sardonyx.core.clocks import NEVER, SourceClock
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Graph, graph_of
from sardonyx.core.job_diff import job_diff
from sardonyx.core.positions import Partition, Position
from sardonyx.core.refused_at import another_name, failure_at
from sardonyx.core.spec import JobSpec
from sardonyx.core.timing import RowTime
from sardonyx.job.parse import read
from sardonyx.job.validate import validate


def test_now_is_without_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """`now` is not a time of rows: the job goes on by the new version after the batch in hand."""
    made: list[Any] = []
    known = SimpleNamespace(spec=a_job(), next_spec=None, retired=[], complete=set(), facts={}, revision=1)
    making = SimpleNamespace(known=known, make=lambda spec, drop, _: made.append((spec, drop)) or 2)
    monkeypatch.setattr(client_change, "Making", lambda *_: making)
    monkeypatch.setattr(client_change, "refuse_finished", lambda *_: None)
    loaded = SimpleNamespace(spec=a_job("new"), code=None)
    client: Any = SimpleNamespace(loaded=lambda _: loaded)
    handle: Any = SimpleNamespace(id="j-1")
    for at in (None, "now"):
        assert client_change.change(client, handle, "new.py", None, at=at) == 2
    assert made == [(loaded.spec, [])] * 2
    with pytest.raises(SardonyxError, match="SX-USAGE"):
        moment("now")


def sides(spec: JobSpec) -> dict[str, tuple[int | None, int | None]]:
    return {name: (r.bounds.since, r.bounds.before) for name, r in spec.routes.items() if r.bounds is not None}


@pytest.mark.parametrize(
    ("old", "new", "bounds", "goes"),
    [
        ([], ["new"], {"label.new": (AT, None)}, []),
        (["old"], [], {"label.old": (None, AT)}, ["old", "old-out"]),
        (["old"], ["new"], {"label.new": (AT, None), "label.old": (None, AT)}, ["old", "old-out"]),
        (["first"], ["second"], {"label.second": (AT, None), "label.first": (None, AT)}, ["first"]),
        ([], ["second"], {"label.second": (AT, None), "label.out": (None, AT)}, []),
        (["plain", "copy"], ["plain", "copy2"], {"plain.copy2": (AT, None), "plain.copy": (None, AT)}, ["copy", "copy-out"]),
        ([], ["plain"], {"plain.keep": (AT, None)}, []),
    ],
)  # fmt: skip
def test_a_change_at_a_time_is_three_changes(
    old: list[str], new: list[str], bounds: dict[str, tuple[int | None, int | None]], goes: list[str]
) -> None:
    """Both versions stand side by side, and only the edges where their ways part have a bound; then nothing goes the old way;
    then the old tasks go. Each of the three is a valid job, and one that can follow the one before.
    """
    before, after = a_job(*old), a_job(*new)
    assert failure_at("j", before, after, stages(before)) is None
    both = side_by_side(before, after, AT)
    assert sides(both) == bounds
    assert going(both) == goes
    shut, done = closed(both, after), complete(closed(both, after), after)
    validate(both, import_functions=False)
    validate(shut, import_functions=False)
    gone = rewiring(graph_of(shut, "", ""), graph_of(done, "", "")).names
    assert change_failure("j", before, both) is None
    assert change_failure("j", both, shut) is None
    assert change_failure("j", shut, done, gone) is None
    assert [each and each.at for each in map(pending, (before, both, shut, done))] == [
        None,
        AT,
        AT if any(side[1] for side in bounds.values()) else None,
        None,
    ]
    assert settled(done) == after
    assert leads_to(both, after)
    assert leads_to(shut, after)


def test_nothing_of_the_version_before_comes_after_the_change() -> None:
    """So the tasks that write to an edge with a bound are fenced before it takes over, and so are the readers of a topic that
    read other times of it. This holds although no queue comes or goes.
    """
    before, after = a_job("old", "plain", "copy"), a_job("plain")
    both = side_by_side(before, after, AT)
    assert rewiring(graph_of(before, "", ""), graph_of(both, "", "")).names == []
    graphs: list[Graph] = [graph_of(each, "", "") for each in (before, both, closed(both, after))]
    for one, then in pairwise(graphs):
        assert [stage.name for stage in closing(one, then)] == ["label", "copy"]
    assert closing(graphs[0], graphs[0]) == []


def test_a_change_may_be_given_up_and_no_third_version_may_come_between() -> None:
    """What follows a change at a time that is not complete is one of its two versions."""
    before, after = a_job("old"), a_job("new")
    both = side_by_side(before, after, AT)
    assert change_failure("j", both, before, ["new", "new-out"]) is None
    assert change_failure("j", both, after, ["old", "old-out"]) is None
    third = change_failure("j", both, a_job("more"), ["old", "old-out", "new", "new-out"])
    assert third is not None
    assert "its change at 1970-01-01T00:00:00.001Z is not complete" in third.message
    assert not follows(both, side_by_side(before, after, AT + 1))
    assert not leads_to(both, before)
    assert not leads_to(both, a_job("new", "more"))
    assert step_text(both, before) == "the change at 1970-01-01T00:00:00.001Z is given up"
    assert step_text(both, after) == "the change at 1970-01-01T00:00:00.001Z is complete"
    assert step_text(before, both).endswith("old gets the rows before it, new gets the rows from it on")
    assert "no row goes the old way any more" in step_text(both, closed(both, after))
    assert step_text(before, after) == ""
    found = pending(both)
    assert found is not None
    assert "old gets the rows before it" in waits_text(found)


@pytest.mark.parametrize(("new", "goes"), [(["new"], "old"), (["old"], "new")])
def test_a_change_that_is_ended_before_its_time_leaves_no_row_out(new: list[str], goes: str) -> None:
    """Completed at once, or given up: with ``--drain`` all rows take the way that stays while the other is read to its end."""
    both, then = side_by_side(a_job("old"), a_job("new"), AT), a_job(*new)
    cut, links = draining(both, then, [goes, f"{goes}-out"])
    assert links == [f"label.{goes}"]
    assert change_failure("j", both, cut) is None
    rows = table([(1, AT - 1), (2, AT)])
    assert over(cut, f"label.{new[0]}").rows(rows, None, None)["n"].to_pylist() == [1, 2]
    assert over(cut, f"label.{goes}").rows(rows, None, None).num_rows == 0
    gone = rewiring(graph_of(cut, "", ""), graph_of(then, "", "")).names
    assert change_failure("j", cut, then, gone) is None


@pytest.mark.parametrize(
    ("old", "new", "settings", "text"),
    [
        ([], [], {}, "no task or edge comes or goes by it"),
        ([], ["new", "changed"], {}, "fn of task label differs"),
        ([], ["new"], {"time": None}, "the rows of label.new have no time"),
        (["plain"], ["plain", "copy"], {"time": ordinal("nr")}, "the rows of plain.copy have no time that all readers agree on"),
        (["plain"], ["plain", "copy"], {"time": wall("now")}, "the rows of plain.copy have no time that all readers agree on"),
    ],
)  # fmt: skip
def test_what_cannot_be_made_at_a_time_is_refused(old: list[str], new: list[str], settings: Any, text: str) -> None:
    """Only what comes or goes can differ, and the rows before it must have a time on which all their readers agree."""
    before, after = a_job(*old, **settings), a_job(*new, **settings)
    failure = failure_at("j", before, after, stages(before))
    assert failure is not None
    assert failure.code == "SX-JOB-CHANGE-AT"
    assert text in failure.message


def test_other_things_that_cannot_be_made_at_a_time() -> None:
    """Code that differs, settings of the job, an input that is read in pieces, results before their windows close, and loops."""
    before, after = a_job(), a_job("new")
    assert "the code of read" in str(failure_at("j", before, after, ["label"]))
    assert "failure_limit of the job" in str(failure_at("j", before, replace(after, failure_limit=9), stages(before)))

    def early(*parts: str, source: Any = None, emit: str = "changes") -> JobSpec:
        job = Job("job")
        read = job.input("read", source or kafka("in", schema="at timestamp"), fn=same, time="at")
        window = job.window("count", tumbling("1 min"), after=read, aggregate={"hits": Count()}, emit=emit)
        for part in ("out", *parts):
            job.output(part, kafka(part), after=window)
        return job.spec()

    assert "results of windows before they close" in str(failure_at("j", early(), early("more"), stages(early())))
    final = early(emit="final")
    assert failure_at("j", final, early("more", emit="final"), stages(final)) is None
    parts = early(source=files("data", format="json", schema="at timestamp"), emit="final")
    more = early("more", source=files("data", format="json", schema="at timestamp"), emit="final")
    assert "is read in pieces" in str(failure_at("j", parts, more, stages(parts)))

    def loop(*parts: str) -> JobSpec:
        job = Job("job")
        read = job.input("read", kafka("in", schema="at timestamp", start="earliest", end="latest"), fn=same, time="at")
        with job.cycle("ring", after=read) as ring:
            begin = job.task("begin", same, after=ring)
            ring.feedback(job.task("back", same, after=begin))
        for part in ("out", *parts):
            job.output(part, kafka(part), after=begin)
        return job.spec()

    assert "out of a loop" in str(failure_at("j", loop(), loop("more"), stages(loop())))


def renamed(name: str, fn: Any, window: str = "", clean: str = "") -> JobSpec:
    """``read -> NAME -> out``, a task in the batches of NAME, and windows after it, if they are named."""
    job = Job("job", partitions=2)
    read = job.input("read", kafka("in", schema="n long, at long", start="earliest"), fn=same, time=TIME)
    last = job.task(name, fn, after=read)
    if clean:
        last = job.task(clean, same, after=last, fuse=True)
    if window:
        counts = job.window(window, tumbling("1 min"), after=last, aggregate={"hits": Count()})
        job.output("counted", kafka("counted"), after=counts)
    job.output("out", kafka("out"), after=last)
    return job.spec()


@pytest.mark.parametrize(
    ("old", "mended", "told"),
    [
        (["label"], ["label-2"], "label-2 in place of label in the new version; leave"),
        (["label-2"], ["label-3"], "label-3 in place of label-2 in the new version; leave"),
        (
            ["label", "counts"],
            ["label-2", "counts-2"],
            "label in the new version, and counts-2 in place of counts, which",
        ),
        (
            ["label", "", "clean"],
            ["label-2", "", "clean-2"],
            "label-2 in place of label and clean-2 in place of clean in the",
        ),
    ],
)
def test_the_error_says_how_to_replace_a_function_at_a_time(old: list[str], mended: list[str], told: str) -> None:
    """It names the task and another name for it, and what must get another name with it; a job with these names is taken."""
    before, after = renamed(old[0], same, *old[1:]), renamed(old[0], other, *old[1:])
    failure = failure_at("j", before, after, stages(before))
    assert failure is not None
    assert f"fn of task {old[0]} differs" in failure.message
    assert f"at that time, have {mended[0]} in place of {old[0]} " in (failure.fix or "")
    assert told in (failure.fix or "")
    assert "changed_at_jobs:same" in (failure.fix or "")
    by_code = failure_at("j", before, before, [name for name in stages(before) if name != old[0]])
    assert by_code is not None
    assert told in (by_code.fix or "")
    mend = renamed(mended[0], other, *mended[1:])
    gone = rewiring(graph_of(before, "", ""), graph_of(mend, "", "")).names
    assert change_failure("j", before, mend, gone) is None
    assert failure_at("j", before, mend, stages(before)) is None
    validate(side_by_side(before, mend, AT), import_functions=False)


def test_the_name_that_is_told_is_free_and_a_name() -> None:
    """No task has it, or ever had it in this job, and it is not too long."""
    assert another_name("label", []) == "label-2"
    assert another_name("label", ["label-2", "label-3"]) == "label-4"
    assert another_name("label-9", ["label-2"]) == "label-10"
    assert another_name("user-2026", []) == "user-2026-2"
    assert another_name("a" * 60, []) == "a" * 58 + "-2"
    failure = failure_at("j", renamed("label", same), renamed("label", other), ["label", "read"], ["label-2"])
    assert failure is not None
    assert "have label-3 in place of label" in (failure.fix or "")
    settings = failure_at("j", a_job(), a_job("new", failure_limit=9), stages(a_job()))
    assert settings is not None
    assert "to replace" not in (settings.fix or "")


def test_what_was_read_before_the_change_is_refused() -> None:
    """No row of the time of the change or later was worked by the version before. The error says where the job stands. Positions
    in queues do not count, nor do topics from which nothing comes to what changes.
    """
    before, after = a_job("plain"), a_job("plain", "new")
    both = side_by_side(before, after, AT)
    found = begins_at(before, both)
    assert found is not None
    assert begins_at(both, closed(both, after)) is None
    sources = readers(graph_of(before, "", ""), both)
    assert [stage.name for stage in sources] == ["read"]

    def held(seen: int, topic: str = "in") -> dict[str, dict[Partition, Position | None]]:
        clock = SourceClock(seen, seen)
        return {"read": {Partition("in", 0): None, Partition(topic, 1): Position(7, clock=clock)}}

    facts = {link.name: LinkFacts(2) for link in graph_of(before, "", "").links}
    assert passed("j", found, sources, held(AT - 1), facts) is None
    assert passed("j", found, sources, held(AT, "other"), facts) is None
    assert passed("j", found, sources, {}, facts) is None
    failure = passed("j", found, sources, held(AT), facts)
    assert failure is not None
    assert (failure.code, failure.where["task"]) == ("SX-JOB-CHANGE-PASSED", "read")
    assert "rows up to 1970-01-01T00:00:00.001Z are read already" in failure.message
    assert "from in[1]" in failure.cause


def test_what_the_job_before_had_read_is_refused_too() -> None:
    """A job that goes on from another one holds it, also where it has read nothing itself."""
    before = a_job("plain")
    both = side_by_side(before, a_job("plain", "new"), AT)
    found = begins_at(before, both)
    assert found is not None
    graph = graph_of(before, "", "")
    sources = readers(graph, both)
    held = {"read": {Partition("in", 0): None, Partition("in", 1): Position(7, clock=SourceClock(AT - 1, AT - 1))}}

    def refused(**known: Any) -> str:
        facts = {link.name: LinkFacts(2, **known) for link in graph.links}
        failure = passed("j", found, sources, held, facts)
        return "" if failure is None else failure.cause

    assert refused(clocks=[(AT - 1, NEVER), (NEVER, NEVER)]) == ""
    assert "from in[0]" in refused(clocks=[(AT, NEVER), (NEVER, NEVER)])
    assert refused(since=AT) == ""
    assert "leaves out rows up to 1970-01-01T00:00:00.001Z" in refused(since=AT + 1)


def test_rows_with_numbers_are_told_apart_by_them() -> None:
    """Over a queue, where the numbers were given once."""
    before, after = a_job(time=ordinal("nr")), a_job("new", time=ordinal("nr"))
    assert failure_at("j", before, after, stages(before)) is None
    both = side_by_side(before, after, 3)
    found = pending(both)
    assert found is not None
    assert (found.time, found.ordinal) == ("row 3", True)
    assert both.routes["label.new"].bounds is not None
    assert both.routes["label.new"].bounds.time == RowTime(column="nr", ordinal=True)


def test_only_a_change_sets_bounds() -> None:
    """A job that a user writes has none."""
    data = {
        "name": "j",
        "workflow": [["a", "b"]],
        "catalog": [
            {"name": "a", "type": "input", "connector": "kafka", "options": {"topic": "t", "start": "earliest"}},
            {"name": "b", "type": "output", "connector": "blackhole"},
        ],
        "routes": {"a.b": {"bounds": {"time": {"column": "at"}, "since": 5}}},
    }
    spec, problems = read(data)
    assert spec.routes == {}
    assert "the route of a.b has no 'bounds'" in str(problems[0])


def test_the_diff_says_what_a_change_waits_for() -> None:
    """Of the version that it leads to, with the command that waits for it again; and of others that they are refused."""
    both = side_by_side(a_job("old"), a_job("new"), NOON)
    lines = diff_lines(job_diff(both, a_job("new")), "new.py")
    assert lines[1].startswith("it is being changed at 2026-11-27T12:00:00Z: old gets the rows before it")
    assert "    sardonyx job change job new.py --at 2026-11-27T12:00:00Z" in lines
    assert "      route       rows: from 2026-11-27T12:00:00Z on -> none" in lines
    third = diff_lines(job_diff(both, a_job("more")), "third.py")
    assert any("neither of its two versions" in line for line in third)
    assert not any("--at" in line for line in third)
    fresh = diff_lines(job_diff(a_job("old"), a_job("new")), "new.py")
    assert "    sardonyx job change job new.py --at TIME" in fresh
    done = complete(both, a_job("new"))
    assert job_diff(done, a_job("new")).equal
    numbered = side_by_side(a_job(time=ordinal("nr")), a_job("new", time=ordinal("nr")), 3)
    found = job_diff(numbered, a_job("new", time=ordinal("nr")))
    assert diff_lines(found, "new.py")[-8:].count("    sardonyx job change job new.py --at 3") == 1


def test_a_time_of_rows_may_be_said_by_how_long_ago_it_was() -> None:
    """Of the wall clock, wherever such a time is given to a client; a number without a unit is none."""
    for text, seconds in (("10 min ago", 600), ("2 h ago", 7_200), ("90 s ago", 90)):
        before = datetime.now(UTC).timestamp()
        found = moment(text) / 1e6
        assert before - seconds - 0.001 <= found <= datetime.now(UTC).timestamp() - seconds
    for text in ("10 ago", "10 min", "a while ago", "9999999 days ago"):
        with pytest.raises(SardonyxError, match=r"(?s)SX-USAGE.*10 min ago"):
            moment(text)
