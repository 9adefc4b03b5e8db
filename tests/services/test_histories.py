"""The ten histories that must hold, on a real ZooKeeper with real processes.

A process that dies is killed with SIGKILL, or stopped, at the exact point of its code. Each history is played twice: once under
one coordinator, and once with the leader killed in its midst at a point that the seed chooses, and a standby that goes on.
The histories do not know of each other and wait more than they compute, so several are played at a time.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from coordinator.core.state import new_state
from coordinator.history.replay import Replay
from coordinator.loop import event_log
from sardonyx.core import node_paths
from sardonyx.core.events import Evicted, JobSubmitted, PeerBorn, kind_of
from sardonyx.runtime.settings import Settings, load_settings
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.core.scenario_runner import spec_of
from tests.services import light
from tests.services.coordination import completed, hold_together
from tests.services.light import Actor, coordinator_process, peer_process
from tests.waiting import until

AT_A_TIME = 4
DOOMED, SAFE = 3, 30
"""Session timeouts, in seconds: of a process that is to die, and of one that must not."""
FAILPOINTS = (
    "before-append",
    "after-append",
    "before-effects",
    "after-effects",
    "before-side-effect",
    "after-side-effect",
)
JOB = "copy-1"
PARALLEL = "read -> write; read is a topic"
SEQUENTIAL = "read -> write; read is a topic; write is sequential"
BEGUN = ["submit", "links-created"]


class Play:
    """One history: a deployment of its own, its processes, and what its log tells.

    Args:
        zookeeper: where it is played.
        folder: for the logs of its processes.
        failpoint: where the leading coordinator dies; empty: nowhere.
        timers: the coordinators'.
    """

    def __init__(self, zookeeper: str, folder: Path, failpoint: str, **timers: float) -> None:
        self._zookeeper = zookeeper
        self._folder = folder
        self._timers = {"ack_timeout": 30, **timers}
        self._actors: list[Actor] = []
        self.paused = bool(failpoint)
        self._failpoint = failpoint
        self._name = f"h{uuid.uuid4().hex[:10]}"
        self.zk = ZooKeeperSession.connect(self.settings(SAFE))
        light.set_stage(self.zk)

    def settings(self, session: float) -> Settings:
        return load_settings(
            deployment=self._name,
            zookeeper={"hosts": self._zookeeper, "session_timeout": session},
            coordinator=self._timers,
        )

    def begin(self, job: str = PARALLEL) -> None:
        """Coordinators, and a job whose links stand."""
        self.leader = self.coordinator(self._failpoint)
        self.zk.request(JobSubmitted(job=JOB, spec=spec_of("copy", job)))
        until(lambda: self.zk.read(node_paths.EPOCH), what="the first leader")
        if self._failpoint:
            self.coordinator()
        self.tells(*BEGUN)

    def coordinator(self, failpoint: str = "") -> Actor:
        name = f"coordinator-{len(self._actors)}"
        return self._act(coordinator_process(name, self._folder, self.settings(DOOMED), failpoint=failpoint))

    def peer(self, name: str, *holds: str, failpoint: str = "", session: float | None = None) -> Actor:
        """One more light peer, born when this returns. It dies at ``failpoint``; see :data:`light.STEPS` for ``holds``."""
        lives = session or (DOOMED if failpoint else SAFE)
        actor = self._act(peer_process(name, self._folder, self.settings(lives), failpoint=failpoint, holds=holds))
        self.tells(f"{name} born")
        return actor

    def _act(self, actor: Actor) -> Actor:
        self._actors.append(actor)
        return actor

    def go(self, name: str, step: str) -> None:
        light.go(self.zk, name, step)

    def kill_coordinators(self) -> None:
        for actor in self._actors:
            if actor.name.startswith("coordinator"):
                actor.kill()

    def story(self) -> list[str]:
        """What the log tells, a line an event: who, what, and whether it changed nothing in the tree."""
        replay = Replay(new_state(self._name))
        names = {actor.pid: actor.name for actor in self._actors}
        called: dict[str, str] = {}
        lines = []
        for n, event in event_log.read_log(self.zk):
            if isinstance(event, PeerBorn):
                lives = list(called.values()).count(names[event.pid])
                called[event.peer] = names[event.pid] if not lives else f"{names[event.pid]} again"
            who = called.get(getattr(event, "peer", ""), "")
            decided = replay.step(n, event)
            same = "" if decided.changes or decided.effects else ", no change"
            lines.append(f"{who} {kind_of(event)}{same}".strip())
        return lines

    def tells(self, *lines: str) -> None:
        """Wait until the log tells all of these."""
        until(lambda: set(lines) <= set(self.story()) or self._missing(lines), what=f"the log to tell {lines}")

    def _missing(self, lines: tuple[str, ...]) -> bool:
        story = self.story()
        raise AssertionError(f"{set(lines) - set(story)} not in {story}")

    def ends(self) -> list[str]:
        """Wait for the job's end and hold tree and log together. Gives the whole story."""
        until(lambda: completed(self.zk, JOB), what="the job to be completed")
        until(lambda: self.zk.children(node_paths.INBOX) == [], what="the inbox to be empty")
        until(lambda: event_log.read_checkpoint(self.zk) == event_log.last(self.zk), what="all to be decided")
        if self._failpoint:
            assert self.leader.exit_code == -signal.SIGKILL, f"the leader outlived {self._failpoint}"
        hold_together(self.zk, self.settings(SAFE))
        assert self.zk.children(node_paths.SENTINEL) == []
        assert self.sentinels()[-1].endswith(" write")
        return self.story()

    def sentinels(self) -> list[str]:
        return light.sentinels(self.zk)

    def close(self) -> None:
        for actor in self._actors:
            actor.kill()
        self.zk.close()

    def said(self) -> str:
        """The ends of all logs."""
        return "\n".join(actor.said() for actor in self._actors)


def dead_at_its_failpoint(actor: Actor) -> None:
    until(lambda: actor.exit_code is not None, what=f"{actor.name} to die at its failpoint")
    assert actor.exit_code == -signal.SIGKILL


def held_up(actor: Actor) -> None:
    until(lambda: actor.stopped, what=f"{actor.name} to stop at its failpoint")


# The histories. Each is played by a function, which must find the log as it says.


def one_peer(play: Play) -> None:
    """1. One peer: idle, offered, acking, acks, active, finds the sentinel, "seal?", sealing, seals, "complete!", idle."""
    play.begin()
    play.peer("P1")
    assert play.ends() == [*BEGUN, "P1 born", "P1 ack", "P1 exhausted", "P1 completed", "links-deleted"]
    assert play.sentinels() == ["P1 write"]


def never_acks(play: Play) -> None:
    """2. Offered, never acks: the timer fires: revoked, dead; the task goes to another. Its answer comes too late."""
    play.begin(SEQUENTIAL)
    p1 = play.peer("P1", failpoint="offered:1:stop", session=SAFE)
    held_up(p1)
    play.tells("P1 ack-timed-out", "P1 grace-ended", "P1 died, no change")
    play.peer("P2", "exhausted")
    play.tells("P2 ack")
    p1.send(signal.SIGCONT)
    play.tells("P1 ack, no change", "P1 again born")
    play.go("P2", "exhausted")
    told = [line for line in play.ends() if line not in ("P1 again born", "P2 ack-timed-out, no change")]
    assert told == [
        *[*BEGUN, "P1 born", "P1 ack-timed-out", "P1 grace-ended", "P1 died, no change", "P2 born", "P2 ack"],
        *["P1 ack, no change", "P2 exhausted", "P2 completed", "links-deleted"],
    ]
    assert play.sentinels() == ["P2 write"]


def dies_while_acking(play: Play) -> None:
    """3. Dies while acking: dead, off the task. The timer of its ack fires and changes nothing."""
    play.begin()
    dead_at_its_failpoint(play.peer("P1", failpoint="offered:1:kill"))
    play.tells("P1 died")
    play.peer("P2")
    assert play.ends() == [
        *[*BEGUN, "P1 born", "P1 died"],
        *["P2 born", "P2 ack", "P2 exhausted", "P2 completed", "links-deleted"],
    ]


def dies_while_active(play: Play) -> None:
    """4. Dies while active: dead, off the task; the task is not complete and goes to another peer, which is free."""
    play.begin(SEQUENTIAL)
    p1 = play.peer("P1", "exhausted", failpoint="exhausted:1:kill")
    play.tells("P1 ack")
    play.peer("P2")
    play.go("P1", "exhausted")
    dead_at_its_failpoint(p1)
    assert play.ends() == [
        *[*BEGUN, "P1 born", "P1 ack", "P2 born", "P1 died"],
        *["P2 ack", "P2 exhausted", "P2 completed", "links-deleted"],
    ]
    assert play.sentinels() == ["P2 write"]


def dies_while_sealing(play: Play, failpoint: str, written: list[str]) -> None:
    play.begin()
    dead_at_its_failpoint(play.peer("P1", failpoint=failpoint))
    play.tells("P1 died")
    assert play.sentinels() == written
    play.peer("P2")
    assert play.ends() == [
        *[*BEGUN, "P1 born", "P1 ack", "P1 exhausted", "P1 died"],
        *["P2 born", "P2 ack", "P2 exhausted", "P2 completed", "links-deleted"],
    ]
    assert play.sentinels() == [*written, "P2 write"]


def dies_before_its_sentinel(play: Play) -> None:
    """5a. Dies while sealing, before its sentinel was written: the task is not complete; the next peer seals."""
    dies_while_sealing(play, "seal:1:kill", [])


def dies_behind_its_sentinel(play: Play) -> None:
    """5b. Dies while sealing, with its sentinel written: the task is not complete; the next peer seals again."""
    dies_while_sealing(play, "sealed:1:kill", ["P1 write"])


def completes_when_dead(play: Play) -> None:
    """6a. "complete!" is handled only after the death of who said it: the task is not complete, the next peer seals again."""
    play.begin(SEQUENTIAL)
    p1 = play.peer("P1", failpoint="complete:1:stop", session=SAFE)
    held_up(p1)
    (told_as,) = play.zk.children(node_paths.PULSE)
    play.zk.request(Evicted(peer=told_as))
    play.tells("P1 grace-ended", "P1 died, no change")
    play.peer("P2", "exhausted")
    play.tells("P2 ack")
    p1.send(signal.SIGCONT)
    play.tells("P1 completed, no change", "P1 again born")
    play.go("P2", "exhausted")
    told = [line for line in play.ends() if line != "P1 again born"]
    assert told == [
        *[
            *BEGUN,
            "P1 born",
            "P1 ack",
            "P1 exhausted",
            "P1 evict",
            "P1 grace-ended",
            "P1 died, no change",
            "P2 born",
            "P2 ack",
        ],
        *["P1 completed, no change", "P2 exhausted", "P2 completed", "links-deleted"],
    ]
    assert play.sentinels() == ["P1 write", "P2 write"]


def dies_when_it_has_completed(play: Play) -> None:
    """6b. Dies after "complete!" was handled: the task stays complete, and the next peer goes on behind it."""
    play.begin("read -> middle -> write; read is a topic")
    dead_at_its_failpoint(play.peer("P1", failpoint="completed:1:kill"))
    play.tells("P1 died")
    play.peer("P2")
    assert play.ends() == [
        *[*BEGUN, "P1 born", "P1 ack", "P1 exhausted", "P1 completed", "P1 died"],
        *["P2 born", "P2 ack", "P2 exhausted", "P2 completed", "links-deleted"],
    ]
    assert play.sentinels() == ["P1 middle", "P2 write"]


def completes_while_nobody_leads(play: Play) -> None:
    """6c. A peer says "complete!" and dies while no coordinator leads: its request is handled before its death, and the task is
    complete.
    """
    play.begin("read -> middle -> write; read is a topic")
    p1 = play.peer("P1", "sealed", failpoint="completed:1:kill")
    until(lambda: play.sentinels() == ["P1 middle"], what="P1's sentinel")
    until(lambda: not play.paused or play.leader.exit_code is not None, what="the leader to die at its failpoint")
    play.kill_coordinators()
    play.go("P1", "sealed")
    dead_at_its_failpoint(p1)
    until(lambda: play.zk.children(node_paths.PULSE) == [], what="P1's session to end")
    play.coordinator()
    play.tells("P1 completed", "P1 died")
    play.peer("P2")
    assert play.ends() == [
        *[*BEGUN, "P1 born", "P1 ack", "P1 exhausted", "P1 completed", "P1 died"],
        *["P2 born", "P2 ack", "P2 exhausted", "P2 completed", "links-deleted"],
    ]
    assert play.sentinels() == ["P1 middle", "P2 write"]


def two_peers(play: Play) -> None:
    """7. Two peers: P1 exhausted, waiting; P2 exhausted, sealing, "complete!": both idle, task complete."""
    play.begin()
    for name in ("P1", "P2"):
        play.peer(name, "exhausted")
        play.tells(f"{name} ack")
    for name in ("P1", "P2"):
        play.go(name, "exhausted")
        play.tells(f"{name} exhausted")
    assert play.ends() == [
        *[*BEGUN, "P1 born", "P1 ack", "P2 born", "P2 ack"],
        *["P1 exhausted", "P2 exhausted", "P2 completed", "links-deleted"],
    ]
    assert play.sentinels() == ["P2 write"]


def joined_while_it_seals(play: Play, failpoint: str = "") -> Actor:
    """P1 seals, P2 joins; P1 says "complete!" and waits. P2 is active, and dies at ``failpoint`` when it goes on."""
    play.begin()
    play.peer("P1", "sealed")
    play.tells("P1 exhausted")
    p2 = play.peer("P2", "exhausted", failpoint=failpoint)
    play.tells("P2 ack")
    play.go("P1", "sealed")
    play.tells("P1 completed")
    play.go("P2", "exhausted")
    return p2


JOINED = [*BEGUN, "P1 born", "P1 ack", "P1 exhausted", "P2 born", "P2 ack", "P1 completed"]


def joined_while_sealing(play: Play) -> None:
    """8. P1 sealing; P2 gets the same task; P1 "complete!": waiting; P2 exhausted, seals, completes: both idle."""
    joined_while_it_seals(play)
    assert play.ends() == [*JOINED, "P2 exhausted", "P2 completed", "links-deleted"]
    assert play.sentinels() == ["P1 write", "P2 write"]


def joined_and_died(play: Play) -> None:
    """9. As 8, but P2 dies while active: P1 is offered the task again, seals again, completes."""
    dead_at_its_failpoint(joined_while_it_seals(play, "exhausted:1:kill"))
    assert play.ends() == [*JOINED, "P2 died", "P1 ack", "P1 exhausted", "P1 completed", "links-deleted"]
    assert play.sentinels() == ["P1 write", "P1 write"]


def next_peer_seals(play: Play) -> None:
    """10. P1 dies while sealing; P2, which waits for work, gets the task, finds the sentinel, seals, completes."""
    play.begin(SEQUENTIAL)
    p1 = play.peer("P1", "exhausted", failpoint="sealed:1:kill")
    play.tells("P1 ack")
    play.peer("P2", "sealed")
    play.go("P1", "exhausted")
    dead_at_its_failpoint(p1)
    until(lambda: play.sentinels() == ["P1 write", "P2 write"], what="P2's sentinel")
    # Whatever sentinel P2 met itself: the one that counts was elected when P1 met it.
    assert play.zk.read(node_paths.sentinel(JOB, "read.write")) == b"met by P1"
    play.go("P2", "sealed")
    assert play.ends() == [
        *[*BEGUN, "P1 born", "P1 ack", "P2 born", "P1 exhausted", "P1 died"],
        *["P2 ack", "P2 exhausted", "P2 completed", "links-deleted"],
    ]


HISTORIES: dict[str, tuple[Callable[[Play], None], dict[str, float]]] = {
    "1": (one_peer, {}),
    "2": (never_acks, {"ack_timeout": 6, "revoke_grace": 1}),  # longer than a takeover: it must come to be offered
    "3": (dies_while_acking, {}),
    "4": (dies_while_active, {}),
    "5a": (dies_before_its_sentinel, {}),
    "5b": (dies_behind_its_sentinel, {}),
    "6a": (completes_when_dead, {"revoke_grace": 1}),
    "6b": (dies_when_it_has_completed, {}),
    "6c": (completes_while_nobody_leads, {}),
    "7": (two_peers, {}),
    "8": (joined_while_sealing, {}),
    "9": (joined_and_died, {}),
    "10": (next_peer_seals, {}),
}
GATE = ("4", "5b", "6b", "10")
"""Those that `make test` plays, each with its leader killed: as many as are played at a time."""


def failpoint_for(number: int, seed: int) -> str:
    """Where the leader of the history at this place dies: in turn over all points, at a passage that the seed chooses."""
    point = FAILPOINTS[(number + seed) % len(FAILPOINTS)]
    # Topics are made once and removed once; before the first peer is sealing everything else happens five times.
    return f"{point}:{1 if point.endswith('side-effect') else random.Random(f'{seed}/{number}').randint(1, 5)}:kill"


def played(zookeeper: str, folder: Path, number: int, failpoint: str) -> str:
    """Play a history to its end; gives what was wrong with it, with everybody's log, or nothing."""
    history, timers = list(HISTORIES.values())[number]
    play = Play(zookeeper, folder, failpoint, **timers)
    with contextlib.closing(play):
        try:
            history(play)
        except BaseException as error:  # noqa: BLE001 (told in the test that waits for it)
            return f"{failpoint}: {error!r}\nlog: {play.story()}\nsentinels: {play.sentinels()}\n{play.said()}"
    return ""


@pytest.fixture(scope="module")
def plays(
    zookeeper: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[dict[str, Future[str]]]:
    """The histories that were asked for, being played: by the id of their test."""
    seed = int(os.environ["SARDONYX_SEED"])
    with ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="play") as pool:
        being_played = {}
        for item in request.session.items:
            if item.path == request.path:
                number, killed = item.callspec.params["what"]
                failpoint = failpoint_for(number, seed) if killed else ""
                folder = tmp_path_factory.mktemp("play")
                being_played[item.callspec.id] = pool.submit(played, zookeeper, folder, number, failpoint)
        yield being_played


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(
            (number, killed),
            id=f"{name}-leader-killed" if killed else name,
            marks=pytest.mark.gate if killed and name in GATE else (),
        )
        for killed in (False, True)
        for number, name in enumerate(HISTORIES)
    ],
)
def test_a_history_holds(what: tuple[int, bool], plays: dict[str, Future[str]], request: pytest.FixtureRequest) -> None:
    """The log tells just what the history says, the tree is that log, nothing is left in the inbox, the job is complete."""
    wrong = plays[request.node.callspec.id].result()
    if wrong:
        pytest.fail(wrong, pytrace=False)
