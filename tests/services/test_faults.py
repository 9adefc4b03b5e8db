"""Faults over several shapes of job at once, on services of their own: everything comes out, once, in order."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sardonyx.core.changing import change_failure, draining, rewiring
from sardonyx.core.changing_at import side_by_side
from sardonyx.core.graph import graph_of
from sardonyx.core.graphing import GraphSpec
from sardonyx.core.refused_at import failure_at
from sardonyx.graphs.compute import Graph, compute
from sardonyx.job.load import load
from sardonyx.job.validate import validate
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.faults import rollback, rolled
from tests.faults.growing import Growing, Step, Tap
from tests.faults.harness import Broken, Options, Run, good, main, run
from tests.faults.replays import Span, judged
from tests.faults.rolled import Result
from tests.faults.shapes import KEYS, SHAPES, SOURCE
from tests.faults.sights import GraphSight, RoundsSight, Sight, _edge, _mixed, _step
from tests.faults.verbs import FAMILIES, KINDS
from tests.sessions import password_of


@pytest.mark.gate
def test_a_few_faults_of_every_shape_lose_and_double_nothing(seed: int) -> None:
    """A job of each shape at once, under faults of all families but Spark's death, which is waited for longest."""
    families = tuple(family for family in FAMILIES if family != "spark")
    result = run(Options(seed=seed, faults=6, families=families, records=6_000))
    told = json.dumps(result, indent=1)
    assert good(result), told
    assert sum(result["faults"].values()) >= 6, told
    assert result["jobs"] >= len(SHAPES), told
    assert result["records_out"] > result["records_in"] > 0, told


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


def test_forty_faults_of_tasks_with_a_state_lose_and_double_nothing(seed: int) -> None:
    """Windows, their panes, keyed state, a join and a graph, as by ``make faults STORE=... SHAPE=`` with these shapes; the seed
    chooses the store. Every result of a window and of a vertex is compared, and none comes twice.
    """
    families = tuple(family for family in FAMILIES if family != "spark")
    store = random.Random(seed).choice(["memory", "rocksdb", "sql"])
    shapes = ("window", "panes", "keyed", "join", "components")
    result = run(Options(seed=seed, faults=40, shapes=shapes, store=store, families=families, records=20_000))
    told = json.dumps(result, indent=1)
    assert good(result), told
    assert sum(result["faults"].values()) >= 40, told
    assert result["records_in"] > 0 < result["records_out"], told


def test_fifteen_faults_of_loops_lose_and_double_nothing(seed: int) -> None:
    """As by ``make faults SHAPE=loop``: each record comes back as often as its id says, and comes out once; the jobs end."""
    families = tuple(family for family in FAMILIES if family != "spark")
    result = run(Options(seed=seed, faults=15, shapes=("loop",), families=families, records=8_000))
    told = json.dumps(result, indent=1)
    assert good(result), told
    assert sum(result["faults"].values()) >= 15, told
    assert result["records_in"] == result["records_out"] > 0, told


def test_a_few_faults_of_a_cluster_lose_and_double_nothing(seed: int) -> None:
    """On three ZooKeeper servers and three brokers, as by ``make faults CLUSTER=3``: servers of both are killed or stop."""
    families = ("zookeeper", "kafka")
    result = run(Options(seed=seed, faults=6, shapes=("copy",), families=families, records=6_000, peers=3, servers=3))
    told = json.dumps(result, indent=1)
    assert good(result), told
    assert sum(result["faults"].values()) >= 6, told


def test_forty_changes_under_faults_lose_and_double_nothing(seed: int) -> None:
    """As by ``make faults SHAPE=change FAULTS=40``: tasks come, go, are replaced and get more peers, while peers and leaders die
    at each step of that. Each record is worked by one version of each task.
    """
    result = run(Options(seed=seed, faults=40, shapes=("change",), records=20_000))
    told = json.dumps(result, indent=1)
    assert good(result), told
    assert sum(result["changes"].values()) == 40, told
    assert sum(result["faults"].values()) >= 20, told


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_two_hundred_changes_under_faults_lose_and_double_nothing(seed: int) -> None:
    """Each step of a change is struck several times."""
    result = run(Options(seed=seed, faults=200, shapes=("change",), records=110_000))
    told = json.dumps(result, indent=1)
    assert good(result), told
    assert sum(result["changes"].values()) == 200, told
    assert not result["not_struck"], told


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("pagerank", "pagerank"),
        ("components", "connected_components"),
        ("shared-pagerank", "pagerank"),
        ("shared-components", "connected_components"),
    ],
)
def test_the_check_sees_what_is_wrong_with_a_graph(name: str, algorithm: str) -> None:
    """A value that differs in its last bit, a vertex that is missing, and one that comes twice."""
    ids = {source * SOURCE + number for source in range(4) for number in range(50)}
    edge = _step if name == "shared-components" else _edge
    edges = pa.table(dict(zip(("source", "target"), map(list, zip(*map(edge, ids), strict=True)), strict=True)))
    tolerance = 1e-13 if algorithm == "pagerank" else None
    given: dict[str, Any] = {"algorithm": algorithm, "tolerance": tolerance}
    rows = compute(GraphSpec(edges="", source="", target="", **given), Graph(edges)).rows.to_pylist()
    column = [*rows[0]][1]
    right, wrong = GraphSight(SHAPES[name]), GraphSight(SHAPES[name])
    for row in rows:
        right.record(0, json.dumps(row).encode())
    assert (right.wanted(ids), right.wrong_values(ids), right.doubled) == (right.seen, 0, 0)
    rows[3][column] = math.nextafter(rows[3][column], 1) if algorithm == "pagerank" else rows[3][column] + 1
    for row in [*rows[1:], rows[5]]:
        wrong.record(0, json.dumps(row).encode())
    assert (wrong.wanted(ids) - wrong.seen, wrong.wrong_values(ids), wrong.doubled) == ({rows[0]["id"]}, 1, 1)


def test_the_check_sees_what_is_wrong_with_rounds() -> None:
    """A record with another number, one that is missing, and one that comes twice. Each record matters to all of its key."""
    ids = {source * SOURCE + number for source in range(4) for number in range(50)}
    name = {number: f"{number // SOURCE}-{number % SOURCE % KEYS}" for number in ids}
    rows = [{"id": number, "key": name[number], "value": value} for number, value in sorted(_mixed(ids).items())]
    right, wrong = RoundsSight(SHAPES["rounds"]), RoundsSight(SHAPES["rounds"])
    for row in rows:
        right.record(0, json.dumps(row).encode())
    assert (right.wanted(ids), right.wrong_values(ids), right.doubled) == (right.seen, 0, 0)
    assert right.wrong_values(ids - {7}) == sum(key == "0-7" for key in name.values())
    for row in [*rows[1:3], {**rows[3], "value": -1}, *rows[4:], rows[5]]:
        wrong.record(0, json.dumps(row).encode())
    assert (wrong.wanted(ids) - wrong.seen, wrong.wrong_values(ids), wrong.doubled) == ({0}, 1, 1)


def test_a_seed_gives_the_same_faults_again(tmp_path: Path) -> None:
    """Each kind once before any comes twice; what can strike but once in a job is not asked for again."""
    plan, again = (Run(Options(seed=5, spark=1, servers=3), tmp_path)._plan(len(KINDS) + 10) for _ in range(2))
    assert plan == again
    assert {name for names in plan.values() for name in names} == set(KINDS)
    assert sum(map(len, plan.values())) == len(KINDS) + 10
    assert len(set(plan["end"])) == sum(kind.phase == "end" for kind in KINDS.values())


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


def test_every_change_of_a_run_is_one_that_can_be_made(seed: int, tmp_path: Path) -> None:
    """Sixty changes one after the other, each also through what comes before it if something is read to its end first."""
    rng = random.Random(seed)
    growing = Growing("growing", "in", "out", 1_000, tmp_path)
    spec, retired = load(str(growing.write(growing.version))).spec, list[str]()
    kinds = set()
    parents = set()
    for number in range(60):
        step = growing.step(rng, number)
        parents |= {tap.parent for tap in step.version.taps}
        new = load(str(growing.write(step.version))).spec
        named = [*step.drop, *step.drain]
        if step.at_a_time:
            stages = [stage.name for stage in graph_of(spec, "", "").stages]
            assert failure_at("j", spec, new, stages) is None, step
            both = side_by_side(spec, new, 5)
            assert change_failure("j", spec, both, [], retired) is None
            validate(both, import_functions=False)
            spec, named = both, rewiring(graph_of(both, "", ""), graph_of(new, "", "")).names
        assert change_failure("j", spec, new, named, retired) is None, step
        for then in [draining(spec, new, step.drain)[0], new] if step.drain else [new]:
            found = rewiring(graph_of(spec, "", ""), graph_of(then, "", ""))
            assert change_failure("j", spec, then, [name for name in named if name in found.names], retired) is None
            validate(then, import_functions=False)
            spec, retired = then, [*retired, *found.retired]
        growing.done(step)
        kinds.add(step.what.partition(" ")[0])
    assert kinds >= {"part", "attach", "scale", "replace", "put", "remove", "exchange"}
    assert parents == {"read", "work", "steady", "input"}


def test_the_check_sees_what_is_wrong_with_versions(tmp_path: Path) -> None:
    """A row that a tap must not have, one that it lacks, one that comes twice, a state that was lost, and a task in the middle
    that rows passed by.
    """
    growing = Growing("growing", "in", "out", 1_000, tmp_path)
    tap = Tap("tap1", "work", "keyed", 2)
    growing.done(Step("attach", replace(growing.version, work=2, taps=(tap,))))
    growing.done(Step("put", replace(growing.version, steady=2, middle="m", middle_since=2)))
    growing.done(Step("remove", replace(growing.version, work=3, taps=()), drain=tap.tasks))

    def row(number: int, work: int, **more: Any) -> dict[str, Any]:
        return {"id": number, "key": "k", "work": work, "steady": 1, **more}

    rows = {1: row(1, 1), 2: row(2, 2), 3: row(3, 2), 4: row(4, 3)}
    tapped = [{"id": n, "key": "k", "tap": "tap1", "seen": n - 1} for n in (2, 3)]
    assert growing.wrong(rows, tapped) == []
    assert growing.wrong(rows, tapped[:1]) == []  # it was drained while its parent went on
    strange = {"id": 4, "key": "k", "tap": "tap1", "seen": 3}
    for wrong in ([*tapped, strange], [*tapped, tapped[0]], [tapped[0], {**tapped[1], "seen": 1}]):
        assert growing.wrong(rows, wrong), wrong
    growing.tapped["tap1"].last = 4
    assert growing.wrong(rows, tapped) == []
    growing.tapped["tap1"].last = 3  # then it must not have the row of that time
    assert growing.wrong(rows, tapped)
    growing.tapped["tap1"].last = None
    growing.tapped["tap1"].sure = 3
    assert growing.wrong(rows, tapped[:1])
    assert growing.wrong({**rows, 5: row(5, 3) | {"steady": 2}}, tapped)

    own = Tap("tap2", "input", "plain", 0)
    growing.done(Step("attach", replace(growing.version, taps=(own,))))
    rows, taken = {n: row(n, 3) for n in range(3)}, [{"id": n, "tap": "tap2"} for n in range(3)]
    growing.tapped.pop("tap1")
    assert growing.wrong(rows, taken) == []
    assert growing.wrong(rows, taken[1:]), "an input begins where its topic does"
    assert growing.wrong(rows, taken[:2]), "and comes to its end"
    growing.done(Step("remove", replace(growing.version, taps=()), drop=own.tasks))
    assert growing.wrong(rows, taken[:2]) == []
    assert growing.wrong(rows, taken[1:2])


@pytest.mark.parametrize(
    "rollbacks",
    [
        3,
        pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(1_800)]),
    ],
)
def test_rollbacks_under_kills_give_what_was_never_rolled_back(seed: int, rollbacks: int) -> None:
    """As by ``make faults SHAPE=rollback FAULTS=...``: the states at each checkpoint and in the end, each window, and replays."""
    told = rollback.run(seed, rollbacks)
    assert told["wrong"] == [], json.dumps(told, indent=1)
    assert told["rollbacks"] == rollbacks
    assert told["replays"] >= rollbacks
    assert told["states_compared"] >= rollbacks
    assert told["kills"]
    assert told["windows"]


@pytest.mark.parametrize("with_state", [False, True])
def test_the_check_sees_what_is_wrong_with_a_replay(seed: int, with_state: bool) -> None:
    """A window that is lacking, one that comes twice, one with a row too few, and a state that began empty, or did not."""
    rng = random.Random(seed)
    rows = [rolled.row_of(number, rng) for number in range(600)]
    span = Span(240 if with_state else 180, 450, with_state)
    windows = rolled.windows_of(row for row in rows if 180 <= rolled.second_of(rolled.at_of(row)) < span.until)
    first = min(window.begin for window in windows)
    right = [Result(window, hits, int(window.begin == first and not with_state)) for window, hits in windows.items()]
    assert judged(span, rows, right) == []
    last = right[-1]
    for wrong in (
        right[:-1],
        [*right, last],
        [*right[:-1], last._replace(hits=last.hits - 1)],
        [result._replace(new=int(result.window.begin == 270 and with_state)) for result in right],
    ):
        assert judged(span, rows, wrong), wrong
