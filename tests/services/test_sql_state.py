"""State in a database, on real services: each row counts once and each window gives one result, whatever dies."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from sardonyx import sql
from sardonyx.testing import Cluster, kill_at
from tests.postgres import PASSWORD_ENV, Postgres, postgres
from tests.services.test_windows import QUICK, check, counting, rows


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as started:
        yield started


def test_a_file_of_sqlite_keeps_windows(seed: int, tmp_path: Path, sardonyx_clusters: Callable[..., Cluster]) -> None:
    """Peers are killed between the database's commit and Kafka's, and around them."""
    given = rows(seed, 5_000)
    faults = [kill_at("stored", 4), kill_at("written", 8), kill_at("store", 1)]
    with sardonyx_clusters(**QUICK) as cluster:
        topic, out = cluster.topic("in", given), cluster.topic("out")
        cluster.peers(6, faults=faults)
        cluster.run(counting(topic, out, store=sql(f"sqlite:///{tmp_path}/state.db")))
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
        cluster.run(counting(topic, out, store=sql(server.url, password_env=PASSWORD_ENV)))
        check(given, cluster.records(out))
        with psycopg.connect(server.url, password=os.environ[PASSWORD_ENV]) as connection:
            told = [row[0] for row in connection.execute("select positions from sardonyx_shards")]
    assert {json.loads(each)[0][0] for each in told}
