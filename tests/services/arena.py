"""Coordinators that depose each other, over and over, while jobs run: what tests of takeovers share.

Each coordinator is a process behind a proxy of its own, and writes down what it writes. A deposition is one of
:data:`KINDS`. What was written under which epoch is then held against ZooKeeper's own order of all writes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from kazoo.protocol.states import ZnodeStat

from coordinator.loop import event_log
from sardonyx.core import node_paths
from sardonyx.core.notes import EpochNote
from sardonyx.runtime.clock import Runtime
from sardonyx.runtime.settings import Settings, load_settings
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.proxy import Proxy
from tests.services.coordination import FakePeer, completed, hold_together, submit
from tests.services.light import Actor, coordinator_process
from tests.sessions import end_session
from tests.waiting import until

SESSION = 2
"""Seconds that a coordinator's session lives; those of the test itself live longer."""
KINDS = ("killed", "stopped", "expired", "cut", "deaf", "unseated")
"""killed: SIGKILL. stopped: SIGSTOP past its session, and SIGCONT. expired: ZooKeeper ends its session. cut: no connection.
deaf: what ZooKeeper answers is lost. unseated: its place in the election is taken from it, while its session lives."""
PEERS = 3
JOBS = 3
"""Handed in before, in and after each deposition."""


class Noting(Runtime):
    """Remembers what it made up: the uuid of every request that was ever sent."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def token(self) -> str:
        self.made.append(super().token())
        return self.made[-1]


class Epoch(NamedTuple):
    """One leadership, as it stood in ``/epoch``."""

    version: int
    zxid: int
    """ZooKeeper's number of the write that began it."""
    at: float
    """When that was, seconds since 1970, to the millisecond."""
    pid: int


class Write(NamedTuple):
    """A transaction of a leader, as it was written down in front of it."""

    version: int
    at: float
    batches: tuple[str, ...]
    outcome: str
    """``done``, ``deposed``, the name of another error; empty if its writer never heard of it, or died before."""


class Deposition(NamedTuple):
    """What became of one of them."""

    kind: str
    seconds: float
    """From the deed to the successor's first decision."""


class Audit:
    """What all leaders in a folder have written down so far.

    Args:
        folder: holds a file ``*.writes`` for each.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: Counter[Path] = Counter()
        """Bytes of each file that are in :attr:`_noted`."""
        self._noted: list[dict[str, Any]] = []

    def lines(self) -> list[dict[str, Any]]:
        for file in self._folder.glob("*.writes"):
            with file.open("rb") as lines:
                lines.seek(self._read[file])
                *whole, _ = lines.read().split(b"\n")  # the last one may be in the making
            self._read[file] += sum(len(line) + 1 for line in whole)
            self._noted += map(json.loads, whole)
        return self._noted

    def writes(self) -> list[Write]:
        """Everything that any leader ever sent under its epoch."""
        sent: dict[str, dict[str, Any]] = {}
        heard: dict[str, dict[str, Any]] = {}
        for line in self.lines():
            if "write" in line:
                (heard if line["outcome"] else sent)[line["write"]] = line
        return [
            Write(line["version"], line["at"], tuple(line["batches"]), heard.get(number, line)["outcome"])
            for number, line in sent.items()
        ]


class Candidate(NamedTuple):
    actor: Actor
    proxy: Proxy


class Arena(contextlib.ExitStack):
    """A deployment whose leaders are deposed.

    Args:
        zookeeper: where.
        deployment: its name.
        folder: for logs.
        coordinators: how many there are at a time.
    """

    def __init__(self, zookeeper: str, deployment: str, folder: Path, coordinators: int) -> None:
        super().__init__()
        self._zookeeper = zookeeper
        self._deployment = deployment
        self._folder = folder
        self._number = itertools.count()
        self._jobs: list[str] = []
        self._audit = Audit(folder)
        self._candidates: list[Candidate] = []
        self.depositions: list[Deposition] = []
        self.epochs: dict[int, Epoch] = {}
        self._requests = Noting()
        self._safe = self._settings(self._zookeeper, 30)
        self.zk = self._connect()
        self.zk.client.DataWatch(self.zk.path(node_paths.EPOCH), self._on_epoch)
        session = self._connect()
        for number in range(PEERS):
            peer = FakePeer(session, f"p{number}")
            self.callback(peer.stop)
        for _ in range(coordinators):
            self._stand()
        until(lambda: self.epochs, what="the first leader")

    def _connect(self) -> ZooKeeperSession:
        zk = ZooKeeperSession.connect(self._safe)
        zk.runtime = self._requests
        self.callback(zk.close)
        return zk

    def _settings(self, hosts: str, session: float) -> Settings:
        return load_settings(deployment=self._deployment, zookeeper={"hosts": hosts, "session_timeout": session})

    def _on_epoch(self, data: bytes | None, stat: ZnodeStat | None) -> None:
        if data and stat:
            pid = msgspec.json.decode(data, type=EpochNote).leader.rpartition(":")[2]
            self.epochs[stat.version] = Epoch(stat.version, stat.mzxid, stat.mtime / 1000, int(pid))

    def _stand(self, proxy: Proxy | None = None) -> None:
        """One more coordinator stands for election, behind a proxy of its own or that of a dead one."""
        proxy = proxy or self.enter_context(Proxy(self._zookeeper))
        name = f"coordinator-{next(self._number)}"
        audit = self._folder / f"{name}.writes"
        before = len(self.zk.children(node_paths.ELECTION))
        actor = coordinator_process(name, self._folder, self._settings(proxy.address, SESSION), audit=audit)
        self.callback(actor.kill)
        self._candidates.append(Candidate(actor, proxy))
        until(lambda: len(self.zk.children(node_paths.ELECTION)) > before, what=f"{name} to stand for election")

    # Depositions

    def depose(self, kind: str) -> None:
        """One deposition with jobs before, in and after it; then all holds, and everybody stands for election again."""
        last = max(self.epochs)
        leader = self._leader()
        candidates = len(self.zk.children(node_paths.ELECTION))
        self._submit()
        began = time.time()
        undo = getattr(self, f"_{kind}")(leader)
        self._submit()
        until(lambda: max(self.epochs) > last, what=f"a successor of one that was {kind}")
        self._submit()
        first = until(lambda: self._first_decision(last), what="the successor's first decision")
        self.depositions.append(Deposition(kind, first - began))
        self._all_completed()
        undo()
        until(lambda: len(self.zk.children(node_paths.ELECTION)) == candidates, what="all to stand for election again")
        self._all_completed()
        hold_together(self.zk, self._safe)

    def _leader(self) -> Candidate:
        pid = self.epochs[max(self.epochs)].pid
        return next(candidate for candidate in self._candidates if candidate.actor.pid == pid)

    def _submit(self) -> None:
        self._jobs.append(f"job{len(self._jobs)}-1")
        submit(self.zk, self._jobs[-1])

    def _first_decision(self, last: int) -> float | None:
        """When the first event was logged under a later epoch."""
        logged = (line for line in self._audit.lines() if line.get("batches") and line["outcome"] == "done")
        return min((line["at"] for line in logged if line["version"] > last), default=None)

    def _all_completed(self) -> None:
        until(lambda: all(completed(self.zk, job) for job in self._jobs[-JOBS:]), what="all jobs to be completed")
        until(lambda: self.zk.children(node_paths.INBOX) == [], what="the inbox to be empty")
        until(lambda: event_log.read_checkpoint(self.zk) == event_log.last(self.zk), what="all to be decided")

    def _killed(self, leader: Candidate) -> Callable[[], None]:
        leader.actor.kill()
        self._candidates.remove(leader)
        return lambda: self._stand(leader.proxy)

    def _stopped(self, leader: Candidate) -> Callable[[], None]:
        leader.actor.send(signal.SIGSTOP)
        return lambda: leader.actor.send(signal.SIGCONT)

    def _expired(self, leader: Candidate) -> Callable[[], None]:
        """A client that has a session's id and password can end it."""
        sessions = [line for line in self._audit.lines() if "session" in line and line["pid"] == leader.actor.pid]
        session = sessions[-1]
        end_session(self._zookeeper, (session["session"], bytes.fromhex(session["password"])))
        return lambda: None

    def _cut(self, leader: Candidate) -> Callable[[], None]:
        leader.proxy.refuse()
        return leader.proxy.accept_again

    def _deaf(self, leader: Candidate) -> Callable[[], None]:
        """From its next entry in the log on, which is written without its ever hearing of it."""
        leader.proxy.lose_replies_to(node_paths.LOG.encode() + b"/")
        return leader.proxy.cut

    def _unseated(self, _leader: Candidate) -> Callable[[], None]:
        first = min(self.zk.children(node_paths.ELECTION), key=lambda node: node[-10:])
        self.zk.delete(f"{node_paths.ELECTION}/{first}")
        return lambda: None

    def said(self) -> str:
        """The ends of the logs of all coordinators that live."""
        return "\n".join(candidate.actor.said() for candidate in self._candidates)

    # What was written

    def hold(self) -> Counter[str]:
        """After all: every request was logged once, and whatever stands in the log was written under the epoch of its time.

        Gives the figures: leaderships, log entries, writes, deposed writes tried and accepted, writes done unheard.
        """
        logged = [entry.request for _, entry in event_log.read_entries(self.zk) if entry.request]
        assert sorted(logged) == sorted(self._requests.made), "a request was lost or doubled"
        epochs = [self.epochs[version] for version in sorted(self.epochs)]
        assert [epoch.version for epoch in epochs] == list(range(1, len(epochs) + 1))
        ends = {epoch.version: later for epoch, later in itertools.pairwise(epochs)}
        writes = self._audit.writes()
        wrong, unheard = [], 0
        for path, zxid in self._batches():
            ruling = max(epoch.version for epoch in epochs if epoch.zxid < zxid)
            writers = [
                write for write in writes if path in write.batches and write.outcome not in ("deposed", _REFUSED)
            ]
            wrong += [write for write in writers if write.outcome == "done" and write.version != ruling]
            assert any(write.version == ruling for write in writers), f"no leader of that time has written {path}"
            unheard += not any(write.outcome == "done" for write in writers)
        late = [write for write in writes if write.version in ends and write.at > ends[write.version].at + 0.001]
        wrong += [write for write in late if write.outcome == "done"]
        assert not wrong, f"deposed leaders wrote: {wrong}"
        return Counter(
            depositions=len(self.depositions),
            leaderships=len(epochs),
            jobs=len(self._jobs),
            requests=len(logged),
            entries=event_log.last(self.zk),
            writes=len(writes),
            deposed_writes_tried=sum(write.outcome == "deposed" or write in late for write in writes),
            deposed_writes_accepted=len(wrong),
            writes_done_unheard=unheard,
        )

    def _batches(self) -> Iterator[tuple[str, int]]:
        """Each node of the log, with ZooKeeper's number of the write that made it."""
        for bucket in self.zk.children(node_paths.LOG):
            for name in self.zk.children(f"{node_paths.LOG}/{bucket}"):
                path = f"{node_paths.LOG}/{bucket}/{name}"
                yield path, self.zk.client.exists(self.zk.path(path)).czxid


_REFUSED = "TransactionFailed"
