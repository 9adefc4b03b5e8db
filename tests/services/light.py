"""Coordinators and light peers as real processes, that can be killed or stopped at an exact point of the code.

A light peer is the product's own daemon, virtual peer and task loop; only what it reads and writes stands nowhere. What
it finds, and when, stands in nodes in ZooKeeper (:func:`go`), so a test lays down the order of everything.

Processes are forked off one that has imported everything: tests kill many. Each has a log of its own.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

import peer.preparation
from coordinator.daemon import Coordinator
from coordinator.kafka.job_links import KafkaLinks
from coordinator.loop.side_effects import SideEffects
from peer.assignment import AssignmentHandle
from peer.daemon import PeerDaemon
from peer.sinks import Sink
from peer.slot_clients import SlotClients
from peer.task_loop import TaskLoop
from sardonyx.core import node_paths
from sardonyx.core.effects import Create
from sardonyx.core.events import Counts
from sardonyx.core.graph import Stage, graph_of
from sardonyx.core.notes import Assignment
from sardonyx.core.positions import Partition, Position
from sardonyx.core.spec import decode_spec
from sardonyx.runtime import failpoints
from sardonyx.runtime.settings import Settings, load_settings
from sardonyx.runtime.signals import heard
from sardonyx.zookeeper.errors import Deposed
from sardonyx.zookeeper.session import ZooKeeperSession
from sardonyx.zookeeper.transactions import Operation
from tests.services.coordination import FakeLinks
from tests.waiting import until

STAGE = "/light"
"""Below it tests say what light peers may do, and these what they did."""

STEPS = ("answer", "exhausted", "sealed")
"""What a light peer can be held at: before it is ready to take a task, before it finds its input exhausted, and when it has
written its sentinel but does not know it yet."""

_PATIENCE = 600.0
"""Seconds that a light peer waits for its test; longer than any test waits for it."""

_BATCH = re.compile(r"/log/\d+/\d+")

_CHILDREN = threading.Lock()
"""Held by the thread that looks after processes: a start looks after all that were started, and of two threads that read how one
of them ended the second finds nothing, and takes that for an exit code of 255."""

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([__name__, "queues.admin"])


# In the test


class Actor:
    """One process of a history.

    Args:
        name: who it is, also in its log's name.
        folder: where its log goes.
        run: what it does; a function of this module with its arguments.
        settings: of the deployment, with this one's own timers.
        failpoint: where it dies or stops, as in ``SARDONYX_FAILPOINT``.
    """

    def __init__(
        self, name: str, folder: Path, run: Callable[[], None], settings: Settings, *, failpoint: str = ""
    ) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        environment = settings.environment()
        self._process = _processes.Process(target=_become, args=(run, environment, failpoint, self._log), daemon=True)
        with _CHILDREN:
            self._process.start()

    def __enter__(self) -> Actor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def exit_code(self) -> int | None:
        """None while it lives; minus the number of the signal that killed it."""
        with _CHILDREN:
            return self._process.exitcode

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, if it lives, and wait until it is gone."""
        with _CHILDREN:
            self._process.kill()
        until(lambda: self.exit_code is not None, what=f"the end of {self.name}")

    @property
    def stopped(self) -> bool:
        """Whether a SIGSTOP has stopped it."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED
        return False

    def said(self, lines: int = 30) -> str:
        """The end of its log."""
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        return "\n".join([f"--- {self.name} (exit {self.exit_code})", *text.splitlines()[-lines:]])


def coordinator_process(
    name: str, folder: Path, settings: Settings, *, failpoint: str = "", kafka: bool = False, audit: Path | None = None
) -> Actor:
    """A coordinator; its links stand nowhere unless ``kafka``. ``audit``: where it writes down what it writes."""
    return Actor(name, folder, partial(_coordinate, audit, kafka=kafka), settings, failpoint=failpoint)


def peer_process(
    name: str,
    folder: Path,
    settings: Settings,
    *,
    failpoint: str = "",
    holds: Iterable[str] = (),
    virtual_peers: int = 1,
) -> Actor:
    """A daemon of light peers. ``holds``: the steps at which it waits until :func:`go` lets it go on, each from then on."""
    assert set(holds) <= set(STEPS)
    own = settings.model_copy(update={"peer": settings.peer.model_copy(update={"virtual_peers": virtual_peers})})
    return Actor(name, folder, partial(_serve, name, frozenset(holds)), own, failpoint=failpoint)


def set_stage(zk: ZooKeeperSession) -> None:
    """Make what the nodes of :func:`go` and the marks stand below."""
    for path in (STAGE, f"{STAGE}/go", f"{STAGE}/sentinels"):
        zk.create(path)


def go(zk: ZooKeeperSession, name: str, step: str) -> None:
    """Let the light peer of that name go on."""
    zk.create(f"{STAGE}/go/{name}-{step}")


def sentinels(zk: ZooKeeperSession) -> list[str]:
    """Who sealed what, in order: ``P1 write``."""
    marks = sorted(zk.children(f"{STAGE}/sentinels"), key=lambda name: name[-10:])
    return [" ".join(name.split("-")[:2]) for name in marks]


# In the process


def _become(run: Callable[[], None], environment: dict[str, str], failpoint: str, log: Path) -> None:
    os.environ.update(environment)
    failpoints.failpoint.__init__(failpoint)  # the one that all modules have, made when they were imported
    with log.open("ab", buffering=0) as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    run()


def follow() -> None:
    """Die with the test: one that is killed cannot kill its processes, and they would go on looking for its services."""
    test = multiprocessing.parent_process()
    assert test is not None

    def watch() -> None:
        test.join()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def _coordinate(audit: Path | None, *, kafka: bool) -> None:
    follow()
    settings = load_settings()
    side_effects: SideEffects = KafkaLinks(settings) if kafka else FakeLinks()
    if audit is None:
        Coordinator(settings, side_effects).run()
    else:
        AuditedTree.lines = audit
        Coordinator(settings, side_effects, connect=AuditedTree.connect).run()


def _serve(name: str, holds: frozenset[str]) -> None:
    follow()
    daemon = PeerDaemon(load_settings(), LightRunner(name, holds))
    with heard([signal.SIGTERM], lambda _: daemon.stop()):
        daemon.run()


class AuditedTree(ZooKeeperSession):
    """Writes down every transaction of a leader before it is sent, how it came out, and its sessions: a JSON line each."""

    lines: Path

    @classmethod
    def connect(cls, settings: Settings, **options: Any) -> AuditedTree:
        zk = super().connect(settings, **options)
        session, password = zk.client.client_id
        zk._note(session=session, password=password.hex())
        return zk

    def begin(self, operations: Iterable[Operation], *, epoch_version: int | None = None) -> Callable[[], None]:
        wanted = list(operations)
        if epoch_version is None:  # the epoch itself
            return super().begin(wanted)
        batches = [o.path for o in wanted if isinstance(o, Create) and _BATCH.fullmatch(o.path)]
        about = {"write": self.runtime.token(), "version": epoch_version, "batches": batches}
        self._note(**about, outcome="")
        finish = super().begin(wanted, epoch_version=epoch_version)

        def finished() -> None:
            outcome = "done"
            try:
                finish()
            except Exception as error:
                outcome = "deposed" if isinstance(error, Deposed) else type(error).__name__
                raise
            finally:
                self._note(**about, outcome=outcome)

        return finished

    def _note(self, **what: object) -> None:
        line = json.dumps({"pid": os.getpid(), "at": time.time(), **what})
        with self.lines.open("a") as out:
            out.write(line + "\n")


@dataclass
class LightRunner:
    """How a light peer does a task: like others, without Spark, and with what its test has it find.

    Args:
        name: whom tests mean.
        holds: where it waits for its test.
    """

    name: str
    holds: frozenset[str] = frozenset()
    handles: list[AssignmentHandle] = field(default_factory=list)
    """What it was granted, for tests in the same process."""
    polls: int = 0
    """How often its loops have found nothing to do, for the same."""

    def prepare(self, zk: ZooKeeperSession, peer_id: str, assignment: Assignment) -> LightWork:
        self.wait(zk, "answer")
        spec = decode_spec(peer.preparation._must(zk, node_paths.job_spec(assignment.job)))
        stage = graph_of(spec, "light", assignment.job).stage(assignment.task)
        return LightWork(self, zk, peer_id, assignment, stage)

    def work(self, prepared: LightWork, handle: AssignmentHandle, zk: ZooKeeperSession) -> None:
        self.handles.append(handle)
        TaskLoop(prepared, handle, zk, light_slot(handle)).run()

    def wait(self, zk: ZooKeeperSession, step: str) -> None:
        until(lambda: self.may(zk, step), what=f"{self.name} to be let go on at {step}", timeout=_PATIENCE)

    def may(self, zk: ZooKeeperSession, step: str) -> bool:
        return step not in self.holds or zk.read(f"{STAGE}/go/{self.name}-{step}") is not None


@dataclass
class LightWork:
    """What stands for :class:`peer.prepared_task.PreparedTask`: a task all of whose input is read already."""

    runner: LightRunner
    zk: ZooKeeperSession
    peer: str
    assignment: Assignment
    stage: Stage
    source: None = None
    hooks: None = None
    timed = False
    shards = None
    keeper = None
    loop = None
    starts_spark = False

    @property
    def sinks(self) -> list[Sink]:
        return [LightSink(self)]

    @property
    def bounds(self) -> dict[str, int]:
        """No queue behind it has one."""
        return {}

    def written(self) -> dict[str, int | None]:
        """Nothing goes over its links but sentinels, and no task counts."""
        return {}

    def abandon(self) -> None:
        pass


@dataclass
class LightSink:
    """A way out on which nothing goes but sentinels."""

    work: LightWork

    def settled(self) -> bool:
        return True

    def sentinels(self, uuid: str, *, stopped: bool = False) -> Iterator[str]:
        del stopped
        yield uuid

    def sealed(self) -> None:
        self.work.runner.wait(self.work.zk, "sealed")


@dataclass
class LightReader:
    """All of a task's partitions, empty but for a sentinel, which is found when the test says so."""

    work: LightWork
    handle: AssignmentHandle
    leader: Callable[[str, str], str]
    idle = member = True
    group_metadata = None

    def batch_due_in(self, _size: int, _interval: float) -> float:
        return math.inf

    def poll(self, timeout: float) -> None:
        self.work.runner.polls += 1
        self.handle.pause(timeout)

    @property
    def held(self) -> dict[Partition, Position | None]:
        (link,) = self.work.stage.ingress
        drained = None
        if self.work.runner.may(self.work.zk, "exhausted"):
            drained = self.leader(link.name, f"met by {self.work.runner.name}")
        return {Partition(link.topic, 0): Position(0, Counts(10, 10), drained)}

    def all_committed(self) -> dict[Partition, Position | None]:
        return self.held

    def all_left(self) -> dict[Partition, Position | None]:
        return {}

    def check_partitions(self) -> None:
        pass

    def committed(self, positions: dict[Partition, Position]) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass
class LightWriter:
    """A sentinel that is written is a node, with who wrote it and for which task."""

    work: LightWork

    def write(self, messages: list[str], _positions: object, _group: object, _clock: object) -> None:
        for uuid in messages:
            mark = f"{self.work.runner.name}-{self.work.assignment.task}-{uuid}-"
            self.work.zk.create_sequential(f"{STAGE}/sentinels/{mark}", b"")

    def close(self) -> None:
        pass


def light_slot(handle: AssignmentHandle) -> Callable[..., SlotClients]:
    """The clients of a slot without Kafka, for the real loop with its failpoints."""
    return lambda work, elect, _store: SlotClients(LightReader(work, handle, elect), LightWriter(work))
