"""A peer daemon with ``peer.allow`` and ``peer.files``: what it runs for jobs, and what it leaves to other daemons."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sardonyx.client.job_handle import JobHandle
from sardonyx.runtime.settings import Settings, load_settings
from tests.services.crew import Crew
from tests.services.house import House

SHOP = """
def price(row: dict) -> dict:
    return {{"n": row["n"], "by": "{by}"}}
"""
JOB = """
from planted_shop import price
from sardonyx import Job, files, generator

def own(row: dict) -> dict:
    return {{"n": row["n"], "by": "own"}}

job = Job("{name}", partitions=1, failure_limit=0)  # the first failure that counts fails it
read = job.input("read", generator(20, columns={{"n": "sequence"}}))
job.output("out", files("{out}", format="json"), after=job.task("work", {function}, after=read))
"""


def test_a_limited_daemon_runs_what_is_installed_and_leaves_the_rest_to_others(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that a job brings is not used, even if it has the name of one that is allowed. A function of the job, and a folder
    elsewhere, are declined with what to change, as often as it takes, until a daemon without limits runs them.
    """
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "planted_shop.py").write_text(SHOP.format(by="installed"))
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "planted_shop.py").write_text(SHOP.format(by="brought"))
    peer = load_settings(peer={"allow": ["planted_shop"], "files": [str(inside)]}).peer
    with Crew(settings, tmp_path) as crew:
        house = House(settings, crew)
        crew.coordinator()
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "installed"))
        crew.peers(2, settings=settings.model_copy(update={"peer": peer}))
        monkeypatch.delenv("PYTHONPATH")

        def submitted(function: str, out: Path) -> JobHandle:
            return house.submit(tmp_path / "job", JOB.format(name=f"shop-{out.name}", function=function, out=out))

        crew.completed(submitted("price", inside / "a"))
        assert written_by(inside / "a") == {"installed"}

        module, place = submitted("own", inside / "b"), submitted("price", outside / "c")
        for handle, code, setting in ((module, "SX-PEER-MODULE", "peer.allow"), (place, "SX-PEER-FILES", "peer.files")):

            def told(handle: JobHandle = handle) -> str:
                return house.call("job", "explain", handle.id).stdout

            crew.until(lambda told=told, code=code: code in told(), f"a decline with {code}")
            assert setting in house.call("log", "show", "--job", handle.id, "--json").stdout
            assert not handle.status().ended
        crew.peers(4)
        crew.completed(module, 300)  # some back-offs, if the first daemon is asked again
        crew.completed(place, 300)
        assert written_by(inside / "b") == {"own"}
        assert written_by(outside / "c") <= {"installed", "brought"}  # either daemon may have worked before the output


def written_by(folder: Path) -> set[str]:
    rows = [json.loads(line) for part in folder.rglob("*.json*") for line in part.read_text().splitlines()]
    assert len({row["n"] for row in rows}) == len(rows) == 20
    return {row["by"] for row in rows}
