"""Both sides of the wire to ZooKeeper, through a proxy that cuts it or loses replies: requests, and a peer at work."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import ClassVar

import pytest
from structlog.testing import capture_logs

from coordinator.loop import event_log
from peer.assignment import AssignmentHandle
from peer.daemon import PeerDaemon
from sardonyx.core import node_paths
from sardonyx.core.events import Evicted, Left, PeerBorn, TaskFailed
from sardonyx.runtime.settings import Settings, load_settings
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.proxy import Proxy
from tests.services import light
from tests.services.arena import Noting
from tests.services.coordination import completed, coordinator, hold_together, submit
from tests.services.light import LightRunner, LightWork
from tests.waiting import until

REQUESTS, AT_A_TIME = 500, 25


def through(settings: Settings, proxy: Proxy, session: float) -> Settings:
    return load_settings(deployment=settings.deployment, zookeeper={"hosts": proxy.address, "session_timeout": session})


@pytest.mark.gate
def test_requests_whose_replies_are_lost(settings: Settings, zk: ZooKeeperSession, proxy: Proxy) -> None:
    """Each of 500 is put in and its reply cut off, under one leader and then the next: each is logged once.

    In half of the rounds a coordinator leads, and has taken the requests before their writers can look for them, so that these
    send them again; in the others they are still there.
    """
    far = ZooKeeperSession.connect(through(settings, proxy, 100))
    far.runtime = sent = Noting()
    rounds = REQUESTS // AT_A_TIME

    def cut_off(number: int, *, led: bool) -> None:
        """One round: all are sent, none is answered."""
        proxy.lose_replies()
        before = len(sent.made)
        events = [Evicted(peer=f"p{number}-{each}") for each in range(AT_A_TIME)]
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            answers = [pool.submit(far.request, event) for event in events]
            until(lambda: len(arrived(zk, sent.made[before:], logged=led)) == AT_A_TIME, what="all to arrive")
            proxy.cut()
            for answer in answers:
                answer.result(180)

    with capture_logs() as lines:
        for part in range(4):
            with coordinator(settings) if part % 2 == 0 else nullcontext():
                if part == 0:
                    zk.request(Evicted(peer="first"))
                    until(lambda: event_log.last(zk) == 1, what="the log to begin")
                for number in range(part * rounds // 4, (part + 1) * rounds // 4):
                    cut_off(number, led=part % 2 == 0)
        with coordinator(settings):
            until(lambda: hold_together(zk, settings) is None, what="all to be decided")
            until(lambda: zk.children(node_paths.INBOX) == [], what="every request to be taken")
    far.close()
    said = Counter(line["event"] for line in lines)
    assert said["node_created_after_lost_reply"] == REQUESTS == len(sent.made)
    assert said["request_already_taken"] == REQUESTS // 2
    entries = [entry for _, entry in event_log.read_entries(zk, 2)]
    assert sorted(entry.request for entry in entries) == sorted(sent.made)
    assert len({entry.event.peer for entry in entries}) == REQUESTS


def arrived(zk: ZooKeeperSession, uuids: list[str], *, logged: bool) -> set[str]:
    """Which of these requests stand in the log, or else in the inbox."""
    if logged:
        first = max(event_log.last(zk) - 2 * AT_A_TIME, event_log.FIRST)
        return {entry.request for _, entry in event_log.read_entries(zk, first)} & set(uuids)
    return {name.rpartition("-")[0].rpartition("-")[2] for name in zk.children(node_paths.INBOX)} & set(uuids)


class Daemon:
    """One light peer in a thread of this process."""

    def __init__(self, settings: Settings, *holds: str, kind: type[LightRunner] = LightRunner) -> None:
        self.runner = kind("P1", frozenset(holds))
        one = settings.model_copy(update={"peer": settings.peer.model_copy(update={"virtual_peers": 1})})
        self._daemon = PeerDaemon(one, self.runner)
        self._thread = threading.Thread(target=self._daemon.run, name="daemon", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._daemon.stop()
        self._thread.join(180)
        assert not self._thread.is_alive()


class LetGoHere(LightRunner):
    """Whether its input is exhausted is not asked of ZooKeeper, which may be away."""

    def __init__(self, name: str, holds: frozenset[str]) -> None:
        super().__init__(name, holds)
        self.exhausted = threading.Event()

    def may(self, zk: ZooKeeperSession, step: str) -> bool:
        return self.exhausted.is_set() if step == "exhausted" else super().may(zk, step)


def test_a_suspended_peer_commits_nothing_and_then_goes_on(
    settings: Settings, zk: ZooKeeperSession, proxy: Proxy
) -> None:
    """Without a connection an assignment stands, but nothing may be committed. When it is back, the same peer goes on."""
    light.set_stage(zk)
    with coordinator(settings):
        daemon = Daemon(through(settings, proxy, 100), "exhausted", kind=LetGoHere)
        submit(zk, "count-1")
        (handle,) = until(lambda: daemon.runner.handles, what="the task to be taken")
        until(lambda: daemon.runner.polls, what="its loop to begin")  # before, it would wait for ZooKeeper
        assert handle.may_commit
        proxy.refuse()
        until(lambda: not handle.may_commit, what="the connection to be seen as down")
        assert not handle.revoked
        daemon.runner.exhausted.set()
        looks = daemon.runner.polls
        until(lambda: daemon.runner.polls > looks + 10, what="its loop to look for something to do again and again")
        assert light.sentinels(zk) == []
        assert not handle.may_commit
        proxy.accept_again()
        until(lambda: handle.may_commit, what="the connection to be back")
        until(lambda: completed(zk, "count-1"), what="the job to be completed")
        daemon.stop()
        until(lambda: hold_together(zk, settings) is None, what="all to be decided")
    assert light.sentinels(zk) == ["P1 read", "P1 work", "P1 write"]
    assert len([event for _, event in event_log.read_log(zk) if isinstance(event, PeerBorn)]) == 1


def test_a_peer_that_is_told_to_leave_leaves_without_a_failure(settings: Settings, zk: ZooKeeperSession) -> None:
    """It lets go of its task and says goodbye; that does not count as a failure of the task."""
    light.set_stage(zk)
    with coordinator(settings):
        daemon = Daemon(settings, "exhausted")
        submit(zk, "count-1")
        until(lambda: daemon.runner.handles, what="the task to be taken")
        daemon.stop()
        until(lambda: zk.children(node_paths.INBOX) == [], what="its goodbye to be taken")
        until(lambda: hold_together(zk, settings) is None, what="all to be decided")
    events = [event for _, event in event_log.read_log(zk)]
    assert [event.peer for event in events if isinstance(event, Left)] == [
        event.peer for event in events if isinstance(event, PeerBorn)
    ]
    assert not [event for event in events if isinstance(event, TaskFailed)]


class Clumsy(LightRunner):
    """Breaks at its first task, and not as tasks do that report what went wrong."""

    error: ClassVar[BaseException] = RuntimeError("unheard of")

    def work(self, prepared: LightWork, handle: AssignmentHandle, zk: ZooKeeperSession) -> None:
        if not self.handles:
            self.handles.append(handle)
            raise self.error
        super().work(prepared, handle, zk)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [RuntimeError("unheard of"), SystemExit("no Exception either")], ids=repr)
def test_a_peer_whose_loop_breaks_begins_afresh(
    settings: Settings, zk: ZooKeeperSession, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ends a task's thread, its peer does not keep the task: it comes back under a new id, and the job completes."""
    monkeypatch.setattr(Clumsy, "error", error)
    light.set_stage(zk)
    with coordinator(settings):
        daemon = Daemon(settings, kind=Clumsy)
        submit(zk, "count-1")
        until(lambda: completed(zk, "count-1"), what="the job to be completed")
        daemon.stop()
    assert daemon.runner.handles[0].revoked
    assert len({event.peer for _, event in event_log.read_log(zk) if isinstance(event, PeerBorn)}) == 2
