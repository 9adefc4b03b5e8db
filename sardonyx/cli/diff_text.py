"""The differences between two versions of a job as text. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import msgspec

from sardonyx.cli.graph_text import describe
from sardonyx.core.diff_reach import OtherInputs
from sardonyx.core.diff_ways import Way
from sardonyx.core.errors import SardonyxError
from sardonyx.core.graph import Graph
from sardonyx.core.job_diff import Difference, JobDiff, LinkDiff, Refusal, TaskDiff
from sardonyx.core.spec import TaskSpec
from sardonyx.core.text import counted, listed, plural, shorten

MOST_REFUSALS = 3
"""Reasons that are shown; `--json` gives all."""
LONGEST_VALUE = 60
"""Characters of a value that are shown."""
BEFORE_DIFFERENCE = 20
"""Of two long values, characters that are shown before the first one that differs."""
HASH = 8
"""Characters of a hash that are shown."""
KIND = 10
"""Characters that the kind of a difference takes."""

_MARKS = {"changed": "~", "added": "+", "removed": "-"}
_LINKS = {
    "internal": "a queue",
    "splits": "the list of what is still to be read",
    "parts": "the list of the files written",
    "dead": "dead letters",
    "state": "the log of the state",
    "input": "topic {topic}",
    "output": "topic {topic}",
    "fused": "no queue, since the two tasks run fused",
}
_NO_GRAPH = Graph(order=[], stages=[], bound={}, bounded=True)


def diff_lines(diff: JobDiff, spec: str) -> list[str]:
    """What differs, part by part, and how it can be carried out.

    Args:
        diff: the differences. Values of secrets are shown as they are.
        spec: the new version, as the user named it.
    """
    lines = [_headline(diff, spec), *([diff.waits] if diff.waits else [])]
    if diff.job:
        lines += ["job", *(_difference(each, diff, "  ") for each in diff.job)]
    for title, parts in (("tasks", diff.tasks), ("links", diff.links)):
        changed = [part for part in parts if part.status != "kept"]
        lines += [title, *(line for part in changed for line in _part(part, diff))] if changed else []
    lines += ["rows", *map(_rows, diff.other_inputs)] if diff.other_inputs else []
    if not diff.equal:
        lines.append("how to carry it out")
    return [*lines, *(f"  {line}" for line in _how(diff, spec)), *_installed(diff)]


def commands(diff: JobDiff, spec: str) -> dict[str, list[str]]:
    """The commands of each way in which all differences, or of ``scale`` and ``keep`` some, can be carried out, in order.

    ``change-at``: in the running job, by the times of its rows.
    """
    new = shlex.quote(spec)
    end = [] if not diff.running else [f"sardonyx job {'await' if diff.bounded else 'stop'} {diff.before}"]
    found: dict[str, list[str]] = {"scale": _scale(diff), "keep": _keep(diff)}
    if "change" in diff.ways and diff.running and not diff.equal:
        drop = "".join(f" --drop {name}" for name in diff.drop)
        found["change"] = [f"sardonyx job change {diff.before} {new}{drop}"]
    if diff.at_a_time:
        found["change-at"] = [f"sardonyx job change {diff.before} {new} --at {diff.waits_until or 'TIME'}"]
    if "resume" in diff.ways and diff.running and not diff.bounded:
        found["resume"] = [f"sardonyx job change {diff.before} {new} --restart"]
    elif "resume" in diff.ways:
        found["resume"] = [*end, f"sardonyx job submit {new} --resume {diff.before}"]
    found["start"] = [*end, f"sardonyx job show {diff.before}", f"sardonyx job submit {new}"]
    return {way: lines for way, lines in found.items() if lines}


def _headline(diff: JobDiff, spec: str) -> str:
    if diff.equal:
        return f"{diff.before} and {spec} are equal: {counted(len(diff.tasks), 'task')}, and all links"
    counts = [(status, sum(task.status == status for task in diff.tasks)) for status in ("kept", *_MARKS)]
    words = listed(f"{number} {status}" for status, number in counts if number)
    return f"{diff.before} becomes {spec}: of {counted(len(diff.tasks), 'task')} {words}"


def _part(part: TaskDiff | LinkDiff, diff: JobDiff) -> Iterator[str]:
    """One task or link: in one line if it was added or removed, else with a line for each difference."""
    head = f"  {_MARKS[part.status]} {part.name}"
    if part.status == "changed":
        yield head
        yield from (_difference(each, diff, "      ") for each in part.differences)
    else:
        (found,) = part.differences
        what = _link if isinstance(part, LinkDiff) else _task
        yield f"{head}  {what(found.after or found.before)}{_remark(found, diff)}"


def _rows(of: OtherInputs) -> str:
    """Rows of which inputs come to a task, and no longer come."""
    told = [f"rows of {listed(of.gone)} no longer come to it"] if of.gone else []
    told += [f"rows of {listed(of.new)} come to it from then on"] if of.new else []
    return f"  {of.task}  {'; '.join(told)}"


def _task(task: dict[str, Any]) -> str:
    return describe(msgspec.convert(task, TaskSpec), _NO_GRAPH)


def _link(face: dict[str, Any]) -> str:
    """What carries the rows of a link, and which rows."""
    which = {"failed": "of failed records", "late": "of late rows"}.get(face["of"], "")
    where = f"where {face['where']}" if face["where"] else ""
    return " ".join(filter(None, [_LINKS[face["kind"]].format(topic=face["topic"]), which, where]))


def _difference(each: Difference, diff: JobDiff, indent: str) -> str:
    if each.kind == "link":
        what = f"{'carried by':<{KIND}}  {_link(each.before)} -> {_link(each.after)}"
    else:
        before, after = _apart(_value(each.field, each.before), _value(each.field, each.after))
        what = f"{each.kind:<{KIND}}  {each.field}: {before} -> {after}"
    return f"{indent}{what}{_remark(each, diff)}"


def _value(field: str, value: Any) -> str:
    if value is None:
        return "none"
    if field == "code":
        return str(value)[:HASH]
    if isinstance(value, str):
        return value if value and value.isprintable() else repr(value)
    if field == "group_by" and not value:
        return "one key for all rows"
    if isinstance(value, list) and all(isinstance(each, str) and each.isprintable() for each in value):
        return ", ".join(value) or "none"
    return json.dumps(value)


def _apart(before: str, after: str) -> tuple[str, str]:
    """Two values, shortened so that one can still see where they differ."""
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))))
    lead = same - BEFORE_DIFFERENCE if same > LONGEST_VALUE - BEFORE_DIFFERENCE else 0
    one, other = (shorten(f"...{value[lead:]}" if lead else value, LONGEST_VALUE) for value in (before, after))
    return one, other


def _remark(each: Difference, diff: JobDiff) -> str:
    """What else there is to say of a difference, in brackets."""
    words = [each.note] if each.note else []
    if "scale" in each.ways:
        words.append("`job scale` changes it in the running job")
    if "keep" in each.ways:
        words.append("`link keep` changes it in the running job")
    if diff.running and "change" not in each.ways:
        words.append("`job change` does not take it")
    if "resume" not in each.ways and _some_refused(diff):
        words.append("`--resume` does not take it")
    return f"  ({'; '.join(words)})" if words else ""


def _some_refused(diff: JobDiff) -> bool:
    """Whether a resume is refused only for some of what differs."""
    found = _refusals(diff, "resume")
    return bool(found) and all(refusal.link for refusal in found)


def _refusals(diff: JobDiff, way: Way) -> list[Refusal]:
    return [refusal for refusal in diff.refusals if refusal.way == way]


def _how(diff: JobDiff, spec: str) -> Iterator[str]:
    found = commands(diff, spec)
    here = [*found.get("scale", []), *found.get("keep", [])]
    if not diff.equal and all(each.kind == "doc" for each in diff.differences):
        yield "only descriptions differ: the next version may carry them"
        return
    whole = all({"scale", "keep"}.intersection(each.ways) for each in diff.differences)
    if here:
        yield f"{'' if whole else f'{_parts(here)} of it '}in the running job, at once:"
        yield from _indented(here)
    if "change" in found and not whole:
        lost = f"; unread rows and states of {listed(diff.drop)} go" if diff.drop else ""
        yield f"{'or ' if diff.in_place and here else ''}in the running job, when its peers have left{lost}:"
        yield from _indented(found["change"])
        if "change-at" in found:
            waits = "or so that rows before a time go the old way to its end, and those from it on the new one:"
            yield "or at that time, as it has begun:" if diff.waits else waits
            yield from _indented(found["change-at"])
    elif _refusals(diff, "change") and not whole:
        yield from _refused(diff, "change", "job change")
    if _refusals(diff, "resume"):
        yield from _refused(diff, "resume", "job submit --resume")
    if diff.equal:
        return
    before = "or " if diff.in_place else ""
    if "resume" in found:
        stops = "stop it, and have another job go on from there"
        how = "resume it" if not diff.running else "wait for its end and resume it" if diff.bounded else stops
        empty = f"; {_states(diff.begins_empty)} empty" if diff.begins_empty else ""
        yield f"{before}{how}: no record twice, none left out{empty}:"
        yield from _indented(found["resume"])
    else:
        yield f"{before}as a new job, which begins at its own `start=`; `job show` tells the positions of the old one:"
        yield from _indented(found["start"])


def _installed(diff: JobDiff) -> Iterator[str]:
    """What is not compared, and how a new version of it comes into the running job."""
    if diff.installed:
        yield "installed where peers run, so not compared"
        yield from (f"  {package}  of {listed(tasks)}" for package, tasks in diff.installed.items())
        yield "  to go on by a new version of it, with the positions and states that the job has:"
        yield "    install it on each machine, and restart its peer daemons, one machine after the other"


def _refused(diff: JobDiff, way: Way, command: str) -> Iterator[str]:
    refusals = _refusals(diff, way)
    yield f"`{command}` would refuse it:"
    for refusal in refusals[:MOST_REFUSALS]:
        if way == "change":  # cause and fix are the same for all
            yield f"  {refusal.failure.message.partition(': ')[2]}"
        else:
            yield from _indented(str(SardonyxError.from_failure(refusal.failure)).splitlines())
    if len(refusals) > MOST_REFUSALS:
        yield f"  and {counted(len(refusals) - MOST_REFUSALS, 'more reason')}; --json gives all"
    taken = sum(way in each.ways for each in diff.differences)
    if taken:
        yield f"without the differences marked above it would take {plural(taken, 'the other one', f'the other {taken}')}"


def _states(tasks: list[str]) -> str:
    return f"{plural(len(tasks), 'the state', 'the states')} of {listed(tasks)} {plural(len(tasks), 'begins', 'begin')}"


def _indented(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _parts(lines: list[str]) -> str:
    return plural(len(lines), "a part", "parts")


_FLAGS = {
    "priority": "--priority",
    "weight": "--weight",
    "percentage": "--percentage",
    "max_peers": "--max-peers",
}


def _scale(diff: JobDiff) -> list[str]:
    flags = [
        f"{_FLAGS[each.field]} {0 if each.after is None else each.after}" for each in diff.job if "scale" in each.ways
    ]
    return [f"sardonyx job scale {diff.before} {' '.join(flags)}"] if flags else []


def _keep(diff: JobDiff) -> list[str]:
    kept = [each.after for each in diff.job if "keep" in each.ways]
    return [f"sardonyx link keep {diff.before} {shlex.quote(str(kept[0] or 0))}"] if kept else []


__all__ = ["commands", "diff_lines"]
