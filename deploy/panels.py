"""The panels of the board for Grafana."""

from __future__ import annotations

from dataclasses import dataclass

_D = 'deployment=~"$deployment"'
_J = f'{_D}, sx_job=~"$sx_job"'
_RATE = "[$__rate_interval]))"
_BY_TASK = "sum by (sx_job, task)"


@dataclass(frozen=True)
class Panel:
    """A panel with some lines over time."""

    title: str
    says: str
    unit: str
    """As Grafana names it."""
    legend: str
    exprs: tuple[str, ...]


def _quantile(share: float, metric: str, by: str, which: str) -> str:
    return f"histogram_quantile({share}, sum by ({by}, le) (rate({metric}_bucket{{{which}}}[$__rate_interval])))"


PANELS = (
    Panel(
        "Coordinators that lead",
        "One for each deployment. None: nothing is decided, and peers go on with what they have.",
        "short",
        "{{deployment}}",
        (f"sum by (deployment) (sardonyx_coordinator_leading{{{_D}}})",),
    ),
    Panel(
        "Jobs",
        "By status, of the jobs that the coordinator keeps.",
        "short",
        "{{status}}",
        (f"sum by (status) (sardonyx_jobs{{{_D}}})",),
    ),
    Panel(
        "Virtual peers",
        "By state, as the coordinator has decided it.",
        "short",
        "{{state}}",
        (f"sum by (state) (sardonyx_peers{{{_D}}})",),
    ),
    Panel(
        "Missing peers",
        "Virtual peers that a job lacks to go on.",
        "short",
        "{{sx_job}}",
        (f"sum by (sx_job) (sardonyx_job_missing_peers{{{_J}}})",),
    ),
    Panel(
        "Rows in",
        "Read by committed batches.",
        "rowsps",
        "{{sx_job}} {{task}}",
        (f'{_BY_TASK} (rate(sardonyx_task_rows_total{{{_J}, what="in"}}[$__rate_interval]))',),
    ),
    Panel(
        "Rows out",
        "Given by committed batches.",
        "rowsps",
        "{{sx_job}} {{task}}",
        (f'{_BY_TASK} (rate(sardonyx_task_rows_total{{{_J}, what="out"}}[$__rate_interval]))',),
    ),
    Panel(
        "Rows that failed or came late",
        "Bad records that were left out, dead letters, and rows whose windows had closed.",
        "rowsps",
        "{{sx_job}} {{task}} {{what}}",
        (f'sum by (sx_job, task, what) (rate(sardonyx_task_rows_total{{{_J}, what=~"skipped|dead|late"}}{_RATE}',),
    ),
    Panel(
        "Unread rows",
        "On each link that a task reads, as the pages were told within the last minute or so.",
        "short",
        "{{sx_job}} {{link}}",
        (f"max by (sx_job, link) (sardonyx_link_unread_rows{{{_J}}})",),
    ),
    Panel(
        "Oldest unread row",
        "How long it has waited on each link.",
        "s",
        "{{sx_job}} {{link}}",
        (f"max by (sx_job, link) (sardonyx_link_oldest_unread_seconds{{{_J}}})",),
    ),
    Panel(
        "Event time behind",
        "How far the clock of each task is behind the time of day, in jobs whose inputs have times.",
        "s",
        "{{sx_job}} {{task}}",
        (f"max by (sx_job, task) (sardonyx_task_event_time_behind_seconds{{{_J}}})",),
    ),
    Panel(
        "Batch duration, 99th percentile",
        "Of committed batches, without the wait for rows.",
        "s",
        "{{sx_job}} {{task}}",
        (_quantile(0.99, "sardonyx_task_batch_seconds", "sx_job, task", _J),),
    ),
    Panel(
        "Busy peers",
        "How many peers the work of each task fills: seconds of all steps but the wait for rows, in each second.",
        "short",
        "{{sx_job}} {{task}}",
        (f'{_BY_TASK} (rate(sardonyx_task_step_seconds_total{{{_J}, step!="wait"}}[$__rate_interval]))',),
    ),
    Panel(
        "Where batches spend their time",
        "Seconds of each step in each second, over all tasks.",
        "short",
        "{{step}}",
        (f"sum by (step) (rate(sardonyx_task_step_seconds_total{{{_J}}}[$__rate_interval]))",),
    ),
    Panel(
        "Batches that were not committed",
        "Dropped: to be read again. Delayed: a service was away.",
        "short",
        "{{sx_job}} {{task}} {{outcome}}",
        (f'sum by (sx_job, task, outcome) (rate(sardonyx_task_batches_total{{{_J}, outcome!="committed"}}{_RATE}',),
    ),
    Panel(
        "Failures of tasks",
        "Reported to the coordinator, by error code; docs/errors.md says what to do.",
        "short",
        "{{sx_job}} {{task}} {{code}}",
        (f"sum by (sx_job, task, code) (increase(sardonyx_task_failures_total{{{_J}}}[$__rate_interval]))",),
    ),
    Panel(
        "Events decided",
        "Entries of the coordinator's log in each second, by kind.",
        "short",
        "{{kind}}",
        (f"sum by (kind) (rate(sardonyx_coordinator_events_total{{{_D}}}[$__rate_interval]))",),
    ),
    Panel(
        "Leader: turn, append, effects, 99th percentile",
        "How long the leader takes for a turn, for the log and for the tree.",
        "s",
        "{{deployment}}",
        (
            _quantile(0.99, "sardonyx_coordinator_turn_seconds", "deployment", _D),
            _quantile(0.99, "sardonyx_coordinator_append_seconds", "deployment", _D),
            _quantile(0.99, "sardonyx_coordinator_effects_seconds", "deployment", _D),
        ),
    ),
    Panel(
        "Oldest request in the inbox",
        "More than a few seconds: the leader does not keep up.",
        "s",
        "{{deployment}}",
        (f"max by (deployment) (sardonyx_coordinator_inbox_oldest_seconds{{{_D}}})",),
    ),
    Panel(
        "ZooKeeper: answer, 99th percentile",
        "Of requests that a daemon waits for.",
        "s",
        "{{instance}}",
        (_quantile(0.99, "sardonyx_zookeeper_request_seconds", "instance", _D),),
    ),
    Panel(
        "Memory of the daemons",
        "Without Spark's JVM and its workers, which are processes of their own.",
        "bytes",
        "{{instance}}",
        (f"process_resident_memory_bytes and on (instance) sardonyx_build_info{{{_D}}}",),
    ),
    Panel(
        "Errors and warnings in the log",
        "Lines in each second.",
        "short",
        "{{instance}} {{level}}",
        (f'sum by (instance, level) (rate(sardonyx_log_lines_total{{{_D}, level=~"warning|error"}}{_RATE}',),
    ),
)
