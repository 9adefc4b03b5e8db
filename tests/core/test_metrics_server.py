"""The endpoints of a daemon: what ``/metrics`` says, what the probes answer, and how much it can become."""

from __future__ import annotations

import itertools
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from coordinator.loop import leader_metrics
from deploy import monitoring
from deploy.panels import PANELS
from peer import peer_metrics
from sardonyx.core.addresses import listening_place
from sardonyx.core.errors import SetupError
from sardonyx.runtime import daemon_metrics, metrics_server
from sardonyx.runtime.metrics import REGISTRY, Counter, Gauge, Histogram, Registry
from sardonyx.runtime.metrics_server import served
from sardonyx.runtime.settings import load_settings
from tests.scrape import get
from tests.waiting import PATIENCE

pytestmark = pytest.mark.usefixtures("threads_end")

BUDGET = 2_000
"""Series of a daemon."""
CLOSED = {
    "outcome": ["committed", "dropped", "delayed"],
    "what": ["in", "out", "skipped", "dead", "late"],
    "step": ["wait", "decode", "restore", "state", "spark", "function", "encode", "write", "commit", "publish"],
    "fatal": ["yes", "no"],
}
"""Labels with a fixed set of values, and these."""


@pytest.fixture
def answers() -> dict[str, str]:
    """What the probes of the server say."""
    return {"live": "", "ready": ""}


@pytest.fixture
def address(answers: dict[str, str]) -> Iterator[str]:
    """A server for this process' metrics."""
    settings = load_settings(metrics={"listen": "127.0.0.1:0"}, deployment="here")
    with served(settings, "peer", lambda: answers["live"], lambda: answers["ready"]) as found:
        yield f"http://{found}"


def test_metrics_are_text_that_prometheus_reads(address: str) -> None:
    """Every sample of ours has the deployment as a label; those of the process have the names that dashboards know."""
    daemon_metrics.LINES.add(3, level="debug")
    peer_metrics.BATCH_SECONDS.observe(0.3, sx_job="flights", task='say "hi"')
    status, kind, text = get(f"{address}/metrics")
    assert (status, kind.partition(";")[0]) == (200, "text/plain")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["sardonyx_build_info"].samples[0].labels["daemon"] == "peer"
    assert families["process_resident_memory_bytes"].samples[0].value > 0
    ours = [sample for family in families.values() for sample in family.samples if sample.name.startswith("sardonyx_")]
    assert {sample.labels["deployment"] for sample in ours} == {"here"}
    seconds = {
        (sample.name.removeprefix("sardonyx_task_batch_seconds"), sample.labels.get("le")): sample.value
        for sample in families["sardonyx_task_batch_seconds"].samples
        if sample.labels["task"] == 'say "hi"'
    }
    assert (seconds["_bucket", "0.25"], seconds["_bucket", "0.5"], seconds["_bucket", "+Inf"]) == (0, 1, 1)
    assert (seconds["_count", None], seconds["_sum", None]) == (1, 0.3)


def test_open_metrics_is_spoken_to_who_asks_for_it(address: str) -> None:
    """A newer Prometheus does."""
    _, kind, text = get(f"{address}/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")


def test_probes_say_why(address: str, answers: dict[str, str]) -> None:
    """200 and ok, or 503 and the reason. Other paths and methods are refused, and a query changes nothing."""
    assert get(f"{address}/livez")[0] == get(f"{address}/readyz?verbose")[0] == 200
    answers["ready"] = "the daemon drains"
    assert get(f"{address}/readyz") == (503, "text/plain; charset=utf-8", "the daemon drains\n")
    with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), PATIENCE) as asked:
        asked.sendall(b"HEAD /readyz HTTP/1.0\r\n\r\n")
        answer = asked.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.0 503 ")
    assert answer.endswith(b"\r\n\r\n")
    assert get(f"{address}/livez")[0] == 200
    assert get(f"{address}/debug")[0] == 404
    assert get(f"{address}/metrics", "POST")[0] == 501


def test_nothing_is_served_unless_a_place_is_set() -> None:
    """The default is off."""
    for settings in (load_settings(), load_settings(metrics={"listen": "off"})):
        with served(settings, "peer", lambda: "", lambda: "") as address:
            assert address == ""


def test_the_log_tells_the_port_and_a_taken_one_is_an_error() -> None:
    """Port 0 is any free one. Two daemons cannot have the same one, which is said before anything is started."""
    with capture_logs() as lines, served(load_settings(metrics={"listen": "127.0.0.1:0"}), "peer", str, str) as place:
        (line,) = [line for line in lines if line["event"] == "metrics_served"]
        assert line["address"] == f"http://{place}/metrics"
        taken = load_settings(metrics={"listen": place})
        with pytest.raises(SetupError) as error, served(taken, "coordinator", str, str):
            pass
        assert error.value.code == "SX-METRICS-LISTEN"
    with socket.create_server(("127.0.0.1", int(place.rpartition(":")[2]))):
        pass  # it is free again


def test_others_are_told_the_name_of_this_machine_and_not_all_addresses() -> None:
    """A daemon that listens on all addresses is reached by its machine's name, or by what ``metrics.advertise`` says."""
    everywhere = {"listen": "0.0.0.0:0"}
    with served(load_settings(metrics=everywhere), "peer", str, str) as place:
        host, _, port = place.rpartition(":")
        assert (host, int(port) > 0) == (socket.gethostname(), True)
    with served(load_settings(metrics={**everywhere, "advertise": "10.0.0.7"}), "peer", str, str) as place:
        assert place.startswith("10.0.0.7:")
    with pytest.raises(SetupError, match=r"metrics\.advertise"):
        load_settings(metrics={"advertise": "http://10.0.0.7:9484"})


@pytest.mark.parametrize("text", ["9484", "127.0.0.1", "127.0.0.1:70000", "http://a:1", "a b:1", "::1:0", ":1"])
def test_a_place_that_is_none_is_refused(text: str) -> None:
    """With the setting's name."""
    with pytest.raises(SetupError, match=r"metrics\.listen") as error:
        load_settings(metrics={"listen": text})
    assert error.value.code == "SX-CONFIG-VALUE"


def test_places() -> None:
    """Host and port; an IPv6 address in brackets."""
    assert listening_place("peer-1:9484") == ("peer-1", 9484)
    assert listening_place("[::1]:0") == ("::1", 0)


def test_a_daemon_stays_within_its_budget() -> None:
    """However many jobs, tasks and errors there were, a daemon has at most 2,000 series, those of the process included, and the
    pages at most 10,000.
    """
    for modules, budget in (({"peer"}, BUDGET), ({"coordinator"}, BUDGET), ({"web"}, 5 * BUDGET)):
        registry = Registry()
        for metric in monitoring.table():
            if metric.of in {"both", *modules}:
                fill(registry, metric.family)
        text = metrics_server.rendering("here", registry)("")[0].decode()
        assert sum(not line.startswith("#") for line in text.splitlines()) <= budget, modules


def fill(registry: Registry, family: Counter | Gauge | Histogram) -> None:
    """A metric like this one, in each series that a bad day makes it have."""
    names = family.labels
    count = 60 if len(names) < 3 else 15
    values = [CLOSED.get(name) or [f"{name}-{number}" for number in range(count)] for name in names]
    if family.kind == "histogram":
        histogram = registry.histogram(family.name, family.help, names, family.bounds, most=family.most)
        for each in itertools.product(*values):
            histogram.observe(1, **dict(zip(names, each, strict=True)))
    else:
        gauge = registry.gauge(family.name, family.help, names, most=family.most)
        for each in itertools.product(*values):
            if set(names) <= {*CLOSED, "sx_job", "task", "code"}:
                gauge.set(1, **dict(zip(names, each, strict=True)))
        if not set(names) <= {*CLOSED, "sx_job", "task", "code"}:
            gauge.follow(lambda: dict.fromkeys(itertools.product(*values), 1.0))


def test_no_label_has_any_number_of_values() -> None:
    """No id of a job, no peer, topic, partition or offset is a label; jobs, tasks and codes are folded, and links are those of
    running jobs.
    """
    known = {
        *CLOSED,
        "sx_job",
        "task",
        "code",
        "state",
        "status",
        "kind",
        "level",
        "answer",
        "version",
        "daemon",
        "link",
        "reason",
        "effect",
        "setting",
    }
    assert {label for family in REGISTRY.families for label in family.labels} <= known
    for family in REGISTRY.families:
        assert family.name.startswith("sardonyx_"), family.name
        assert family.name.endswith("_total") == (family.kind == "counter"), family.name


def test_ids_of_jobs_are_not_labels() -> None:
    """Each run of a job has another id, so its name is counted."""
    result: Any = SimpleNamespace(
        rows_in=5, table=SimpleNamespace(num_rows=1), skipped=0, letters=[], planned=SimpleNamespace(dropped=2)
    )
    peer_metrics.count_batch("night-ly-k3x9qa", "sum", result, {"wait": 1.0, "commit": 0.5})
    peer_metrics.count_failure("night-ly-k3x9qa", "sum", "SX-KAFKA-LOST", fatal=False)
    snapshot = REGISTRY.snapshot()
    (took,) = [s for s in snapshot.series("sardonyx_task_batch_seconds") if s.labels["sx_job"] == "night-ly"]
    assert (took.count, took.value) == (1, 0.5), "the wait for rows is no work"
    rows = {
        series.labels["what"]: series.value
        for series in snapshot.series("sardonyx_task_rows_total")
        if series.labels["sx_job"] == "night-ly"
    }
    assert rows == {"in": 5, "out": 1, "skipped": 0, "dead": 0, "late": 2}
    assert [series.labels for series in snapshot.series("sardonyx_task_failures_total")] == [
        {"sx_job": "night-ly", "task": "sum", "code": "SX-KAFKA-LOST", "fatal": "no"}
    ]


def test_the_page_board_and_rules_are_those_of_the_code() -> None:
    """They are written by ``python -m deploy.monitoring``, from the metrics, panels and alerts in the code."""
    for path, text in monitoring.files().items():
        assert path.read_text() == text, f"{path} is not what the code says: run `python -m deploy.monitoring`"


def test_panels_and_alerts_name_metrics_that_exist() -> None:
    """A misspelt name would be a board without data, and an alert that never fires."""
    known = {
        name
        for metric in monitoring.table()
        for name in (metric.family.name, *(f"{metric.family.name}_{end}" for end in ("bucket", "count", "sum")))
    }
    expressions = [
        *(alert.expr for alert in monitoring.ALERTS),
        *(expr for panel in PANELS for expr in panel.exprs),
    ]
    named = {name for expr in expressions for name in monitoring.names_in(expr)}
    assert named <= known
    assert named
    for path in monitoring.GRAFANA.glob("*.json"):
        board = json.loads(path.read_text())
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
        variables = {each["name"] for each in board["templating"]["list"]} | {"__rate_interval"}
        for name in re.findall(r"\$(\w+)", json.dumps([panel["targets"] for panel in board["panels"]])):
            assert name in variables, f"{path.name} has no variable {name}"


def test_each_alert_has_a_command() -> None:
    """It tells the operator whom it wakes what to type."""
    for alert in monitoring.ALERTS:
        assert alert.command.startswith("sardonyx "), alert.name
        assert f"`{alert.command}`" in (Path("docs") / "metrics.md").read_text(), alert.name


def test_metrics_of_the_leader_are_read_from_it() -> None:
    """Without a leader there is nothing but that it does not lead."""
    leader: Any = None
    leader_metrics.follow(lambda: leader)
    assert [each.value for each in REGISTRY.snapshot().series("sardonyx_coordinator_leading")] == [0]
    assert REGISTRY.snapshot().series("sardonyx_peers") == []
    states = {state: {} for state in leader_metrics.STATES} | {"idle": {"p1": None}}
    jobs = {
        "a-1": SimpleNamespace(status="running", waits_for=2, waits_since=900.0),
        "a-2": SimpleNamespace(status="running", waits_for=1, waits_since=800.0),
        "b-1": SimpleNamespace(status="failed", waits_for=0, waits_since=None),
    }
    state = SimpleNamespace(n=7, by_state=states, jobs=jobs, plans={"a-1": None, "a-2": None, "gone": None})
    snapshots, outside = SimpleNamespace(last=4, size=500, log_begins=3), SimpleNamespace(waiting=2)
    leader = SimpleNamespace(state=state, epoch=3, checkpoint=6, turned_at=None, snapshots=snapshots, outside=outside)
    found = REGISTRY.snapshot()
    leader = None
    ones = {"log_first": 3, "log_last": 7, "snapshot_last": 4, "snapshot_bytes": 500, "side_effects_waiting": 2}
    for name, wanted in ones.items():
        assert [each.value for each in found.series(f"sardonyx_coordinator_{name}")] == [wanted], name
    since = found.series("sardonyx_job_waiting_since_timestamp_seconds")
    assert [(each.labels, each.value) for each in since] == [({"sx_job": "a"}, 800.0)], "the one that waits longest"
    assert found.series("sardonyx_coordinator_last_turn_timestamp_seconds") == []
    by_label = {tuple(s.labels.values()): s.value for s in found.series("sardonyx_jobs")}
    assert by_label == {("running",): 2, ("failed",): 1}
    assert [(s.labels, s.value) for s in found.series("sardonyx_job_missing_peers")] == [({"sx_job": "a"}, 3)]
    idle = [s.value for s in found.series("sardonyx_peers") if s.labels["state"] == "idle"]
    assert idle == [1]
