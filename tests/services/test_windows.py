"""Windows on real services: each row counts once, whatever dies, and each window gives one final result."""

from __future__ import annotations

import inspect
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from sardonyx import Count, Job, Max, Sum, event_time, kafka, kafka_time, session, tumbling
from sardonyx.cli.profile import read_profile
from sardonyx.testing import Cluster, Fault, kill_at, pause_at, run_job
from tests.plain_store import CODE
from tests.waiting import until

START = 1_764_000_000
"""Seconds since 1970 of the first row."""
SIZE = 10
DELAY = 5
QUICK = {"zookeeper.session_timeout": "2 s", "peer.session_timeout": "3 s"}


def rows(seed: int, count: int) -> list[dict]:
    """Rows that are out of order by no more than the delay, so none is late."""
    rng = random.Random(f"{seed}/windows")
    found = []
    for number in range(count):
        at = START + number / 100 - rng.uniform(0, DELAY / 2)
        found.append({"user": f"u{rng.randrange(50)}", "at": _iso(at), "n": number})
    return found


def _iso(second: float) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat()


def expected(given: Iterable[dict]) -> dict[tuple[str, float], tuple[int, int, int]]:
    """By user and start of the window: rows, the sum of the numbers, the greatest number."""
    found: dict[tuple[str, float], list[int]] = {}
    for row in given:
        at = datetime.fromisoformat(row["at"]).timestamp()
        found.setdefault((row["user"], at - at % SIZE), []).append(row["n"])
    return {key: (len(values), sum(values), max(values)) for key, values in found.items()}


def closed(given: Sequence[dict]) -> dict[tuple[str, float], tuple[int, int, int]]:
    """Of the expected windows, those that the clock has passed in all partitions."""
    last = max(datetime.fromisoformat(row["at"]).timestamp() for row in given) - DELAY - 1
    return {key: value for key, value in expected(given).items() if key[1] + SIZE <= last}


def found(results: Iterable[dict]) -> dict[tuple[str, float], tuple[int, int, int]]:
    return {
        (row["user"], datetime.fromisoformat(row["window_start"]).timestamp()): (row["hits"], row["total"], row["most"])
        for row in results
    }


def check(given: Iterable[dict], results: Sequence[dict]) -> None:
    doubled = Counter((row["user"], row["window_start"]) for row in results)
    assert not [key for key, times in doubled.items() if times > 1], "a window gave two final results"
    assert found(results) == expected(given)


def counting(
    topic: str, out: str, end: str | None = "latest", store: Any = "memory", max_peers: int | None = None
) -> Job:
    job = Job("counting", partitions=3)
    read = job.input(
        "read",
        kafka(topic, schema="user string, at timestamp, n long", start="earliest", end=end),
        time=event_time("at", delay=f"{DELAY} s"),
        batch_size=500,
    )
    windows = job.window(
        "count",
        tumbling(f"{SIZE} s"),
        after=read,
        group_by="user",
        aggregate={"hits": Count(), "total": Sum("n"), "most": Max("n")},
        batch_size=200,
        store=store,
        max_peers=max_peers,
    )
    job.output("out", kafka(out, key="user"), after=windows, batch_size=200)
    return job


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(
            [kill_at("committed", 3), kill_at("apply-state", 2), kill_at("written", 2)],
            id="kills",
        ),
        pytest.param([pause_at("begin", 6, 8)], id="a pause", marks=pytest.mark.long),
    ],
)
def test_each_window_counts_each_row_once(
    seed: int, faults: list[Fault], sardonyx_clusters: Callable[..., Cluster]
) -> None:
    """A bounded input: all windows close, with what plain Python counts, whatever dies or sleeps."""
    given = rows(seed, 10_000)
    with sardonyx_clusters(**QUICK) as cluster:
        topic, out = cluster.topic("in", given), cluster.topic("out")
        cluster.peers(6, faults=faults)  # all in one daemon, so each fault of the script comes to pass
        cluster.run(counting(topic, out), timeout="6 min")
        results = cluster.records(out)
    check(given, results)


def test_a_store_of_a_users_own_keeps_windows(
    seed: int, tmp_path: Path, sardonyx_clusters: Callable[..., Cluster]
) -> None:
    """The store that the documentation shows travels with the job's code, and is made again from the log after kills."""
    given = rows(seed, 5_000)
    (tmp_path / "stores.py").write_text(CODE)
    with sardonyx_clusters(**QUICK) as cluster:
        topic, out = cluster.topic("in", given), cluster.topic("out")
        cluster.peers(6, faults=[kill_at("committed", 6), kill_at("apply-state", 4)])
        spec = tmp_path / "counting.py"
        spec.write_text(
            "from sardonyx import Count, Job, Max, Sum, event_time, kafka, tumbling\n"
            "from stores import PlainStore\n\n"
            f"DELAY, SIZE, Any = {DELAY}, {SIZE}, object\n\n"
            f"{inspect.getsource(counting)}\n"
            f"job = counting({topic!r}, {out!r}, store=PlainStore)\n"
        )
        cluster.run(str(spec), timeout="6 min")
        results = cluster.records(out)
    check(given, results)


def test_windows_of_an_unbounded_job_close_with_the_clock(seed: int, sardonyx_clusters: Callable[..., Cluster]) -> None:
    """Results come while the job runs: those of all windows that the clock of the slowest partition has passed."""
    given = rows(seed, 6_000)
    with sardonyx_clusters() as cluster:
        topic, out = cluster.topic("in", given), cluster.topic("out")
        cluster.peers(6)
        handle = cluster.submit(counting(topic, out, end=None))
        wanted = closed(given)
        until(lambda: wanted.items() <= found(cluster.records(out)).items(), what="the windows to close")
        handle.kill()


def test_windows_by_the_timestamps_of_the_records(
    seed: int, tmp_path: Path, sardonyx_clusters: Callable[..., Cluster]
) -> None:
    """With `kafka_time` a row counts in the window of the timestamp that its producer gave its record, whatever dies. A replay of
    a range begins where Kafka's index says. The profile of the peers says what it took to make the state again.
    """
    metrics = tmp_path / "metrics.json"
    begin = int(time.time()) // SIZE * SIZE - 3_600  # Kafka deletes what is older than a week
    given = []
    for row in rows(seed, 4_000):
        at = round(datetime.fromisoformat(row["at"]).timestamp() - START + begin, 3)
        given.append({**row, "at": _iso(at)})
    with sardonyx_clusters(**QUICK, **{"metrics.file": str(metrics)}) as cluster:
        topic, out = cluster.topic("in"), cluster.topic("out")
        producer = Producer({**cluster.settings.kafka.client(), "enable.idempotence": True})
        for number, row in enumerate(given):
            value = json.dumps({"user": row["user"], "n": row["n"]}).encode()
            stamp = round(datetime.fromisoformat(row["at"]).timestamp() * 1000)
            producer.produce(topic, value, partition=number % 2, timestamp=stamp)
        assert producer.flush(120) == 0
        cluster.peers(6, faults=[kill_at("apply-state", 2)])
        job = cluster.run(stamped(topic, out), timeout="6 min").id
        results = cluster.records(out)
        first, last = (datetime.fromtimestamp(begin + number * SIZE, UTC) for number in (1, 3))
        planned = cluster.client.job(job).replaying(first, last)
        again = cluster.client.job(job).replay(first, last)
        assert again.await_completion(300).status == "completed"
        replayed = cluster.records(f"{out}.again")
    check(given, results)
    within = [row for row in given if first <= datetime.fromisoformat(row["at"]) < last]
    check(within, replayed)
    assert len(within) < planned.reads[topic] < len(given)
    stamps = {datetime.fromisoformat(row["at"]) for row in given}
    assert all(datetime.fromisoformat(row["latest"]) in stamps for row in results), "the column holds the timestamps"
    (counted,) = (each for each in read_profile(metrics, job) if each.task == "count")
    assert min(counted.seconds[step] for step in ("restore", "state")) > 0


def stamped(topic: str, out: str) -> Job:
    job = Job("stamped", partitions=3)
    read = job.input(
        "read",
        kafka(topic, schema="user string, n long", start="earliest", end="latest"),
        time=kafka_time("at", delay=f"{DELAY} s"),
        batch_size=200,
    )
    windows = job.window(
        "count",
        tumbling(f"{SIZE} s"),
        after=read,
        group_by="user",
        aggregate={"hits": Count(), "total": Sum("n"), "most": Max("n"), "latest": Max("at")},
        batch_size=200,
    )
    job.output("out", kafka(out, key="user"), after=windows, batch_size=200)
    return job


def summed(rows: pa.Table) -> pa.Table:
    return pa.table(
        {"rows": [rows.num_rows], "first": rows["n"][:1], "bytes": [pc.sum(pc.utf8_length(rows["text"])).as_py()]}
    )


@pytest.mark.parametrize("group_by", [None, "key"])
def test_a_function_is_given_whole_windows(spark: SparkSession, group_by: str | None) -> None:
    """However many rows a window has, and however large they are: never a part of it, and all of them in their order."""
    count = 12_000
    schema = "at timestamp, key string, n long, text string"
    given = [{"at": datetime(2026, 11, 27, tzinfo=UTC), "key": "k", "n": n, "text": f"{n:0100}"} for n in range(count)]
    job = Job("whole", partitions=2)
    read = job.input("read", kafka("in", schema=schema, start="earliest", end="latest"), time=event_time("at"))
    whole = job.window("whole", tumbling("1 h"), after=read, fn=summed, group_by=group_by)
    job.output("out", kafka("out"), after=whole)
    result = run_job(job, {"read": given}, spark=spark)
    assert result.rows("out") == [{"rows": count, "first": 0, "bytes": 100 * count}]


def test_the_rows_of_a_session_are_more_than_a_message_holds(sardonyx_clusters: Callable[..., Cluster]) -> None:
    """What a key keeps is cut into messages of the state log, and a peer that takes over after a kill puts it together."""
    count, text = 12_000, "x" * 400
    given = [{"at": _iso(START), "key": "k", "n": n, "text": f"{text}{n}"} for n in range(count)]
    with sardonyx_clusters(**QUICK) as cluster:
        topic, out = cluster.topic("in", given, partitions=1), cluster.topic("out")
        cluster.peers(6, faults=[kill_at("committed", 4), kill_at("apply-state", 3)])
        cluster.run(long_session(topic, out), timeout="6 min")
        assert cluster.records(out) == [{"rows": count, "first": 0, "bytes": sum(len(row["text"]) for row in given)}]


def long_session(topic: str, out: str) -> Job:
    job = Job("long", partitions=2)
    schema = "at timestamp, key string, n long, text string"
    read = job.input(
        "read", kafka(topic, schema=schema, start="earliest", end="latest"), time=event_time("at"), batch_size=2_000
    )
    whole = job.window("whole", session("1 min"), after=read, group_by="key", fn=summed, batch_size=2_000)
    job.output("out", kafka(out), after=whole)
    return job


def careful_arrow(rows: pa.Table) -> pa.Table:
    """How many rows each window of a key has; raises for a negative number."""
    if pc.min(rows["n"]).as_py() < 0:
        raise ValueError("a negative number")
    return rows.group_by(["key", "window_start"]).aggregate([("n", "count")])


def careful_pandas(rows: pd.DataFrame) -> pd.DataFrame:
    return careful_arrow(pa.Table.from_pandas(rows, preserve_index=False)).to_pandas()


def careful_spark(rows: DataFrame) -> DataFrame:
    checked = sf.when(rows.n < 0, sf.raise_error(sf.lit("a negative number"))).otherwise(rows.n)
    return rows.groupBy("key", "window_start").agg(sf.count(checked).alias("n_count"))


@pytest.mark.parametrize("fn", [pytest.param(careful_arrow, marks=pytest.mark.gate), careful_pandas, careful_spark])
@pytest.mark.parametrize("group_by", [None, "key"])
def test_a_window_for_which_its_function_raises_is_left_out_whole(
    spark: SparkSession, fn: Callable[..., Any], group_by: str | None
) -> None:
    """With one bad row, the window of its key fails with all its rows; all others give what they give without it."""
    given = [
        {"at": START + 3_600 * hour + n, "key": "ab"[n % 2], "n": -1 if (hour, n) == (1, 6) else n}
        for hour in range(4)
        for n in range(16)
    ]
    job = Job("careful", partitions=2)
    schema = "at long, key string, n long"
    read = job.input(
        "read", kafka("in", schema=schema, start="earliest", end="latest"), time=event_time("at", unit="s")
    )
    careful = job.window("careful", tumbling("1 h"), after=read, fn=fn, group_by=group_by, on_error="dead_letter")
    job.output("out", kafka("out"), after=careful)
    result = run_job(job, {"read": given}, spark=spark)
    bad = {(row["at"] - row["at"] % 3_600, row["key"]) for row in given if row["n"] < 0}
    if group_by is None:
        bad |= {(start, key) for start, _ in bad for key in "ab"}
    of_window = Counter((row["at"] - row["at"] % 3_600, row["key"]) for row in given)
    results = [(int(row["window_start"].timestamp()), row["key"], row["n_count"]) for row in result.rows("careful")]
    assert sorted(results) == sorted((*window, rows) for window, rows in of_window.items() if window not in bad)
    letters = result.dead_letters("careful")
    assert sorted(each.record["at"] for each in letters) == sorted(
        row["at"] for row in given if (row["at"] - row["at"] % 3_600, row["key"]) in bad
    )
    assert all("a negative number" in each.failure.message for each in letters)


def test_a_job_in_this_process_has_windows(spark: SparkSession) -> None:
    """``run_job`` gives what a cluster gives."""
    given = rows(7, 3_000)
    result = run_job(counting("in", "out"), {"read": given}, batch_size=100, spark=spark)
    assert found(result.rows("out")) == expected(given)
