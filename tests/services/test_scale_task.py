"""One task of a running job gets more peers and other batches, by a command that needs no spec."""

from __future__ import annotations

import json
from pathlib import Path

from sardonyx.client.change import revisions
from tests.services.house import House, told
from tests.waiting import until

JOB = """
from sardonyx import Job, kafka

def same(row: dict) -> dict:
    return row

job = Job("scaling", partitions=2)
read = job.input("read", kafka("{given}", schema="n long", start="earliest"))
label = job.task("label", same, after=read, max_peers=1, batch_size=20)
job.output("out", kafka("{made}"), after=label)
"""


def test_a_task_gets_more_peers_and_larger_batches_while_it_runs(house: House, tmp_path: Path) -> None:
    """Each record is worked once, the peers come, the change is listed like any other, and what cannot be scaled is refused."""
    given, made = house.make_topic("scale-in"), house.make_topic("scale-out")
    handle = house.submit(tmp_path, JOB.format(given=given, made=made))
    house.fill(given, *(b'{"n": %d}' % n for n in range(100)))
    until(lambda: len(house.records(made)) == 100, what="the first records")
    assert handle.status(live=False).task("label").peers == 1

    told(house.call("job", "scale", handle.id, "--task", "lable", "--max-peers", "2"), "SX-JOB-SCALE-TASK", "'label'")
    told(
        house.call("job", "scale", handle.id, "--task", "read", "--max-peers", "2"), "SX-JOB-SCALE-TASK", "scale label"
    )
    many = house.call("job", "scale", handle.id, "--task", "label", "--min-peers", "9")
    assert "SX-JOB-PEERS: task 'label': max_peers (1) is less than min_peers (9)" in many.stderr
    assert many.exit_code == 1
    result = house.call(
        "job", "scale", handle.id, "--task", "label", "--max-peers", "2", "--batch-size", "50", "--json"
    )
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"id": handle.id, "task": "label", "revision": 2, "changed": True}
    until(lambda: handle.status(live=False).task("label").peers == 2, what="the second peer")
    house.fill(given, *(b'{"n": %d}' % n for n in range(100, 300)))
    until(lambda: len(house.records(made)) >= 300, what="the other records")
    assert sorted(record["n"] for record in house.records(made)) == list(range(300))
    found = revisions(house.client, handle.id)
    assert [(each.revision, each.changed) for each in found if not each.given_up][-1] == (2, ["label"])
    again = house.call("job", "scale", handle.id, "--task", "label", "--max-peers", "2")
    assert "is like that already (revision 2)" in again.stdout
    assert handle.scale_task("label", max_peers=1, timeout=60) == 3
    until(lambda: handle.status(live=False).task("label").peers == 1, what="one peer")
    house.clear()
    told(house.call("job", "scale", handle.id, "--task", "label", "--max-peers", "2"), "SX-JOB-ENDED", "is killed")
