"""Faults over several shapes of job at once, on services of their own: everything comes out, once, in order."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from sardonyx.zookeeper.session import ZooKeeperSession
from tests.faults.harness import Broken, Options, Run, good, main, run
from tests.faults.shapes import SHAPES, SOURCE
from tests.faults.sights import Sight
from tests.faults.verbs import FAMILIES, KINDS, password_of


@pytest.mark.timeout(400)
def test_forty_faults_lose_and_double_nothing(seed: int) -> None:
    """The same run as by ``make faults SEED=... FAULTS=40 SHAPE=copy,diamond,files KINDS=...``, with all kinds of faults but
    Spark's death, which is waited for longest.
    """
    families = tuple(family for family in FAMILIES if family != "spark")
    shapes = ("copy", "diamond", "files")
    result = run(Options(seed=seed, faults=40, shapes=shapes, families=families, records=20_000))
    told = json.dumps(result, indent=1)
    assert good(result), told
    assert sum(result["faults"].values()) >= 40, told
    assert result["records_out"] > result["records_in"] > 0, told  # a diamond gives two for one


@pytest.mark.timeout(400)
def test_forty_faults_of_tasks_with_a_state_lose_and_double_nothing(seed: int) -> None:
    """Windows, keyed state and a join, as by ``make faults SHAPE=window,keyed,join STORE=...``; the seed chooses the store. Every
    result of a window is compared, and none comes twice.
    """
    families = tuple(family for family in FAMILIES if family != "spark")
    store = random.Random(seed).choice(["memory", "rocksdb", "sql"])
    shapes = ("window", "keyed", "join")
    result = run(Options(seed=seed, faults=40, shapes=shapes, store=store, families=families, records=20_000))
    told = json.dumps(result, indent=1)
    assert good(result), told
    assert sum(result["faults"].values()) >= 40, told
    assert result["records_in"] > 0 < result["records_out"], told


@pytest.mark.timeout(400)
def test_a_few_faults_of_a_cluster_lose_and_double_nothing(seed: int) -> None:
    """On three ZooKeeper servers and three brokers, as by ``make faults CLUSTER=3``: servers of both are killed or stop."""
    families = ("zookeeper", "kafka")
    result = run(Options(seed=seed, faults=6, shapes=("copy",), families=families, records=6_000, peers=3, servers=3))
    told = json.dumps(result, indent=1)
    assert good(result), told
    assert sum(result["faults"].values()) >= 6, told


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("family", FAMILIES)
def test_faults_of_one_family_lose_and_double_nothing(seed: int, family: str) -> None:
    """Twenty of a kind, over all shapes."""
    result = run(Options(seed=seed, faults=20, families=(family,), spark=int(family == "spark")))
    told = json.dumps(result, indent=1)
    assert good(result), told
    assert sum(result["faults"].values()) >= 20, told
    if family == "sigstop":
        assert result["stopped_past_every_timeout"], told


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_faults_of_a_cluster_lose_and_double_nothing(seed: int) -> None:
    """Three ZooKeeper servers and three brokers: single ones, the leader, the controller and a majority are killed or stop,
    and all restart in turn.
    """
    families = ("zookeeper", "kafka", "sigkill")
    result = run(Options(seed=seed, faults=40, shapes=("copy", "diamond", "files"), families=families, servers=3))
    told = json.dumps(result, indent=1)
    assert good(result), told
    assert sum(result["faults"].values()) >= 40, told


def test_the_check_sees_what_is_wrong() -> None:
    """A record that comes twice, and one that comes behind a later one of its key; the same record by two ways is right."""
    sight = Sight(SHAPES["copy"])
    for number in (1, 3, 2, 3):
        sight.record(0, json.dumps({"id": number, "key": "k"}).encode())
    assert (sight.count, sight.doubled, sight.out_of_order) == (4, 1, 1)
    both = Sight(SHAPES["diamond"])
    for via in ("left", "right", "left"):
        both.record(0, json.dumps({"id": SOURCE + 7, "key": "k", "via": via}).encode())
    assert (both.doubled, both.out_of_order, both.through) == (1, 0, {1: 7})


def test_a_seed_gives_the_same_faults_again(tmp_path: Path) -> None:
    """Each kind once before any comes twice; what can strike but once in a job is not asked for again."""
    plan, again = (Run(Options(seed=5, spark=1, servers=3), tmp_path)._plan(len(KINDS) + 10) for _ in range(2))
    assert plan == again
    assert {name for names in plan.values() for name in names} == set(KINDS)
    assert sum(map(len, plan.values())) == len(KINDS) + 10
    assert len(plan["end"]) == sum(kind.phase == "end" for kind in KINDS.values())


def test_what_did_not_strike_comes_first_or_the_run_is_red(tmp_path: Path) -> None:
    """A kind that was planned is planned again; a run with fewer faults than were asked for is no good one, whatever it lost."""
    missing = Run(Options(seed=5, faults=2, families=("leader",)), tmp_path)
    missing._missed = ["stop leader", "kill leader"]
    assert missing._plan(1)["run"] == ["stop leader"]
    missing._all_struck()
    assert missing.trouble == ["0 of 2 faults struck; not struck: kill leader"]
    with pytest.raises(Broken, match="no fault of spark"):
        Run(Options(families=("spark",)), tmp_path)._plan(1)
    assert "kill at vote" not in Run(Options(shapes=("copy",)), tmp_path)._plan(60)["end"]


def test_what_is_asked_for_must_be_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped kind of fault is an error before anything is started."""
    monkeypatch.setattr("sys.argv", ["harness", "--kinds", "sigkill,sigstpo"])
    with pytest.raises(SystemExit):
        main()
    assert "there is no sigstpo" in capsys.readouterr().err


def test_the_password_of_a_session_is_what_zookeeper_makes_of_its_id(zk: ZooKeeperSession) -> None:
    """So a test that knows a process's session id can end that session."""
    session, password = zk.client.client_id
    assert password_of(session) == password
