"""The boards for Grafana, and their panels."""

from __future__ import annotations

from dataclasses import dataclass

_D = 'deployment=~"$deployment"'
_J = f'{_D}, sx_job=~"$sx_job"'
_I = f'{_D}, instance=~"$instance"'
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


@dataclass(frozen=True)
class Board:
    """A board, which is a file."""

    name: str
    title: str
    chosen: tuple[str, str] | None
    """The label of which the reader chooses values, besides deployments, and a metric that has them all."""
    panels: tuple[Panel, ...]


def _quantile(share: float, metric: str, by: str, which: str) -> str:
    return f"histogram_quantile({share}, sum by ({by}, le) (rate({metric}_bucket{{{which}}}[$__rate_interval])))"


_CLUSTER = (
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
        (f"sum by (sx_job) (sardonyx_job_missing_peers{{{_D}}})",),
    ),
    Panel(
        "Jobs that lack peers",
        "For how long each has lacked some.",
        "s",
        "{{sx_job}}",
        (f"time() - min by (sx_job) (sardonyx_job_waiting_since_timestamp_seconds{{{_D}}})",),
    ),
    Panel(
        "Rows in, by job",
        "Read by committed batches of all tasks.",
        "rowsps",
        "{{sx_job}}",
        (f'sum by (sx_job) (rate(sardonyx_task_rows_total{{{_D}, what="in"}}[$__rate_interval]))',),
    ),
    Panel(
        "Oldest unread row, by job",
        "On the link of each job on which it has waited the longest.",
        "s",
        "{{sx_job}}",
        (f"max by (sx_job) (sardonyx_link_oldest_unread_seconds{{{_D}}})",),
    ),
    Panel(
        "Failures of tasks, by job",
        "Reported to the coordinator.",
        "short",
        "{{sx_job}}",
        (f"sum by (sx_job) (increase(sardonyx_task_failures_total{{{_D}}}[$__rate_interval]))",),
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
        "Leader: time spent deciding",
        "Seconds in each second; near 1: it cannot decide faster.",
        "short",
        "{{deployment}}",
        (f"sum by (deployment) (rate(sardonyx_coordinator_decide_seconds_total{{{_D}}}[$__rate_interval]))",),
    ),
    Panel(
        "Oldest request in the inbox",
        "More than a few seconds: the leader does not keep up.",
        "s",
        "{{deployment}}",
        (f"max by (deployment) (sardonyx_coordinator_inbox_oldest_seconds{{{_D}}})",),
    ),
    Panel(
        "Refused requests",
        "Taken out of the inbox without a decision.",
        "short",
        "{{reason}}",
        (f"sum by (reason) (increase(sardonyx_coordinator_requests_refused_total{{{_D}}}[$__rate_interval]))",),
    ),
    Panel(
        "Topics and fences that wait",
        "To be created, changed, deleted or ended in Kafka.",
        "short",
        "{{deployment}}",
        (f"sum by (deployment) (sardonyx_coordinator_side_effects_waiting{{{_D}}})",),
    ),
    Panel(
        "Failed work on topics",
        "Attempts that failed, and fences of lost peers that Kafka had to end after a timeout.",
        "short",
        "{{effect}} {{outcome}}",
        (
            f'sum by (effect, outcome) (increase(sardonyx_coordinator_side_effects_total{{{_D}, outcome!="done"}}{_RATE}',
            f'sum by (outcome) (increase(sardonyx_coordinator_fences_total{{{_D}, outcome!="done"}}{_RATE}',
        ),
    ),
    Panel(
        "Entries of the log",
        "Kept in ZooKeeper; and since the last snapshot, which the next leader replays.",
        "short",
        "{{deployment}}",
        (
            f"max by (deployment) (sardonyx_coordinator_log_last{{{_D}}} - sardonyx_coordinator_log_first + 1)",
            f"max by (deployment) (sardonyx_coordinator_log_last{{{_D}}} - sardonyx_coordinator_snapshot_last)",
        ),
    ),
    Panel(
        "Size of the state",
        "In the last snapshot. Ended jobs make most of it: coordinator.keep_jobs.",
        "bytes",
        "{{deployment}}",
        (f"max by (deployment) (sardonyx_coordinator_snapshot_bytes{{{_D}}})",),
    ),
    Panel(
        "Snapshot, 99th percentile",
        "From its begin until it is complete.",
        "s",
        "{{deployment}}",
        (_quantile(0.99, "sardonyx_coordinator_snapshot_seconds", "deployment", _D),),
    ),
    Panel(
        "The pages are behind",
        "Since they last read the log to its end.",
        "s",
        "{{deployment}}",
        (f"time() - max by (deployment) (sardonyx_web_log_read_timestamp_seconds{{{_D}}})",),
    ),
    Panel(
        "Open pages",
        "Streams of changes that clients read.",
        "short",
        "{{deployment}}",
        (f"sum by (deployment) (sardonyx_web_streams{{{_D}}})",),
    ),
    Panel(
        "Certificates are valid for",
        "Those with which daemons log in. A daemon reads its certificate when it starts.",
        "s",
        "{{instance}} {{setting}}",
        (f"min by (instance, setting) (sardonyx_certificate_ends_timestamp_seconds{{{_D}}}) - time()",),
    ),
)
_JOB = (
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
        "Delay, 99th percentile",
        "From when the oldest record of a batch was written until the batch is committed.",
        "s",
        "{{sx_job}} {{task}}",
        (_quantile(0.99, "sardonyx_task_delay_seconds", "sx_job, task", _J),),
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
        "Busy",
        "Share of the time in which the virtual peers on a task have a batch in hand; near 1: give it more peers.",
        "percentunit",
        "{{sx_job}} {{task}}",
        (f"avg by (sx_job, task) (sardonyx_task_busy_ratio{{{_J}}})",),
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
        "Runs again after an error",
        "Of functions that had raised, as on_error says.",
        "short",
        "{{sx_job}} {{task}}",
        (f"{_BY_TASK} (rate(sardonyx_task_retry_runs_total{{{_J}}}[$__rate_interval]))",),
    ),
    Panel(
        "New clients of Kafka",
        "How often a task went on with new ones after an error.",
        "short",
        "{{sx_job}} {{task}}",
        (f"{_BY_TASK} (increase(sardonyx_task_rebuilds_total{{{_J}}}[$__rate_interval]))",),
    ),
)
_DAEMON = (
    Panel(
        "Virtual peers of each daemon",
        "By what they have done so far.",
        "short",
        "{{instance}} {{state}}",
        (f"sum by (instance, state) (sardonyx_virtual_peers{{{_I}}})",),
    ),
    Panel(
        "Transactions",
        "Of Kafka, by outcome.",
        "short",
        "{{instance}} {{outcome}}",
        (f"sum by (instance, outcome) (rate(sardonyx_transactions_total{{{_I}}}[$__rate_interval]))",),
    ),
    Panel(
        "Aborted transactions",
        "By reason.",
        "short",
        "{{instance}} {{reason}}",
        (f"sum by (instance, reason) (rate(sardonyx_transaction_aborts_total{{{_I}}}[$__rate_interval]))",),
    ),
    Panel(
        "Transaction, 99th percentile",
        "From its begin until its commit is confirmed.",
        "s",
        "{{instance}}",
        (_quantile(0.99, "sardonyx_transaction_seconds", "instance", _I),),
    ),
    Panel(
        "Taking a slot, 99th percentile",
        "Until Kafka lets a peer write, having ended what the last one left open.",
        "s",
        "{{instance}}",
        (_quantile(0.99, "sardonyx_slot_takeover_seconds", "instance", _I),),
    ),
    Panel(
        "Broken connections to brokers",
        "Of producers; also those that could not be made.",
        "short",
        "{{instance}}",
        (f"sum by (instance) (increase(sardonyx_kafka_connection_errors_total{{{_I}}}[$__rate_interval]))",),
    ),
    Panel(
        "Ends of tasks, 99th percentile",
        "From when a peer was told to seal a task until that is complete.",
        "s",
        "{{instance}}",
        (_quantile(0.99, "sardonyx_seal_seconds", "instance", _I),),
    ),
    Panel(
        "Rebalances",
        "Partitions that groups have given and taken.",
        "short",
        "{{instance}} {{kind}}",
        (f"sum by (instance, kind) (rate(sardonyx_rebalances_total{{{_I}}}[$__rate_interval]))",),
    ),
    Panel(
        "Rows read ahead",
        "And not yet worked on.",
        "short",
        "{{instance}}",
        (f"sum by (instance) (sardonyx_reader_buffered_rows{{{_I}}})",),
    ),
    Panel(
        "Tasks with a full buffer",
        "They read nothing more until a batch is done.",
        "short",
        "{{instance}}",
        (f"sum by (instance) (sardonyx_readers_paused{{{_I}}})",),
    ),
    Panel(
        "Offers of tasks",
        "By answer.",
        "short",
        "{{instance}} {{answer}}",
        (f"sum by (instance, answer) (rate(sardonyx_offers_total{{{_I}}}[$__rate_interval]))",),
    ),
    Panel(
        "Starts of Spark again",
        "After its JVM had ended.",
        "short",
        "{{instance}}",
        (f"sum by (instance) (increase(sardonyx_spark_restarts_total{{{_I}}}[$__rate_interval]))",),
    ),
    Panel(
        "Memory of Spark",
        "Of its JVM, and of its Python workers on the same machine.",
        "bytes",
        "{{instance}}",
        (
            f"sum by (instance) (sardonyx_spark_jvm_resident_bytes{{{_I}}})",
            f"sum by (instance) (sardonyx_spark_workers_resident_bytes{{{_I}}})",
        ),
    ),
    Panel(
        "ZooKeeper: answer, 99th percentile",
        "Of requests that a daemon waits for.",
        "s",
        "{{instance}}",
        (_quantile(0.99, "sardonyx_zookeeper_request_seconds", "instance", _I),),
    ),
    Panel(
        "Memory of the daemons",
        "Without Spark's JVM and its workers, which are processes of their own.",
        "bytes",
        "{{instance}}",
        (f"process_resident_memory_bytes and on (instance) sardonyx_build_info{{{_I}}}",),
    ),
    Panel(
        "Processor",
        "Without Spark's JVM and its workers, which are processes of their own.",
        "short",
        "{{instance}}",
        (f"rate(process_cpu_seconds_total[$__rate_interval]) and on (instance) sardonyx_build_info{{{_I}}}",),
    ),
    Panel(
        "Threads",
        "Of Python, in each daemon.",
        "short",
        "{{instance}}",
        (f"sum by (instance) (sardonyx_threads{{{_I}}})",),
    ),
    Panel(
        "Errors and warnings in the log",
        "Lines in each second.",
        "short",
        "{{instance}} {{level}}",
        (f'sum by (instance, level) (rate(sardonyx_log_lines_total{{{_I}, level=~"warning|error"}}{_RATE}',),
    ),
)

BOARDS = (
    Board("cluster", "Sardonyx", None, _CLUSTER),
    Board("job", "Sardonyx: jobs", ("sx_job", "sardonyx_task_rows_total"), _JOB),
    Board("daemon", "Sardonyx: daemons", ("instance", "sardonyx_build_info"), _DAEMON),
)
PANELS = tuple(panel for board in BOARDS for panel in board.panels)
