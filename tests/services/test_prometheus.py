"""A real Prometheus scrapes real daemons: the alerts can be evaluated, the board shows something, the right alert fires.

``make test-prometheus`` runs it, with Debian's package.
"""

from __future__ import annotations

import json
import shutil
import socket
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy import monitoring
from deploy.panels import PANELS
from sardonyx.cli.daemons import ADDRESS
from sardonyx.runtime.child_process import start_child
from sardonyx.runtime.settings import Settings
from tests.scrape import get
from tests.services.test_metrics import JOB, Watched, watched
from tests.waiting import until

pytestmark = pytest.mark.prometheus

__all__ = ["watched"]

EMPTY = {
    "Event time behind": "no input has times",
    "Missing peers": "no job lacks peers",
    "Batches that were not committed": "all batches were",
    "Failures of tasks": "no task failed",
    "Errors and warnings in the log": "no daemon has logged any",
    "Failures of tasks, by job": "no task failed",
    "Runs again after an error": "no function raised",
    "New clients of Kafka": "no task lost its clients",
    "Aborted transactions": "all were committed",
    "Certificates are valid for": "no daemon logs in with one",
}
"""Panels that show nothing in this test, and why."""


class Prometheus:
    """A server that asks the pages which daemons there are, and scrapes them and the pages each second, with our rules.
    Those for 30 seconds need not hold so long.
    """

    def __init__(self, folder: Path, pages: str) -> None:
        rules = monitoring.RULES.read_text()
        (folder / "rules.yml").write_text(rules.replace("for: 30s", "for: 2s"))
        found = {"url": f"{pages}sd/prometheus", "refresh_interval": "1s"}
        kind = {"source_labels": ["__meta_sardonyx_daemon"], "target_label": "kind"}
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [
                {"job_name": "sardonyx", "http_sd_configs": [found], "relabel_configs": [kind]},
                {"job_name": "web", "static_configs": [{"targets": [pages.removeprefix("http://").rstrip("/")]}]},
            ],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        program = shutil.which("prometheus")
        assert program, "prometheus is not on PATH; Debian and Ubuntu: sudo apt-get install prometheus"
        command = [
            program,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        self.process = start_child(command, name="prometheus", log_path=folder / "prometheus.log")

    def ask(self, path: str, **query: str) -> Any:
        """The data of an answer of its API; None while it starts."""
        try:
            status, _, body = get(f"{self.address}/api/v1/{path}?{urllib.parse.urlencode(query)}")
        except OSError:
            return None
        answer = json.loads(body) if status == 200 else {"status": body}
        assert answer["status"] == "success", answer
        return answer["data"]

    def found(self, expr: str) -> list[Any]:
        """The series of a query now."""
        return self.ask("query", query=expr)["result"]

    def firing(self) -> set[str]:
        """The alerts that fire now."""
        return {alert["labels"]["alertname"] for alert in self.ask("alerts")["alerts"] if alert["state"] == "firing"}


@pytest.fixture
def pages(settings: Settings, tmp_path: Path) -> Iterator[str]:
    """The address of the pages, which reach ZooKeeper directly."""
    command = [sys.executable, "-m", "sardonyx", "web", "--port", "0"]
    with start_child(command, name="web", log_path=tmp_path / "web.log", env=settings.environment()) as web:
        yield until(lambda: ADDRESS.search(web.log_tail(50)), what="the pages to be served")[0]


@pytest.fixture
def prometheus(watched: Watched, pages: str, tmp_path: Path) -> Iterator[Prometheus]:
    folder = tmp_path / "prometheus"
    folder.mkdir()
    server = Prometheus(folder, pages)
    with server.process:
        yield server


def test_prometheus_reads_it_and_the_alert_that_should_fires(
    watched: Watched, prometheus: Prometheus, tmp_path: Path
) -> None:
    """It finds both daemons by itself. While a job runs, each panel shows something and no alert fires. When ZooKeeper is away,
    those about it fire, until it is back.
    """
    topic = watched.house.make_topic("seen")
    watched.house.fill(topic, *(b'{"n": %d}' % number for number in range(100, 120)))
    watched.house.submit(tmp_path, JOB.format(topic=topic))
    until(lambda: len(prometheus.ask("targets", state="active")["activeTargets"]) == 3, what="all targets")
    until(lambda: len(prometheus.found("up == 1")) == 3, what="both daemons and the pages to be scraped")
    found = {each["metric"]["kind"]: each["metric"]["instance"] for each in prometheus.found('up{job="sardonyx"}')}
    assert {kind: f"http://{place}" for kind, place in found.items()} == {
        "coordinator": watched.leader,
        "peer": watched.peer,
    }
    watched.house.crew.until(
        lambda: prometheus.found('sardonyx_task_rows_total{task="double", what="in"} == 20'), "the rows"
    )
    until(
        lambda: prometheus.found('sardonyx_link_unread_rows{link="read.double"} == 0'),
        what="the link to be read",
    )
    for panel in PANELS:
        for expr in panel.exprs:
            filled = expr.replace("$__rate_interval", "1m").replace('=~"$deployment"', '=~".*"')
            filled = filled.replace('=~"$sx_job"', '=~".*"')
            if panel.title not in EMPTY:
                until(lambda filled=filled: prometheus.found(filled), what=f"{panel.title} to show something: {filled}")
    rules = prometheus.ask("rules")["groups"][0]["rules"]
    assert [rule["name"] for rule in rules] == [alert.name for alert in monitoring.ALERTS]
    until(lambda: prometheus.found("count_over_time(up[1m]) > 5"), what="the rules to be evaluated some times")
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] == "err"} == {}
    assert prometheus.firing() == set()
    assert {panel.title for panel in PANELS} >= set(EMPTY)

    watched.proxy.refuse()
    away = {"SardonyxZooKeeperAway", "SardonyxNoLeader"}
    watched.house.crew.until(lambda: prometheus.firing() == away, "the alerts about ZooKeeper, and no other")
    watched.proxy.accept_again()
    watched.house.crew.until(lambda: not prometheus.firing() & away, "the alerts to end")
