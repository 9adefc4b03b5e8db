"""Rows that are not known since Kafka cannot be asked, such as with a setting that its client does not take: each command says
why, with the code and what to do, once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from coordinator.core.explain import explain as explained
from coordinator.core.state import State
from sardonyx.cli import call as calls
from sardonyx.cli.call import Call, guarded
from sardonyx.cli.job_commands import await_job, check, explain, show, stop, submit
from sardonyx.client.client import Client
from sardonyx.client.live_counts import LiveCounts
from sardonyx.client.reasons import Why, kafka_away
from sardonyx.client.views import JobView
from sardonyx.core.errors import SetupError
from sardonyx.core.notes import JobNote, TaskNote
from tests.core.test_live_counts import GRAPH, SPEC
from tests.waiting import PATIENCE

REFUSED = SetupError(
    "SX-CONFIG-VALUE",
    "a setting below kafka. is not one that the Kafka client takes: compression.nosuch",
    cause="keys below kafka. go to librdkafka",
    fix="see librdkafka's list",
)


def refuse(*_: Any) -> Any:
    raise REFUSED


def test_a_question_that_fails_says_with_what() -> None:
    """Until one is answered; one without an answer yet says that Kafka is silent, and how to find out why."""
    live = LiveCounts(refuse, patience=PATIENCE)
    assert live.counts(GRAPH, "copy-1") is None
    assert live.error("copy-1") == REFUSED.to_failure()
    silent = live.error("other-1")
    assert silent.code == "SX-KAFKA-UNREACHABLE"
    assert "job explain other-1" in silent.fix


def test_an_error_that_is_not_ours_is_said_too() -> None:
    """And not printed by the thread that met it."""
    live = LiveCounts(lambda *_: 1 / 0, patience=PATIENCE)  # type: ignore[arg-type, return-value]
    assert live.counts(GRAPH, "copy-1") is None
    assert live.error("copy-1").code == "SX-UNEXPECTED"


def view(status: str = "running") -> JobView:
    """What a client shows of a running job when each client of Kafka fails."""
    made: Any = Client.__new__(Client)
    notes = {"read": TaskNote("running", 3, {"p": 0}), "write": TaskNote("pending", 2)}
    made.settings = SimpleNamespace(deployment="d", kafka=SimpleNamespace(bootstrap_servers="k:9092"))
    made._live = LiveCounts(refuse, patience=PATIENCE)
    made.zk = SimpleNamespace(
        read_many=lambda paths: {
            path: msgspec.json.encode(notes[name]) for path in paths for name in notes if path.endswith(name)
        }
    )
    note = JobNote(name="copy", status="running", n=9, submitted_at=1.0, links="made")
    found: JobView = made.view_of("copy-1", SPEC, note, live=True)
    assert found.rows_error == REFUSED.to_failure()
    assert made.view_of("copy-1", SPEC, note, live=False).rows_error is None
    return msgspec.structs.replace(found, status=status, rows_error=None if status != "running" else found.rows_error)


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A job that is looked at three times, and then is stopped."""
    made = SimpleNamespace(
        id="copy-1",
        status=lambda **_: view(),
        follow=lambda **_: iter([view(), view(), view(), view("stopped")]),
        spec=lambda: SPEC,
        stop=lambda **_: None,
        waits_for=lambda: None,
        waiting=lambda *_, **__: None,
        await_resumable=lambda *_: False,
        timeline=list,
        explain=lambda **_: Why(explained(State("d"), "copy-1"), [kafka_away(REFUSED)]),
    )
    client = SimpleNamespace(
        zk=None, job=lambda _: made, later_attempt=lambda *_: None, read_before=lambda _: None, submit=lambda *_: made
    )

    @contextmanager
    def connected(_: Call) -> Iterator[Any]:
        yield client

    monkeypatch.setattr(calls.Call, "client", connected)
    monkeypatch.setattr(calls.Call, "patience", lambda *_: nullcontext())
    return made


@pytest.mark.usefixtures("handle")
@pytest.mark.parametrize("command", [await_job, stop])
def test_who_waits_for_the_end_is_told_once_why_rows_are_not_known(
    command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    call = Call()
    assert guarded(call, lambda: command(call, "copy-1")) == 0
    told = capsys.readouterr().err
    assert told.count("rows of job copy-1 are not known: SX-CONFIG-VALUE: a setting below kafka.") == 1
    assert told.count("compression.nosuch") == told.count("fix:   see librdkafka's list") == 1


@pytest.mark.usefixtures("handle")
def test_to_show_a_job_says_once_why_rows_are_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    call = Call()
    assert guarded(call, lambda: show(call, "copy-1")) == 0
    told = capsys.readouterr()
    assert told.err.count("rows, positions and what is unread are not known: SX-CONFIG-VALUE: a setting") == 1
    assert told.err.count("fix:   see librdkafka's list") == 1
    assert "answered" not in told.err


@pytest.mark.usefixtures("handle")
def test_to_explain_a_job_gives_the_code_and_the_fix(capsys: pytest.CaptureFixture[str]) -> None:
    call = Call()
    assert guarded(call, lambda: explain(call, "copy-1")) == 0
    told = capsys.readouterr().out
    assert (
        "\n  SX-CONFIG-VALUE: a setting below kafka. is not one that the Kafka client takes: compression.nosuch" in told
    )
    assert "\n    fix: see librdkafka's list\n" in told


@pytest.fixture
def unusable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings with which no client of Kafka can be made."""
    monkeypatch.setitem(sys.modules, "queues.connectivity", SimpleNamespace(unusable=lambda _: REFUSED))  # type: ignore[misc]
    monkeypatch.setenv("SARDONYX__KAFKA__COMPRESSION__NOSUCH", "1")


JOB = """
from sardonyx import Job, blackhole, generator
job = Job("copy")
job.output("write", blackhole(), after=job.input("read", generator(count=1)))
"""


@pytest.mark.usefixtures("unusable", "handle")
@pytest.mark.parametrize("command", [check, submit])
def test_commands_that_need_no_kafka_warn_of_the_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: Any
) -> None:
    """The job itself is right, and the settings of peers may be others."""
    file = tmp_path / "job.py"
    file.write_text(JOB)
    call = Call()
    assert guarded(call, lambda: command(call, str(file))) == 0
    told = capsys.readouterr()
    assert told.err.count("SX-CONFIG-VALUE: a setting below kafka. is not one") == 1
    assert told.err.count("fix:   see librdkafka's list") == 1
    assert ("(SX-CONFIG-VALUE)" in told.out) == (command is check)


def test_a_job_that_is_checked_is_told_of_settings_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SARDONYX__KAFKA__REPLICATION_FACTOR", "0")
    file = tmp_path / "job.py"
    file.write_text(JOB)
    call = Call(json=True)
    assert guarded(call, lambda: check(call, str(file))) == 0
    told = msgspec.json.decode(capsys.readouterr().out)
    assert told["valid"]
    assert [each["code"] for each in told["warnings"]] == ["SX-CONFIG-VALUE"]
