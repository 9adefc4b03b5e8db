"""What must be true in a simulated cluster, whichever process crashes when: looked at with each commit, and once more in the
end.

The oracle sees what no process of the cluster sees: the truth in ZooKeeper's leader, who took the epoch last, what was asked
and what the log made of it, and what stands in Kafka.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from kazoo.exceptions import BadVersionError

from coordinator.core.decide import Undecided, decide
from coordinator.core.projection import project
from coordinator.core.state import Job, State, new_state
from coordinator.core.stored_state import decode_state, encode_state
from coordinator.loop import event_log
from coordinator.loop.snapshots import SnapshotNote, state_of
from sardonyx.core import node_paths
from sardonyx.core.events import ENDED, AnyEvent, LinksCreated, SetAside
from sardonyx.core.graph import Graph, graph_of
from sardonyx.core.notes import JobNote, PeerNote, TaskNote
from tests.simulation.client import SimClient
from tests.simulation.kafka import SimKafka
from tests.simulation.zookeeper import SimZooKeeper

if TYPE_CHECKING:
    from tests.simulation.world import World

ROOT = "/sardonyx/sim"
LEADERS_ONLY = ("log", "checkpoint", "snapshot", "peer-state", "job")
"""Top nodes below which only the leader may write."""


class OffRecord(NamedTuple):
    """What the log says wrongly of where a revision of a job takes over."""

    job: str
    revision: int
    text: str


class Oracle:
    """Watches over a history.

    Args:
        zookeeper: the ensemble.
        kafka: the broker.
    """

    def __init__(self, zookeeper: SimZooKeeper, kafka: SimKafka) -> None:
        self.zookeeper = zookeeper
        self.kafka = kafka
        self.clients: list[SimClient] = []
        self.leader: SimClient | None = None
        """Who took the epoch last."""
        self.broken: SimClient | None = None
        """The latest leader of whom a write was refused."""
        self.confirmed: set[str] = set()
        """Requests whose writers know that they were put in, by uuid."""
        self.logged: dict[str, int] = {}
        self.events: list[AnyEvent] = []
        self.links_read: dict[tuple[str, str], list[str]] = {}
        """By task that is complete, the links that it has read. A change may have removed one since."""
        self.state = new_state("sim")
        """The log so far, replayed as it was written."""
        self.undecided: int | None = None
        """The entry at which that has come to a defect."""
        kafka.known = self._known
        self.decisions = self.depositions = self.refused = self.accepted = 0
        self._digest = hashlib.sha256()
        zookeeper.on_commit.append(self._committed)
        zookeeper.on_refused.append(self._refused)

    # With each commit

    def _committed(self, client: SimClient | None, changes: list[Any], operations: list[Any]) -> None:
        self._digest.update(repr((self.zookeeper.sim.now, changes)).encode())
        for kind, path, data, _ in changes:
            top, _, below = path.removeprefix(ROOT).lstrip("/").partition("/")
            if not path.startswith(ROOT + "/") or (kind == "+" and not below):
                continue  # the nodes that stand from the first start on
            if top == "epoch":
                self.depositions += self.leader is not None and client is not self.leader
                self.leader = client
            elif top in LEADERS_ONLY:
                self.accepted += client is not self.leader
                assert client is self.leader, f"a deposed leader's write was accepted: {kind} {path}"
                assert operations[0][:2] == ("check", f"{ROOT}/epoch"), f"a write without a fence: {kind} {path}"
                if top == "log" and kind == "+" and "/" in below:
                    self._logged(int(below.rpartition("/")[2]), data)
                elif top == "log" and kind == "=" and "/" in below:
                    self._set_aside(int(below.rpartition("/")[2]), data)
                elif top == "job" and kind == "=" and "/task/" in below:
                    self._task_changed(below, data)

    def digest(self) -> str:
        """Of all that was ever written, and when: equal for equal histories."""
        return self._digest.hexdigest()

    def _logged(self, first: int, data: bytes) -> None:
        for n, entry in enumerate(event_log.decode_batch(first, data), first):
            assert n == len(self.events) + 1, f"entry {n} follows entry {len(self.events)}"
            assert not entry.request or entry.request not in self.logged, f"request {entry.request} is logged twice"
            self.logged[entry.request] = n
            self.events.append(entry.event)
            wrong = self._off_record(entry.event)
            self._decide(n)
            assert not wrong or self.state.jobs[wrong.job].revision == wrong.revision - 1, wrong.text

    def _off_record(self, event: AnyEvent) -> OffRecord | None:
        """Where a task that a change touches stands elsewhere than the log is about to say. It matters if the change takes over:
        then a batch of the version before has come after that was read.
        """
        known = self.state.jobs.get(event.job) if isinstance(event, LinksCreated) else None
        if not isinstance(event, LinksCreated) or known is None or known.revision != event.revision - 1:
            return None
        for stage in graph_of(known.spec, "sim", event.job).stages:
            for link in stage.ingress:
                topic, said = self.kafka.topic(event.job, link), event.since.get(stage.name, {}).get(link.topic)
                stands = [] if topic is None else [partition.position for partition in topic.partitions]
                if said is not None and said != stands[: len(said)]:
                    text = f"{event.job}/{stage.name} goes on from {stands} of {link.name}, and the log says {said}"
                    return OffRecord(event.job, event.revision, text)
        return None

    def _known(self, job: str) -> Job | None:
        return self.state.jobs.get(job)

    def _decide(self, n: int) -> None:
        if self.undecided is None:
            try:
                decide(self.state, n, self.events[n - 1])
            except Undecided:
                self.undecided = n
            else:
                self._note_complete()

    def _set_aside(self, first: int, data: bytes) -> None:
        """One entry of the log is another one now: the first that no coordinator can decide, and nothing has followed from it."""
        entries = enumerate(event_log.decode_batch(first, data), first)
        changed = [(n, entry.event) for n, entry in entries if entry.event != self.events[n - 1]]
        assert [n for n, _ in changed] == [self.undecided], f"entries {changed} are other ones"
        for n, event in changed:
            assert isinstance(event, SetAside)
            assert event.event == self.events[n - 1]
            assert int(self.read(node_paths.CHECKPOINT) or 0) < n, f"entry {n} was decided, and is another one"
            self.events[n - 1] = event
        self.state, self.undecided = new_state("sim"), None
        for n in range(1, len(self.events) + 1):
            self._decide(n)

    def _note_complete(self) -> None:
        found = ((job, name, task) for job, known in self.state.jobs.items() for name, task in known.tasks.items())
        for job, name, task in found:
            if task.state != "complete":
                self.links_read.pop((job, name), None)
            elif (job, name) not in self.links_read:
                links = graph_of(self.state.jobs[job].spec, "sim", job).links
                self.links_read[job, name] = [x.name for x in links if x.kind == "internal" and x.target == name]

    def _task_changed(self, below: str, data: bytes) -> None:
        """A task that is complete has read everything: no peer holds any of it back, and nothing comes after."""
        job, _, name = below.split("/")
        if msgspec.json.decode(data, type=TaskNote).state != "complete":
            return
        known = self.state.jobs.get(job)
        graph = None if known is None else graph_of(known.spec, "sim", job)
        if graph is None or name in graph.bound or all(stage.name != name for stage in graph.stages):
            return
        for link in graph.stage(name).ingress:
            topic = self.kafka.topic(job, link)
            if topic is None:
                continue  # the job has ended meanwhile
            stopped = all(partition.ended for partition in topic.partitions)
            assert topic.end or topic.sentinels or stopped, f"{job}/{name} is complete, but {link.name} has not ended"
            for partition in topic.partitions:
                assert partition.ended or partition.position == partition.records, (
                    f"{job}/{name} is complete, but {link.name} is not read"
                )
        for link in graph.stage(name).egress:
            topic = self.kafka.topic(job, link)
            assert topic is None or not link.has_sentinels or topic.sentinels, f"{link.name} was never sealed"

    def _refused(self, client: SimClient, operations: list[Any], at: int, error: Exception) -> None:
        if at == 0 and operations[0][:2] == ("check", f"{ROOT}/epoch") and isinstance(error, BadVersionError):
            assert client is not self.leader or operations[0][3] != self._epoch_version()
            self.refused += 1
        elif client is self.leader:
            # What was sent behind a write that does not stand is refused; nothing else is.
            checkpoint = operations[at][1] == f"{ROOT}{node_paths.CHECKPOINT}" and isinstance(error, BadVersionError)
            entry = operations[at][0] == "check" and operations[at][1].startswith(f"{ROOT}{node_paths.LOG}/")
            assert client.dropped or client is self.broken or not (checkpoint or entry), (
                "refused, with nothing lost before"
            )
            if any(
                path == f"{ROOT}{node_paths.CHECKPOINT}" or path.startswith(f"{ROOT}{node_paths.LOG}/")
                for _, path, *_ in operations
            ):
                self.broken = client

    def _epoch_version(self) -> int:
        return self.zookeeper.nodes[f"{ROOT}/epoch"].version

    # The truth

    def children(self, path: str) -> list[str]:
        node = self.zookeeper.nodes.get(ROOT + path)
        return sorted(node.children) if node else []

    def read(self, path: str) -> bytes | None:
        node = self.zookeeper.nodes.get(ROOT + path)
        return node.data if node else None

    def usurp(self) -> None:
        """A user removes the first place in the election, by hand."""
        line = sorted(self.children(node_paths.ELECTION), key=lambda name: int(name.rpartition("-")[2]))
        if line:
            path = f"{ROOT}{node_paths.ELECTION}/{line[0]}"
            self.zookeeper._commit(None, [self.zookeeper._do("-", path, b"", 0)], [])

    def left_over(self, world: World) -> list[str]:
        """What unbounded jobs have not processed yet, although no fault comes any more; except queued ones, which get no
        peers.
        """
        found = [f"{one.job} was never taken in" for one in world.plan.jobs if not self._is_known(one.job)]
        for name, plan in self.state.plans.items():
            job = self.state.jobs[name]
            if job.status == "planning" or (job.status == "running" and plan.bounded and not job.queued):
                found.append(f"{name} is {job.status}")
            if job.status == "running" and (job.next_spec is not None or job.gone_spec is not None):
                found.append(f"{name} is being changed")
            left = {*job.retired} & {*self.kafka.topics.get(name, ())} if job.gone_spec is None else ()
            assert not left, f"{name} has nothing to do with {left} any more, and they stand"
            if job.status != "running" or not plan.turns or job.queued:
                continue
            for stage in plan.graph.stages:
                for link in stage.ingress:
                    topic = self.kafka.topic(name, link)
                    if topic is not None and any(p.position < p.records for p in topic.partitions):
                        found.append(f"{name}/{stage.name} has not read {link.name}")
        return found

    def _is_known(self, job: str) -> bool:
        return job in self.state.jobs or job in self.state.purged

    def unfinished(self, world: World) -> list[str]:
        found = [f"request {name} lies in the inbox" for name in self.children(node_paths.INBOX)]
        known = set(self.children(node_paths.JOB))
        known_or_gone = known | self.state.purged.keys()
        found += [f"{one.job} was never taken in" for one in world.plan.jobs if one.job not in known_or_gone]
        for job in sorted(known):
            note = msgspec.json.decode(self.read(node_paths.job_status(job)) or b"", type=JobNote)
            if note.status not in ENDED:
                found.append(f"{job} is {note.status}, waits for {note.waits_for}")
            elif note.links != "gone" and self.children(node_paths.job_tasks(job)):
                found.append(f"the topics of {job} stand")
        # A coordinator that woke up a moment ago may still be making topics; it must remove them, or this never ends.
        found += [f"topics of {job} stand" for job in self.kafka.topics]
        plan = world.plan
        least, most = sum(plan.daemons), sum(plan.daemons) + plan.growing * len(plan.daemons)
        states = [self.note(peer).state for peer in self.children(node_paths.PEER_STATE)]
        if set(states) != {"idle"} or not least <= len(states) <= most:
            found.append(f"{least} to {most} idle peers are wanted, there are {states}")
        if len(self.children(node_paths.PULSE)) != len(states):
            found.append(f"{len(states)} pulses are wanted")
        if int(self.read(node_paths.CHECKPOINT) or 0) != self.state.n:
            found.append("the log has entries behind the checkpoint")
        return found

    def note(self, peer: str) -> PeerNote:
        return msgspec.json.decode(self.read(node_paths.peer_state(peer)) or b"", type=PeerNote)

    # In the end

    def at_the_end(self, world: World) -> None:
        """Nothing was lost or doubled, and nothing is left behind."""
        stands = {path.removeprefix(ROOT): node.data for path, node in self.zookeeper.nodes.items()}
        decided = {p: d for p, d in stands.items() if p.startswith(("/peer-state/", "/job/"))}
        assert decided == project(self.state), "the tree is not what the log says"
        lost = self.confirmed - self.logged.keys()
        assert not lost, f"requests were put in, and never handled: {lost}"
        votes = [path for path in stands if path.startswith("/sentinel/")]
        assert not votes, f"votes of ended jobs stand: {votes}"
        self._snapshots(stands)
        for job, found in self.state.jobs.items():
            if found.status in ("completed", "stopped"):
                self._completed(job, graph_of(found.spec, "sim", job), self.state)

    def _snapshots(self, stands: dict[str, bytes]) -> None:
        """Every snapshot that is whole is what the log before it makes, and the log begins where one stands."""
        entries = {}
        for path, data in stands.items():
            if path.startswith("/log/") and path.count("/") == 3:
                first = int(path.rpartition("/")[2])
                entries.update(enumerate(event_log.decode_batch(first, data), first))
        first = int(stands["/log"] or 1)
        assert [n for n in sorted(entries) if n >= first] == list(range(first, self.state.n + 1)), "the log has gaps"
        whole = {
            int(p.split("/")[2]): d for p, d in stands.items() if p.startswith("/snapshot/") and d and p.count("/") == 2
        }
        state: State | None = new_state("sim") if first == 1 else None
        for n in range(first - 1, self.state.n + 1):
            if n >= first and state is not None:
                decide(state, n, entries[n].event)
            if n in whole:
                note = msgspec.json.decode(whole[n], type=SnapshotNote)
                data = state_of(b"".join(stands[node_paths.snapshot_part(n, part)] for part in range(note.parts)))
                if state is None:
                    state = decode_state(data)
                assert encode_state(state) == data, f"snapshot {n} is not what the log makes"
        assert state is not None, f"the log begins at {first}, and no snapshot stands before it: {sorted(whole)}"
        assert encode_state(state) == encode_state(self.state)

    def _completed(self, job: str, graph: Graph, state: State) -> None:
        """Each record went through each task once: what a task has read is what it has written, on each way out."""
        counts = {name: task.counts for name, task in state.jobs[job].tasks.items()}
        for stage in graph.stages:
            found = counts[stage.name]
            assert found is not None
            read = sum(self.kafka.put[job, name] for name in self.links_read[job, stage.name])
            for link in stage.ingress:
                topic = self.kafka.topic(job, link) if link.kind == "input" else None
                if topic is not None and any(partition.ended for partition in topic.partitions):
                    positions = [partition.position for partition in topic.partitions]
                    assert all(partition.ended for partition in topic.partitions), f"{link.name} has ended in part"
                    assert state.jobs[job].tasks[stage.name].positions[link.topic] == positions
                    read += sum(positions)
                elif link.kind != "internal":
                    read += self.kafka.records
            assert found.rows_in == read, f"{job}/{stage.name} has read {found.rows_in} of {read} records"

    def picture(self) -> str:
        """How things stand, in a line."""
        peers = {peer: self.note(peer).state for peer in self.children(node_paths.PEER_STATE)}
        jobs = {
            name: f"{job.status} { ({t: (x.state, x.peers) for t, x in job.tasks.items()}) }"
            for name, job in self.state.jobs.items()
        }
        leader = self.leader.process.name if self.leader else "none"
        return f"n={self.state.n}, leader {leader}, peers {peers}, jobs {jobs}, inbox {self.children(node_paths.INBOX)}"
