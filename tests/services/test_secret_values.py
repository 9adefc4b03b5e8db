"""A job that refers to secrets, on a running deployment: its code gets the values; nothing that is stored or shown has them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from sardonyx.core import node_paths
from sardonyx.core.notes import CandidateNote, PulseNote
from sardonyx.core.secrets import MASK
from sardonyx.runtime.settings import Settings, load_settings
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.scrape import get
from tests.services.crew import Crew
from tests.services.house import House

JOB = """
import hashlib
from sardonyx import Job, Secret, connector, files

def call(row: dict, api_key: str) -> dict:
    if row["n"] == 3:
        raise ConnectionError(f"401 for {{api_key}} at https://u:{{row['login']}}@host")
    return {{"n": row["n"], "key": sign(api_key), "login": sign(row["login"])}}

def sign(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

class Source:
    def __init__(self, login: list) -> None:
        self.login = login

    def splits(self):
        return [{{"n": n}} for n in range(5)]

    def read(self, split):
        import pyarrow as pa
        return pa.table({{"n": [split["n"]], "login": [self.login[0]]}})

job = Job("calls", partitions=1)
read = job.input("read", connector("job:Source", login=[Secret.file("{file}")]))
called = job.task("call", call, after=read, params={{"api_key": Secret.env("{variable}")}}, on_error="dead_letter")
job.output("out", files("{out}", format="json"), after=called)
"""
ENV, FILE = "planted-env-7391", "planted-file-7391"


def test_code_gets_the_values_and_nothing_else_has_them(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Function and connector get what the daemon's environment and a file hold. Neither ZooKeeper, nor a dead letter's error,
    nor a command, nor a metric, nor a log has a value, also where the user's code has put it into an error.
    """
    import hashlib

    metrics = load_settings(metrics={"listen": "127.0.0.1:0"}).metrics
    settings = settings.model_copy(update={"metrics": metrics})

    secret, out = tmp_path / "login", tmp_path / "out"
    secret.write_text(f"{FILE}\n")
    monkeypatch.setenv("PLANTED_KEY", ENV)
    with Crew(settings, tmp_path) as crew:
        crew.coordinator()
        crew.peers(2)
        monkeypatch.delenv("PLANTED_KEY")
        house = House(settings, crew)
        handle = house.submit(tmp_path, JOB.format(file=secret, variable="PLANTED_KEY", out=out))
        crew.completed(handle)
        rows = [json.loads(line) for part in out.rglob("*.json*") for line in part.read_text().splitlines()]
        signed = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in (("key", ENV), ("login", FILE))}
        assert sorted(rows, key=lambda row: row["n"]) == [{"n": n, **signed} for n in (0, 1, 2, 4)]

        letter = json.loads(house.call("dlq", "show", handle.id, "--json").stdout)[0]
        assert f"401 for {MASK}" in json.dumps(letter["letter"]["failure"])
        assert ENV not in json.dumps(letter)
        assert FILE not in json.dumps(
            letter["letter"]
        )  # the record is the row as it came, which this input made with it
        spec = house.client.zk.read(node_paths.job_spec(handle.id))
        assert spec is not None
        assert b'{"$env":"PLANTED_KEY"}' in spec
        for command in (["log", "show"], ["log", "export"], ["job", "show", handle.id]):
            for form in ([], ["--json"]) if command[1] != "export" else ([],):
                told = house.call(*command, *form)
                assert told.exit_code == 0, told.stderr
                assert ENV not in told.stdout + told.stderr
                assert FILE not in told.stdout + told.stderr
        places = metrics_places(house.client.zk)
        assert len(places) == 2
        for place in places:
            status, _, text = get(f"http://{place}/metrics")
            assert status == 200
            assert "sardonyx_" in text
            assert ENV not in text
            assert FILE not in text
    for log in tmp_path.glob("*.log"):
        assert ENV not in log.read_text(), log
        assert FILE not in log.read_text(), log


def metrics_places(zk: ZooKeeperSession) -> set[str]:
    """Where the daemons serve metrics."""
    standing = [zk.read(f"{node_paths.ELECTION}/{name}") for name in zk.children(node_paths.ELECTION)]
    peers = [zk.read(node_paths.pulse(name)) for name in zk.children(node_paths.PULSE)]
    places = {msgspec.json.decode(data, type=CandidateNote).metrics for data in standing if data}
    return places | {msgspec.json.decode(data, type=PulseNote).metrics for data in peers if data}


def test_a_peer_without_the_secret_says_so_and_another_one_takes_the_task(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then the job waits, however often a peer declines, with the variable in the error."""
    secret, out = tmp_path / "login", tmp_path / "out"
    secret.write_text(FILE)
    with Crew(settings, tmp_path) as crew:
        crew.coordinator()
        crew.peers(1)
        house = House(settings, crew)
        job = JOB.replace('Job("calls", ', 'Job("calls", failure_limit=0, ')  # the first failure that counts fails it
        handle = house.submit(tmp_path, job.format(file=secret, variable="NOT_THERE_YET", out=out))

        def told() -> str:
            return house.call("log", "show", "--job", handle.id, "--json").stdout

        crew.until(lambda: "SX-SECRET-MISSING" in told(), "a peer to decline the task")
        assert "NOT_THERE_YET" in told()
        monkeypatch.setenv("NOT_THERE_YET", ENV)
        crew.peers(2)  # one of them may get another task of the job
        crew.completed(handle, 300)  # two back-offs of a minute, if the first peer is asked once more
