"""Every shape of job on real services, exact by id; few jobs, and many things to see in each."""

from __future__ import annotations

import fcntl
import importlib
import itertools
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest

from queues.keys import checksums_of
from sardonyx.testing import Addresses, Cluster
from tests.waiting import until

HERE = Path(__file__).parent / "shapes"
PARTITIONS = 4


@pytest.fixture(scope="module")
def shapes() -> Iterator[ModuleType]:
    """The jobs, imported as a user's module: from a folder of its own, which travels with them."""
    sys.path.insert(0, str(HERE))
    yield importlib.import_module("every_shape")
    sys.path.remove(str(HERE))


@pytest.fixture(scope="module")
def ten(services: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with ten virtual peers: nine in a daemon that is killed on the way, and one that outlives them."""
    with Cluster(services, tmp_path_factory.mktemp("shapes")) as cluster:
        cluster.peers(1)
        cluster.peers(9)
        yield cluster


@pytest.fixture
def alone(ten: Cluster) -> Cluster:
    """The same, when only that one is left."""
    kill_nine(ten)
    until(lambda: len(ten.client.peers()) == 1, what="nine peers to be missed")
    return ten


def kill_nine(cluster: Cluster) -> None:
    """SIGKILL the daemon with nine peers, if it still runs."""
    while len(cluster.daemons) > COORDINATOR_AND_ONE:
        killed = cluster.daemons.pop()
        killed.process.signal(signal.SIGKILL)


COORDINATOR_AND_ONE = 2
"""Daemons of the cluster that are never killed."""


def ids(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(row["id"] for row in rows)


def test_several_jobs_at_once(ten: Cluster, shapes: ModuleType, tmp_path: Path):
    """A diamond with branches, a wide fan, and two jobs on one topic: ten peers on four partitions run them side by side."""
    prefix = ten.topic("d")
    thirds, fan_out = ten.topic("d-thirds"), ten.topic("fan")
    shared = ten.topic("shared", ({"id": n} for n in range(500)))
    jobs = [
        shapes.fan(fan_out, 10),
        shapes.diamond(prefix, tmp_path),
        shapes.reader("first", shared, tmp_path / "first"),
        shapes.reader("second", shared, tmp_path / "second"),
    ]
    handles = [ten.submit(job) for job in jobs]
    views = {job.name: handle.await_completion(300) for job, handle in zip(jobs, handles, strict=True)}
    assert all(view.status == "completed" for view in views.values())

    assert ids(ten.records(fan_out)) == list(range(shapes.NUMBERS))
    for name in ("first", "second"):
        found = pd.read_parquet(tmp_path / name)
        assert (sorted(found["id"]), set(found["via"])) == (list(range(500)), {name})

    everything = pd.concat(
        [pd.DataFrame({"id": range(shapes.NUMBERS), "via": via}) for via in ("left", "right")]
        + [pd.DataFrame({"id": range(shapes.NUMBERS, shapes.NUMBERS + shapes.MORE), "via": "more"})]
    ).assign(twice=lambda rows: rows["id"] * 2)
    same(pd.read_parquet(tmp_path / "all"), everything)
    third, fifth = everything[everything["id"] % 3 == 0], everything[everything["id"] % 5 == 0]
    same(pd.DataFrame(ten.records(thirds)), third)
    same(pd.read_parquet(tmp_path / "selected"), pd.concat([third.assign(via="one"), fifth.assign(via="fifth")]))
    assert list((tmp_path / "none").glob("*.parquet")) == []
    assert (tmp_path / "none" / "_SUCCESS").exists()
    mended = pd.read_parquet(tmp_path / "mended")
    assert sorted(mended["id"]) == list(range(0, shapes.NUMBERS, 250))
    assert mended["via"].str.startswith("picky: ValueError: ").all()
    view = views["diamond"]
    round_ones = everything[everything["id"] % 250 == 0]
    assert view.task("picky").rows_out == len(everything) - len(round_ones)
    assert view.task("picky").skipped == len(round_ones) - len(mended)
    assert (view.task("nobody").rows_in, view.task("dropped").rows_in) == (0, len(everything))
    assert (view.task("dropped").rows_out, view.task("hole").rows_in) == (0, len(everything))


def same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    """The same rows, in any order."""
    columns = ["id", "via", "twice"]
    found, expected = (rows[columns].sort_values(columns, ignore_index=True) for rows in (found, expected))
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)


def test_one_job_many_times(ten: Cluster, shapes: ModuleType):
    """Each run adds its own rows to the topic, and runs of one name in a row do not get into each other's way."""
    out = ten.topic("again")
    for run in range(3):
        assert ten.run(shapes.writer(out, run * 100), timeout="6 min").status == "completed"
    assert ids(ten.records(out)) == list(range(300))


def test_equal_keys_meet_in_one_peer(ten: Cluster, shapes: ModuleType):
    """Rows of a key, from two topics, go to one peer at a time and in order, though nine of ten peers die in the middle of it.

    By a column and by a function, in a function of tables and one of records. A partition's rows change hands only where
    the group gives the partition to another peer: when peers come and when they die, never from batch to batch.
    """
    keys = [f"key-{n}" for n in range(24)]
    outs = {name: ten.topic(f"by-{name}", partitions=2) for name in ("table", "record")}
    topics = [
        # In turn over two partitions, and so each key in one of them, where its rows have an order.
        ten.topic(f"keyed-{source}", ({"key": keys[n % 24], "number": n, "source": source} for n in range(2_000)))
        for source in "ab"
    ]
    with (ten.temporary / shapes.HOLD).open("w") as hold:
        fcntl.flock(hold, fcntl.LOCK_EX)
        handle = ten.submit(shapes.grouped(*topics, outs["table"], outs["record"]))
        until(
            lambda: all(len(peers(ten.records(out))) > 1 for out in outs.values()),
            what="the first batches of two peers for each task, which then wait",
        )
        kill_nine(ten)
    assert handle.await_completion(300).status == "completed"

    for name, out in outs.items():
        rows = ten.records(out)
        assert len(rows) == 4_000
        by_key: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            by_key[row["key"]].append(row)
        assert sorted(by_key) == sorted(keys)
        hands: Counter[int] = Counter()
        partition_of = dict(zip(keys, (checksums_of(keys) % PARTITIONS).tolist(), strict=True))
        for key, its in by_key.items():
            for source in "ab":
                numbers = [row["number"] for row in its if row["source"] == source]
                assert numbers == sorted(set(numbers)), f"{name}: {key} of {source} out of order"
            changes = sum(before["peer"] != after["peer"] for before, after in itertools.pairwise(its))
            hands[partition_of[key]] = max(hands[partition_of[key]], changes)
        assert len(peers(rows)) > 1
        assert max(hands.values()) <= MOST_CHANGES, f"{name}: {hands}"


def peers(rows: list[dict[str, Any]]) -> set[str]:
    """Those who worked on them."""
    return {row["peer"] for row in rows}


@pytest.mark.gate
def test_one_peer_for_a_whole_chain(alone: Cluster, shapes: ModuleType):
    """One virtual peer works off a chain of four tasks, one after the other: every row once, through every task once."""
    out = alone.topic("chain")
    view = alone.run(shapes.chain(out, 4), timeout="5 min")
    assert len(alone.client.peers()) == 1
    found = pd.DataFrame(alone.records(out)).sort_values("id", ignore_index=True)
    expected = pd.DataFrame({"id": range(shapes.NUMBERS), "hops": 4})
    pd.testing.assert_frame_equal(found[["id", "hops"]], expected, check_dtype=False)
    assert {view.task(f"hop-{n}").rows_in for n in range(4)} == {shapes.NUMBERS}


MOST_CHANGES = 6
"""How often a partition may change hands: as each of the four peers that share it comes, and as those die. It was 1 as a rule."""
