"""Each alert fires when it should and is silent when it should not, as Prometheus' own tool judges it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from deploy import monitoring
from deploy.alerts import ALERTS
from deploy.panels import PANELS

PROMTOOL = shutil.which("promtool")
LEADS = 'sardonyx_coordinator_leading{deployment="d", instance="c1"}'
STANDS_BY = 'sardonyx_coordinator_leading{deployment="d", instance="c2"}'
TASK = 'deployment="d", instance="p1", sx_job="j", task="t"'
LINK = 'deployment="d", instance="w", sx_job="j", link="read.t"'
CERTIFICATE = 'deployment="d", instance="p1", setting="zookeeper.auth.certificate"'
BUILD = 'sardonyx_build_info{deployment="d", instance="p1"}'
BUCKET = 'sardonyx_zookeeper_request_seconds_bucket{deployment="d", instance="p1", le='

pytestmark = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not on PATH; Debian and Ubuntu: sudo apt-get install prometheus"
)

Histories = dict[str, str]
"""Series, and its values each minute from 0 on, as promtool writes them."""

CASES: dict[str, tuple[list[Histories], list[Histories]]] = {
    "SardonyxNoLeader": (
        [
            {LEADS: "1 1 1 0x20", STANDS_BY: "0x20"},
            {'sardonyx_virtual_peers{deployment="d", state="idle"}': "4x20"},
        ],
        [
            {LEADS: "1 1 0x20", STANDS_BY: "0 0 1x20", 'sardonyx_virtual_peers{deployment="d", state="idle"}': "4x20"},
            {LEADS: "1x12 0 1x7"},
        ],
    ),
    "SardonyxLeaderHangs": (
        [{LEADS: "1x20", 'sardonyx_coordinator_last_turn_timestamp_seconds{deployment="d", instance="c1"}': "0x20"}],
        [
            {
                LEADS: "1x20",
                'sardonyx_coordinator_last_turn_timestamp_seconds{deployment="d", instance="c1"}': "0+60x20",
            },
            {LEADS: "0x20", 'sardonyx_coordinator_last_turn_timestamp_seconds{deployment="d", instance="c1"}': "0x20"},
        ],
    ),
    "SardonyxInboxOld": (
        [{'sardonyx_coordinator_inbox_oldest_seconds{deployment="d"}': "0x9 35x10"}],
        [{'sardonyx_coordinator_inbox_oldest_seconds{deployment="d"}': "5x20"}],
    ),
    "SardonyxLeaderSteppedDown": (
        [{'sardonyx_coordinator_stepped_down_total{deployment="d"}': "0x9 1x10"}],
        [{'sardonyx_coordinator_stepped_down_total{deployment="d"}': "1x20"}],
    ),
    "SardonyxEventSetAside": (
        [{'sardonyx_coordinator_events_set_aside_total{deployment="d"}': "0x9 1x10"}],
        [{'sardonyx_coordinator_events_set_aside_total{deployment="d"}': "1x20"}],
    ),
    "SardonyxLeadershipFlaps": (
        [{'sardonyx_coordinator_epoch{deployment="d", instance="c1"}': "1+1x20"}],
        [
            {
                'sardonyx_coordinator_epoch{deployment="d", instance="c1"}': "7x9 _x11",
                'sardonyx_coordinator_epoch{deployment="d", instance="c2"}': "_x9 8x11",
            }
        ],
    ),
    "SardonyxJobFailed": (
        [
            {'sardonyx_jobs{deployment="d", status="failed"}': "2x14 3x6"},
        ],
        [
            {'sardonyx_jobs{deployment="d", status="failed"}': "2x20"},
            {
                'sardonyx_jobs{deployment="d", status="failed", instance="c1"}': "2x15 _x5",
                'sardonyx_jobs{deployment="d", status="failed", instance="c2"}': "_x15 2x5",
            },
        ],
    ),
    "SardonyxJobLacksPeers": (
        [{'sardonyx_job_missing_peers{deployment="d", sx_job="j"}': "2x20"}],
        [{'sardonyx_job_missing_peers{deployment="d", sx_job="j"}': "2x12 stale 2x6"}],
    ),
    "SardonyxTaskFails": (
        [
            {
                f'sardonyx_task_failures_total{{{TASK}, code="A", fatal="no"}}': "0+1x20",
            }
        ],
        [{f'sardonyx_task_failures_total{{{TASK}, code="A", fatal="no"}}': "0x15 1x5"}],
    ),
    "SardonyxTaskStuck": (
        [
            {f"sardonyx_task_busy_ratio{{{TASK}}}": "1x20"},
            {
                f"sardonyx_task_busy_ratio{{{TASK}}}": "1x20",
                f'sardonyx_task_batches_total{{{TASK}, outcome="dropped"}}': "0+1x20",
                f'sardonyx_task_batches_total{{{TASK}, outcome="committed"}}': "7x20",
            },
        ],
        [
            {
                f"sardonyx_task_busy_ratio{{{TASK}}}": "1x20",
                f'sardonyx_task_batches_total{{{TASK}, outcome="committed"}}': "0+1x20",
            },
            {f"sardonyx_task_busy_ratio{{{TASK}}}": "1x15 0.3 1x4"},
        ],
    ),
    "SardonyxBatchesDropped": (
        [
            {
                f'sardonyx_task_batches_total{{{TASK}, outcome="dropped"}}': "0+10x20",
                f'sardonyx_task_batches_total{{{TASK}, outcome="committed"}}': "0+1x20",
            },
            {f'sardonyx_task_batches_total{{{TASK}, outcome="delayed"}}': "0+10x20"},
        ],
        [
            {
                f'sardonyx_task_batches_total{{{TASK}, outcome="dropped"}}': "0+1x20",
                f'sardonyx_task_batches_total{{{TASK}, outcome="committed"}}': "0+10x20",
            },
            {f'sardonyx_task_batches_total{{{TASK}, outcome="committed"}}': "5x20"},
        ],
    ),
    "SardonyxDeadLettersGrow": (
        [{f'sardonyx_task_rows_total{{{TASK}, what="dead"}}': "0x15 1x5"}],
        [
            {
                f'sardonyx_task_rows_total{{{TASK}, what="dead"}}': "3x20",
                f'sardonyx_task_rows_total{{{TASK}, what="in"}}': "0+9x20",
            }
        ],
    ),
    "SardonyxLinkBehind": (
        [
            {
                f"sardonyx_link_oldest_unread_seconds{{{LINK}}}": "400x20",
                f"sardonyx_link_unread_rows{{{LINK}}}": "5+5x20",
            },
            {
                f"sardonyx_link_oldest_unread_seconds{{{LINK}}}": "400x20",
                f"sardonyx_link_unread_rows{{{LINK}}}": "7x20",
            },
        ],
        [
            {
                f"sardonyx_link_oldest_unread_seconds{{{LINK}}}": "400x20",
                f"sardonyx_link_unread_rows{{{LINK}}}": "9000-10x20",
            },
            {
                f"sardonyx_link_oldest_unread_seconds{{{LINK}}}": "9x20",
                f"sardonyx_link_unread_rows{{{LINK}}}": "5+5x20",
            },
        ],
    ),
    "SardonyxLagUnknown": (
        [{'sardonyx_job_lag_timestamp_seconds{deployment="d", instance="w", sx_job="j"}': "0x20"}],
        [{'sardonyx_job_lag_timestamp_seconds{deployment="d", instance="w", sx_job="j"}': "0+60x20"}],
    ),
    "SardonyxPeersDie": (
        [
            {
                'sardonyx_coordinator_events_total{deployment="d", kind="died"}': "0x15 5x5",
                'sardonyx_peers{deployment="d", state="active"}': "20x20",
            }
        ],
        [
            {
                'sardonyx_coordinator_events_total{deployment="d", kind="died"}': "0x15 1x5",
                'sardonyx_peers{deployment="d", state="active"}': "20x20",
            }
        ],
    ),
    "SardonyxSparkRestarts": (
        [{'sardonyx_spark_restarts_total{deployment="d", instance="p1"}': "0+1x20"}],
        [{'sardonyx_spark_restarts_total{deployment="d", instance="p1"}': "0x10 1x10"}],
    ),
    "SardonyxZooKeeperAway": (
        [{'sardonyx_zookeeper_connected{deployment="d", instance="p1"}': "1x9 0x11"}],
        [{'sardonyx_zookeeper_connected{deployment="d", instance="p1"}': "1x20"}],
    ),
    "SardonyxZooKeeperSlow": (
        [{f'{BUCKET}"0.5"}}': "0+50x20", f'{BUCKET}"5"}}': "0+100x20", f'{BUCKET}"+Inf"}}': "0+100x20"}],
        [{f'{BUCKET}"0.5"}}': "0+1000x20", f'{BUCKET}"5"}}': "0+1001x20", f'{BUCKET}"+Inf"}}': "0+1001x20"}],
    ),
    "SardonyxTopicsFail": (
        [{'sardonyx_coordinator_side_effects_total{deployment="d", effect="create", outcome="again"}': "0+1x20"}],
        [
            {
                'sardonyx_coordinator_side_effects_total{deployment="d", effect="create", outcome="again"}': "2x20",
                'sardonyx_coordinator_side_effects_total{deployment="d", effect="create", outcome="done"}': "0+9x20",
            }
        ],
    ),
    "SardonyxKafkaReleaseBad": (
        [{'sardonyx_kafka_loses_ends{deployment="d", instance="w"}': "0x9 1x11"}],
        [{'sardonyx_kafka_loses_ends{deployment="d", instance="w"}': "0x20"}],
    ),
    "SardonyxCertificateEnds": (
        [{f"sardonyx_certificate_ends_timestamp_seconds{{{CERTIFICATE}}}": "1.2e6x20"}],
        [{f"sardonyx_certificate_ends_timestamp_seconds{{{CERTIFICATE}}}": "1.3e6x20"}],
    ),
    "SardonyxWebBehind": (
        [{'sardonyx_web_log_read_timestamp_seconds{deployment="d", instance="w"}': "0+60x15 900x5"}],
        [{'sardonyx_web_log_read_timestamp_seconds{deployment="d", instance="w"}': "0+60x20"}],
    ),
    "SardonyxSnapshotOld": (
        [
            {
                'sardonyx_coordinator_log_last{deployment="d"}': "200000x20",
                'sardonyx_coordinator_snapshot_last{deployment="d"}': "1000x20",
            }
        ],
        [
            {
                'sardonyx_coordinator_log_last{deployment="d"}': "200000x20",
                'sardonyx_coordinator_snapshot_last{deployment="d"}': "199000x20",
            }
        ],
    ),
    "SardonyxDaemonGrows": (
        [
            {
                'process_resident_memory_bytes{instance="p1"}': "1e9+2e6x500",
                BUILD: "1x500",
            }
        ],
        [
            {
                'process_resident_memory_bytes{instance="p1"}': "1e9x500",
                BUILD: "1x500",
            },
            {'process_resident_memory_bytes{instance="other"}': "1e9+2e6x500"},
        ],
    ),
}


def promtool(folder: Path, kind: str, content: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Let promtool check or test a file, beside which the rules are. JSON is YAML."""
    shutil.copy(monitoring.RULES, folder / "rules.yml")
    (folder / "file.yml").write_text(json.dumps(content))
    command = [str(PROMTOOL), kind, "rules", str(folder / "file.yml")]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def test_every_alert_is_tested() -> None:
    """With a history in which it fires and one in which it does not."""
    assert {alert.name for alert in ALERTS} == set(CASES)
    assert all(fires and silent for fires, silent in CASES.values())


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_fires_when_it_should_and_only_then(alert: Any, tmp_path: Path) -> None:
    """At the end of each history, with the command to run next, in which the job has its name."""
    fires, silent = CASES[alert.name]
    last = "8h20m" if alert.name == "SardonyxDaemonGrows" else "20m"
    for history in fires:
        found = asked(tmp_path, history, alert.name, last)
        assert found.returncode != 0, f"silent: {history}"
        assert f'runbook="{alert.command.replace("JOB", "j")}"' in found.stderr
        assert "(d)" in found.stderr, "it does not say which deployment"
    for history in silent:
        found = asked(tmp_path, history, alert.name, last)
        assert found.returncode == 0, f"fires: {history}\n{found.stderr}"


def asked(folder: Path, history: Histories, alert: str, last: str) -> subprocess.CompletedProcess[str]:
    """Expect the alert not to fire; promtool tells what fired instead."""
    test = {
        "interval": "1m",
        "input_series": [{"series": series, "values": values} for series, values in history.items()],
        "alert_rule_test": [{"eval_time": last, "alertname": alert, "exp_alerts": []}],
    }
    return promtool(folder, "test", {"rule_files": ["rules.yml"], "evaluation_interval": "30s", "tests": [test]})


def test_the_queries_of_all_panels_can_be_read(tmp_path: Path) -> None:
    """As recording rules, with the board's variables filled in."""
    rules = [
        {"record": f"panel{number}", "expr": expr.replace("$__rate_interval", "1m").replace("$", "")}
        for number, expr in enumerate(expr for panel in PANELS for expr in panel.exprs)
    ]
    checked = promtool(tmp_path, "check", {"groups": [{"name": "panels", "rules": rules}]})
    assert checked.returncode == 0, checked.stderr
    assert f"{len(rules)} rules found" in checked.stdout
