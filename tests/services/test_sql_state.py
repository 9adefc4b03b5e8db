"""State in a database, on real services: each row counts once and each window gives one result, whatever dies."""

from __future__ import annotations

import itertools
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import psycopg
import pyarrow as pa
import pytest

from sardonyx import sql
from sardonyx.connectors.sql.state import ENTRIES, SHARDS
from sardonyx.core.stores import SqlStore
from sardonyx.state.base import Store
from sardonyx.testing import Cluster, kill_at
from sardonyx.testing.store_conformance import StoreSuite
from tests.core.test_sql_state import Reread
from tests.postgres import PASSWORD_ENV, Postgres, postgres
from tests.proxy import Proxy
from tests.services.test_windows import QUICK, check, closed, counting, expected, found, rows
from tests.waiting import until


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as started:
        yield started


class TestConformance(StoreSuite):
    """PostgreSQL keeps to what every store of state must keep to, with all types of columns."""

    histories = 5
    shards: ClassVar = itertools.count(1_000_000)
    """Each store is a shard of its own, beside those of the other tests."""

    @pytest.fixture(autouse=True)
    def _database(self, server: Postgres) -> None:
        self.store = SqlStore(url=server.url, password_env=PASSWORD_ENV)

    def make(self, schema: pa.Schema) -> Store:
        return Reread(schema, self.store, next(self.shards))


def test_a_file_of_sqlite_keeps_windows(seed: int, tmp_path: Path, sardonyx_clusters: Callable[..., Cluster]) -> None:
    """Peers are killed between the database's commit and Kafka's, and around them."""
    given = rows(seed, 5_000)
    faults = [
        kill_at("stored", 3),
        kill_at("written", 2),
        kill_at("store", 1),
    ]  # each early: a batch may hold many rows
    with sardonyx_clusters(**QUICK) as cluster:
        topic, out = cluster.topic("in", given), cluster.topic("out")
        cluster.peers(6, faults=faults)
        cluster.run(counting(topic, out, store=sql(f"sqlite:///{tmp_path}/state.db")), timeout="6 min")
        check(given, cluster.records(out))
    with closing(sqlite3.connect(tmp_path / "state.db")) as connection:
        shards = connection.execute("select owed, sealed from sardonyx_shards").fetchall()
        left = connection.execute("select count(*) from sardonyx_state").fetchone()
    assert shards
    assert all(owed is None and sealed for owed, sealed in shards), "the sealed task owes nothing"
    assert left[0] <= len(shards), (
        "all windows are closed; a shard keeps one entry, of how long they wait for late rows"
    )


def test_postgresql_keeps_windows(seed: int, server: Postgres, sardonyx_clusters: Callable[..., Cluster]) -> None:
    """The same in PostgreSQL, whose shards say how far the task has come."""
    given = rows(seed, 5_000)
    with sardonyx_clusters(**QUICK) as cluster:
        topic, out = cluster.topic("in", given), cluster.topic("out")
        cluster.peers(6, faults=[kill_at("stored", 4)])
        cluster.run(counting(topic, out, store=sql(server.url, password_env=PASSWORD_ENV)), timeout="6 min")
        check(given, cluster.records(out))
        with psycopg.connect(server.url, password=os.environ[PASSWORD_ENV]) as connection:
            told = [row[0] for row in connection.execute("select positions from sardonyx_shards")]
    assert {json.loads(each)[0][0] for each in told}


@pytest.mark.gate
def test_a_database_that_goes_away(seed: int, server: Postgres, sardonyx_clusters: Callable[..., Cluster]) -> None:
    """The task waits and says so, and goes on when the database is back: nothing is lost, nothing counts twice."""
    given = rows(seed, 6_000)
    address = f"127.0.0.1:{server.port}"
    with Proxy(address) as door, sardonyx_clusters() as cluster:
        topic, out = cluster.topic("in", given[:3_000]), cluster.topic("out")
        cluster.peers(6)
        store = sql(server.url.replace(address, door.address), password_env=PASSWORD_ENV)
        handle = cluster.submit(counting(topic, out, end=None, store=store))
        until(lambda: cluster.records(out), what="the first windows")
        door.refuse()
        cluster.fill(topic, given[3_000:])
        until(lambda: "task_waits_for_service" in cluster.logs(1_000), what="a task that waits")
        door.accept_again()
        wanted = closed(given)
        until(lambda: wanted.items() <= found(cluster.records(out)).items(), what="all windows")
        handle.kill()
        results = cluster.records(out)
    assert len(found(results)) == len(results), "a window gave two final results"
    assert found(results).items() <= expected(given).items()


def test_the_state_of_a_job_that_was_killed_goes_with_it(
    seed: int, tmp_path: Path, sardonyx_clusters: Callable[..., Cluster]
) -> None:
    """`job purge` removes its rows, and only these. Where it cannot, it says what to run."""
    given, file, elsewhere = rows(seed, 2_000), tmp_path / "state.db", tmp_path / "elsewhere.db"
    with sardonyx_clusters() as cluster:
        topic, out = cluster.topic("in", given), cluster.topic("out")
        daemon = cluster.peers(6)
        store = sql(f"sqlite:///{file}")
        jobs = []
        for _ in range(2):  # one after the other: a name means one job that has not ended
            job = cluster.submit(counting(topic, out, end=None, store=store))
            until(lambda job=job: count(file, ENTRIES, job.id), what=f"the state of {job.id}")
            job.kill()
            until(lambda job=job: job.status(live=False).ended, what=f"the end of {job.id}")
            jobs.append(job)
        one, other = jobs
        daemon.stop()  # no peer works in the database any more
        kept = [count(file, table, other.id) for table in (SHARDS, ENTRIES)]
        assert one.purge("1 min") == []
        assert [count(file, table, one.id) for table in (SHARDS, ENTRIES)] == [0, 0]
        assert [count(file, table, other.id) for table in (SHARDS, ENTRIES)] == kept > [0, 0]
        file.rename(elsewhere)
        (told,) = other.purge("1 min")
    assert told.code == "SX-WARN-STATE-ROWS"
    assert not file.exists(), "a database is made only to delete from it"
    with closing(sqlite3.connect(elsewhere)) as connection:
        connection.executescript(told.fix.removeprefix("run there: "))
    assert [count(elsewhere, table, other.id) for table in (SHARDS, ENTRIES)] == [0, 0]


def count(file: Path, table: str, job: str) -> int:
    """Rows of a job in a table of SQLite; none if there is no such table yet."""
    if not file.exists():
        return 0
    with closing(sqlite3.connect(file, timeout=30)) as connection:
        made = connection.execute("select count(*) from sqlite_master where name = ?", (table,)).fetchone()[0]
        query = f"select count(*) from {table} where job = ?"  # noqa: S608 - a table of ours
        return connection.execute(query, (job,)).fetchone()[0] if made else 0
