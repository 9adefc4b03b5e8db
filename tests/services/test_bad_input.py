"""What goes wrong in users' hands: each time one clear error with a code, the cause and what to do, and nothing lost."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from confluent_kafka.admin import AdminClient

from queues.admin import _refuse_too_much
from sardonyx import Job, files, generator
from sardonyx.core.errors import InputError, JobFailed
from sardonyx.core.events import JobSubmitted
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.job.load import load
from sardonyx.runtime.settings import Settings
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.services.house import PEERS, House, called, told, written
from tests.waiting import until

HEAD = """
import time
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, functions as F
from sardonyx import Job, blackhole, files, generator, kafka
"""
TO_FILES = HEAD + 'job = Job("%s")\njob.output("write", files("out", format="%s"), after=job.input("read", %s))\n'
NOWHERE = {"SARDONYX__ZOOKEEPER__HOSTS": "127.0.0.1:1", "SARDONYX__KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:2"}
IMPATIENT = {"SARDONYX__ZOOKEEPER__CONNECT_TIMEOUT": "300 ms", "SARDONYX__KAFKA__CONNECT_TIMEOUT": "300 ms"}
WAITED = r"(waited|within) \d\.\d s"
TINY = HEAD + 'job = Job("tiny")\njob.output("drop", blackhole(), after=job.input("make", generator(count=3)))\n'


# --- What the machine and the cluster must provide --------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", [["run", "job.py"], ["coordinator"], ["peer"], ["job", "submit", "job.py"], ["job", "list"]]
)
def test_zookeeper_that_does_not_answer(command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the address and how long was waited."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path, TINY)
    told(called(*command, env={**NOWHERE, **IMPATIENT}), "SX-ZOOKEEPER-UNREACHABLE", "127.0.0.1:1", WAITED)


@pytest.mark.parametrize("command", [["run", "job.py"], ["coordinator"], ["peer"]])
def test_kafka_that_does_not_answer(
    command: list[str], settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with ZooKeeper. (Handing a job in and looking at jobs needs no Kafka.)"""
    monkeypatch.chdir(tmp_path)
    written(tmp_path, TINY)
    away = {"SARDONYX__KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:2", "SARDONYX__KAFKA__CONNECT_TIMEOUT": "300 ms"}
    env = {**settings.environment(), **away}
    told(called(*command, env=env), "SX-KAFKA-UNREACHABLE", "127.0.0.1:2", WAITED)


def test_a_spec_is_read_before_anybody_is_asked(tmp_path: Path) -> None:
    """``run`` and ``submit`` report a mistake in the job without waiting for a cluster."""
    spec = written(tmp_path, "raise RuntimeError('not today')\n")
    for command in (["run"], ["job", "submit"]):
        result = called(*command, spec, env={**NOWHERE, **IMPATIENT})
        told(result, "SX-SPEC-RAISED", "not today")
        assert result.stderr.startswith("Traceback")


# --- Input ------------------------------------------------------------------------------------------------------------


def test_an_input_file_that_is_missing(house: House, tmp_path: Path) -> None:
    """It is found out before anything runs; and by the peers, if it is not there for them."""
    spec = written(tmp_path, TO_FILES % ("missing", "json", 'files("flihgts.csv", format="csv", header=True)'))
    (tmp_path / "flights.csv").write_text("a\n1\n")
    for command in (["check"], ["run"], ["job", "submit"]):
        told(house.call(*command, spec), "SX-INPUT-MISSING", "flihgts.csv", "did you mean 'flights.csv'")
    handle = house.client.submit(load(spec, places=False))
    told(house.call("job", "await", handle.id), "SX-INPUT-MISSING", "flihgts.csv")
    shown = json.loads(house.call("job", "show", handle.id, "--json").stdout)
    assert (shown["status"], shown["error"]["code"]) == ("failed", "SX-INPUT-MISSING")


def test_input_without_a_single_row(house: House, tmp_path: Path) -> None:
    """A header and nothing else, an empty directory, an empty topic: the job completes with zero rows."""
    empty = house.make_topic("empty")
    published = house.make_topic("empty-out")
    (tmp_path / "header").mkdir()
    (tmp_path / "header" / "in.csv").write_text("carrier,dep_delay\n")
    (tmp_path / "directory" / "in").mkdir(parents=True)
    schema = 'schema="carrier string, dep_delay double"'
    inputs = {
        "header": f'files("in.csv", format="csv", header=True, {schema})',
        "directory": f'files("in", format="json", {schema})',
        "topic": f'kafka("{empty}", format="json", start="earliest", end="latest", {schema})',
    }
    rest = """
def late(rows: DataFrame) -> DataFrame:
    return rows.where("dep_delay > 15")

def same(row: dict) -> dict:
    return row

job = Job("empty-{name}")
found = job.task("same", same, after=job.task("late", late, after=job.input("read", {connector})))
job.output("write", files("out", format="parquet"), after=found)
job.output("publish", kafka("{published}", format="json", key="carrier"), after=found)
"""
    handles = {
        name: house.submit(tmp_path / name, HEAD + rest.format(name=name, connector=connector, published=published))
        for name, connector in inputs.items()
    }
    for name, handle in handles.items():
        view = house.completed(handle)
        assert {(task.rows_in, task.rows_out, task.skipped) for task in view.tasks} == {(0, 0, 0)}
        assert [path.name for path in (tmp_path / name / "out").iterdir()] == ["_SUCCESS"]
    assert house.records(published) == []


def test_records_of_a_topic_that_do_not_fit(house: House, tmp_path: Path) -> None:
    """The record is named by topic, partition and offset; with ``skip`` it is left out, counted and shown."""
    topic = house.make_topic("misfits")
    house.fill(topic, b'{"n": 1}', b'{"n": "many"}', b'{"n": 3}', b"not json")
    text = """
def keep(row: dict) -> dict:
    return row

job = Job("misfits-{then}")
read = job.input("read", kafka("{topic}", format="json", schema="n long", start="earliest", end="latest"))
job.output("write", files("out", format="json"), after=job.task("keep", keep, after=read, on_error="{then}"))
"""
    failed = house.submit(tmp_path / "fail", HEAD + text.format(then="fail", topic=topic))
    skipping = house.submit(tmp_path / "skip", HEAD + text.format(then="skip", topic=topic))
    with pytest.raises(JobFailed) as caught:
        failed.await_completion(300)
    assert caught.value.code.startswith("SX-RECORD-")
    assert (caught.value.where["topic"], caught.value.where["partition"]) == (topic, "1")
    keep = house.completed(skipping).task("keep")
    assert (keep.rows_in, keep.rows_out, keep.skipped) == (4, 2, 2)


def test_a_topic_that_is_missing(house: House, tmp_path: Path) -> None:
    """The job fails with the topic's name; a job beside it goes on."""
    lost = 'kafka("never-made", format="json", start="earliest", end="latest")'
    handle = house.submit(tmp_path, TO_FILES % ("lost", "json", lost))
    beside = house.submit(tmp_path / "beside", TINY)
    told(house.call("job", "await", handle.id), "SX-KAFKA-TOPIC-MISSING", "'never-made'")
    again = house.call("job", "submit", written(tmp_path / "again", TO_FILES % ("lost", "json", lost)))
    told(again, "SX-KAFKA-TOPIC-MISSING", "'never-made'", "sardonyx topic create never-made")
    assert again.stdout.startswith("lost-")
    assert house.completed(beside).task("drop").rows_in == 3


# --- Output -----------------------------------------------------------------------------------------------------------


def rows_of(folder: Path) -> list[int]:
    """Field ``id`` of all rows in the JSON files of a folder."""
    return sorted(json.loads(line)["id"] for path in folder.glob("*.json") for line in path.read_text().splitlines())


def test_an_output_directory_that_is_not_empty(house: House, tmp_path: Path) -> None:
    """It is refused, unless it is to be added to or replaced; what is replaced stays until the new result is whole."""
    text = """
def ok(row: dict) -> dict:
    if {bad} and row["id"] == 4:
        raise ValueError("four")
    return row

job = Job("{name}")
made = job.task("ok", ok, after=job.input("make", generator(count={count}, columns={{"id": "sequence"}})), batch_size=2)
job.output("write", files("out", format="json"{mode}), after=made)
"""

    def spec(name: str, count: int, mode: str = "", *, bad: bool = False) -> str:
        mode = f', mode="{mode}"' if mode else ""
        return written(tmp_path, HEAD + text.format(name=name, count=count, mode=mode, bad=bad))

    out = tmp_path / "out"
    assert house.completed(house.client.submit(spec("first", 3))).status == "completed"
    assert rows_of(out) == [0, 1, 2]
    for command in (["check"], ["run"], ["job", "submit"]):
        told(house.call(*command, spec("again", 3)), "SX-OUTPUT-NOT-EMPTY", str(out), 'mode="append"')
    house.completed(house.client.submit(spec("more", 2, "append")))
    assert rows_of(out) == [0, 0, 1, 1, 2]
    with pytest.raises(JobFailed) as caught:
        house.client.submit(spec("broken", 5, "overwrite", bad=True)).await_completion(300)
    assert caught.value.code == "SX-FN-RAISED"
    assert rows_of(out) == [0, 0, 1, 1, 2]
    assert json.loads((out / "_SUCCESS").read_text())["job"].startswith("more-")
    house.completed(house.client.submit(spec("anew", 4, "overwrite")))
    assert rows_of(out) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "output", "value"),
    [
        ("large-json", 'kafka("TOPIC", format="json")', '"x" * 1_200_000'),
        (
            "large-broker",
            'kafka("TOPIC", format="json")',
            '"".join(map(str, random.Random(1).choices(range(10**9), k=5_000)))',
        ),
        ("large-row", "blackhole()", '"".join(map(str, random.Random(1).choices(range(10**9), k=300_000)))'),
    ],
)
def test_a_record_larger_than_kafka_takes(house: House, tmp_path: Path, name: str, output: str, value: str) -> None:
    """It is the function's doing, so the job fails; the error says how large and begins to show the record."""
    topic = house.make_topic(name, **({"max.message.bytes": "10000"} if name == "large-broker" else {}))
    text = f"""
import random

def grow(row: dict) -> dict:
    return {{**row, "text": {value}}}

def same(row: dict) -> dict:
    return row

job = Job("{name}")
grown = job.task("grow", grow, after=job.input("make", generator(count=2, columns={{"id": "sequence"}})))
job.output("out", {output.replace("TOPIC", topic)}, fn=same, after=grown)
"""
    result = house.call("job", "await", house.submit(tmp_path, HEAD + text).id)
    told(result, "SX-RECORD-TOO-LARGE", "smaller records", "max.message.bytes")


def test_records_that_kafka_refuses_are_left_out(house: House, tmp_path: Path) -> None:
    """``on_error`` of their output leaves out only these: records sent together with them arrive, and those of other outputs."""
    keyed = house.make_topic("refused-keyed", **{"cleanup.policy": "compact"})
    small = house.make_topic("refused-small", **{"max.message.bytes": "10000"})
    plain = house.make_topic("refused-plain")
    text = f"""
import random

def mark(row: dict) -> dict:
    number = row["id"]
    size = 2_000_000 if number == 7 else 40_000 if number in (3, 4) else 3_000
    text = "x" * size if number == 7 else random.Random(number).randbytes(size // 2).hex()
    return {{"id": number, "k": None if number % 5 == 0 else str(number), "text": text}}

job = Job("refused")
marked = job.task("mark", mark, after=job.input("make", generator(count=20, columns={{"id": "sequence"}})))
job.output("keyed", kafka("{keyed}", key="k"), after=marked, on_error="dead_letter")
job.output("small", kafka("{small}"), after=marked, on_error="skip")
job.output("plain", kafka("{plain}"), after=marked.where(without_large))
"""
    condition = """
def without_large(row: dict) -> bool:
    return row["id"] != 7
"""
    handle = house.submit(tmp_path, HEAD + condition + text)
    view = house.completed(handle)

    def ids(topic: str) -> list[int]:
        return sorted(record["id"] for record in house.records(topic))

    assert ids(keyed) == [n for n in range(20) if n % 5 and n != 7]
    assert ids(small) == [n for n in range(20) if n not in (3, 4, 7)]
    assert ids(plain) == [n for n in range(20) if n != 7]
    assert (view.task("keyed").rows_out, view.task("keyed").dead) == (15, 5)
    assert (view.task("small").rows_out, view.task("small").skipped) == (17, 3)
    house.call("dlq", "export", handle.id, "--out", str(tmp_path / "letters.jsonl"))
    kept = (tmp_path / "letters.jsonl").read_text()
    assert (kept.count("SX-KAFKA-REJECTED"), kept.count("SX-RECORD-TOO-LARGE")) == (4, 1)


# --- Functions --------------------------------------------------------------------------------------------------------

RAISING = """
def record(row: dict) -> dict:
    return {{**row, "q": 100 // row["n"]}}

def arrow(rows: pa.Table) -> pa.Table:
    return rows.append_column("q", pc.divide(pa.scalar(100), rows["n"]))

def frame(rows: DataFrame) -> DataFrame:
    return rows.withColumn("q", F.expr("100 div n"))

job = Job("{kind}-{then}")
read = job.input("read", files("in.csv", format="csv", header=True, schema="n long"))
job.output("drop", blackhole(), after=job.task("divide", {kind}, after=read, on_error="{then}"))
"""


@pytest.mark.parametrize("kind", ["record", "arrow", "frame"])
def test_a_function_that_raises(house: House, tmp_path: Path, kind: str) -> None:
    """``fail``: the job ends with the user's traceback first. ``skip``: just those records are left out, counted, shown."""
    for then in ("fail", "skip"):
        (tmp_path / then).mkdir()
        (tmp_path / then / "in.csv").write_text("n\n" + "".join(f"{n % 7}\n" for n in range(21)))
    failing = house.submit(tmp_path / "fail", HEAD + RAISING.format(kind=kind, then="fail"))
    skipping = house.submit(tmp_path / "skip", HEAD + RAISING.format(kind=kind, then="skip"))
    result = house.call("job", "await", failing.id)
    told(result, "SX-FN-RAISED", kind, "task divide")
    last = result.stderr[: result.stderr.index("SX-FN-RAISED")]
    if kind != "frame":  # a DataFrame runs after its function has returned: there is no line of the user's to show
        assert last.index("Traceback") < last.index("job.py")
    if kind == "record":
        assert "the record was {'n': 0}" in result.stderr
    assert not failing.status().task("divide").rows_out  # unknown, once its group is deleted
    divide = house.completed(skipping).task("divide")
    assert (divide.rows_in, divide.rows_out, divide.skipped) == (21, 18, 3)
    assert "skipped" in house.call("job", "show", skipping.id).stdout


# --- Peers and jobs ---------------------------------------------------------------------------------------------------


def test_jobs_that_need_more_peers_than_there_are(house: House, tmp_path: Path) -> None:
    """They say how many they wait for. An unbounded job runs meanwhile on those that there are, and gives some to a bounded one
    that cannot go on without them.
    """
    crowd = """
job = Job("crowd")
read = job.input("read", generator(count=100))
job.output("drop", blackhole(), after=read, min_peers=6)
"""
    given, made = house.make_topic("endless-in"), house.make_topic("endless-out")
    endless = f"""
def same(row: dict) -> dict:
    return row

job = Job("endless")
last = job.input("read", kafka("{given}", format="json", schema="n long", start="earliest"))
for name in "abcdef":
    last = job.task(name, same, after=last)
job.output("publish", kafka("{made}", format="json"), after=last)
"""
    house.fill(given, b'{"n": 1}', b'{"n": 2}')
    missing = f"waits for {6 - PEERS} more virtual peers"
    alone = house.call("job", "submit", written(tmp_path, HEAD + crowd)).stdout.strip()
    until(lambda: missing in house.call("job", "show", alone).stdout, what="it to say what it waits for")
    assert house.call("job", "kill", alone).exit_code == 0
    submitted = house.call("job", "submit", written(tmp_path, HEAD + endless))
    assert submitted.stderr.strip().startswith(missing)
    unbounded = house.client.job(submitted.stdout.strip())
    assert (unbounded.status().status, unbounded.status().waits_for) == ("running", 6 - PEERS)
    until(lambda: len(house.records(made)) == 2, what="the records to come through")
    with house.crew.peers(PEERS):
        until(lambda: unbounded.status().waits_for == 0, what="a peer for each task")
        assert house.completed(house.submit(tmp_path, HEAD + crowd)).task("drop").rows_out == 100
        assert unbounded.status().status == "running"
        assert house.call("job", "scale", unbounded.id, "--weight", "3", "--max-peers", "7").exit_code == 0
        told(house.call("job", "scale", unbounded.id, "--weight", "-1"), "SX-JOB-SHARE", "weight cannot be -1")
        told(house.call("job", "scale", unbounded.id), "SX-JOB-SHARE", "no value is given")
        told(house.call("job", "scale", alone, "--weight", "2"), "SX-JOB-ENDED", "is killed")
        assert house.call("job", "scale", unbounded.id, "--max-peers", "0").exit_code == 0
        assert house.call("job", "scale", unbounded.id, "--max-peers", "7").exit_code == 0
        told(house.call("cluster", "policy", "set", "fair"), "SX-CLI-POLICY", "turns, balanced, greedy, percentage")
        shown = house.call("cluster", "policy", "set", "balanced").stdout
        assert f"scheduler balanced, {2 * PEERS} virtual peers" in shown
        assert f"  {unbounded.id}: has " in shown
        assert "of 7 (priority 0, weight 3, at most 7)" in shown
        unbounded.kill()
    until(lambda: len(house.client.peers()) == PEERS, what="the peers to be gone")


SLOW = """
# A row takes ten minutes, longer than any test here waits: only a kill ends such a batch.
def record(row: dict) -> dict:
    time.sleep(600)
    return row

def arrow(rows: pa.Table) -> pa.Table:
    time.sleep(600)
    return rows

def frame(rows: DataFrame) -> DataFrame:
    time.sleep(600)
    return rows

job = Job("slow")
read = job.input("read", generator(count=50_000))
job.output("drop", blackhole(), after=job.task("sleep", {kind}, after=read))
"""


@pytest.mark.parametrize("kind", ["record", "arrow", "frame"])
def test_two_jobs_of_one_name_and_one_killed_while_its_batch_is_in_spark(
    house: House, tmp_path: Path, kind: str
) -> None:
    """The second is refused and the first goes on; killed, it frees its peers and Spark's cores within seconds."""
    spec = written(tmp_path, HEAD + SLOW.format(kind=kind))
    handle = house.client.submit(spec)
    told(house.call("job", "submit", spec), "SX-JOB-NAME-TAKEN", handle.id)
    until(
        lambda: handle.status().task("sleep").rows_in == 0 and handle.status().task("read").state == "complete",
        what="the long batch to begin",
    )
    assert handle.status().status == "running"
    assert house.call("job", "kill", handle.id).exit_code == 0
    began = time.monotonic()
    assert house.call("job", "await", handle.id).exit_code == 3
    assert house.completed(house.submit(tmp_path / "next", TINY)).task("drop").rows_in == 3
    assert time.monotonic() - began < 60  # the batch would have taken ten minutes


def test_a_job_that_takes_too_long(house: House, tmp_path: Path) -> None:
    """``run --timeout`` ends it with exit code 4; ``job await --timeout`` leaves it alone."""
    spec = written(tmp_path, HEAD + SLOW.format(kind="record"))
    told(house.call("run", spec, "--timeout", "1 s"), "SX-JOB-TIMEOUT", exit_code=4)
    handle = house.client.submit(spec)
    told(house.call("job", "await", handle.id, "--timeout", "200 ms"), "SX-JOB-TIMEOUT", "continues", exit_code=4)
    assert handle.status().status != "killed"
    assert house.call("job", "kill", handle.id).exit_code == 0


# --- What comes in past the client ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda spec: msgspec.structs.replace(spec, partitions=10**6), "SX-JOB-LIMIT"),
        (lambda spec: _with_tasks(spec, 501), "SX-JOB-LIMIT"),
        (lambda spec: msgspec.structs.replace(spec, catalog=[spec.catalog[0], _pathless(spec)]), "SX-JOB-CONNECTOR"),
    ],
    ids=["a million partitions", "501 tasks", "files without a path"],
)
def test_a_request_that_no_client_has_checked(house: House, change: Callable[[JobSpec], JobSpec], code: str) -> None:
    """Any program may write into the inbox. The job fails with the error that `check` would give, and nothing is made for it."""
    job = Job("raw")
    job.output("write", files("/nowhere", format="json"), after=job.input("make", generator(count=3)))
    with contextlib.closing(ZooKeeperSession.connect(house.settings)) as zk:
        name = f"raw-{uuid.uuid4().hex[:6]}"
        zk.request(JobSubmitted(job=name, spec=change(job.spec())))
        handle = house.crew.client.job(name)
        view = until(lambda: (found := handle.status()).ended and found, what="the job's end")
    assert view.status == "failed"
    assert view.error is not None
    assert view.error.code == code
    topics = AdminClient(house.settings.kafka.client()).list_topics(timeout=60).topics
    assert not [topic for topic in topics if name in topic]


def _pathless(spec: JobSpec) -> TaskSpec:
    return msgspec.structs.replace(spec.catalog[1], options={"format": "json"})


def _with_tasks(spec: JobSpec, count: int) -> JobSpec:
    """The same output behind so many inputs."""
    read, write = spec.catalog
    inputs = [msgspec.structs.replace(read, name=f"i{n}") for n in range(count - 1)]
    return msgspec.structs.replace(
        spec, catalog=[*inputs, write], workflow=[(each.name, write.name) for each in inputs]
    )


def test_all_jobs_together_have_a_limit(house: House) -> None:
    """However many jobs a client submits: their topics do not have more partitions than the deployment allows."""
    deployment = f"{house.settings.deployment}-limited"  # in which no other test has left topics
    topic = f"{deployment}.other-1.a.b"
    house.make_named(topic)
    try:
        spec = JobSpec(name="x", workflow=[], catalog=[])
        limits = house.settings.coordinator.model_copy(update={"max_all_partitions": 9})
        few = house.settings.model_copy(update={"deployment": deployment, "coordinator": limits})
        _refuse_too_much(few, spec, {f"{deployment}.x-1.a.b": 7})
        with pytest.raises(InputError, match=r"all jobs would have 10 partitions; the limit is 9"):
            _refuse_too_much(few, spec, {f"{deployment}.x-1.a.b": 8})
    finally:
        house.forget(topic)
