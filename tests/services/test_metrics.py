"""Metrics and probes of daemons at work: a job on its way, ZooKeeper away, a leader that overlooks its inbox."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from coordinator.loop.intake import Scan
from coordinator.loop.watchdog import EVERY, PATIENCE, Watchdog
from sardonyx.core import node_paths
from sardonyx.core.notes import CandidateNote, PulseNote
from sardonyx.runtime.child_process import ChildProcess
from sardonyx.runtime.clock import Runtime
from sardonyx.runtime.settings import Settings
from sardonyx.web.targets import Targets
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.proxy import Proxy
from tests.scrape import get, scraped, value
from tests.services.coordination import coordinator, submit, with_timers
from tests.services.crew import Crew
from tests.services.house import House, called, told
from tests.waiting import until

JOB = """
from sardonyx import Job, kafka

def double(row: dict) -> dict:
    if row["n"] == 13:
        raise ValueError("unlucky")
    return {{"n": 2 * row["n"]}}

job = Job("seen", partitions=2)
read = job.input("read", kafka("{topic}", schema="n long", start="earliest"))
job.output("out", kafka("{topic}-out"), after=job.task("double", double, after=read, on_error="skip"))
"""


class Watched:
    """A coordinator and a peer daemon with two virtual peers, which reach ZooKeeper through a proxy and serve metrics."""

    def __init__(self, settings: Settings, crew: Crew, proxy: Proxy) -> None:
        self.house = House(settings, crew)
        self.proxy = proxy
        self.leader = metrics_of(crew.coordinator())
        self.peer = metrics_of(crew.peers(2))


def metrics_of(daemon: ChildProcess) -> str:
    """Where a daemon serves its metrics, as its log tells."""

    def told_there() -> str:
        found = re.search(r"metrics_served\s+address=(\S+)/metrics", daemon.log_path.read_text())
        return found[1] if found else ""

    return until(told_there, what=f"{daemon.name} to tell where its metrics are")


@pytest.fixture
def watched(settings: Settings, proxy: Proxy, tmp_path: Path) -> Iterator[Watched]:
    through = settings.model_copy(
        update={
            "zookeeper": settings.zookeeper.model_copy(update={"hosts": proxy.address}),
            "metrics": settings.metrics.model_copy(update={"listen": "127.0.0.1:0"}),
        }
    )
    with Crew(through, tmp_path) as crew:
        yield Watched(through, crew, proxy)


def test_a_job_is_seen_in_the_metrics_of_its_daemons(watched: Watched, tmp_path: Path) -> None:
    """Before, while and after it runs: what the daemons say is what was read, written and decided. When ZooKeeper is away they
    live, are not ready, and say why; when it is back they are ready by themselves.
    """
    leader, peer, house = watched.leader, watched.peer, watched.house
    until(lambda: get(f"{peer}/readyz")[0] == 200, what="the peer daemon to be ready")
    assert get(f"{leader}/readyz") == get(f"{leader}/livez") == (200, "text/plain; charset=utf-8", "ok\n")
    assert value(leader, "sardonyx_coordinator_leading") == 1
    assert value(leader, "sardonyx_coordinator_takeovers_total") == 1
    assert value(leader, "sardonyx_peers", state="idle") == value(peer, "sardonyx_virtual_peers") == 2
    assert value(leader, "sardonyx_jobs") == value(peer, "sardonyx_task_rows_total") == 0

    topic = house.make_topic("seen")
    house.fill(topic, *(b'{"n": %d}' % number for number in range(20)))
    handle = house.submit(tmp_path, JOB.format(topic=topic))

    def rows(what: str, task: str = "double") -> float:
        return value(peer, "sardonyx_task_rows_total", sx_job="seen", task=task, what=what)

    house.crew.until(lambda: rows("in") == 20, "all rows to be counted")
    assert (rows("out"), rows("skipped"), rows("dead"), rows("late")) == (19, 1, 0, 0)
    assert value(leader, "sardonyx_jobs", status="running") == 1
    assert value(leader, "sardonyx_coordinator_events_total", kind="submit") == 1
    assert value(leader, "sardonyx_coordinator_append_seconds_count") > 0
    assert value(leader, "sardonyx_coordinator_effects_seconds_count") > 0
    assert value(leader, "sardonyx_coordinator_log_last") >= value(leader, "sardonyx_coordinator_checkpoint") > 0
    assert value(peer, "sardonyx_offers_total", answer="accepted") >= 1
    batches = value(peer, "sardonyx_task_batches_total", task="double", outcome="committed")
    assert value(peer, "sardonyx_task_batch_seconds_count", task="double") == batches > 0
    assert value(peer, "sardonyx_task_batch_rows_sum", task="double") == 20
    steps = {labels["step"] for name, labels, _ in scraped(peer) if name == "sardonyx_task_step_seconds_total"}
    assert steps >= {"wait", "decode", "function", "write", "commit"}
    assert value(peer, "sardonyx_task_last_commit_timestamp_seconds", task="double") > 1.7e9
    assert value(peer, "sardonyx_transactions_total", outcome="committed") >= batches
    assert value(peer, "sardonyx_transaction_seconds_count") >= batches
    assert value(peer, "sardonyx_rebalances_total", kind="assigned") > 0
    assert value(peer, "sardonyx_task_delay_seconds_count", task="double") == batches
    assert 0 <= value(peer, "sardonyx_task_busy_ratio", task="double") <= 1
    for address in (leader, peer):
        assert value(address, "sardonyx_zookeeper_request_seconds_count") > 0
        assert value(address, "process_resident_memory_bytes") > 0
        assert well_formed(address)

    assert house.call("job", "stop", handle.id, "--timeout", "60 s").exit_code == 0
    until(lambda: value(leader, "sardonyx_jobs", status="stopped") == 1, what="the job to be counted as stopped")
    assert value(leader, "sardonyx_jobs") == 1
    assert rows("in") == 20

    watched.proxy.refuse()
    for address in (leader, peer):
        _, _, why = until(
            lambda address=address: (found := get(f"{address}/readyz"))[0] == 503 and found, what="it to be not ready"
        )
        assert "no connection to ZooKeeper" in why
        assert get(f"{address}/livez")[0] == 200
        assert value(address, "sardonyx_zookeeper_connected") == 0
    until(lambda: value(leader, "sardonyx_coordinator_leading") == 0, what="the leader to stop by itself")
    assert value(leader, "sardonyx_jobs") == 0
    watched.proxy.accept_again()
    for address in (leader, peer):
        house.crew.until(lambda address=address: get(f"{address}/readyz")[0] == 200, "it to be ready again")
        assert value(address, "sardonyx_zookeeper_connected") == 1
    until(lambda: value(leader, "sardonyx_jobs", status="stopped") == 1, what="the leader to know the job")
    assert value(leader, "sardonyx_coordinator_takeovers_total") == 2


def test_the_daemons_that_others_can_scrape_are_listed(zk: ZooKeeperSession) -> None:
    """Each once, whatever the number of its virtual peers, as long as it lives. One that serves no metrics, that is of a release
    that did not say so, or that only its own machine reaches, is not listed for others.
    """
    targets = Targets(zk, "prod", "here")

    def listed() -> dict[str, tuple[str, str]]:
        """By address, which daemon it is, and on which machine."""
        kinds = [(each.targets[0], each.labels) for each in targets.now()]
        assert {labels["__meta_sardonyx_deployment"] for _, labels in kinds} <= {"prod"}
        return {place: (labels["__meta_sardonyx_daemon"], labels["__meta_sardonyx_host"]) for place, labels in kinds}

    def pulse(name: str, host: str, metrics: str) -> None:
        note = PulseNote(name.rpartition("-")[0], host, 1, "0.1.0", 7, (), metrics)
        zk.create(node_paths.pulse(name), msgspec.json.encode(note), ephemeral=True)

    assert listed() == {}
    candidate = msgspec.json.encode(CandidateNote("far:7", "0.1.0", 7, 4, "far:9484"))
    zk.create_sequential(node_paths.election_prefix("a"), candidate, ephemeral=True)
    zk.create_sequential(node_paths.election_prefix("b"), b"older:8", ephemeral=True)
    for number in range(3):
        pulse(f"far-one-{number}", "far", "far:9485")
    pulse("far-two-0", "far", "127.0.0.1:41233")
    pulse("here-three-0", "here", "127.0.0.1:41233")
    pulse("here-four-0", "here", "")
    zk.create(node_paths.pulse("odd-0"), b"no note", ephemeral=True)
    everyone = {"far:9484": ("coordinator", "far"), "far:9485": ("peer", "far"), "127.0.0.1:41233": ("peer", "here")}
    assert listed() == listed() == everyone

    for number in range(3):
        zk.delete(node_paths.pulse(f"far-one-{number}"))
    pulse("far-five-0", "far", "far:9486")
    del everyone["far:9485"]
    assert listed() == {**everyone, "far:9486": ("peer", "far")}


def well_formed(address: str) -> bool:
    """Whether Prometheus' own check has nothing to say, where it is installed."""
    promtool = shutil.which("promtool")
    if promtool is None:
        return True
    text = get(f"{address}/metrics")[2]
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    return True


def test_a_daemon_that_cannot_listen_ends(settings: Settings) -> None:
    """At its start, with what to change; without that, its metrics would be missing and no one would know."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        env = {**settings.environment(), "SARDONYX__METRICS__LISTEN": place}
        told(called("coordinator", env=env), "SX-METRICS-LISTEN", "port 0")


class Later(Runtime):
    """The machine's clock, and what was waited for without waiting."""

    passed = 0.0

    def now(self) -> float:
        return self.passed


def test_a_leader_that_overlooks_its_inbox_gives_way(settings: Settings) -> None:
    """Its watches are lost, so it decides nothing: the watchdog ends its session, and the next leadership decides the request."""
    quick = with_timers(settings)
    with coordinator(quick) as made, contextlib.closing(ZooKeeperSession.connect(quick)) as zk:
        until(made.in_charge, what="the first turn")
        blind, clock = made.leader, Later()
        dog = Watchdog(made.in_charge, clock)
        intake = blind._intake
        intake.begin = lambda state, at: Scan(intake, [], [], [], at)
        submit(zk, "count-1")
        for _ in range(int(PATIENCE / EVERY) + 2):
            assert made.leader is blind
            clock.passed += EVERY
            dog.look()
        until(lambda: zk.children(node_paths.INBOX) == [], what="the request to be taken")
        assert made.leader is not blind
        until(lambda: "count-1" in made.leader.state.jobs, what="the request to be decided")
        dog.look()
        assert dog.hangs() == ""
