"""How commands end: with an exit code of their own, or interrupted where they ask; and what they print then."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import typer

from sardonyx.cli import call as calls
from sardonyx.cli import share_commands, upgrade_commands
from sardonyx.cli.call import Call, guarded
from sardonyx.cli.job_commands import stop, submit
from sardonyx.cli.publishing_again import confirm
from sardonyx.client.upgrade import UpgradeView
from sardonyx.client.views import JobView
from sardonyx.core.errors import Failure, Interrupted

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What commands get for a client. The test gives it what the command asks of it."""
    made = SimpleNamespace(zk=None, later_attempt=lambda *_: None)

    @contextmanager
    def connected(_: Call) -> Iterator[Any]:
        yield made

    monkeypatch.setattr(calls.Call, "client", connected)
    monkeypatch.setattr(calls.Call, "patience", lambda *_: nullcontext())
    return made


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("json", [False, True])
def test_what_stands_in_the_way_of_an_upgrade_is_an_exit_code_and_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, json: bool
) -> None:
    """The command has done what it was asked to do: it prints its result, with exit code 1, and nothing else."""
    found = UpgradeView(
        version="1", reads_format=1, knows_rules=1, format=1, rules=1, coordinators=[], peers=[], problems=["a daemon"]
    )
    monkeypatch.setattr("sardonyx.client.upgrade.look", lambda _: found)
    assert guarded(Call(json=json), lambda: upgrade_commands.upgrade(Call(json=json))) == 1
    told = capsys.readouterr()
    assert not told.err
    assert "a daemon" in told.out
    assert len(told.out.splitlines()) == 1 or not json


@pytest.mark.parametrize("json", [False, True])
def test_a_question_that_gets_ctrl_c_for_an_answer_ends_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, json: bool
) -> None:
    """As at any other moment, and not with a traceback that is to be reported."""
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))

    def interrupted(*_: object, **__: object) -> bool:
        raise typer.Abort

    monkeypatch.setattr(typer, "confirm", interrupted)
    assert guarded(Call(json=json), lambda: confirm("Go back?", "j-1", yes=False)) == 130
    told = capsys.readouterr()
    assert "SX-UNEXPECTED" not in told.out + told.err


def test_a_job_that_is_scaled_is_told_as_data(client: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    """On standard output, as the commands beside it do."""
    client.job = lambda _: SimpleNamespace(id="orders-1", scale=lambda **_: None)
    share_commands.scale(Call(json=True), "orders", weight=2.0)
    assert capsys.readouterr().out == '{"id":"orders-1"}\n'
    share_commands.scale(Call(), "orders", weight=2.0)
    assert "orders-1 is scaled" in capsys.readouterr().out


def test_to_stop_a_job_that_has_ended_gives_what_stopping_one_gives(
    client: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program that reads the JSON need not know whether it came too late."""
    view = JobView(id="orders-1", name="orders", status="completed", tasks=[])
    client.job = lambda _: SimpleNamespace(id="orders-1", status=lambda **_: view)
    assert stop(Call(json=True), "orders") == 0
    assert '"tasks":[]' in capsys.readouterr().out


@pytest.fixture
def submitted(client: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> list[JobView]:
    """The views that a job goes through which a client submits; the test changes them."""
    views = [JobView(id="orders-1", name="orders", status="running", tasks=[])]

    def follow(**_: Any) -> Iterator[JobView]:
        yield from views
        if not views[-1].ended:
            raise Interrupted("SX-JOB-TIMEOUT", "job orders-1 has not ended within 1 s")

    handle = SimpleNamespace(
        id="orders-1",
        waits_for=lambda: None,
        waiting=lambda *_, **__: None,
        status=lambda **_: views[0],
        follow=follow,
        spec=lambda: SimpleNamespace(workflow=[]),
    )
    client.read_before = lambda _: None
    client.submit = lambda *_: handle
    monkeypatch.setattr("sardonyx.job.load.load", lambda _: SimpleNamespace(spec=None, warnings=[]))
    return views


@pytest.mark.parametrize(
    ("status", "code"), [("completed", 0), ("stopped", 0), ("failed", 1), ("killed", 3), ("running", 4)]
)
@pytest.mark.parametrize("json", [False, True])
def test_to_submit_a_job_and_await_it_ends_as_the_job_does(
    submitted: list[JobView], capsys: pytest.CaptureFixture[str], status: Any, code: int, *, json: bool
) -> None:
    """A scheduler needs one command. The first line is the id of the job; with --json, the printed object has the id."""
    error = Failure(code="SX-FUNCTION-RAISED", message="it raised") if status == "failed" else None
    submitted.append(JobView(id="orders-1", name="orders", status=status, tasks=[], error=error))
    call = Call(json=json)
    assert guarded(call, lambda: submit(call, "job.py", to_end=True, timeout="1 s")) == code
    told = capsys.readouterr().out
    assert len(told.splitlines()) == 1 if json else told.splitlines()[0] == "orders-1"
    assert not json or status == "running" or '"id":"orders-1"' in told


def test_a_job_that_is_not_awaited_is_told_at_once(
    submitted: list[JobView], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command ends with 0 while the job runs; a limit without a wait is a mistake."""
    call = Call(json=True)
    assert guarded(call, lambda: submit(call, "job.py")) == 0
    assert capsys.readouterr().out == '{"id":"orders-1"}\n'
    assert guarded(call, lambda: submit(call, "job.py", timeout="1 s")) == 2
    assert "SX-USAGE" in capsys.readouterr().out
    assert len(submitted) == 1
