"""The last batches of a task on the pages, also of a peer that was killed; and a deployment without telemetry."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queues import admin
from queues.telemetry import TelemetryReader
from sardonyx import Job, blackhole, generator
from sardonyx.cli.daemons import ADDRESS
from sardonyx.core.errors import SetupError
from sardonyx.core.telemetry import topic_of
from sardonyx.runtime.child_process import start_child
from sardonyx.runtime.settings import Settings
from tests.scrape import get
from tests.services.crew import Crew
from tests.waiting import until

SIZE = 50


def slow(row: dict) -> dict:
    time.sleep(0.01)  # so that a batch takes half a second, and its peer is killed in one
    return row


def job_of() -> Job:
    """It ends only if it is ended."""
    job = Job("told", partitions=2)
    read = job.input("read", generator(5_000_000), batch_size=500)
    job.output("drop", blackhole(), after=job.task("slow", slow, after=read, batch_size=SIZE))
    return job


@pytest.fixture
def crew(settings: Settings, tmp_path: Path) -> Iterator[Crew]:
    telling = settings.model_copy(update={"metrics": settings.metrics.model_copy(update={"telemetry": True})})
    with Crew(telling, tmp_path) as made:
        yield made


def test_the_last_batches_of_a_killed_peer_are_on_the_page(crew: Crew, settings: Settings, tmp_path: Path) -> None:
    """The page shows all batches that it has committed, with the steps in which the time went, but not the batch in hand. Pages
    that are opened after its death show them, too.
    """
    crew.coordinator()
    doomed = crew.peers(3)
    handle = crew.client.submit(job_of())

    def committed() -> int:
        return handle.status().task("slow").rows_in or 0

    crew.until(lambda: committed() >= 4 * SIZE, "some batches to be committed")
    working = set(handle.status(live=False).task("slow").peer_ids)
    doomed.kill()
    command = [sys.executable, "-m", "sardonyx", "web", "--port", "0"]
    with start_child(command, name="web", log_path=tmp_path / "web.log", env=settings.environment()) as web:
        address = until(lambda: ADDRESS.search(web.log_tail(50)), what="the pages to be served")[0].rstrip("/")

        def told(task: str = "slow") -> dict[str, Any]:
            status, _, body = get(f"{address}/api/v1/jobs/{handle.id}/tasks/{task}/batches?limit=200")
            assert status == 200, body
            found: dict[str, Any] = json.loads(body)
            return found

        def known() -> bool:
            page = told()
            rows = sum(batch.get("rows_in", 0) for batch in page["items"])
            return not page["problem"] and rows >= committed() - SIZE * len(working)

        crew.until(known, "the batches of the killed peer to be told")
        batches = told()["items"]
        assert {batch["peer"] for batch in batches} == working
        assert {batch["outcome"] for batch in batches} == {"committed"}
        assert [batch["at"] for batch in batches] == sorted((batch["at"] for batch in batches), reverse=True)
        assert all(batch["seconds"]["function"] > 0 for batch in batches if batch.get("rows_in"))
        assert sum(batch.get("rows_in", 0) for batch in batches) <= committed()
        assert get(f"{address}/api/v1/jobs/{handle.id}/tasks/slwo/batches")[0] == 404


def test_a_deployment_can_do_without(settings: Settings, tmp_path: Path) -> None:
    """Then there is no topic, jobs run, and the page says what to set."""
    with Crew(settings, tmp_path) as crew:
        crew.coordinator()
        crew.peers(2)
        job = Job("quiet", partitions=1)
        job.output("drop", blackhole(), after=job.input("read", generator(10)))
        crew.completed(crew.client.submit(job))
        assert topic_of(settings.deployment) not in admin.topics(settings)
        with pytest.raises(SetupError) as raised:
            TelemetryReader(settings)
        assert raised.value.code == "SX-TELEMETRY-OFF"
        assert "metrics.telemetry" in raised.value.fix
