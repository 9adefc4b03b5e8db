"""Three of the ten histories on a real ZooKeeper with real processes: a peer is killed at work, one is cut off while it completes
its task, one is killed while it seals.

A process that dies is killed with SIGKILL, or stopped, at the exact point of its code. In each history the leader is killed as
well, at a point that the seed chooses, and a standby goes on. All ten stand in ``tests/scenarios`` and, with the leader dead at
each of its writes, in ``tests/simulation/test_ten_histories.py``.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import uuid
from pathlib import Path

import msgspec
import pytest
from kazoo.exceptions import ConnectionLoss, NoNodeError

from coordinator.core.state import new_state
from coordinator.history.replay import Replay
from coordinator.loop import event_log
from sardonyx.core import node_paths
from sardonyx.core.events import Evicted, JobSubmitted, PeerBorn, kind_of
from sardonyx.core.notes import CandidateNote, PulseNote
from sardonyx.runtime.settings import Settings, load_settings
from sardonyx.zookeeper.errors import ZooKeeperAway
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.core.scenario_runner import spec_of
from tests.services import light
from tests.services.coordination import completed, hold_together
from tests.services.light import Actor, coordinator_process, peer_process
from tests.sessions import end_session, password_of
from tests.waiting import until

SESSION = 30
"""Seconds that a session lives: a process that was not killed loses none, however slow the machine is. The sessions of those that
were are ended by :meth:`Play._bury`."""
FAILPOINTS = (
    "before-append",
    "after-append",
    "before-effects",
    "after-effects",
    "before-side-effect",
    "after-side-effect",
)
JOB = "copy-1"
SEQUENTIAL = "read -> write; read is a topic; write is sequential"
BEGUN = ["submit", "links-created"]


class Play:
    """One history: a deployment of its own, its processes, and what its log tells.

    Args:
        zookeeper: where it is played.
        folder: for the logs of its processes.
        failpoint: where the leading coordinator dies.
    """

    def __init__(self, zookeeper: str, folder: Path, failpoint: str) -> None:
        self._zookeeper = zookeeper
        self._folder = folder
        self._actors: list[Actor] = []
        self._failpoint = failpoint
        self._name = f"h{uuid.uuid4().hex[:10]}"
        self.settings: Settings = load_settings(
            deployment=self._name,
            zookeeper={"hosts": zookeeper, "session_timeout": SESSION},
            coordinator={"ack_timeout": 600, "revoke_grace": 1},
        )
        self.zk = ZooKeeperSession.connect(self.settings)
        light.set_stage(self.zk)
        self._over = threading.Event()
        self._undertaker = threading.Thread(target=self._bury, name="undertaker", daemon=True)
        self._undertaker.start()

    def begin(self) -> None:
        """Coordinators, and a job whose links stand."""
        self.leader = self.coordinator(self._failpoint)
        self.zk.request(JobSubmitted(job=JOB, spec=spec_of("copy", SEQUENTIAL)))
        until(lambda: self.zk.read(node_paths.EPOCH), what="the first leader")
        self.coordinator()
        self.tells(*BEGUN)

    def coordinator(self, failpoint: str = "") -> Actor:
        name = f"coordinator-{len(self._actors)}"
        return self._act(coordinator_process(name, self._folder, self.settings, failpoint=failpoint))

    def peer(self, name: str, *holds: str, failpoint: str = "") -> Actor:
        """One more light peer, born when this returns. It dies at ``failpoint``; see :data:`light.STEPS` for ``holds``."""
        actor = self._act(peer_process(name, self._folder, self.settings, failpoint=failpoint, holds=holds))
        self.tells(f"{name} born")
        return actor

    def _act(self, actor: Actor) -> Actor:
        self._actors.append(actor)
        return actor

    def _bury(self) -> None:
        """End the sessions of those that are dead, which would live on for as long as those of the living may be silent."""
        while not self._over.wait(0.1):
            dead = {actor.pid for actor in list(self._actors) if actor.exit_code is not None}
            if not dead:
                continue
            with contextlib.suppress(ZooKeeperAway, NoNodeError, ConnectionLoss):  # looked for again soon
                for session in self._sessions(dead):
                    end_session(self._zookeeper, (session, password_of(session)))

    def _sessions(self, pids: set[int]) -> set[int]:
        """Those that peers and coordinators of these processes hold nodes in."""
        found = set()
        for folder in (node_paths.PULSE, node_paths.ELECTION):
            for path in [f"{folder}/{name}" for name in self.zk.children(folder)]:
                data, stat = self.zk.client.get(self.zk.path(path))
                if folder == node_paths.PULSE:
                    pid = msgspec.json.decode(data, type=PulseNote).pid
                else:
                    pid = int(msgspec.json.decode(data, type=CandidateNote).name.rpartition(":")[2])
                if pid in pids:
                    found.add(stat.ephemeralOwner)
        return found

    def go(self, name: str, step: str) -> None:
        light.go(self.zk, name, step)

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
        assert self.leader.exit_code == -signal.SIGKILL, f"the leader outlived {self._failpoint}"
        hold_together(self.zk, self.settings)
        assert self.zk.children(node_paths.SENTINEL) == []
        assert self.sentinels()[-1].endswith(" write")
        return self.story()

    def sentinels(self) -> list[str]:
        return light.sentinels(self.zk)

    def close(self) -> None:
        self._over.set()
        self._undertaker.join()
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


def dies_while_active(play: Play) -> None:
    """4. Dies while active: dead, off the task; the task is not complete and goes to another peer, which is free."""
    play.begin()
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


def completes_when_dead(play: Play) -> None:
    """6. "complete!" is handled only after the death of who said it: the task is not complete, the next peer seals again."""
    play.begin()
    p1 = play.peer("P1", failpoint="complete:1:stop")
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


def next_peer_seals(play: Play) -> None:
    """10. P1 dies while sealing; P2, which waits for work, gets the task, finds the sentinel, seals, completes."""
    play.begin()
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


HISTORIES = {"4": dies_while_active, "6": completes_when_dead, "10": next_peer_seals}


def failpoint_for(number: int, seed: int) -> str:
    """Where the leader of the history at this place dies: in turn over all points, at a passage that the seed chooses."""
    point = FAILPOINTS[(number + seed) % len(FAILPOINTS)]
    # Topics are made once and removed once; before the first peer is sealing everything else happens five times.
    return f"{point}:{1 if point.endswith('side-effect') else random.Random(f'{seed}/{number}').randint(1, 5)}:kill"


@pytest.mark.gate
@pytest.mark.parametrize("number", range(len(HISTORIES)), ids=list(HISTORIES))
def test_a_history_holds(number: int, zookeeper: str, seed: int, tmp_path: Path) -> None:
    """The log tells just what the history says, the tree is that log, nothing is left in the inbox, the job is complete."""
    failpoint = failpoint_for(number, seed)
    with contextlib.closing(Play(zookeeper, tmp_path, failpoint)) as play:
        try:
            [*HISTORIES.values()][number](play)
        except BaseException as error:
            error.add_note(f"{failpoint}\nlog: {play.story()}\nsentinels: {play.sentinels()}\n{play.said()}")
            raise
