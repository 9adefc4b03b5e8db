"""Election, epoch and deadline on a real ZooKeeper."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from coordinator.loop import election
from coordinator.loop.election import Candidate, LeadershipEnded, known_rules
from sardonyx.core import node_paths
from sardonyx.core.effects import Create, Set
from sardonyx.core.events import FORMAT, OLDEST_RULES, RULES
from sardonyx.core.notes import CandidateNote
from sardonyx.runtime.settings import Settings, load_settings
from sardonyx.zookeeper.errors import Deposed, SessionLost
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.proxy import Proxy
from tests.services.coordination import leadership
from tests.waiting import until


def stand(settings: Settings) -> tuple[ZooKeeperSession, Candidate, threading.Event]:
    zk, wake = ZooKeeperSession.connect(settings), threading.Event()
    return zk, Candidate(zk, wake), wake


def test_a_standby_stops_when_told(settings: Settings) -> None:
    """Waiting for the leadership ends at once when it is no longer wanted."""
    with leadership(settings):
        zk, place, wake = stand(settings)
        stop = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(place.wait, stop)
            stop.set()
            wake.set()
            assert waiting.result(10) is False
        zk.close()


def test_who_lost_its_place_cannot_take_the_epoch(settings: Settings) -> None:
    """The epoch is raised only together with the proof that the election node still stands."""
    zk, place, _ = stand(settings)
    assert place.wait(threading.Event())
    (node,) = zk.children(node_paths.ELECTION)
    zk.delete(f"{node_paths.ELECTION}/{node}")
    with pytest.raises(SessionLost):
        place.take()
    assert zk.read(node_paths.EPOCH) == b""
    zk.close()


def test_a_lost_reply_to_taking_the_epoch_is_cleared_up(settings: Settings, proxy: Proxy) -> None:
    """If the epoch was taken and only the reply lost, the winner finds its own name there and leads."""
    far = load_settings(deployment=settings.deployment, zookeeper={"hosts": proxy.address})
    near = ZooKeeperSession.connect(settings)
    zk, place, _ = stand(far)
    assert place.wait(threading.Event())
    with ThreadPoolExecutor(1) as pool:
        # The sync and the read before the write need their replies: lose those from the write on.
        commit = zk.commit

        def commit_unheard(*args: object, **kwargs: object) -> None:
            proxy.lose_replies()
            commit(*args, **kwargs)

        zk.commit = commit_unheard
        taking = pool.submit(place.take)
        until(lambda: near.read(node_paths.EPOCH), what="the epoch to be taken")
        proxy.cut()
        won = taking.result(30)
    zk.commit = commit
    won.commit([Create("/job/x")])
    assert near.read("/job/x") == b""
    for opened in (zk, near):
        opened.close()


def test_a_leader_that_is_cut_off_stops_before_another_can_lead(settings: Settings, proxy: Proxy) -> None:
    """Without an answer for two thirds of the session timeout a leader stops by itself, without a message from outside."""
    far = load_settings(deployment=settings.deployment, zookeeper={"hosts": proxy.address, "session_timeout": 6})
    with leadership(far) as won:
        won.check()
        granted = won.zk.session_timeout
        began = won.zk.last_answer
        proxy.refuse()
        until(lambda: not won.zk.connected, what="the connection to be seen as down")
        with pytest.raises(LeadershipEnded):
            won.check()
        assert time.monotonic() - began < granted
        assert time.monotonic() - began >= granted * 2 / 3
        proxy.accept_again()


def test_a_leader_that_was_busy_asks_before_it_goes_on(settings: Settings) -> None:
    """Past the deadline with a standing connection it looks whether it still leads: yes, then it goes on; no, it stops."""
    with leadership(settings) as won:
        won.zk.last_answer -= won.zk.session_timeout
        won.check()
        assert time.monotonic() < won.deadline
        won.zk.commit([Set(node_paths.EPOCH, b"another's")])
        won.check()  # in time: the next write would tell
        won.zk.last_answer -= won.zk.session_timeout
        with pytest.raises(Deposed):
            won.check()


def test_a_newer_release_gives_way_to_an_older_one_that_can_still_lead(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands again, after the older one, and leads when that one is gone; so no older one meets a log that it cannot read."""
    monkeypatch.setattr(election, "OLDEST", FORMAT - 1)  # the release before has the same format
    zk, candidate, wake = stand(settings)
    older, note = ZooKeeperSession.connect(settings), CandidateNote("host:1", "", FORMAT - 1, OLDEST_RULES)
    older.create_sequential(node_paths.election_prefix("older"), msgspec.json.encode(note), ephemeral=True)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(candidate.wait, threading.Event())
        until(lambda: first_in_line(zk).startswith("older-"), what="the newer one to stand after the older one")
        assert not waiting.done()
        assert known_rules(zk) == OLDEST_RULES
        older.close()
        wake.set()
        assert waiting.result(20)
    assert candidate.take().epoch == 1
    assert known_rules(zk) == RULES
    zk.close()


def first_in_line(zk: ZooKeeperSession) -> str:
    return min(zk.children(node_paths.ELECTION), key=lambda name: name[-10:])
