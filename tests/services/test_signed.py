"""A peer daemon with ``peer.signers``: it leaves unsigned code alone, and runs signed code wherever code of a job runs."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sardonyx.core import node_paths
from sardonyx.job.signatures import new_key
from sardonyx.runtime.settings import Settings, load_settings
from tests.services.crew import Crew
from tests.services.house import House, called, told, written

STREAM = """
from pyspark.sql import DataFrame
from sardonyx import Job, event_time, kafka

def label(row: dict) -> dict:
    return {{**row, "by": "label"}}

def counted(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("n", "by")

job = Job("stream", partitions=2)
read = job.input("read", kafka("{topic}", schema="n long, at timestamp", start="earliest"), time=event_time("at", delay="10 s"))
job.output("{task}-out", kafka("{topic}-{task}"), after=job.task("{task}", label, after=read))
job.output("frames", kafka("{topic}-frames"), after=job.task("frame", counted, after=job.task("all", label, after=read)))
"""
GRAPH = """
import pyarrow as pa
import pyarrow.compute as pc
from sardonyx import Job, files, generator

def send(e: pa.Table) -> pa.Table:
    return pa.table({{"m": e["low"]}})

def update(v: pa.Table) -> pa.Table:
    return pa.table({{"low": pc.coalesce(v["m"], v["id"])}})

def linked(row: dict) -> dict:
    return {{"src": row["n"], "dst": row["n"] + 1}}

job = Job("club", partitions=1)
links = job.task("linked", linked, after=job.input("read", generator(5, columns={{"n": "sequence"}})))
club = job.graph("club", edges=links, source="src", target="dst")
low = club.compute("low", update, send, state="low bigint", combine={{"m": "min bigint"}}, max_supersteps=3)
job.output("out", files("{out}", format="json"), after=low)
"""
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def rows(*span: int) -> list[bytes]:
    """A row of every second."""
    times = ((n, (BEGIN + timedelta(seconds=n)).isoformat()) for n in range(*span))
    return [json.dumps({"n": n, "at": at}).encode() for n, at in times]


def test_a_daemon_with_signers_runs_what_they_have_signed(settings: Settings, tmp_path: Path) -> None:
    """An unsigned job waits, and says why and what to do. It goes on at the same daemon when a client with the key changes it: in
    Spark's driver and on its workers, in a change at a time, and in a program over a graph. ``job try`` asks for signatures too.
    """
    key = tmp_path / "signer.pem"
    public, other = new_key(key), new_key(tmp_path / "other.pem")
    peer = load_settings(peer={"signers": [f"{key}.pub"]}).peer
    signing = {**settings.environment(), "SARDONYX__CLIENT__SIGNER": str(key)}
    with Crew(settings, tmp_path) as crew:
        house = House(settings, crew)
        topic = house.make_topic("signed")
        crew.coordinator()
        crew.peers(6, settings=settings.model_copy(update={"peer": peer}))

        def version(name: str, task: str = "old") -> str:
            return written(tmp_path / name, STREAM.format(topic=topic, task=task))

        def found(output: str) -> list[int]:
            return sorted(row["n"] for row in house.records(f"{topic}-{output}"))

        house.fill(topic, *rows(100))
        handle = house.client.submit(version("unsigned"))

        def explained() -> bool:
            said = house.call("job", "explain", handle.id).stdout
            return "SX-PEER-SIGNATURE" in said and "client.signer" in said

        crew.until(explained, "a decline, and what to do about it")
        story = house.call("log", "show", "--job", handle.id, "--json").stdout
        assert "it has no signature" in story
        assert not handle.status(live=False).ended
        assert found("old") == []

        signed = version("signed")
        done = called("job", "change", handle.id, signed, env=signing)
        assert done.exit_code == 0, done.output
        for output in ("old", "frames"):
            crew.until(lambda output=output: found(output) == [*range(100)], f"the rows of {output}")

        for keys, code in ((other, "SX-PEER-SIGNATURE"), (str(tmp_path / "gone"), "SX-PEER-SIGNERS")):
            told(called("job", "try", handle.id, "all", signed, env={**signing, "SARDONYX__PEER__SIGNERS": keys}), code)

        after = version("later", "new")
        pending = called(
            "job", "change", handle.id, after, "--at", "2026-01-01T00:03:00Z", "--timeout", "1 s", env=signing
        )
        told(pending, "SX-JOB-CHANGE-PENDING", exit_code=pending.exit_code)
        house.fill(topic, *rows(100, 300))
        done = called(
            "job", "change", handle.id, after, "--at", "2026-01-01T00:03:00Z", "--timeout", "2 min", env=signing
        )
        assert done.exit_code == 0, f"{done.output}\n{crew.logs()}"
        crew.until(lambda: found("new") == [*range(180, 300)], "the rows of the new way")
        assert found("old") == [*range(180)]

        (tmp_path / "graph").mkdir()
        spec = written(tmp_path / "graph", GRAPH.format(out=tmp_path / "low"))
        by_client = House(
            settings.model_copy(update={"client": load_settings(client={"signer": str(key)}).client}), crew
        )
        done = called("job", "submit", spec, "--json", env=by_client.settings.environment())
        assert done.exit_code == 0, done.output
        club = house.client.job(json.loads(done.stdout)["id"])
        crew.completed(club)
        assert public.encode() in (house.client.zk.read(node_paths.code(str(club.spec().code))) or b"")
        parts = [
            json.loads(line) for part in (tmp_path / "low").rglob("*.json*") for line in part.read_text().splitlines()
        ]
        assert {row["id"]: row["low"] for row in parts} == {0: 0, 1: 0, 2: 0, 3: 1, 4: 2, 5: 3}


def test_a_daemon_whose_signers_cannot_be_read_does_not_start(settings: Settings, tmp_path: Path) -> None:
    """It tells at once, and not with the first task."""
    peer = load_settings(peer={"signers": [str(tmp_path / "gone")]}).peer
    with Crew(settings, tmp_path) as crew:
        daemon = crew.peers(1, wait=False, settings=settings.model_copy(update={"peer": peer}))
        assert crew.until(lambda: daemon.poll() or None, "its end") == 1
        assert "SX-PEER-SIGNERS" in daemon.log_tail(20)
