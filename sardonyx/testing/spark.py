"""The Spark session that all runs in this process share."""

from __future__ import annotations

import atexit
import threading

from sardonyx.runtime.settings_sections import SparkSettings
from spark_tasks.session import SparkSession, is_alive, start_session, stop_session

MASTER = "local[2]"
"""Not from the settings: tests run on this machine, and two cores show what happens when a batch is cut into slices."""

_lock = threading.Lock()


def shared_session() -> SparkSession:
    """The active session of this process. If there is none, start one, and stop it when the process ends.

    Raises:
        SetupError: ``SX-JAVA-MISSING``, ``SX-JAVA-OLD``, ``SX-SPARK-START``.
    """
    with _lock:
        active = SparkSession.getActiveSession()
        if active is not None and is_alive(active):
            return active
        started = start_session(SparkSettings(master=MASTER, conf={"spark.driver.memory": "1g"}))
        atexit.register(stop_session, started)
        return started
