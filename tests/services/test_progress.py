"""The progress of running jobs on real services: it follows the rows through all tasks, and is never beyond what came out."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sardonyx.client.job_handle import JobHandle
from sardonyx.client.progress import JobProgress
from sardonyx.core.errors import SardonyxError
from tests.services.house import House
from tests.waiting import until

JOB = """
from sardonyx import Count, Job, event_time, kafka, tumbling

def some(row: dict) -> list:
    return [row] if row["n"] % 3 else []

job = Job("progress", partitions=3, lineage=True)
read = job.input("read", kafka("{topic}", schema="n long, at timestamp", start="earliest"{end}), time=event_time("at"))
kept = job.task("kept", some, after=read, max_peers=2, batch_size=20)
count = job.window("count", tumbling("1 min"), after=kept, group_by="n", aggregate={{"hits": Count()}})
job.output("out", kafka("{topic}-out"), after=count)
"""

START = 1_764_000_000


def text(topic: str, end: str = "") -> str:
    return JOB.format(topic=topic, end=end)


def rows(*seconds: int) -> list[bytes]:
    found = []
    for second in seconds:
        at = datetime.fromtimestamp(START + second, UTC).isoformat().replace("+00:00", "Z")
        found.append(json.dumps({"n": second, "at": at}).encode())
    return found


def awaited(handle: JobHandle, what: str, there: Callable[[JobProgress], bool]) -> JobProgress:
    def look() -> JobProgress | None:
        with contextlib.suppress(SardonyxError):  # its topics are made a moment later
            found = handle.progress()
            return found if there(found) else None
        return None

    return until(look, what=what)


def test_progress_follows_rows_through_functions_and_windows(house: House, tmp_path: Path) -> None:
    """Dropped rows are through, rows of open windows are held by their task, and the command shows it."""
    topic = house.make_topic("progress")
    house.put(topic, 0, *rows(1, 2, 3))
    house.put(topic, 1, *rows(5))
    handle = house.submit(tmp_path, text(topic))
    awaited(handle, "rows that are read", lambda found: [each.read for each in found.sources] == [3, 1])
    found = awaited(handle, "rows that are held", lambda found: all(e.held_by == ["count"] for e in found.sources))
    assert [each.everywhere for each in found.sources] == [0, 0]
    minutes = itertools.count(1)

    def moved(found: JobProgress) -> bool:
        minute = next(minutes)  # each look finds further rows on their way
        house.put(topic, 0, *rows(60 * minute + 1))
        house.put(topic, 1, *rows(60 * minute + 2))
        return all((each.everywhere or 0) > 0 for each in found.sources)

    awaited(handle, "the first minute", moved)
    assert sorted(record["n"] for record in house.records(f"{topic}-out"))[:3] == [1, 2, 5]
    shown = house.call("job", "progress", handle.id)
    assert shown.exit_code == 0, shown.output
    assert f"{topic}[0]" in shown.stdout
    assert "count" in shown.stdout
    as_json = json.loads(house.call("job", "progress", handle.id, "--json").stdout)
    assert as_json["lineage"] is True
    traced = house.call("job", "trace", handle.id, f"{topic}[0]@0", "--json")
    assert [(each["task"], each["state"]) for each in json.loads(traced.stdout)["tasks"]] == [
        ("kept", "through"),
        ("count", "through"),
    ]
    wrong = house.call("job", "trace", handle.id, "nothing[0]@0")
    assert "SX-TRACE-SOURCE" in wrong.output
    for missing in (f"{topic}[7]@0", f"{topic}[0]@1000000"):
        assert "SX-TRACE-RECORD" in house.call("job", "trace", handle.id, missing).output
    assert [each["source"] for each in as_json["sources"]] == [topic, topic]
    house.clear()


def test_what_is_everywhere_has_come_out(house: House, tmp_path: Path) -> None:
    """While rows come and go, each row below ``everywhere`` is in a result, as a reader of committed records sees it."""
    topic = house.make_topic("truth")
    handle = house.submit(tmp_path, text(topic))
    until(lambda: handle.status(live=False).status == "running", what="the job to run")
    written: dict[int, list[int]] = {0: [], 1: []}
    for step in range(40):
        number = step % 2
        seconds = [60 * step // 4 + part for part in (1, 2, 4)]
        written[number] += seconds
        house.put(topic, number, *rows(*seconds))
        for each in handle.progress().sources:
            below = written[each.partition][: each.everywhere or 0]
            came = {record["n"] for record in house.records(f"{topic}-out")}
            assert {second for second in below if second % 3} <= came, (each, sorted(came))
    house.clear()


def test_a_bounded_job_ends_with_all_rows_everywhere(house: House, tmp_path: Path) -> None:
    """Fronts keep no partition from its end; a job that has ended has no progress any more, and says so."""
    topic = house.make_topic("bounded-progress")
    house.fill(topic, *rows(*range(200)))
    handle = house.submit(tmp_path, text(topic, end=', end="latest"'))
    house.completed(handle)
    assert sorted(record["n"] for record in house.records(f"{topic}-out")) == [n for n in range(200) if n % 3]
    with pytest.raises(SardonyxError) as raised:
        handle.progress()
    assert raised.value.code == "SX-PROGRESS-GONE"
