"""The alerts, each with the command to run next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Alert:
    """A rule of Prometheus."""

    name: str
    when: str
    """In words."""
    command: str
    """What to run next. ``JOB`` stands for the job that the alert is about."""
    expr: str
    lasts: str = "0s"
    """How long it must hold before the alert fires."""
    severity: Literal["page", "ticket"] = "ticket"


_TASK = "sum by (deployment, sx_job, task)"
_LINK = "max by (deployment, sx_job, link)"

ALERTS = (
    Alert(
        "SardonyxNoLeader",
        "no coordinator has led for 30 seconds",
        "sardonyx deployments",
        "(max by (deployment) (sardonyx_coordinator_leading) < 1) or "
        "(group by (deployment) (sardonyx_virtual_peers) unless on (deployment) sardonyx_coordinator_leading)",
        "30s",
        "page",
    ),
    Alert(
        "SardonyxLeaderHangs",
        "the leader has not ended a turn for 30 seconds",
        "sardonyx log tail",
        "sardonyx_coordinator_leading == 1 and time() - sardonyx_coordinator_last_turn_timestamp_seconds > 30",
        severity="page",
    ),
    Alert(
        "SardonyxInboxOld",
        "a request has waited in the inbox for 30 seconds",
        "sardonyx log tail",
        "sardonyx_coordinator_inbox_oldest_seconds > 30",
        severity="page",
    ),
    Alert(
        "SardonyxLeaderSteppedDown",
        "the watchdog ended a leadership in which nothing was decided, within the last hour",
        "sardonyx log tail",
        "increase(sardonyx_coordinator_stepped_down_total[1h]) > 0",
    ),
    Alert(
        "SardonyxEventSetAside",
        "a defect kept the coordinator from deciding about an event, within the last hour; it has failed the job",
        "sardonyx log show --kind set-aside",
        "increase(sardonyx_coordinator_events_set_aside_total[1h]) > 0",
    ),
    Alert(
        "SardonyxLeadershipFlaps",
        "more than 3 elections in 10 minutes",
        "sardonyx doctor",
        "max by (deployment) (max_over_time(sardonyx_coordinator_epoch[10m])) - "
        "min by (deployment) (min_over_time(sardonyx_coordinator_epoch[10m])) > 3",
    ),
    Alert(
        "SardonyxJobFailed",
        "a job failed within the last 10 minutes",
        "sardonyx job list",
        'max by (deployment) (sardonyx_jobs{status="failed"}) - '
        '(max by (deployment) (sardonyx_jobs{status="failed"} offset 10m) or '
        '0 * max by (deployment) (sardonyx_jobs{status="failed"})) > 0',
    ),
    Alert(
        "SardonyxJobLacksPeers",
        "a job has lacked virtual peers for 10 minutes",
        "sardonyx job explain JOB",
        "sum by (deployment, sx_job) (sardonyx_job_missing_peers) > 0",
        "10m",
    ),
    Alert(
        "SardonyxTaskFails",
        "a task failed more than 3 times in 10 minutes",
        "sardonyx job explain JOB",
        f"{_TASK} (increase(sardonyx_task_failures_total[10m])) > 3",
    ),
    Alert(
        "SardonyxTaskStuck",
        "peers have worked on a task for 10 minutes without a pause, and committed nothing",
        "sardonyx job explain JOB",
        "min by (deployment, sx_job, task) (min_over_time(sardonyx_task_busy_ratio[10m])) > 0.95 unless "
        f'{_TASK} (increase(sardonyx_task_batches_total{{outcome="committed"}}[10m])) > 0',
        "10m",
    ),
    Alert(
        "SardonyxBatchesDropped",
        "for 10 minutes most batches of a task were not committed",
        "sardonyx job show JOB",
        f'{_TASK} (rate(sardonyx_task_batches_total{{outcome!="committed"}}[5m])) > '
        f"0.5 * {_TASK} (rate(sardonyx_task_batches_total[5m]))",
        "10m",
    ),
    Alert(
        "SardonyxDeadLettersGrow",
        "a task wrote dead letters within the last 10 minutes",
        "sardonyx dlq list JOB",
        f'{_TASK} (increase(sardonyx_task_rows_total{{what="dead"}}[10m])) > 0',
    ),
    Alert(
        "SardonyxLinkBehind",
        "for 15 minutes rows of a link have waited for more than 5 minutes, and did not become fewer",
        "sardonyx link lag JOB",
        f"{_LINK} (sardonyx_link_oldest_unread_seconds) > 300 and {_LINK} (deriv(sardonyx_link_unread_rows[15m])) >= 0",
        "15m",
    ),
    Alert(
        "SardonyxLagUnknown",
        "for 15 minutes Kafka has not told the pages how far a job is behind",
        "sardonyx link lag JOB",
        "time() - max by (deployment, sx_job) (sardonyx_job_lag_timestamp_seconds) > 900",
    ),
    Alert(
        "SardonyxPeersDie",
        "more than a tenth of the virtual peers died within 10 minutes",
        "sardonyx peers list",
        'sum by (deployment) (increase(sardonyx_coordinator_events_total{kind="died"}[10m])) > '
        "0.1 * sum by (deployment) (sardonyx_peers)",
    ),
    Alert(
        "SardonyxSparkRestarts",
        "a daemon started Spark again more than twice within an hour",
        "sardonyx doctor",
        "increase(sardonyx_spark_restarts_total[1h]) > 2",
    ),
    Alert(
        "SardonyxZooKeeperAway",
        "a daemon has had no connection to ZooKeeper for 30 seconds",
        "sardonyx doctor",
        "sardonyx_zookeeper_connected == 0",
        "30s",
        "page",
    ),
    Alert(
        "SardonyxZooKeeperSlow",
        "for 5 minutes ZooKeeper has taken more than a second for one request in a hundred",
        "sardonyx doctor",
        "histogram_quantile(0.99, sum by (deployment, instance, le) "
        "(rate(sardonyx_zookeeper_request_seconds_bucket[5m]))) > 1",
        "5m",
    ),
    Alert(
        "SardonyxTopicsFail",
        "creating or deleting the topics of jobs failed more than 3 times in 10 minutes",
        "sardonyx doctor",
        'sum by (deployment) (increase(sardonyx_coordinator_side_effects_total{outcome!="done"}[10m])) > 3',
    ),
    Alert(
        "SardonyxKafkaReleaseBad",
        "the brokers are of a release that loses the ends of transactions when one restarts",
        "sardonyx doctor",
        "max by (deployment) (sardonyx_kafka_loses_ends) > 0",
    ),
    Alert(
        "SardonyxCertificateEnds",
        "a certificate with which a daemon logs in ends within 14 days",
        "sardonyx doctor",
        "sardonyx_certificate_ends_timestamp_seconds - time() < 14 * 86400",
    ),
    Alert(
        "SardonyxWebBehind",
        "for 2 minutes the pages have not read the log to its end, so that they show what was",
        "sardonyx doctor",
        "time() - max by (deployment) (sardonyx_web_log_read_timestamp_seconds) > 120",
    ),
    Alert(
        "SardonyxSnapshotOld",
        "the log has 100,000 entries since the last snapshot, so that the next leader takes over slowly",
        "sardonyx log verify",
        "sardonyx_coordinator_log_last - sardonyx_coordinator_snapshot_last > 100000",
    ),
    Alert(
        "SardonyxDaemonGrows",
        "the memory of a daemon has grown for 6 hours by more than 10 kB a second",
        "sardonyx peers list",
        "deriv(process_resident_memory_bytes[6h]) * on (instance) group_left (deployment) sardonyx_build_info > 10000",
        "1h",
    ),
)
