"""Daemons and commands on secured services: a job runs with the rights of its roles, and who lacks one says so, soon."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.loop import event_log
from queues import topics
from sardonyx.core import node_paths
from sardonyx.core.errors import Failure
from sardonyx.core.events import Acked, JobSubmitted, LinksFailed, TaskFailed
from sardonyx.core.kafka_rights import ROLES, Right, rights
from sardonyx.runtime.settings import Settings
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.services.crew import Crew
from tests.services.house import called, told, written
from tests.services.secured import WITHIN_SECONDS, Grants, SecuredServices

COPY = """
from sardonyx import Job, kafka

def same(row: dict) -> dict:
    return row

job = Job("copy")
read = job.input("read", kafka("{source}", format="json", start="earliest", end="latest"))
job.output("publish", kafka("{target}", format="json"), after=job.task("same", same, after=read))
"""

# kazoo drops the socket whose handshake fails, and leaves it to the garbage collector to close it.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")


class Place:
    """A deployment with roles, between two topics of others. Each role has the rights of the table, and no others."""

    def __init__(self, secured: SecuredServices, grants: Grants, deployment: str, folder: Path) -> None:
        self.grants = grants
        self.source, self.target = f"{deployment}-in", f"{deployment}-out"
        self.settings: dict[str, Settings] = secured.with_roles(deployment)
        with self.session():  # makes the nodes, before people look
            pass
        for topic in (self.source, self.target):
            topics.create(self.settings["admin"], topic, 2)
        topics.write(self.settings["admin"], self.source, [b'{"n": %d}' % n for n in range(100)], 2)
        for role in ROLES:
            grants.give(role, rights(role, deployment, [self.source], [self.target]))
        self.job = written(folder / "job", COPY.format(source=self.source, target=self.target))

    def session(self) -> contextlib.closing[ZooKeeperSession]:
        return contextlib.closing(ZooKeeperSession.connect(self.settings["coordinator"]))

    def lose(self, role: str, lacking: Right) -> None:
        """Take a right, and leave the one to see the thing."""
        self.grants.take(role, lacking)
        self.grants.give(role, [lacking._replace(operation="Describe")])


@pytest.fixture
def place(secured: SecuredServices, grants: Grants, deployment: str, tmp_path: Path) -> Place:
    return Place(secured, grants, deployment, tmp_path)


@pytest.fixture
def crew(place: Place, tmp_path: Path) -> Iterator[Crew]:
    with Crew(place.settings["client"], tmp_path) as found:
        yield found


def soon(what: str, seconds: float) -> None:
    print(f"{what}: {seconds:.2f} s")  # noqa: T201 (for the report)
    assert seconds < WITHIN_SECONDS, what


@pytest.mark.gate
def test_a_job_runs_with_the_rights_of_its_roles_and_says_which_it_lacks(place: Place, crew: Crew):
    """Daemons with users of their own run a job between topics of others. Without Write on the output the job says so, and
    goes on when the right is given.
    """
    lacking = Right("topic", place.target, False, "Write")
    place.lose("peer", lacking)
    crew.coordinator(settings=place.settings["coordinator"])
    crew.peers(1, settings=place.settings["peer"])
    handle = crew.client.submit(place.job)

    def failure() -> Failure | None:
        return next((reason.error for reason in handle.explain(look=False).explanation.reasons if reason.error), None)

    error = crew.until(failure, "the error")
    assert (error.code, error.where["principal"]) == ("SX-KAFKA-DENIED", "User:peer")
    assert (error.where["operation"], error.where["resource"]) == ("Write", f"topic {place.target}")
    place.grants.give("peer", [lacking])
    assert crew.completed(handle).task("same").rows_out == 100
    assert len(topics.read_committed(place.settings["admin"], place.target)) == 100


@pytest.mark.parametrize(
    ("kind", "name", "operation", "said"),
    [
        ("group", "{d}.", "Read", "Read on group {d}.{job}."),
        ("transactional-id", "{d}/", "Write", "Write on transactional id {d}/{job}/"),
    ],
)
def test_a_peer_daemon_without_a_right_on_kafka_says_so_soon(
    place: Place, crew: Crew, deployment: str, kind: str, name: str, operation: str, said: str
):
    """From when its peer has accepted a task to when the task has failed, both by the log of the coordinator."""
    lacking = Right(kind, name.format(d=deployment), True, operation)
    place.lose("peer", lacking)
    crew.coordinator(settings=place.settings["coordinator"])
    crew.peers(1, settings=place.settings["peer"])
    handle = crew.client.submit(place.job)

    def failed() -> tuple[float, Failure] | None:
        with place.session() as zk:
            events = [event for _, event in event_log.read_log(zk)]
        found = next((event for event in events if isinstance(event, TaskFailed)), None)
        if found is None:
            return None
        acked = next(event for event in events if isinstance(event, Acked) and event.assignment == found.assignment)
        return found.at - acked.at, found.error

    seconds, error = crew.until(failed, "the task to fail")
    assert error.code == "SX-KAFKA-DENIED"
    assert error.where["principal"] == "User:peer"
    lacks = f"{error.where['operation']} on {error.where['resource']}"
    assert lacks.startswith(said.format(d=deployment, job=handle.id)), lacks
    soon(f"a peer without {operation} on a {kind}", seconds)


def test_a_coordinator_without_a_right_on_zookeeper_ends_and_says_so_soon(place: Place, crew: Crew):
    """With the identity of a viewer it may not stand for election. From the start of the process to its end."""
    began = time.monotonic()
    process = crew.coordinator(settings=place.settings["viewer"])
    crew.until(lambda: process.poll() is not None, "the coordinator to end")
    seconds = time.monotonic() - began
    log = process.log_tail(60)
    assert process.poll() == 1, log
    assert "SX-ZOOKEEPER-DENIED" in log
    assert "sasl:viewer" in log
    soon("a coordinator without a right on ZooKeeper", seconds)


@pytest.mark.parametrize(
    ("setting", "code"),
    [
        ("kafka.sasl.password", "SX-KAFKA-DENIED"),
        ("zookeeper.auth.sasl.password", "SX-ZOOKEEPER-DENIED"),
    ],
)
def test_a_peer_daemon_with_a_wrong_password_ends_and_says_so_soon(
    secured: SecuredServices, place: Place, crew: Crew, deployment: str, setting: str, code: str
):
    """From the start of the process to its end."""
    hosts = place.settings["peer"].zookeeper.hosts
    wrong = secured.settings("peer", **{"deployment": deployment, "zookeeper.hosts": hosts, setting: "no"})
    began = time.monotonic()
    process = crew.peers(1, wait=False, settings=wrong)
    crew.until(lambda: process.poll() is not None, "the daemon to end")
    seconds = time.monotonic() - began
    log = process.log_tail(60)
    assert process.poll() == 1, log
    assert code in log
    soon(f"a peer daemon with a wrong {setting}", seconds)


def test_a_coordinator_without_a_right_on_kafka_fails_the_job(
    place: Place, crew: Crew, deployment: str, tmp_path: Path
):
    """It tries for some seconds, in which the right may be given, then the job has failed; each attempt is in its log. That the
    pauses between them stay below ten seconds in all, `test_side_effects.py` shows without a clock.
    """
    place.grants.take("coordinator", Right("topic", f"{deployment}.", True, "Create"))
    crew.coordinator(settings=place.settings["coordinator"])
    again = 'job.task("again", same, after=job.task("same", same, after=read))'  # with a queue between the two
    text = COPY.replace('job.task("same", same, after=read)', again)
    handle = crew.client.submit(written(tmp_path / "chain", text.format(source=place.source, target=place.target)))
    crew.until(lambda: handle.status(live=False).ended, "the job to fail")
    with place.session() as zk:
        events = [event for _, event in event_log.read_log(zk)]
    submitted = next(event for event in events if isinstance(event, JobSubmitted))
    failed = next(event for event in events if isinstance(event, LinksFailed))
    assert failed.error.code == "SX-KAFKA-DENIED"
    assert (failed.error.where["principal"], failed.error.where["operation"]) == ("User:coordinator", "Create")
    assert failed.error.where["resource"].startswith(f"topic {deployment}.{handle.id}.")
    print(f"a coordinator without Create on a topic: {failed.at - submitted.at:.2f} s")  # noqa: T201 (for the report)


def test_a_job_is_not_submitted_without_the_right_and_the_command_says_so_soon(place: Place):
    """With the identity of a viewer: who may not write what where, and what helps."""
    began = time.monotonic()
    result = called("job", "submit", place.job, env=place.settings["viewer"].environment())
    seconds = time.monotonic() - began
    told(result, "SX-ZOOKEEPER-DENIED", "sasl:viewer")
    soon("`job submit` without a right on ZooKeeper", seconds)
    with place.session() as zk:
        assert zk.children(node_paths.INBOX) == []
