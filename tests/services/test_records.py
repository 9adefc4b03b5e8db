"""Errors by record on a running cluster: retries, skipping, failed-edges, dead letters and redoing them, lifecycles."""

from __future__ import annotations

import json
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from sardonyx.client.client import JobHandle
from sardonyx.client.dead_letters import DeadLetters
from sardonyx.core import node_paths
from sardonyx.core.errors import JobFailed
from sardonyx.runtime.child_process import start_child
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.services.house import House, told, written
from tests.waiting import until

JOB = """
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from sardonyx import Job, OnError, kafka

MENDED = {mended}

def parse(row: dict) -> dict:
    if row["n"] % 10 == 3 and not MENDED:
        raise ValueError("three")
    return {{"n": row["n"], "by": "parse"}}

def check(table: pa.Table) -> pa.Table:
    if pc.any(pc.equal(table["n"], 15)).as_py():
        raise KeyError("fifteen")
    return table

def share(rows: DataFrame) -> DataFrame:
    if MENDED:
        return rows.selectExpr("n", "1 as share")
    return rows.selectExpr("n", "12 / (n - 24) as share")

def three(row: dict) -> bool:
    return row["error"] == "ValueError" and '"n":13' in row["record"]

job = Job("{name}", partitions=2)
read = job.input("read", kafka("{topic}", start="earliest", end="latest"))
parsed = job.task("parse", parse, after=read, on_error=OnError(retries=2, backoff="10 ms", then="dead_letter"))
checked = job.task("check", check, after=parsed, on_error="skip")
shared = job.task("share", share, after=checked, on_error="dead_letter")
job.output("write", kafka("{out}"), after=shared)
job.output("aside", kafka("{aside}"), after=parsed.failed.where(three))
"""


class Ran:
    """The job above, once it has run: forty records of which some are bad, in every way in which they can be."""

    def __init__(self, house: House, folder: Path) -> None:
        self.house = house
        self.folder = folder
        self.topic, self.out, self.aside = (house.make_topic(name) for name in ("in", "out", "aside"))
        records = [json.dumps({"n": n}).encode() for n in range(40)]
        house.fill(self.topic, *records[:7], b"not json", *records[7:])
        self.handle = house.submit(folder, self.text(mended=False))
        self.view = house.completed(self.handle)

    def text(self, *, mended: bool) -> str:
        return JOB.format(name="records", mended=mended, topic=self.topic, out=self.out, aside=self.aside)

    def mended(self) -> str:
        return written(self.folder / "mended", self.text(mended=True))

    def numbers(self) -> list[int]:
        return sorted(row["n"] for row in self.house.records(self.out))

    def dead(self, job: str, task: str | None = None) -> list[dict]:
        listed = json.loads(self.house.call("dlq", "list", job, "--json").stdout)
        return [pile for pile in listed if task in (None, pile["task"])]


@pytest.fixture(scope="module")
def ran(shared_house: House, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The job above, at its end."""
    return Ran(shared_house, tmp_path_factory.mktemp("records"))


PYTHON = [sys.executable, "-m", "sardonyx"]
KILLED = 128 + 9
LOST = [3, 13, 15, 23, 24, 33]


def topics(house: House) -> set[str]:
    return set(AdminClient({**house.settings.kafka.client(), "log_level": 0}).list_topics(timeout=60).topics)


@pytest.mark.gate
def test_every_bad_record_goes_its_way_and_no_other(ran: Ran) -> None:
    """Of forty records and one that is none: three of parse and what cannot be read become dead letters, one takes the
    failed-edge, one is skipped, one dies in a DataFrame; everything else arrives once.
    """
    assert ran.numbers() == [n for n in range(40) if n not in LOST]
    counts = {t.name: (t.rows_in, t.rows_out, t.skipped, t.dead) for t in ran.view.tasks if not t.bound}
    assert counts == {"parse": (41, 36, 0, 4), "check": (36, 35, 1, 0), "share": (35, 34, 0, 1)}
    (aside,) = ran.house.records(ran.aside)
    assert (aside["task"], aside["error"], aside["attempts"], aside["record"]) == ("parse", "ValueError", 3, '{"n":13}')
    assert (aside["topic"], aside["code"]) == (ran.topic, "SX-FN-RAISED")
    assert "raise ValueError" in aside["traceback"]


@pytest.mark.gate
def test_a_dead_letter_says_what_it_was_and_why_it_died(ran: Ran) -> None:
    """The record as it was, the message that carried it, class, message, traceback, attempts; listed, and shown whole."""
    assert [(pile["task"], pile["letters"], pile["waiting"]) for pile in ran.dead(ran.handle.id)] == [
        ("parse", 4, 4),
        ("share", 1, 1),
    ]
    parse = {str(each.record): each for each in DeadLetters(ran.house.client).letters(ran.handle.id, "parse")}
    assert set(parse) == {"not json", "{'n': 23}", "{'n': 3}", "{'n': 33}"}
    raw, row = parse["not json"], parse["{'n': 3}"]
    assert (raw.letter.attempts, raw.letter.failure.code) == (1, "SX-RECORD-UNDECODABLE")
    assert (raw.letter.origin.topic, raw.letter.origin.partition, raw.letter.origin.offset) == (ran.topic, 1, 3)
    assert (row.letter.attempts, row.letter.error) == (3, "ValueError")
    assert (row.letter.origin.topic, row.letter.origin.partition, row.letter.origin.offset) == (ran.topic, 1, 1)
    shown = ran.house.call("dlq", "show", ran.handle.id, str(row.offset), "--task", "parse").stdout
    for part in (
        "3 times, with ValueError",
        "offset 1",
        "'n': 3",
        "raise ValueError",
        "open: neither redone nor dropped",
        "SX-FN-RAISED",
    ):
        assert part in shown
    (share,) = DeadLetters(ran.house.client).letters(ran.handle.id, "share")
    assert (share.record["n"], share.letter.error, share.letter.origin.topic) == (
        24,
        "ArithmeticException",
        f"{ran.house.settings.deployment}.{ran.handle.id}.check.share",
    )
    assert share.letter.origin.row is not None
    assert "dead letters" in ran.house.call("job", "show", ran.handle.id).stdout
    told(ran.house.call("dlq", "show", ran.handle.id, "3"), "SX-DLQ-TASK", "parse, share")
    told(ran.house.call("dlq", "show", ran.handle.id, "99", "--task", "share"), "SX-DLQ-NONE")
    told(ran.house.call("dlq", "redo", ran.handle.id, "--task", "shara"), "SX-DLQ-TASK", "parse, share")


@pytest.mark.gate
def test_letters_are_redone_once_whoever_asks(ran: Ran) -> None:
    """Two at a time, and a process that dies right before or right behind the claim: each letter is worked on once. What fails
    again is a dead letter of the new job, and says still where it first came from.
    """
    house, first = ran.house, ran.handle.id
    environment = house.settings.environment()
    for failpoint, left in (("redo-claim", 1), ("redo-claimed", 0)):
        command = [*PYTHON, "dlq", "redo", first, "--task", "share", "--spec", ran.mended()]
        env = {**environment, "SARDONYX_FAILPOINT": f"{failpoint}:1:kill"}
        with start_child(command, name=failpoint, log_path=ran.folder / f"{failpoint}.log", env=env) as child:
            until(lambda child=child: child.poll() is not None, what=f"death at {failpoint}")
            assert child.poll() == KILLED, child.log_tail(20)
        assert ran.dead(first, "share")[0]["waiting"] == left
    (by,) = ran.dead(first, "share")[0]["redone_by"]
    house.completed(house.client.job(by))
    nothing = house.call("dlq", "redo", first, "--task", "share").stdout.strip()
    assert nothing == f"job {first} has no open dead letters: 1 redone by {by}"

    handles: list[JobHandle | None] = []
    both = threading.Barrier(2)

    def redo() -> None:
        both.wait()
        handles.append(DeadLetters(house.client).redo(first, "parse"))

    threads = [threading.Thread(target=redo) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (again,) = [handle for handle in handles if handle is not None]
    view = house.completed(again)
    assert (view.task("parse").rows_in, view.task("parse").dead) == (4, 4), "it was not corrected"
    second = {str(each.record): each for each in DeadLetters(house.client).letters(again.id)}
    assert set(second) == {"not json", "{'n': 23}", "{'n': 3}", "{'n': 33}"}
    assert second["{'n': 3}"].letter.origin.topic == ran.topic
    assert second["not json"].letter.origin.offset == 3

    nothing = house.call("dlq", "redo", first, "--task", "parse").stdout
    assert f"4 dead letters failed again and are now in job {again.id}, task parse: `sardonyx dlq redo" in nothing

    (job,) = json.loads(house.call("dlq", "redo", again.id, "--spec", ran.mended(), "--json").stdout)["jobs"]
    view = house.completed(house.client.job(job["id"]))
    assert (view.task("parse").rows_in, view.task("parse").rows_out, view.task("parse").dead) == (4, 3, 1)
    assert ran.numbers() == [n for n in range(40) if n not in (13, 15)]
    closes_what_is_left(house, job["id"], ran.folder)


def closes_what_is_left(house: House, job: str, folder: Path) -> None:
    """The letter that can never be redone is saved and dropped; before that the job is not purged without a word."""
    house.crew.until(lambda: house.client.job(job).status().letters == 1, "the letters of the job to be counted")
    refused = house.call("job", "purge", job)
    told(refused, "SX-JOB-LETTERS", f"job {job} has 1 dead letter that was neither redone nor dropped")
    kept = json.loads(house.call("job", "purge", "--older-than", "0 s", "--dry-run", "--json").stdout)["kept"]
    assert {"id": job, "letters": 1} in kept
    out = folder / "letters.jsonl"
    house.call("dlq", "export", job, "--out", str(out))
    (saved,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert (saved["record"], saved["letter"]["failure"]["code"]) == ("not json", "SX-RECORD-UNDECODABLE")
    dropped = json.loads(house.call("dlq", "drop", job, "--json").stdout)
    assert dropped == {"job": job, "dropped": [{"task": "parse", "letters": 1}]}
    assert "has no open dead letters: 1 was dropped" in house.call("dlq", "drop", job).stdout
    (line,) = house.call("dlq", "show", job).stdout.splitlines()
    assert "(dropped)" in line
    house.crew.until(lambda: house.client.job(job).status().letters == 0, "the coordinator to know of the drop")
    assert house.call("job", "purge", job).stdout.strip() == f"job {job} is purged"


def test_letters_go_with_their_job_and_take_nobody_elses_topic(ran: Ran) -> None:
    """Kept after the job's end where there are any; purge removes them and the claims, but no topic that is only named alike."""
    house, deployment = ran.house, ran.house.settings.deployment
    job = ran.handle.id
    alike = [f"{deployment}.{job[:-1]}.parse.dead", f"{deployment}.other-abcdef.parse.dead", f"{deployment}.{job}"]
    for name in alike:
        house.make_named(name)
    standing = {f"{deployment}.{job}.{task}.dead" for task in ("parse", "share")}

    def left() -> set[str]:
        return {topic for topic in topics(house) if topic.startswith(f"{deployment}.{job}.")}

    house.crew.until(lambda: left() == standing, "all topics but the dead letters to go")
    house.call("job", "purge", job, "--with-dead-letters")
    house.crew.until(lambda: not topics(house) & standing, "the dead letters to go")
    with closing(ZooKeeperSession.connect(house.settings)) as zk:
        until(lambda: not [n for n in zk.children(node_paths.REDO) if n.startswith(f"{job}.")], what="the claims to go")
    assert topics(house) >= {*alike, ran.topic, ran.out}


def test_a_job_without_dead_letters_leaves_no_topic(house: House, tmp_path: Path) -> None:
    """An empty topic of dead letters goes with the job's other topics at its end."""
    topic = house.make_topic("good")
    house.fill(topic, b'{"n": 1}')
    names = {"topic": topic, "out": house.make_topic("good-out"), "aside": house.make_topic("good-aside")}
    handle = house.submit(tmp_path, JOB.format(name="good", mended=True, **names))
    house.completed(handle)
    prefix = f"{house.settings.deployment}.{handle.id}."
    house.crew.until(lambda: not [name for name in topics(house) if name.startswith(prefix)], "its topics to go")


LIFE = """
from pathlib import Path
import sqlite3
from pyspark.sql import DataFrame
from sardonyx import Job, blackhole, kafka

NOTES = Path({notes!r})

def note(text):
    with NOTES.open("a") as out:
        out.write(text + "\\n")

class Life:
    def start(self, context):
        note(f"start {{context.task}}")
        self.db = sqlite3.connect(":memory:")
        if {breaks}:
            raise OSError("the cellar is flooded")
        return {{"db": self.db}}
    def before_batch(self, rows):
        note(f"before {{rows}}")
    def after_batch(self, rows):
        note(f"after {{rows}}")
    def stop(self):
        self.db.close()
        note("stop")

def use(rows: DataFrame, db) -> DataFrame:
    db.execute("select 1").fetchall()
    if {raises}:
        raise ValueError("no")
    return rows

job = Job("life")
read = job.input("read", kafka("{topic}", start="earliest"))
used = job.task("use", use, after=read, lifecycle=Life, max_peers=1)
job.output("drop", blackhole(), after=used)
"""


@pytest.mark.gate
def test_a_lifecycle_is_closed_however_its_task_ends(house: House, tmp_path: Path) -> None:
    """Taken away, failed, broken while it starts: stop is called once for each start; and a DataFrame function gets what start
    made as it is.
    """
    topic = house.make_topic("life")
    house.fill(topic, *(b'{"n": 1}' for _ in range(5)))

    def lived(name: str, *, breaks: bool = False, raises: bool = False) -> tuple[JobHandle, Path]:
        notes = tmp_path / name
        notes.touch()
        text = LIFE.format(notes=str(notes), topic=topic, breaks=breaks, raises=raises)
        return house.submit(tmp_path / f"job-{name}", text), notes

    def lines(notes: Path) -> list[str]:
        return notes.read_text().splitlines()

    def closed(notes: Path) -> bool:
        """Whether nothing of it lives: of a slow machine's two lives of a task the first may end last."""
        told = lines(notes)
        return told[-1] == "stop" and told.count("stop") >= told.count("start use")

    handle, notes = lived("killed")
    house.crew.until(
        lambda: sum(int(line[6:]) for line in lines(notes) if line.startswith("after")) >= 5, "its batches"
    )
    handle.kill()
    house.crew.until(lambda: closed(notes), "its end")
    assert lines(notes)[:2] == ["start use", lines(notes)[1]]
    assert lines(notes).count("stop") == lines(notes).count("start use")

    for name, code, said in (("breaks", "SX-FN-LIFECYCLE", "the cellar is flooded"), ("raises", "SX-FN-RAISED", "no")):
        handle, notes = lived(name, **{name: True})
        with pytest.raises(JobFailed) as failed:
            handle.await_completion(300)
        assert failed.value.code == code
        assert said in failed.value.traceback
        house.crew.until(lambda notes=notes: closed(notes), "its end")
        assert lines(notes).count("stop") == lines(notes).count("start use")
