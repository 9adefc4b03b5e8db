"""State in a database, on real services: each row counts once and each window gives one result, whatever dies."""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from sardonyx import Count, Job, Max, Sum, event_time, kafka, sql, tumbling
from sardonyx.connectors.declarations import Connector
from sardonyx.testing import Cluster, kill_at
from tests.postgres import PASSWORD_ENV, Postgres, postgres
from tests.services.test_windows import DELAY, SIZE, expected, found, rows


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as started:
        yield started


def counting(topic: str, out: str, store: Connector) -> Job:
    job = Job("counting", partitions=3)
    read = job.input(
        "read",
        kafka(topic, schema="user string, at timestamp, n long", start="earliest", end="latest"),
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
    )
    job.output("out", kafka(out, key="user"), after=windows, batch_size=200)
    return job


def check(given: list[dict], results: list[dict]) -> None:
    doubled = Counter((row["user"], row["window_start"]) for row in results)
    assert not [key for key, times in doubled.items() if times > 1], "a window gave two final results"
    assert found(results) == expected(given)


QUICK = {"zookeeper.session_timeout": "2 s", "peer.session_timeout": "3 s"}


def test_a_file_of_sqlite_keeps_windows(seed: int, tmp_path: Path, sardonyx_clusters: Callable[..., Cluster]) -> None:
    """Peers are killed between the database's commit and Kafka's, and around them."""
    given = rows(seed, 5_000)
    faults = [kill_at("stored", 4), kill_at("written", 8), kill_at("store", 1)]
    with sardonyx_clusters(**QUICK) as cluster:
        topic, out = cluster.topic("in", given), cluster.topic("out")
        cluster.peers(6, faults=faults)
        cluster.run(counting(topic, out, sql(f"sqlite:///{tmp_path}/state.db")))
        check(given, cluster.records(out))
    with closing(sqlite3.connect(tmp_path / "state.db")) as connection:
        shards = connection.execute("select owed, sealed from sardonyx_shards").fetchall()
        left = connection.execute("select count(*) from sardonyx_state").fetchone()
    assert shards
    assert all(owed is None and sealed for owed, sealed in shards), "the sealed task owes nothing"
    assert left == (0,), "all windows are closed"


def test_postgresql_keeps_windows(seed: int, server: Postgres, sardonyx_clusters: Callable[..., Cluster]) -> None:
    """The same in PostgreSQL, whose shards say how far the task has come."""
    given = rows(seed, 5_000)
    with sardonyx_clusters(**QUICK) as cluster:
        topic, out = cluster.topic("in", given), cluster.topic("out")
        cluster.peers(6, faults=[kill_at("stored", 4)])
        cluster.run(counting(topic, out, sql(server.url, password_env=PASSWORD_ENV)))
        check(given, cluster.records(out))
        with psycopg.connect(server.url, password=os.environ[PASSWORD_ENV]) as connection:
            told = [row[0] for row in connection.execute("select positions from sardonyx_shards")]
    assert {json.loads(each)[0][0] for each in told}
