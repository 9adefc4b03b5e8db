"""A queue with a bound, on real services: the task that writes it pauses, and goes on when the other has read."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any

from tests.services.house import House
from tests.services.test_lag import by_link
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

job = Job("bounded", partitions=2, max_backlog={{"first.second": {bound}}})
read = job.input("read", kafka("{topic}", schema="n long", start="earliest"))
first = job.task("first", same, after=read, batch_size=10)
job.output("out", kafka("{topic}-out"), after=job.task("second", same, after=first, lifecycle=Held))
"""
RECORDS = 2_000
BOUND = 50


def test_a_task_pauses_while_the_next_one_does_not_read(house: House, tmp_path: Path) -> None:
    """An endless job whose second task hangs. The first one stops at the bound, or some batches after it; what it has not read
    stays in the user's topic. `link lag` and `job explain` say who is held by what, which is not late. In the end
    each record is there once.
    """
    topic, hold = house.make_topic("bounded"), tmp_path / "hold"
    house.fill(topic, *(json.dumps({"n": n}).encode() for n in range(RECORDS)))
    with hold.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        handle = house.submit(tmp_path, JOB.format(hold=hold, topic=topic, bound=BOUND))

        def stands_still() -> dict[str, Any] | None:
            """The links, if two looks see the same, and no row twice: looks at two links are of two moments."""
            one, two = by_link(house, handle), by_link(house, handle)
            read, waits = (two[name]["records"] for name in ("read.first", "first.second"))
            same = all(one[name]["records"] == two[name]["records"] for name in two)
            return two if same and waits >= BOUND and read + waits == RECORDS else None

        unread = until(stands_still, what="the first task to pause")
        assert unread["first.second"]["max_backlog"] == BOUND
        assert BOUND <= unread["first.second"]["records"] < RECORDS / 2
        words = f"task first pauses: first.second is full, with {unread['first.second']['records']} unread rows of at most 50"
        assert words in house.call("link", "lag", handle.id).stdout
        (said,) = json.loads(house.call("link", "lag", handle.id, "--json").stdout)["held"]
        assert (said["task"], said["link"], said["last"]) == ("first", "first.second", "second")

        def explained() -> str | None:
            text = house.call("job", "explain", handle.id).stdout
            return text if "task second is late with first.second" in text else None

        text = until(explained, what="the second task to be late")
        assert words in text
        assert "task first is late" not in text, "it waits for the second one"
        fcntl.flock(held, fcntl.LOCK_UN)
    until(lambda: len(house.records(f"{topic}-out")) >= RECORDS, what="all records")
    assert sorted(row["n"] for row in house.records(f"{topic}-out")) == list(range(RECORDS))
    assert house.call("job", "explain", handle.id).stdout.count("pauses") == 0
