"""A daemon starts Spark with the first task that needs it, and one that cannot start it says so at the task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from sardonyx import Count, Job, blackhole, files, generator, tumbling
from sardonyx.core.errors import JobFailed
from sardonyx.runtime.child_process import ChildProcess
from sardonyx.runtime.settings import Settings
from tests.services.crew import Crew

COLUMNS = {
    "id": "sequence",
    "user": {"kind": "key", "distinct": 20},
    "at": {"kind": "moment", "start": "2026-01-01T00:00:00Z", "step": "1 s"},
}


def same(row: dict[str, Any]) -> dict[str, Any]:
    """A function of records."""
    return row


def counting(folder: Path) -> Job:
    """Rows of a file, counted by the minute: all of it runs in the peer."""
    job = Job("count")
    rows = job.input("read", files(str(folder), format="json", schema="id long, user string, at timestamp"), time="at")
    minutes = job.window("minutes", tumbling("1 min"), after=rows, group_by="user", aggregate={"rows": Count()})
    job.output("drop", blackhole(), after=minutes)
    return job


def copying() -> Job:
    """Rows through a function."""
    job = Job("copy")
    read = job.input("read", generator(1_000, columns=COLUMNS))
    job.output("drop", blackhole(), after=job.task("same", same, after=read))
    return job


def machines_of(daemon: ChildProcess) -> list[str]:
    """The names of the Java processes below a daemon."""
    return [each.name() for each in psutil.Process(daemon.pid).children(recursive=True) if each.name() == "java"]


def test_a_job_of_windows_starts_no_jvm_and_one_with_a_function_does(settings: Settings, tmp_path: Path) -> None:
    """One daemon, two jobs: the first needs no Spark, though it reads files; the second makes the daemon start it."""
    source = tmp_path / "rows.json"
    source.write_text(
        "".join(f'{{"id": {n}, "user": "u{n % 7}", "at": "2026-01-01T00:{n // 60:02d}:00Z"}}\n' for n in range(600))
    )
    with Crew(settings, tmp_path) as crew:
        crew.coordinator()
        daemon = crew.peers(4)
        view = crew.completed(crew.client.submit(counting(source)))
        assert view.task("minutes").rows_in == 600
        assert view.task("minutes").rows_out == 10 * 7
        assert machines_of(daemon) == []
        view = crew.completed(crew.client.submit(copying()))
        assert view.task("same").rows_out == 1_000
        assert machines_of(daemon) == ["java"]


def test_where_spark_does_not_start_the_job_fails_and_the_daemon_stays(settings: Settings, tmp_path: Path) -> None:
    """The error is the job's. What needs no Spark runs on the same daemon."""
    source = tmp_path / "rows.json"
    source.write_text('{"id": 1, "user": "u", "at": "2026-01-01T00:00:00Z"}\n')
    wrong = settings.model_copy(update={"spark": settings.spark.model_copy(update={"master": "nonsense"})})
    with Crew(settings, tmp_path) as crew:
        crew.coordinator()
        daemon = crew.peers(4, settings=wrong)
        with pytest.raises(JobFailed, match="SX-SPARK-START"):
            crew.client.submit(copying()).await_completion(300)
        crew.completed(crew.client.submit(counting(source)))
        assert daemon.poll() is None
