"""A peer daemon and its ZooKeeper session: what is registered is alive, and what is alive is registered."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from coordinator.core.projection import encode_note
from peer.daemon import PeerDaemon
from peer.task_runner import SparkTaskRunner
from sardonyx.core import node_paths
from sardonyx.core.notes import PeerNote
from sardonyx.core.positions import Partition
from sardonyx.runtime.settings import Settings
from sardonyx.state.messages import Mark
from sardonyx.zookeeper.errors import ZooKeeperAway
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.proxy import Proxy
from tests.sessions import end_session
from tests.waiting import until

PEERS = 2


class Daemon:
    """A daemon on a thread, with the trees that it has opened. It is offered no task, so it needs no Spark.

    ``patience``: seconds that a call of its peers waits for ZooKeeper; None: as the settings say.
    """

    def __init__(self, settings: Settings, patience: float | None = None) -> None:
        self.trees: list[ZooKeeperSession] = []
        connect = ZooKeeperSession.connect

        def remembered(*arguments: Any, **options: Any) -> ZooKeeperSession:
            zk = connect(*arguments, **options)
            zk.patience = patience or zk.patience  # before any peer makes a call: it keeps what it began with
            self.trees.append(zk)
            return zk

        runner: Any = None  # nothing is ever offered to these peers
        quick = settings.peer.model_copy(update={"virtual_peers": PEERS})
        self.daemon = PeerDaemon(settings.model_copy(update={"peer": quick}), runner, connect=remembered)
        self.thread = threading.Thread(target=self.daemon.run, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.daemon.stop()
        self.thread.join(180)
        assert not self.thread.is_alive()


@pytest.fixture
def look(settings: Settings) -> Iterator[ZooKeeperSession]:
    """A session of the test's own."""
    with contextlib.closing(ZooKeeperSession.connect(settings)) as zk:
        yield zk


def pulses(look: ZooKeeperSession) -> list[str]:
    return look.children(node_paths.PULSE)


def registered(look: ZooKeeperSession) -> list[str]:
    return until(lambda: (found := pulses(look)) and len(found) == PEERS and found, what="both pulses")


@pytest.mark.gate
def test_an_expired_session_is_followed_by_one_other(settings: Settings, look: ZooKeeperSession):
    """After an expiry all virtual peers come back under new ids, in one new session and no more."""
    lasting = settings.zookeeper.model_copy(update={"session_timeout": 60.0})  # none expires but by the test
    daemon = Daemon(settings.model_copy(update={"zookeeper": lasting}))
    before = registered(look)
    end_session(daemon.trees[0].hosts, daemon.trees[0].client.client_id)
    until(lambda: len(daemon.trees) == 2, what="a second session")
    after = until(
        lambda: set(found := pulses(look)).isdisjoint(before) and len(found) == PEERS and found, what="pulses"
    )
    daemon.daemon.stop()
    daemon.thread.join(180)
    assert len(daemon.trees) == 2
    assert set(after).isdisjoint(before)
    assert pulses(look) == []


def test_an_absence_that_the_session_outlives_changes_nothing(
    settings: Settings, look: ZooKeeperSession, zookeeper: str
):
    """ZooKeeper away for longer than a call waits, but not for longer than the session: the same peers go on following."""
    with Proxy(zookeeper) as proxy:
        # The absence lasts until every peer has noticed it, however slow this machine is. The session must outlive that.
        lasting = {"hosts": proxy.address, "session_timeout": 100.0}
        through = settings.model_copy(update={"zookeeper": settings.zookeeper.model_copy(update=lasting)})
        with capture_logs(processors=[merge_contextvars]) as lines:
            daemon = Daemon(through, patience=1.0)
            until(
                lambda: sum(line["event"] == "peer_registered" for line in lines) == PEERS, what="both to be registered"
            )
            before = registered(look)
            proxy.refuse()
            earlier = len(lines)  # on a slow machine a peer may have given a call up already
            gave_up = [{"peer": peer, "event": "zookeeper_unreachable"} for peer in before]
            until(
                lambda: all(any(line.items() >= wanted.items() for line in lines[earlier:]) for wanted in gave_up),
                what="every peer to have waited longer than a call does",
            )
        proxy.accept_again()
        until(lambda: daemon.trees[0].connected, what="the connection to be back")
        assert pulses(look) == before
        for peer in before:  # they act on their state nodes: revoked, each comes back under a new id
            look.create(node_paths.peer_state(peer), encode_note(PeerNote("revoked", 1)))
        until(lambda: set(pulses(look)).isdisjoint(before) and len(pulses(look)) == PEERS, what="their next lives")
        assert len(daemon.trees) == 1
        daemon.stop()


def test_a_peer_whose_pulse_was_taken_before_it_was_known_comes_back(settings: Settings, look: ZooKeeperSession):
    """A peer that never had a state node and has no pulse any more is reborn instead of waiting without end."""
    daemon = Daemon(settings)
    before = registered(look)
    look.delete(node_paths.pulse(before[0]))
    until(lambda: len(set(pulses(look)) - set(before)) == 1, what="a new pulse")
    daemon.stop()


def test_a_revoked_peer_survives_that_zookeeper_is_away(
    settings: Settings, look: ZooKeeperSession, monkeypatch: pytest.MonkeyPatch
):
    """A peer whose task was taken away removes its pulse. If ZooKeeper is away just then, it tries again in the same session."""
    away = threading.Event()
    delete = ZooKeeperSession.delete

    def once_away(zk: ZooKeeperSession, path: str) -> None:
        if path == revoked and not away.is_set():
            away.set()
            raise ZooKeeperAway("SX-ZOOKEEPER-AWAY", "by the test")
        delete(zk, path)

    daemon = Daemon(settings)
    before = registered(look)
    revoked = node_paths.pulse(before[0])
    monkeypatch.setattr(ZooKeeperSession, "delete", once_away)
    look.create(node_paths.peer_state(before[0]), encode_note(PeerNote("revoked", 1)))
    until(away.is_set, what="the removal that fails")
    after = until(
        lambda: before[0] not in (found := pulses(look)) and len(found) == PEERS and found, what="its next id"
    )
    assert before[1] in after
    assert len(daemon.trees) == 1
    daemon.stop()


def test_what_comes_after_the_end_of_a_daemon_is_given_back(tmp_path: Path) -> None:
    """A daemon has one place for the state that assignments leave, from its start on. So its end misses none of it."""
    nothing: Any = None  # no task is prepared, so it needs no Spark
    runner, gone = SparkTaskRunner(Settings(), nothing, tmp_path), []
    runner.close()
    left = Left(Mark(1))
    runner._kept.put(Partition("state", 0), left, 1, gone.append)
    assert gone == [left]


class Left(NamedTuple):
    """A shard, by its mark."""

    mark: Mark
