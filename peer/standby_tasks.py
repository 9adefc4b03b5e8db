"""Which tasks a process follows: those with ``standby=1`` for which it is to stand by (:mod:`sardonyx.core.standby`).

It is known from ZooKeeper, and nothing is written. A job is looked at when it has been there for a while: one that is short
needs no standby. Where no job has one, that costs each process a watch on the list of jobs, and one on the spec of each longer
job: a change may add a standby.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import structlog

from peer.assignment import RunnerLost
from peer.process import Process
from peer.standby import StandbyShards
from sardonyx.core import node_paths
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import ENDED
from sardonyx.core.graph import Stage, graph_of
from sardonyx.core.notes import Assignment, JobNote, LinksNote, PulseNote, TaskNote
from sardonyx.core.positions import Position
from sardonyx.core.spec import JobSpec, decode_spec
from sardonyx.core.standby import followers
from sardonyx.runtime.clock import REAL, Runtime
from sardonyx.runtime.settings import Settings
from sardonyx.zookeeper.errors import SessionLost, ZooKeeperAway

if TYPE_CHECKING:
    from peer.prepared_task import PreparedTask
    from peer.shards import Shards
    from sardonyx.zookeeper.session import ZooKeeperSession

log = structlog.get_logger()

EVERY = 2.0
"""Seconds between two looks at the jobs that have a standby, and at the list of jobs if it has changed."""
SETTLED = 5.0
"""Seconds for which a job must have been there."""


class _Home(NamedTuple):
    """A process that has peers."""

    name: str
    tags: frozenset[str]


@dataclass
class StandbyTask:
    """A task that this process follows: see :class:`peer.standby.Wanted`."""

    settings: Settings
    job: str
    revision: int
    stage: Stage
    topic: str
    partitions: int
    sizes: Mapping[str, int]
    """Partitions of each topic that it reads."""
    prepare: Callable[[], PreparedTask]
    prepared: PreparedTask | None = None

    def positions(self) -> Mapping[int, Position | None]:
        """The committed position of each shard: that of its partition of the first link."""
        from queues import group_clocks

        found = group_clocks.committed_by(self.settings, self.stage, self.job, self.sizes)
        return {place.number: at for place, at in found.items() if place.topic == self.stage.ingress[0].topic}

    def shards(self) -> Shards:
        """See :class:`peer.standby.Wanted`. The task is prepared once, and never begun."""
        if self.prepared is None:
            self.prepared = self.prepare()
        assert self.prepared.shards is not None  # noqa: S101 (for the type checker: it has a state)
        return self.prepared.shards

    def close(self) -> None:
        """It is not followed any more."""
        if self.prepared is not None:
            self.prepared.close()


class StandbyTasks:
    """Keeps :class:`peer.standby.StandbyShards` to the tasks that this process is to follow. :meth:`run` is called on a thread.

    Args:
        settings: connection to Kafka.
        process: the session, and what this process is; None while there is no session.
        shards: what is followed.
        prepare: prepares a task as for a peer.
        runtime: time.
    """

    def __init__(
        self,
        settings: Settings,
        process: Callable[[], Process | None],
        shards: StandbyShards,
        prepare: Callable[[ZooKeeperSession, Assignment], PreparedTask],
        runtime: Runtime = REAL,
    ) -> None:
        self._settings = settings
        self._process = process
        self._shards = shards
        self._prepare = prepare
        self._runtime = runtime
        self._watched: ZooKeeperSession | None = None
        """The session in which the list of jobs is watched, and has not changed."""
        self._since: dict[str, float] = {}
        """By job, since when it is known."""
        self._specs: dict[str, tuple[int, JobSpec] | None] = {}
        """Of the jobs that were looked at: revision and spec; None: it has no standby."""
        self._changed: set[str] = set()
        """Jobs whose specs may be other ones than when they were looked at. Watches add to it, on a thread of their own."""
        self._session: ZooKeeperSession | None = None
        """The session in which the specs were read."""
        self._tasks: dict[tuple[str, str], StandbyTask] = {}
        self._homes: dict[str, _Home] = {}
        """By name of a daemon."""
        self._over = threading.Event()

    def run(self) -> None:
        """Look again and again, until :meth:`close`."""
        while not self._over.wait(EVERY):
            try:
                self.look()
            except (ZooKeeperAway, SessionLost):
                self._watched = None
            except RunnerLost as error:  # the daemon starts Spark again
                log.info("standby_delayed", error=str(error))
            except SardonyxError as error:  # such as Kafka that is away; what is followed already goes on
                log.info("standby_delayed", code=error.code, error=error.message, cause=error.cause)

    def close(self) -> None:
        """Look no more."""
        self._over.set()

    def look(self) -> None:
        """Follow what this process is to follow by now.

        Raises:
            ZooKeeperAway, SessionLost: nothing has changed.
            SardonyxError: something cannot be followed now.
        """
        process = self._process()
        if process is None:
            return
        zk = process.zk
        self._look_for_jobs(zk)
        wanted = dict(self._wanted(process)) if any(self._specs.values()) else {}
        for key in self._tasks.keys() - wanted.keys():
            self._tasks.pop(key).close()
        self._tasks.update(wanted)
        self._shards.follow(self._tasks.values())

    def _look_for_jobs(self, zk: ZooKeeperSession) -> None:
        if self._watched is not zk:
            self._watched = zk  # before it is read: the watch may tell of a change at once
            names = zk.children(node_paths.JOB, watch=self._on_jobs)
            now = self._runtime.now()
            self._since = {name: self._since.get(name, now) for name in names}
            self._specs = {name: known for name, known in self._specs.items() if name in self._since}
        if self._session is not zk:
            self._session = zk
            self._changed.update(self._specs)
        while self._changed:
            name = self._changed.pop()
            if self._specs.get(name) is None:  # of those with a standby, the revision tells
                self._specs.pop(name, None)
        now = self._runtime.now()
        for name, since in self._since.items():
            if name not in self._specs and now - since >= SETTLED:
                self._specs[name] = self._read_spec(zk, name, 0)

    def _read_spec(self, zk: ZooKeeperSession, job: str, revision: int) -> tuple[int, JobSpec] | None:
        return _with_standby(zk.read(node_paths.job_spec(job), watch=partial(self._on_spec, job)), revision)

    def _on_jobs(self, _event: object) -> None:
        self._watched = None

    def _on_spec(self, job: str, _event: object) -> None:
        self._changed.add(job)

    def _wanted(self, process: Process) -> Iterator[tuple[tuple[str, str], StandbyTask]]:
        """The tasks that this process is to follow: those that it knows, or new ones."""
        own = _home(process.about)
        homes = list(self._live(process.zk))
        for job in [job for job, known in self._specs.items() if known is not None]:
            note = process.zk.read(node_paths.job_status(job))
            known = None if note is None else self._current(process.zk, job, msgspec.json.decode(note, type=JobNote))
            if known is None:
                continue
            revision, spec = known
            for stage in graph_of(spec, self._settings.deployment, job).stages:
                if not stage.task.standby:
                    continue
                fitting = [home.name for home in homes if _fits(home, spec, stage)]
                holders = self._holders(process.zk, job, stage.name)
                if own in followers(job, stage.name, fitting, holders):
                    found = self._tasks.get((job, stage.name))
                    if found is None or found.revision != revision:
                        found = self._task(process.zk, job, revision, stage)
                    if found is not None:
                        yield (job, stage.name), found

    def _current(self, zk: ZooKeeperSession, job: str, note: JobNote) -> tuple[int, JobSpec] | None:
        """Revision and spec of a job with a standby that runs; None: it has none now. What is followed by another revision is
        given up: its stores may have other columns.
        """
        if note.status in ENDED or note.links != "made":
            return None
        known = self._specs[job]
        if known is None or known[0] != note.revision:
            known = self._specs[job] = self._read_spec(zk, job, note.revision)
            for key in [key for key in self._tasks if key[0] == job]:
                self._shards.follow(task for other, task in self._tasks.items() if other[0] != job)
                self._tasks.pop(key).close()
        return known

    def _live(self, zk: ZooKeeperSession) -> Iterator[_Home]:
        """The processes that have peers."""
        daemons: dict[str, str] = {}
        for pulse in zk.children(node_paths.PULSE):
            daemons.setdefault(pulse.rpartition("-")[0], pulse)
        self._homes = {name: home for name, home in self._homes.items() if name in daemons}
        for daemon, pulse in daemons.items():
            if daemon not in self._homes:
                data = zk.read(node_paths.pulse(pulse))
                about = None if data is None else PulseNote.read(data)
                if about is None:
                    continue
                self._homes[daemon] = _Home(_home(about), frozenset(about.tags))
        return iter({home.name: home for home in self._homes.values()}.values())

    def _holders(self, zk: ZooKeeperSession, job: str, task: str) -> Collection[str]:
        data = zk.read(node_paths.job_task(job, task))
        peers = {} if data is None else msgspec.json.decode(data, type=TaskNote).peers
        daemons = {peer.rpartition("-")[0] for peer in peers}
        return {self._homes[daemon].name for daemon in daemons if daemon in self._homes}

    def _task(self, zk: ZooKeeperSession, job: str, revision: int, stage: Stage) -> StandbyTask | None:
        data = zk.read(node_paths.job_links(job))
        if data is None:
            return None
        facts = msgspec.json.decode(data, type=LinksNote).links
        state = next((link for link in stage.egress if link.kind == "state"), None)
        if state is None:
            return None
        sizes = {link.topic: facts[link.name].partitions for link in stage.ingress}
        assignment = Assignment(id=0, job=job, task=stage.name, slot=0)
        return StandbyTask(
            self._settings,
            job,
            revision,
            stage,
            state.topic,
            facts[state.name].partitions,
            sizes,
            lambda: self._prepare(zk, assignment),
        )


def _with_standby(data: bytes | None, revision: int) -> tuple[int, JobSpec] | None:
    try:
        spec = None if data is None else decode_spec(data)
    except msgspec.ValidationError:  # of a newer release
        return None
    return None if spec is None or not any(task.standby for task in spec.catalog) else (revision, spec)


def _home(about: PulseNote) -> str:
    """As :attr:`coordinator.core.state.Peer.home`."""
    return f"{about.host}:{about.pid}"


def _fits(home: _Home, spec: JobSpec, stage: Stage) -> bool:
    """Whether a process can run a task."""
    return home.tags >= {*spec.tags, *stage.task.tags}


__all__ = ["StandbyTask", "StandbyTasks"]
