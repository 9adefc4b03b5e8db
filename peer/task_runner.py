"""What a peer daemon works on tasks with: the Spark session and the state on this machine, which all its virtual peers share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from peer.assignment import AssignmentHandle
from peer.peer_metrics import SPARK_RESTARTS
from peer.process import Process
from sardonyx.core.notes import Assignment
from sardonyx.runtime.settings import Settings
from sardonyx.zookeeper.session import ZooKeeperSession

if TYPE_CHECKING:
    from peer.prepared_task import PreparedTask
    from spark_tasks.on_demand import SparkOnDemand
    from spark_tasks.session import SparkSession

log = structlog.get_logger()

_WORKERS_LAST = 40.0
"""Seconds between small jobs for Spark's Python workers. Spark ends workers after a minute without any."""


class SparkTaskRunner:
    """Runs tasks as Spark micro-batches between Kafka queues.

    Args:
        settings: connection to Kafka, and timers.
        spark: the daemon's Spark session, which starts when a task needs it.
        code_cache: directory for the bundles of job code.
    """

    def __init__(self, settings: Settings, spark: SparkOnDemand, code_cache: Path) -> None:
        from peer.kept_shards import KeptShards
        from peer.standby import StandbyShards
        from queues.state_follower import StateFollower

        self._settings = settings
        self.spark = spark
        self._code_cache = code_cache
        self._at_work: set[str] = set()
        """The virtual peers that work on a task."""
        self._kept: KeptShards[Any] = KeptShards()
        """What assignments that are over left of their state. All virtual peers have this one."""
        self._standby = StandbyShards(lambda: StateFollower(settings))
        """What this process follows of the state of other processes."""

    def restore(self) -> None:
        """Forget Spark if its JVM has ended. The next task that needs it starts it again."""
        if self.spark.has_ended:
            log.warning("spark_restarting")
            SPARK_RESTARTS.add()
            self.spark.forget()

    def keep_workers(self) -> None:
        """Keep Spark's Python workers while there are tasks. Never returns.

        Spark ends workers that had nothing to do for a minute, and the first record after that would wait for new ones, which
        takes seconds.
        """
        while True:
            time.sleep(_WORKERS_LAST)
            session = self.spark.running
            if session is not None and self._at_work:
                warm_up(session)

    def close(self) -> None:
        """No assignment comes any more: give back what earlier ones left. Before the folder of the stores is deleted."""
        self._kept.close()
        self._standby.close()

    def stand_by(self, process: Callable[[], Process | None]) -> None:
        """Follow the state of tasks of other processes, on threads of its own.

        Args:
            process: the session, and what this process is; None while there is no session.
        """
        from peer.standby_tasks import StandbyTasks

        def prepare(zk: ZooKeeperSession, assignment: Assignment) -> PreparedTask:
            return self.prepare(zk, "standby", assignment)

        tasks = StandbyTasks(self._settings, process, self._standby, prepare)
        threading.Thread(target=self._standby.run, name="standby", daemon=True).start()
        threading.Thread(target=tasks.run, name="standby-tasks", daemon=True).start()

    def prepare(self, zk: ZooKeeperSession, peer: str, assignment: Assignment) -> PreparedTask:
        from peer.preparation import prepare

        return prepare(self._settings, zk, self.spark, peer, assignment, self._code_cache, self._kept, self._standby)

    def work(self, prepared: PreparedTask, handle: AssignmentHandle, zk: ZooKeeperSession) -> None:
        from peer.task_loop import TaskLoop

        self._at_work.add(prepared.peer)
        try:
            TaskLoop(prepared, handle, zk).run()
        finally:
            self._at_work.discard(prepared.peer)


def warm_up(session: SparkSession) -> None:
    """Let Spark start its Python workers, which takes seconds. Raises nothing: the first task meets the error, and reports it."""
    from spark_tasks.worker import ready
    from spark_tasks.worker_pool import on_workers

    try:
        on_workers(session, "getting workers ready", ready, range(session.sparkContext.defaultParallelism))
    except Exception as error:  # noqa: BLE001
        log.debug("spark_warm_up_failed", error=str(error))
