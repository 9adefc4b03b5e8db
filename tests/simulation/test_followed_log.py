"""How pages and commands read the log of a deployment. ZooKeeper is a dictionary."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from kazoo.protocol.states import ZnodeStat
from typer.testing import CliRunner

from coordinator.history import reader
from coordinator.loop.event_log import Batch, Entry
from sardonyx.cli import log_commands
from sardonyx.cli.app import app
from sardonyx.core import node_paths
from sardonyx.core.events import FORMAT, RULES, AnyEvent, PolicySet
from sardonyx.web.api import Api
from sardonyx.web.live import LiveSource
from sardonyx.web.queries import ScaleQuery
from sardonyx.zookeeper.session import ZooKeeperSession


class Nodes:
    """The nodes of a deployment, as a session reads them."""

    root = node_paths.root("test")

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.made = 0

    def make(self, *events: AnyEvent) -> None:
        """Delete the deployment, and make it anew with these events in its log."""
        self.made += 1
        self.data = dict.fromkeys(node_paths.TOP, b"")
        batch = Batch(FORMAT, [Entry(event) for event in events], RULES)
        self.data |= {node_paths.log_bucket(1): b"", node_paths.log_batch(1): msgspec.json.encode(batch)}

    def read(self, path: str, watch: object = None) -> bytes | None:
        del watch
        return self.data.get(path)

    def children(self, path: str, watch: object = None) -> list[str]:
        del watch
        return sorted(node.rpartition("/")[2] for node in self.data if node.rpartition("/")[0] == path)

    def read_many(self, paths: Iterable[str]) -> dict[str, bytes]:
        return {path: self.data[path] for path in paths if path in self.data}

    def creation(self, path: str) -> tuple[int, int] | None:
        return (7, self.made) if path in self.data else None


def pages(zk: Nodes) -> Any:
    source: Any = object.__new__(LiveSource)
    source._zk, source._words, source._wake, source._seen, source._away = zk, Mock(), Mock(), None, None
    source._words.summary.return_value = ""
    source.book = source._begin()
    return source


def policies(*names: str) -> list[AnyEvent]:
    return [PolicySet(scheduler=name, at=float(n)) for n, name in enumerate(names, 1)]


def test_pages_follow_a_deployment_that_is_deleted_and_made_anew() -> None:
    """They show its log and not the one before, also if it has as many entries, or more, by the time they look."""
    zk = Nodes()
    zk.make(*policies("turns", "greedy"))
    source = pages(zk)
    api = Api(source)
    assert source.book.last == 2
    assert api.scale(ScaleQuery(), {}).last_at == 2.0
    for names in (["greedy", "turns"], ["turns", "turns", "greedy"], ["turns"]):
        zk.make(*[msgspec.structs.replace(event, at=event.at + 100) for event in policies(*names)])
        assert source._look(), "they tell nothing new"
        assert [source.book.time_of(n) for n in range(1, source.book.last + 1)] == [101.0, 102.0, 103.0][: len(names)]
        assert source.book.state.scheduler == names[-1]
        assert api.scale(ScaleQuery(), {}).first_at == 101.0
        source._look()
        assert not source._look(), "they begin anew at each look"


def test_pages_show_nothing_of_a_deployment_that_is_deleted() -> None:
    """Until it is made anew."""
    zk = Nodes()
    zk.make(*policies("turns", "greedy"))
    source = pages(zk)
    zk.data = {}
    assert source._look()
    assert (source.book.first, source.book.last) == (1, 0)
    zk.make(*policies("greedy"))
    assert source._look()
    assert source.book.last == 1


def test_a_node_is_told_from_another_one_at_its_path() -> None:
    """By the transaction that created it, and the time: ZooKeeper counts anew when its data is deleted."""
    zk: Any = Mock()
    zk.call = lambda send: send()
    stat = dict.fromkeys(ZnodeStat._fields, 0)
    zk.client.exists_async.return_value = ZnodeStat(
        **{**stat, "czxid": 12, "ctime": 1_700_000_000_123, "mzxid": 99, "mtime": 5}
    )
    assert ZooKeeperSession.creation(zk, node_paths.LOG) == (12, 1_700_000_000_123)
    zk.client.exists_async.return_value = None
    assert ZooKeeperSession.creation(zk, node_paths.LOG) is None


@pytest.mark.parametrize(
    ("given", "first"),
    [
        ([], None),
        (["--from", "2"], 2),
        (["--from", "0"], 1),
        (["--from", f"{datetime.fromtimestamp(1.5, UTC)}"], 2),
        (["--from", f"{datetime.fromtimestamp(2, UTC)}"], 3),
        (["--from", "10 min"], 4),
        (["--from", f"{datetime.fromtimestamp(0.5, UTC)}"], 1),
    ],
)
def test_an_export_begins_at_an_entry_or_at_a_time(
    monkeypatch: pytest.MonkeyPatch, given: list[str], first: int | None
) -> None:
    """As the list of entries does: with the first one after a time."""
    zk, asked = Nodes(), list[int | None]()
    zk.make(*policies("turns", "greedy", "turns"))

    def export(_zk: object, _version: str, begin: int | None) -> Any:
        asked.append(begin)
        return iter([b"{}"])

    monkeypatch.setattr(log_commands, "tree_of", lambda _call: nullcontext(zk))
    monkeypatch.setattr(reader, "export", export)
    found = CliRunner().invoke(app, ["log", "export", *given])
    assert (found.exit_code, asked) == (0, [first]), found.stderr
