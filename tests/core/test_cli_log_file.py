"""Exported logs: they are read as they were written, damage is reported, they hold no secret, and users' reports are tests."""

from __future__ import annotations

import io
import json
import random
from datetime import UTC, datetime
from pathlib import Path

import pytest
from history_maker import History
from scenario_runner import facts_of
from typer.testing import CliRunner

from coordinator.core.decide import replay
from coordinator.core.projection import project
from coordinator.core.state import new_state
from coordinator.core.stored_state import encode_state
from coordinator.history.export import EntryLine, Header, LogFile, Mask, lines_of
from coordinator.history.replay import Verdict, Verifier
from sardonyx.cli.app import app
from sardonyx.core.conditions import Condition, functions_in
from sardonyx.core.errors import Failure, SardonyxError
from sardonyx.core.events import (
    FORMAT,
    RULES,
    Acked,
    AnyEvent,
    JobKilled,
    JobSubmitted,
    LinksCreated,
    PeerBorn,
    TaskFailed,
)
from sardonyx.core.graph import graph_of
from sardonyx.core.secrets import MASK, is_secret
from sardonyx.core.spec import JobSpec, Route, TaskSpec
from tests.sizes import histories

REPORTS = sorted((Path(__file__).parent.parent / "reports").glob("*.jsonl"))
SPEC = JobSpec(
    name="j",
    workflow=[("read", "write")],
    routes={
        "read.write": Route(
            where=Condition(not_=Condition(fn="m:is_known", params={"password": "sw0rdf1sh", "rows": 3}))
        )
    },
    catalog=[
        TaskSpec(
            name="read",
            type="input",
            connector="kafka",
            options={"topic": "t", "format": "raw", "end": "latest", "sasl.password": "open sesame"},
        ),
        TaskSpec(
            name="write",
            type="output",
            connector="blackhole",
            fn="m:f",
            params={"deep": [{"api_token": "t0psecret"}], "empty_password": "", "rows": 3},
        ),
    ],
)


def file_of(log: list[tuple[int, AnyEvent]], first: int = 1) -> bytes:
    """A log as it is exported from entry ``first`` on, with the tree as it stands at its end."""
    base = replay(log[: first - 1], deployment="test")
    end = replay(log, deployment="test")
    mask = Mask()
    for spec in [event.spec for _, event in log if isinstance(event, JobSubmitted)]:
        mask.learn(spec)
    header = Header(FORMAT, "test", first, len(log), len(log), "0", RULES)
    entries = (EntryLine(n, event) for n, event in log[first - 1 :])
    return b"".join(lines_of(header, base if first > 1 else None, entries, project(end), mask))


def verified(data: bytes) -> Verdict:
    file = LogFile(io.BytesIO(data), "log.jsonl")
    verifier = Verifier(file.begin(), file.stand)
    for _ in verifier.run((entry.n, entry.event) for entry in file.entries()):
        pass
    return verifier.end()


def random_log(name: str) -> list[tuple[int, AnyEvent]]:
    history = History(random.Random(name))
    history.unkind(80)
    return history.world.log


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.stem)
def test_reports_of_users_replay(path: Path) -> None:
    """Each log that was ever sent in keeps every rule, and its decisions make the tree that it was sent with.

    A report that no longer does means that decisions have changed: then logs of running deployments replay differently
    too, and the format has to be raised.
    """
    verdict = verified(path.read_bytes())
    assert verdict.findings == []
    assert verdict.events > 0
    assert verdict.nodes > 0


def test_there_is_a_report() -> None:
    """The test above has something to look at."""
    assert REPORTS


@pytest.mark.parametrize("number", range(10))
def test_random_histories_come_back(number: int, seed: int) -> None:
    """From the first entry or from any other, whatever was in them."""
    log = random_log(f"{seed}/file/{number}")
    for first in (1, 2, len(log) // 2, len(log)):
        verdict = verified(file_of(log, first))
        assert (verdict.findings, verdict.first, verdict.last) == ([], first, len(log))


def test_a_file_that_was_cut_or_changed_is_told(seed: int) -> None:
    """Wherever it is cut, and whatever line is missing, doubled or no JSON: one error with the line, never a verdict."""
    log = random_log(f"{seed}/damaged")
    whole = file_of(log, 20)
    rows = whole.splitlines(keepends=True)
    rng = random.Random(seed)
    cuts = [whole[:at] for at in [0, 1, len(rows[0]), len(whole) - 1, *rng.sample(range(len(whole)), 30)]]
    places = sorted(rng.sample(range(len(rows)), min(histories(20, whole=len(rows)), len(rows))))
    without = [b"".join(rows[:at] + rows[at + 1 :]) for at in places]
    doubled = [b"".join(rows[: at + 1] + rows[at:]) for at in places]
    spoilt = [
        b"".join([*rows[:at], line, *rows[at + 1 :]]) for at in (0, 1, 5, len(rows) - 1) for line in (b"{\n", b"\xff\n")
    ]
    unknown = rows[5].replace(b'"n":', b'"unheard":1,"n":')
    others = [b"".join([*rows[:5], unknown, *rows[6:]]), b"hello\n", b'{"line": "header"}\n']
    for data in [*cuts, *without, *doubled, *spoilt, *others]:
        with pytest.raises(SardonyxError) as caught:
            verified(data)
        assert caught.value.code in ("SX-LOG-FILE", "SX-LOG-FORMAT"), data[:100]


def test_another_versions_file_is_refused() -> None:
    """Its format is looked at before anything else in it."""
    with pytest.raises(SardonyxError) as caught:
        verified(b'{"line":"header","format":1,"what":"ever"}\n')
    assert caught.value.code == "SX-LOG-FORMAT"
    assert "format 1" in caught.value.message


def log_with_secrets() -> list[tuple[int, AnyEvent]]:
    state = new_state("test")
    error = Failure(
        "SX-X", "login with open sesame failed", traceback="token 't0psecret'", where={"url": "u:open sesame@h"}
    )
    events: list[AnyEvent] = [
        PeerBorn(at=1.0, peer="a"),
        JobSubmitted(at=2.0, job="j-1", spec=SPEC),
        LinksCreated(at=3.0, job="j-1", links=facts_of(SPEC, "j-1")),
        Acked(at=4.0, peer="a", assignment=3),
        TaskFailed(at=5.0, peer="a", assignment=3, error=error, fatal=True),
        JobKilled(at=6.0, job="j-1"),
    ]
    log = list(enumerate(events, 1))
    assert replay(log, state).jobs["j-1"].status == "failed"
    return log


@pytest.mark.parametrize("first", [1, 3, 6])
def test_no_secret_leaves_with_a_file(first: int) -> None:
    """Not from an entry, the base, a node or an error that quotes it; what is no secret stays, and all of it replays."""
    data = file_of(log_with_secrets(), first)
    assert b"open sesame" not in data
    assert b"t0psecret" not in data
    assert b"sw0rdf1sh" not in data
    assert MASK.encode() in data
    assert b'"topic":"t"' in data
    assert verified(data).findings == []


def test_masking_changes_no_decision() -> None:
    """No option that a decision reads has a name that is masked, and a masked log decides the same."""
    assert not any(is_secret(name) for name in ("topic", "end", "start", "format", "partitions", "path"))
    mask = Mask()
    mask.learn(SPEC)
    masked = mask.spec(SPEC)
    assert masked.catalog[0].options["sasl.password"] == masked.catalog[1].params["deep"][0]["api_token"] == MASK
    assert dict(functions_in(masked.routes["read.write"].where or "")) == {"m:is_known": {"password": MASK, "rows": 3}}
    assert (masked.catalog[1].params["rows"], masked.catalog[1].params["empty_password"]) == (3, "")
    plain, hidden = graph_of(SPEC, "d", "j"), graph_of(masked, "d", "j")
    assert [stage.name for stage in plain.stages] == [stage.name for stage in hidden.stages]
    assert (plain.bounded, plain.bound, plain.order) == (hidden.bounded, hidden.bound, hidden.order)
    assert [link.topic for link in plain.links] == [link.topic for link in hidden.links]
    log = log_with_secrets()
    ends = [
        replay(log, deployment="test"),
        replay([(n, mask.event(event)) for n, event in log], deployment="test"),
    ]
    assert encode_state(mask.state(ends[0])) == encode_state(ends[1])


@pytest.mark.parametrize("field", ["next_spec", "former", "gone_spec", "into_spec"])
def test_each_spec_that_a_job_has_is_masked(field: str) -> None:
    """Also the one before a change, the one that it is being changed to, and that of the job which is to go on from it."""
    state = replay(log_with_secrets(), deployment="test")
    for job in state.jobs.values():
        setattr(job, field, job.spec)
    mask = Mask()
    for job in state.jobs.values():
        mask.learn_job(job)
    assert b"t0psecret" in encode_state(state)
    assert b"t0psecret" not in encode_state(mask.state(state))


def test_a_request_keeps_its_uuid() -> None:
    """What an entry holds besides its event is in the file too."""
    header = Header(FORMAT, "test", 1, 1, 0, "0", RULES)
    data = b"".join(lines_of(header, None, [EntryLine(1, PeerBorn(peer="a"), "f00")], {}, Mask()))
    file = LogFile(io.BytesIO(data), "x")
    assert [entry.request for entry in file.entries()] == ["f00"]


# The command, which needs no services for it


def test_the_command_replays_a_report(tmp_path: Path) -> None:
    """Exit code 0 and a verdict; `--at` shows a moment; what was changed gives exit code 1 and the number."""
    report = REPORTS[0]
    runner = CliRunner()
    sound = runner.invoke(app, ["log", "replay", str(report), "--json"])
    assert sound.exit_code == 0, sound.stderr
    assert json.loads(sound.stdout)["ok"] is True
    then = runner.invoke(app, ["log", "replay", str(report), "--at", "3"])
    assert "after entry 3" in then.stdout
    assert "SX-LOG-RANGE" in runner.invoke(app, ["log", "replay", str(report), "--at", "99999"]).stderr

    with report.open("rb") as source:
        times = {entry.n: entry.event.at for entry in LogFile(source, report.name).entries()}
    between = next(n for n in times if times[n] + 0.1 < times[n + 1])
    moment = datetime.fromtimestamp(times[between] + 0.05, UTC).isoformat()
    for at, n in ((moment, between), ("0 s", max(times)), ("2001-01-01", 0)):
        assert f"after entry {n}" in runner.invoke(app, ["log", "replay", str(report), "--at", at]).stdout, at
    assert (
        "neither the number of an entry nor a time" in runner.invoke(app, ["log", "replay", "-", "--at", "soon"]).stderr
    )

    held = times[between] + 0.05 - max(at for n, at in times.items() if n <= between)
    asked = runner.invoke(app, ["log", "replay", str(report), "--at", moment, "--json"])
    assert json.loads(asked.stdout)["asked"] - json.loads(asked.stdout)["at"] == pytest.approx(held, abs=0.001)
    assert json.loads(runner.invoke(app, ["log", "replay", str(report), "--at", "3", "--json"]).stdout)["asked"] is None

    changed = tmp_path / "changed.jsonl"
    rows = report.read_bytes().splitlines(keepends=True)
    at = next(index for index, row in enumerate(rows) if b'"kind":"completed"' in row and b'"rows_out":2000000' in row)
    rows[at] = rows[at].replace(b'"rows_out":2000000', b'"rows_out":1')
    changed.write_bytes(b"".join(rows))
    broken = runner.invoke(app, ["log", "replay", str(changed)])
    assert broken.exit_code == 1
    assert "broken after entry 42: /job/doubles-sof2db/task/make differs from what was decided" in broken.stdout
    assert runner.invoke(app, ["log", "replay", "-"], input=b"".join(rows[:-2])).exit_code == 1
    missing = runner.invoke(app, ["log", "replay", str(tmp_path / "nowhere"), "--json"])
    assert (missing.exit_code, json.loads(missing.stdout)["error"]["code"]) == (1, "SX-LOG-FILE")
