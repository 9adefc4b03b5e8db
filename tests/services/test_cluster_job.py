"""What ``make test-compose`` does with the daemons of ``docker-compose.yml``, on daemons of the suite."""

from __future__ import annotations

from pathlib import Path

from tests.services.cluster_job import run_job
from tests.services.house import House


def test_daemons_that_run_already_get_a_job(house: House, tmp_path: Path) -> None:
    """Submitted by the command from another process: every row is in the shared folder once."""
    tmp_path.chmod(0o777)
    job = run_job(tmp_path, house.settings.environment())
    assert job not in {view.id for view in house.client.jobs()}
