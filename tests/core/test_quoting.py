"""What errors and lines of the log quote of records, and of secrets: what it is without, if the settings say so."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import structlog

from sardonyx.connectors.files.input import FilesInput
from sardonyx.core.errors import Failure, FunctionError, InputError, OutputError, failure_of
from sardonyx.core.quoting import HIDDEN, without_records
from sardonyx.core.secrets import MASK
from sardonyx.runtime.logging import configure_logging
from sardonyx.runtime.secret_values import KNOWN, QUOTING, unquoted
from sardonyx.runtime.settings import load_settings
from spark_tasks.failures import function_raised

RECORD = "alice-4711"


def price(row: dict[str, str]) -> dict[str, str]:
    try:
        return {"price": {}[row["name"]]}  # type: ignore[dict-item]
    except KeyError as error:
        raise ValueError(f"bad\n{row['name']}\n    {row['name']}") from error


def raised_by_a_function(_: Path) -> BaseException:
    row = {"name": RECORD}
    with pytest.raises(ValueError, match=RECORD) as caught:
        price(row)
    return function_raised("prices", "shop:price", caught.value, row)


def unexpected(_: Path) -> BaseException:
    return KeyError(RECORD)


def misfit_of_a_file(folder: Path) -> BaseException:
    (folder / "in.csv").write_text(f"n\n{RECORD}\n")
    files = FilesInput({"path": str(folder), "format": "csv", "header": True, "schema": "n int"})
    (split,) = files.splits()
    with pytest.raises(InputError, match=RECORD) as caught:
        files.read(split.data)
    return caught.value


def refused_by_kafka(_: Path) -> BaseException:
    return OutputError("SX-KAFKA-REJECTED", "Kafka does not take a record for topic t", cause=f"key b'{RECORD}'")


KINDS = [raised_by_a_function, unexpected, misfit_of_a_file, refused_by_kafka]


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is a peer with ``peer.quote_records = false``."""
    monkeypatch.setattr(QUOTING, "records", False)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_may_quote_no_record(kind: Callable[[Path], BaseException], tmp_path: Path, hidden: None) -> None:
    """By default it does. Without: its code and places stay, of the traceback the frames, and of what was raised the class."""
    failure = failure_of(kind(tmp_path), where={"job": "j-1", "task": "prices", "key": RECORD})
    assert RECORD in f"{failure.message}{failure.cause}{failure.traceback}"
    shown = unquoted(failure)
    assert RECORD not in msgspec.json.encode(shown).decode()
    assert (shown.code, shown.where["job"], shown.cause) == (failure.code, "j-1", HIDDEN)
    assert shown.where.get("path") == failure.where.get("path")
    assert unquoted(shown) == shown
    if kind is raised_by_a_function:
        assert shown.message == "function price of task prices raised ValueError"
        assert [line for line in shown.traceback.splitlines() if line.startswith("  File")] == [
            line for line in failure.traceback.splitlines() if line.startswith("  File")
        ]
        assert shown.traceback.count('raise ValueError(f"bad') == 1


@pytest.mark.parametrize(
    "code", ["SX-KAFKA-DENIED", "SX-INPUT-MISSING", "SX-PEER-FILES", "SX-LINK-LOSS", "SX-SECRET-MISSING"]
)
def test_an_error_about_names_and_places_stays(code: str) -> None:
    """Without its texts no user could correct what it is about."""
    failure = Failure(code, "said", cause="why", fix="do", where={"any": "thing"})
    assert without_records(failure) == failure


@pytest.mark.parametrize("form", ["json", "console"])
def test_lines_of_a_log_may_quote_no_record(form: str, hidden: None) -> None:
    """Neither in a field, nor in what an exception, or one that it came from, says; its frames stay."""
    out = io.StringIO()
    configure_logging(load_settings(log={"format": form}), stream=out)
    log = structlog.get_logger()
    try:
        price({"name": RECORD})
    except ValueError as error:
        log.exception("task_failed", code="SX-UNEXPECTED", error=str(error))
        log.error("peer_session_abandoned", exc_info=error)
        log.info("batch_dropped", cause=str(error))
    log.warning("lifecycle_stop_failed", error="stop of lifecycle L raised KeyError: x", traceback=RECORD)
    log.info("spark_worker_output", line=RECORD)
    logging.getLogger("py4j").warning("said %s", RECORD)
    logging.getLogger("kazoo").warning("no server at zk:2181")
    log.warning("task_waits_for_service", code="SX-KAFKA-UNREACHABLE", error="no broker at k:9092")
    log.warning("kafka_error", error="_ALL_BROKERS_DOWN: 1/1 brokers are down")
    said = out.getvalue()
    assert RECORD not in said
    for kept in (
        "in price",
        "a line of py4j",
        "no server at zk:2181",
        "no broker at k:9092",
        "_ALL_BROKERS_DOWN: 1/1",
        "SX-UNEXPECTED",
    ):
        assert kept in said


@pytest.mark.parametrize("form", ["json", "console"])
def test_what_an_exception_says_in_a_log_holds_no_secret(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the exception that an error came from, which only the log shows."""
    monkeypatch.setattr("sardonyx.runtime.secret_values.KNOWN._known", set())
    monkeypatch.setattr("sardonyx.runtime.secret_values.KNOWN._longest_first", [])
    KNOWN.learn("planted-raised", secret=True)
    out = io.StringIO()
    configure_logging(load_settings(log={"format": form}), stream=out)
    quoted = "401 for {} at https://u:{}@host"
    try:
        try:
            raise ConnectionError(quoted.format("planted-raised", "planted-url"))
        except ConnectionError as error:
            raise FunctionError("SX-X", "it failed") from error
    except FunctionError:
        structlog.get_logger().exception("one")
        logging.getLogger("py4j").exception("two")
    said = re.sub("raise ConnectionError.*", "", out.getvalue())  # the line of the source
    assert "planted" not in said
    assert said.count(quoted.format(MASK, MASK)) == 2
    if form == "json":
        assert [json.loads(line)["event"] for line in said.splitlines()] == ["one", "two"]
