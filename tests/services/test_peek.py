"""A look into a link: rows around the position of its reader, on a running job and on a topic full of aborted records."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from queues.peek import around
from sardonyx.client.client import JobHandle
from sardonyx.client.peek import Peek
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Link
from tests.services.house import House
from tests.waiting import until

JOB = """
import fcntl
from pathlib import Path
from sardonyx import Job, kafka

class Held:
    def before_batch(self, rows):
        with Path("{hold}").open() as held:
            fcntl.flock(held, fcntl.LOCK_SH)

def same(row: dict) -> dict:
    return row

job = Job("looked-into", partitions=1, keep="1 h")
read = job.input("read", kafka("{topic}", schema="n long", start="earliest"))
first = job.task("first", same, after=read, batch_size=3)
job.output("out", kafka("{topic}-out"), after=job.task("second", same, after=first, lifecycle=Held))
"""


@pytest.fixture
def half_read(house: House, tmp_path: Path) -> Iterator[tuple[House, JobHandle]]:
    """A job whose task ``second`` has read 6 rows of ``first.second``, and waits with the other 6."""
    topic = house.make_topic(f"peek-{tmp_path.name}")
    hold = tmp_path / "hold"
    hold.touch()

    def rows_in(task: str) -> int:
        return handle.status().task(task).rows_in or 0

    house.put(topic, 0, *(b'{"n": %d}' % number for number in range(6)))
    handle = house.submit(tmp_path, JOB.format(hold=hold, topic=topic))
    until(lambda: rows_in("second") == 6, what="the first rows to be through")
    with hold.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        house.put(topic, 0, *(b'{"n": %d}' % number for number in range(6, 12)))
        until(lambda: rows_in("first") == 12, what="the other rows to be written")
        yield house, handle
    house.clear()


def numbers(found: Peek, *, read: bool | None) -> list[int]:
    return [row.record["n"] for each in found.partitions for row in each.rows if row.read is read]


def test_the_position_of_the_reader_stands_between_the_rows(half_read: tuple[House, JobHandle]) -> None:
    """What it has read, and what it has not, in order; the nearest ones if few are wanted. Looking changes no position."""
    house, handle = half_read
    found = handle.peek("first.second", 100)
    assert (found.kind, found.writer, found.reader, found.more) == ("internal", "first", "second", 0)
    assert numbers(found, read=True) == list(range(6))
    assert numbers(found, read=False) == list(range(6, 12))
    assert all(row.by and row.at and row.row is not None for row in found.partitions[0].rows)
    position = found.partitions[0].position
    assert position is not None
    assert max(row.offset for row in found.partitions[0].rows if row.read) < position

    near = handle.peek("first.second", 4)
    assert (numbers(near, read=True), numbers(near, read=False)) == ([4, 5], [6, 7])
    newest = handle.peek("first.second", 4, begin="end")
    assert numbers(newest, read=False) == [8, 9, 10, 11]
    asked = handle.peek("read.first", 100, partition=0)
    assert numbers(asked, read=True) == list(range(12))
    written = handle.peek("second.out", 100)
    assert written.reader is None
    assert sorted(numbers(written, read=None)) == list(range(6))

    text = house.call("link", "peek", handle.id, "first.second", "-n", "4")
    assert text.exit_code == 0, text.stderr
    lines = text.stdout.splitlines()
    assert [line.rpartition("  ")[2] for line in lines[2:]] == [
        '{"n":4}',
        '{"n":5}',
        f"-- second has read up to here: next is offset {position:,} --",
        '{"n":6}',
        '{"n":7}',
    ]
    data = json.loads(house.call("link", "peek", handle.id, "first.second", "--json", "--newest").stdout)
    assert data["partitions"][0]["rows"][-1]["record"] == {"n": 11}
    assert handle.peek("first.second").partitions[0].position == position


def test_what_cannot_be_looked_into_says_why(half_read: tuple[House, JobHandle]) -> None:
    """A link or partition that is not there names those that are. After its end a job has no links."""
    house, handle = half_read
    for link, partition, cause in (("first.secnd", None, "first.second"), ("first.second", 5, "0 to 0")):
        with pytest.raises(SardonyxError) as raised:
            handle.peek(link, partition=partition)
        assert raised.value.code == "SX-PEEK-LINK"
        assert cause in raised.value.cause
    handle.kill()
    house.crew.until(lambda: handle.status().ended, "its end")

    def gone() -> bool:
        try:
            handle.peek("first.second")
        except SardonyxError as error:
            return error.code == "SX-PEEK-GONE"
        return False

    until(gone, what="its links to be gone")


def test_rows_are_found_behind_many_aborted_ones(house: House, tmp_path: Path) -> None:
    """Ends of transactions and aborted records take offsets: as many rows are found as there are, however far back."""
    topic = house.make_topic(f"aborted-{tmp_path.name}")
    producer = Producer({**house.settings.kafka.client(), "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)

    def write(number: int, *, commit: bool) -> None:
        producer.begin_transaction()
        producer.produce(topic, b'{"n": %d}' % number, partition=0)
        producer.flush(30)
        (producer.commit_transaction if commit else producer.abort_transaction)(30)

    for number in range(40):
        write(number, commit=number % 10 == 0)
    link, facts = Link("read", topic, "input", "read", "read"), LinkFacts(2)
    found = around(house.settings, link, facts, [0, 1], 3, group=None)
    assert [row.record["n"] for row in found[0].before] == [10, 20, 30]
    assert (found[0].after, found[0].cut, found[0].first, found[0].end) == ([], False, 0, 80)
    assert (found[1].before, found[1].end) == ([], 0)
    all_of_them = around(house.settings, link, facts, [0], 100, group=f"{topic}-nobody")
    assert [row.record["n"] for row in all_of_them[0].after] == [0, 10, 20, 30]
    assert all_of_them[0].position is None
