"""A record is followed on real services: in which batches it was worked, where these wrote, and which task dropped it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from queues.topic_log import read_messages
from sardonyx.client.job_handle import JobHandle
from sardonyx.client.record_trace import OutputOnWay, RecordTrace, TaskOnWay
from tests.services.house import House
from tests.waiting import until

JOB = """
from sardonyx import Job, files, kafka

def double(row: dict) -> list:
    if row["n"] == 13:
        raise ValueError("unlucky")
    return [row, row] if row["n"] % 2 else []

def same(row: dict) -> dict:
    return row

job = Job("way", partitions=2, lineage=True, keep="1 h")
read = job.input("read", kafka("{topic}", schema="n long", start="earliest"))
some = job.task("some", double, after=read, batch_size=1, batch_timeout="10 ms", on_error="dead_letter")
last = job.task("last", same, after=some, batch_size=1)
job.output("kept", files("{folder}", format="json", roll="2 s"), after=last, batch_size=1)
job.output("told", kafka("{topic}-out"), after=last)
job.output("said", kafka("{topic}-said", lineage=True), after=last)
"""


def of(found: RecordTrace, task: str) -> TaskOnWay:
    return next(each for each in found.tasks if each.task == task)


def rows_at(house: House, handle: JobHandle, output: OutputOnWay) -> list[Any]:
    """The rows of the messages that an output names, as `link peek` shows them."""
    peek = handle.peek(output.link, partition=output.partition, rows=200)
    (part,) = peek.partitions
    return [row.record for row in part.rows if any(first <= row.offset <= last for first, last in output.offsets)]


def test_a_record_is_followed_through_queues_into_its_file(house: House, tmp_path: Path) -> None:
    """With batches of one record everything is certain: the queue's messages that are told hold the record, the file that is told
    holds it, a record without results was dropped by its task, and a failed one is a dead letter. Records of a topic of the
    user's are named if they say it; of another topic it is said that it is not known.
    """
    topic, folder = house.make_topic("way"), tmp_path / "kept"
    house.put(topic, 0, *(b'{"n": %d}' % n for n in (10, 11, 12, 13, 14, 15)))
    handle = house.submit(tmp_path, JOB.format(topic=topic, folder=folder))
    until(lambda: len(house.records(f"{topic}-out")) == 4, what="all results")

    def traced(offset: int) -> RecordTrace:
        def through() -> RecordTrace | None:
            found = handle.trace(topic, 0, offset)
            return found if all(each.state == "through" for each in found.tasks) else None

        return until(through, what=f"record {offset} to be through")

    found = traced(5)
    some, last, kept = of(found, "some"), of(found, "last"), of(found, "kept")
    (batch,) = some.batches
    assert (batch.rows, [(each.start, each.end) for each in batch.read]) == (1, [(5, 6)])
    assert batch.peer in {peer.id for peer in house.client.peers()}
    assert some.unknown == []
    for task, link in ((some, "some.last"), (last, "last.kept")):
        own = [each for each in task.outputs if not each.yours]
        assert {each.link for each in own} == {link}
        for output in own:
            assert output.sure
            assert {row["n"] for row in rows_at(house, handle, output)} == {15}
    assert any(f"{topic}-out" in text for text in last.unknown)
    yours = [each for each in last.outputs if each.yours]
    assert all(each.topic == f"{topic}-said" and each.sure for each in yours)
    named = [
        json.loads(message.value())["n"]
        for each in yours
        for begin, end in each.offsets
        for message in read_messages(house.settings, each.topic, begin, end + 1, each.partition)
    ]
    assert named == [15, 15]
    assert [each.sure for each in kept.outputs] == [True]

    def filed() -> list[str]:
        return [name for each in of(traced(5), "kept").outputs for name in each.files]

    names = until(filed, what="the file to be complete")
    for name in names:
        until((folder / name).exists, what=f"the file {name}")
        assert 15 in {json.loads(line)["n"] for line in (folder / name).read_text().splitlines()}

    until(lambda: of(traced(4), "some").dropped, what="it to be certain that nothing was written")
    assert of(traced(4), "some").outputs == []
    dead = traced(3)
    assert [(each.task, each.sure) for each in dead.letters] == [("some", True)]
    assert not of(dead, "some").dropped
    shown = house.call("job", "trace", handle.id, f"{topic}[0]@5")
    assert shown.exit_code == 0, shown.output
    assert "some: worked in a batch of 1 row at " in shown.stdout
    assert "kept: it went to kept.parts[0]@" in shown.stdout
    assert "(file " in shown.stdout
    until(
        lambda: "some: dropped it" in house.call("job", "trace", handle.id, f"{topic}[0]@4").stdout,
        what="the command to say so",
    )
    as_json = json.loads(house.call("job", "trace", handle.id, f"{topic}[0]@5", "--json").stdout)
    assert msgspec.convert(as_json, RecordTrace).tasks == traced(5).tasks
    house.clear()


def test_what_is_deleted_is_unknown(house: House, tmp_path: Path) -> None:
    """Queues that keep no rows are trimmed when they are read. Then nothing is said of where a record went, and why."""
    topic, folder = house.make_topic("trimmed"), tmp_path / "kept"
    handle = house.submit(tmp_path, JOB.format(topic=topic, folder=folder).replace(', keep="1 h"', ""))
    house.put(topic, 0, *(b'{"n": %d}' % n for n in range(15, 25)))
    until(lambda: len(house.records(f"{topic}-out")) == 10, what="all results")

    def trimmed() -> TaskOnWay | None:
        some = of(handle.trace(topic, 0, 0), "some")
        return some if any("it is deleted, since its reader has read it" in text for text in some.unknown) else None

    some = until(trimmed, what="what was read to be trimmed")
    assert not some.dropped
    house.clear()


WINDOW = """
from sardonyx import Count, Job, event_time, kafka, tumbling

job = Job("open", partitions=2, lineage=True, keep="1 h")
hits = job.input("hits", kafka("{topic}", schema="user string, at timestamp", start="earliest"), time=event_time("at"))
count = job.window("count", tumbling("1 min"), after=hits, group_by="user", aggregate={{"hits": Count()}})
job.output("out", kafka("{topic}-out"), after=count)
"""


def test_a_record_that_is_held_is_told_its_window(house: House, tmp_path: Path) -> None:
    """By the rows of the messages that may hold it."""
    topic = house.make_topic("held")
    house.put(topic, 0, b'{"user": "a", "at": "2026-11-23T10:00:10Z"}')
    handle = house.submit(tmp_path, WINDOW.format(topic=topic))

    def held() -> TaskOnWay | None:
        count = of(handle.trace(topic, 0, 0), "count")
        return count if count.state == "held" else None

    until(lambda: handle.status(live=False).status == "running", what="the job to run")
    until(lambda: house.call("job", "progress", handle.id).exit_code == 0, what="its queues")
    count = until(held, what="the record to be held")
    begin = 1_795_428_000_000_000  # 2026-11-23T10:00:00Z
    assert count.windows == [(begin, begin + 60_000_000)]
    assert [each.read[0].link for each in count.batches] == ["hits.count"]
    shown = house.call("job", "trace", handle.id, f"{topic}[0]@0").stdout
    assert "; its window is 2026-11-23T10:00:00Z to 2026-11-23T10:01:00Z" in " ".join(shown.split())
    house.clear()
