"""The command's door: parsing, help, exit codes, errors, and how little it imports."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from sardonyx.cli.app import app
from sardonyx.cli.arguments import entry_or_time, place_in_log
from sardonyx.cli.call import Call, local
from sardonyx.cli.files import write_lines
from sardonyx.cli.purge_commands import _purge
from sardonyx.core.errors import SardonyxError
from tests.waiting import PATIENCE

COMMANDS = [
    ["run"],
    ["check"],
    ["doctor"],
    ["config"],
    ["dev"],
    ["web"],
    ["coordinator"],
    ["peer"],
    ["job", "submit"],
    ["job", "diff"],
    ["job", "list"],
    ["job", "show"],
    ["job", "explain"],
    ["job", "progress"],
    ["job", "trace"],
    ["job", "await"],
    ["job", "kill"],
    ["job", "purge"],
    ["dlq", "list"],
    ["dlq", "show"],
    ["dlq", "redo"],
    ["dlq", "drop"],
    ["dlq", "export"],
    ["link", "lag"],
    ["link", "audit"],
    ["topic", "create"],
    ["topic", "list"],
    ["topic", "write"],
    ["topic", "peek"],
    ["acl", "print"],
    ["acl", "check"],
    ["acl", "apply"],
    ["peers", "list"],
    ["peers", "show"],
    ["peers", "evict"],
    ["peers", "drain"],
    ["peers", "undrain"],
    ["log", "tail"],
    ["log", "show"],
    ["log", "at"],
    ["log", "verify"],
    ["log", "export"],
    ["log", "replay"],
    ["deployments"],
    ["version"],
]


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Call the command in a directory without any sardonyx.toml."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments))

    return call


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(command: list[str], invoke) -> None:
    """`--help` works on each, and each has --json and -v."""
    result = invoke(*command, "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout
    assert "--verbose" in result.stdout


@pytest.mark.parametrize(
    "command",
    [
        ["coordinator"],
        ["peer", "--virtual-peers", "2"],
        ["job", "list"],
        ["log", "tail"],
        ["log", "verify"],
        ["peers", "show", "p"],
        ["deployments"],
    ],
)
def test_without_an_address_the_three_ways_to_give_one_are_named(command: list[str], invoke) -> None:
    """Daemons and cluster commands never guess: one clear error, exit code 2."""
    result = invoke(*command)
    assert result.exit_code == 2
    for way in ("SX-CONFIG-MISSING", "--zookeeper", "SARDONYX__ZOOKEEPER__HOSTS", "sardonyx.toml"):
        assert way in result.stderr
    assert "Traceback" not in result.stderr


def test_an_error_with_json_is_an_object_on_stdout(invoke) -> None:
    """With --json the error is text on stderr and data on stdout."""
    result = invoke("job", "list", "--json")
    assert json.loads(result.stdout)["error"]["code"] == "SX-CONFIG-MISSING"
    assert "SX-CONFIG-MISSING" in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["job", "submit", "job.py"],
        ["job", "list"],
        ["job", "kill", "x"],
        ["job", "purge", "x"],
        ["peers", "list"],
        ["log", "at", "1"],
    ],
    ids=" ".join,
)
def test_an_address_that_a_command_does_not_use_is_refused(command: list[str], invoke) -> None:
    """`--kafka` on a command that never talks to Kafka would be silently ignored."""
    result = invoke(*command, "--kafka", "127.0.0.1:1")
    assert result.exit_code == 2
    assert "No such option: --kafka" in result.stderr


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["job", "await"], ["run", "job.py", "--peers", "0"], ["peer", "--virtual-peers", "x"]]
)
def test_a_call_that_cannot_be_understood_ends_with_2(arguments: list[str], invoke) -> None:
    """Unknown commands, missing arguments and impossible values are usage errors."""
    assert invoke(*arguments).exit_code == 2


def test_a_folder_for_services_that_are_not_started_is_refused(invoke, tmp_path: Path) -> None:
    """`--data` would be ignored: the addresses of other services are set, and nothing logs there."""
    spec = tmp_path / "job.yaml"
    spec.write_text("""\
name: x
workflow: [[read, drop]]
catalog:
  - {name: read, type: input, connector: generator, options: {count: 1}}
  - {name: drop, type: output, connector: blackhole}
""")
    result = invoke("run", str(spec), "--data", "d", "--zookeeper", "127.0.0.1:1", "--kafka", "127.0.0.1:1")
    assert result.exit_code == 2
    assert "SX-USAGE: --data asks for services that `run` starts" in result.stderr


def test_a_timeout_that_is_no_duration_is_a_usage_error(invoke) -> None:
    """The units that exist are named."""
    result = invoke("job", "await", "x", "--timeout", "soon", "--zookeeper", "127.0.0.1:1")
    assert result.exit_code == 2
    assert "SX-USAGE" in result.stderr
    assert "ms, s, min" in result.stderr


def test_partitions_are_scaled_alone(invoke) -> None:
    """They are of the whole job, and take two changes of it."""
    result = invoke("job", "scale", "x", "--partitions", "4", "--task", "label", "--max-peers", "1")
    assert result.exit_code == 2
    assert "SX-USAGE: --partitions does not go with --max-peers and --task" in result.stderr


def test_one_address_without_the_other_is_a_mistake(invoke, tmp_path: Path) -> None:
    """`run` with just one of the two services given does not start half a cluster."""
    result = invoke("run", str(tiny(tmp_path)), "--zookeeper", "127.0.0.1:1")
    assert result.exit_code == 2
    assert "SX-CONFIG-MISSING" in result.stderr
    assert "Kafka" in result.stderr


def test_check_draws_the_graph(invoke, tmp_path: Path) -> None:
    """A valid job is described and drawn; with --json it is data."""
    spec = tmp_path / "job.yaml"
    spec.write_text(
        "name: tiny\nworkflow: [[make, drop]]\ncatalog:\n"
        "  - {name: make, type: input, connector: generator, options: {count: 3}}\n"
        "  - {name: drop, type: output, connector: blackhole}\n"
    )
    result = invoke("check", str(spec))
    assert result.exit_code == 0, result.stderr
    assert "job tiny: 2 tasks" in result.stdout
    assert "└─ drop" in result.stdout
    data = json.loads(invoke("check", str(spec), "--json").stdout)
    assert (data["valid"], data["tasks"]) == (True, ["make", "drop"])


def test_an_unexpected_error_is_told_with_its_traceback() -> None:
    """An unexpected exception has a code too, its traceback, and exit code 1."""
    import typer

    own = typer.Typer()

    @local(own, "break")
    def break_(call: Call) -> None:
        raise RuntimeError("never thought of")

    result = CliRunner().invoke(own, ["--json"])
    assert result.exit_code == 1
    assert "never thought of" in result.stderr
    assert json.loads(result.stdout)["error"]["code"] == "SX-UNEXPECTED"
    assert "break_" in json.loads(result.stdout)["error"]["traceback"]


def test_the_version_is_printed(invoke) -> None:
    """`version` and `--version` say the same."""
    assert json.loads(invoke("version", "--json").stdout)["version"] == invoke("--version").stdout.strip()


SPARK_AND_ROWS = {"pyspark", "pyarrow", "pandas", "numpy", "confluent_kafka"}
LOADS = "import sys; {code}; print(' '.join(sorted({{m.partition('.')[0] for m in sys.modules}})))"
CHECK = "from sardonyx.job.load import load; load('job.yaml'); import sardonyx.cli.graph_text"
PLAN = "from sardonyx.job.load import load; load('job.yaml').plan; import sardonyx.cli.plan_text"
LIST = "import sardonyx.client.client, sardonyx.cli.tables, sardonyx.zookeeper.session"
SHOW = f"{LIST}, coordinator.history.reader, sardonyx.cli.history_text"


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import sardonyx.cli.app", {*SPARK_AND_ROWS, "kazoo", "pydantic", "structlog", "rich"}),
        (CHECK, {*SPARK_AND_ROWS, "kazoo", "structlog", "rich"}),
        (PLAN, {*SPARK_AND_ROWS, "kazoo", "structlog", "rich"}),
        (LIST, SPARK_AND_ROWS),
        (SHOW, SPARK_AND_ROWS),
        ("import sardonyx.client.health", SPARK_AND_ROWS),
    ],
    ids=["help", "check", "check --plan", "job list", "job show", "health"],
)
def test_a_command_that_only_looks_imports_nothing_heavy(code: str, heavy: set[str], tmp_path: Path) -> None:
    """Such a command spends most of its time on imports: it loads only what it uses. A job without a schema needs no Arrow."""
    tiny(tmp_path)
    command = [sys.executable, "-c", LOADS.format(code=code)]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout.split()
    assert not heavy.intersection(loaded)


def tiny(folder: Path) -> Path:
    """A job that needs no services."""
    spec = folder / "job.yaml"
    spec.write_text(
        "name: tiny\nworkflow: [[make, drop]]\ncatalog:\n"
        "  - {name: make, type: input, connector: generator, options: {count: 3}}\n"
        "  - {name: drop, type: output, connector: blackhole}\n"
    )
    return spec


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1200", 1200),
        ("12:30", "2026-11-26T12:30:00+02:00"),
        ("23:40", "2026-11-25T23:40:00+02:00"),  # the last one that was
        ("10 min", "2026-11-26T12:50:00+02:00"),
        ("10 min ago", "2026-11-26T12:50:00+02:00"),
        ("2 h ago", "2026-11-26T11:00:00+02:00"),
        (" 90 s  ago", "2026-11-26T12:58:30+02:00"),
        ("2026-11-20T08:00", "2026-11-20T08:00:00+02:00"),
        ("2026-11-20T08:00:00Z", "2026-11-20T08:00:00+00:00"),
    ],
)
def test_a_place_in_the_log_is_a_number_or_a_time(text: str, found: int | str) -> None:
    """Times without a zone are those of the person who asks."""
    place = entry_or_time(text, datetime.fromisoformat("2026-11-26T13:00:00+02:00"))
    assert place == (found if isinstance(found, int) else datetime.fromisoformat(found).timestamp())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("23:40", "23:40 is yesterday's, 2026-11-25 23:40:00: today it is not so late yet\n"),
        ("12:30", ""),
        ("2026-11-25T23:40", ""),
        ("20 h ago", ""),
        ("1200", ""),
    ],
)
def test_a_time_of_day_that_is_yesterdays_says_so(text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It would else be taken for one of today. A moment that says its day needs no words."""
    now = datetime.fromisoformat("2026-11-26T13:00:00+02:00")
    assert place_in_log(Call(), text, now) == entry_or_time(text, now)
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("text", ["yesterday", "1000000 days", "1000000 days ago", "ago", "10 ago", "a while ago"])
def test_what_is_no_place_in_the_log_is_said(text: str) -> None:
    with pytest.raises(SardonyxError, match="SX-USAGE"):
        entry_or_time(text, datetime.now(UTC))


def test_a_file_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    """Its folder is missing, or it is a folder."""
    (tmp_path / "there").mkdir()
    for out in (tmp_path / "no" / "file", tmp_path / "there"):
        with pytest.raises(SardonyxError, match="SX-OUT-FILE"):
            write_lines(out, iter([b"a line\n"]))
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    write_lines(tmp_path / "file", iter([b"a line\n", b"another one\n"]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "there"]


def test_a_folder_for_logs_that_cannot_be_made_is_an_error(invoke, tmp_path: Path) -> None:
    """Nothing is started before."""
    spec = tiny(tmp_path)
    addresses = ["--zookeeper", "127.0.0.1:1", "--kafka", "127.0.0.1:1"]
    result = invoke("run", str(spec), "--peers", "1", "--data", str(spec / "logs"), *addresses)
    assert result.exit_code == 1
    assert "SX-EMBEDDED-DATA" in result.stderr


def test_a_purge_waits_for_all_its_jobs_together_as_long_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waits = [100.0], list[float]()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def await_gone(timeout: float, **_: object) -> None:
        waits.append(timeout)
        now[0] += 40

    call: Any = SimpleNamespace(warn=lambda _: None, patience=lambda _: contextlib.nullcontext())
    job: Any = SimpleNamespace(id="j-1", ask_purge=lambda **_: [], await_gone=await_gone)
    assert _purge(call, 3 * [job], {}, [], with_dead_letters=False, timeout=60.0) == 3 * ["j-1"]
    assert waits == [60.0, 20.0, 0.0]


STOPPING = """
import time
from sardonyx.cli.daemons import stop_request
with stop_request() as stop:
    print("ready", flush=True)
    while not stop.wait(60):
        pass
    print("asked", flush=True)
    time.sleep(200)  # work that takes longer than the test waits: only the second signal ends it
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_one_stops_at_once(number: signal.Signals) -> None:
    """Once drains, twice ends the process there and then, with the exit code of an interrupted one."""
    with subprocess.Popen([sys.executable, "-c", STOPPING], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == "asked\n"
        process.send_signal(number)
        assert process.wait(PATIENCE) == 130
