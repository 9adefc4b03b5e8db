"""A job on daemons that run already, by the command, as a user does: ``python -m tests.services.cluster_job FOLDER``.

``make test-compose`` gives it the coordinators and peers of ``docker-compose.yml``. The folder is one that all daemons see under
the same path, and may write to. The addresses are settings in the environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROWS = 20_000
JOB = """
from sardonyx import Job, files, generator

def doubled(row: dict) -> dict:
    return {{**row, "twice": 2 * row["id"]}}

job = Job("on-the-cluster", partitions=2)
made = job.input("made", generator({rows}, columns={{"id": "sequence"}}))
job.output("written", files({path!r}, format="json"), after=job.task("doubled", doubled, after=made))
"""


def run_job(shared: Path, env: Mapping[str, str]) -> str:
    """Submit the job, wait for its end, and compare what it has written; then purge it. Returns its id.

    Raises:
        AssertionError: a command failed, or a row is missing, doubled or wrong.
    """

    def call(*arguments: str) -> str:
        command = [sys.executable, "-m", "sardonyx", *arguments]
        done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"sardonyx {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    # The files may be another user's: what cannot be removed here goes with the folder.
    beside = tempfile.TemporaryDirectory(prefix="cluster-job-", dir=shared, ignore_cleanup_errors=True)
    with beside as made, tempfile.TemporaryDirectory() as code:
        folder = Path(made)
        folder.chmod(0o777)  # the daemons may run as another user
        spec = Path(code) / "job.py"
        spec.write_text(JOB.format(rows=ROWS, path=str(folder / "out")))
        job = call("job", "submit", str(spec))
        call("job", "await", job, "--timeout", "5 min")
        lines = [line for part in (folder / "out").glob("part-*") for line in part.read_text().splitlines()]
        rows = sorted((row["id"], row["twice"]) for row in map(json.loads, lines))
        assert rows == [(n, 2 * n) for n in range(ROWS)], f"{len(rows)} rows of {ROWS} were written, or others"
        assert (folder / "out" / "_SUCCESS").exists()
        call("job", "purge", job)
    return job


if __name__ == "__main__":
    sys.stdout.write(f"job {run_job(Path(sys.argv[1]), {})} ran on the cluster: {ROWS} rows, each once\n")
