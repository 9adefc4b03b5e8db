"""Who a process is: in the lines of its log, and to Kafka's brokers."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

import queues
from sardonyx.core.version import VERSION
from sardonyx.runtime.logging import configure_logging
from sardonyx.runtime.settings import load_settings
from sardonyx.runtime.this_process import THIS, Role


@pytest.fixture
def role(monkeypatch: pytest.MonkeyPatch) -> Iterator[Role]:
    """This process is a coordinator, and its logging is put back afterwards."""
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    monkeypatch.setattr(THIS, "role", "coordinator")
    yield "coordinator"
    structlog.configure(**before)
    root.handlers[:], root.level = handlers, level


def test_each_line_of_a_daemon_says_which_process_wrote_it_and_a_leaders_its_epoch(role: Role) -> None:
    """In JSON, which is collected from many processes: those of libraries, too. What a line says itself goes first."""
    out = io.StringIO()
    configure_logging(load_settings(deployment="prod", log={"format": "json"}), stream=out)
    structlog.get_logger().info("one", pid=7)
    with THIS.leads(3):
        logging.getLogger("kazoo").warning("two")
    structlog.get_logger().info("three")
    one, two, three = map(json.loads, out.getvalue().splitlines())
    about = {"deployment": "prod", "role": role, "host": socket.gethostname(), "version": VERSION}
    assert one.items() >= {**about, "event": "one", "pid": 7}.items()
    assert two.items() >= {**about, "event": "two", "pid": os.getpid(), "epoch": 3, "logger": "kazoo"}.items()
    assert three.items() >= {**about, "event": "three", "pid": os.getpid()}.items()
    assert not {"epoch"} & {*one, *three}


def test_lines_for_people_are_not_made_longer(role: Role) -> None:
    """On a terminal there is one process, or each has a file of its own."""
    out = io.StringIO()
    configure_logging(load_settings(deployment="prod"), stream=out)
    structlog.get_logger().info("one", job="j")
    assert re.fullmatch(r"\S+ \[info\] one job=j\n", out.getvalue())
    assert role not in out.getvalue()


def test_brokers_are_told_whose_client_it_is(role: Role, monkeypatch: pytest.MonkeyPatch) -> None:
    """Role, deployment, host and process, in characters that names of metrics can have."""
    monkeypatch.setattr(socket, "gethostname", lambda: "h 1.example.org")
    assert THIS.client_id("prod") == f"sardonyx-{role}-prod-h-1.example.org-{os.getpid()}"


def test_every_client_begins_with_that() -> None:
    """No module of queues makes a client's configuration of the settings alone: brokers would call it rdkafka."""
    folder = Path(queues.__file__).parent
    assert [path.name for path in folder.glob("*.py") if "kafka.client()" in path.read_text("utf-8")] == ["client.py"]
