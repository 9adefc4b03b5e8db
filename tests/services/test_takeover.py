"""Leaders that are deposed: another takes over, nothing is lost or done twice, and a deposed one writes nothing any more."""

from __future__ import annotations

import contextlib
import random
import signal
import statistics
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from coordinator.loop import event_log
from coordinator.loop.election import DEADLINE
from sardonyx.core import node_paths
from sardonyx.core.events import JobKilled, LinksCreated, LinksDeleted
from sardonyx.core.graph import graph_of
from sardonyx.runtime.settings import Settings
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.services.arena import KINDS, SESSION, Arena, Audit, Deposition
from tests.services.coordination import SPEC, completed, coordinator, hold_together, peers, status, submit, with_timers
from tests.services.light import Actor, coordinator_process
from tests.waiting import until

IN_ALL = 50
"""Depositions of ``make faults``."""


def deposed(zookeeper: str, folder: Path, coordinators: int, kinds: list[str]) -> tuple[list[Deposition], Counter[str]]:
    with Arena(zookeeper, f"d{uuid.uuid4().hex[:10]}", folder, coordinators) as arena:
        try:
            for kind in kinds:
                arena.depose(kind)
            return arena.depositions, arena.hold()
        except AssertionError as error:
            raise AssertionError(
                f"{error}\ndepositions: {kinds}\nso far: {arena.depositions}\n{arena.said()}"
            ) from None


@pytest.mark.parametrize("coordinators", [2, pytest.param(3, marks=pytest.mark.long)])
def test_jobs_go_on_whatever_ends_a_leadership(
    zookeeper: str, tmp_path: Path, rng: random.Random, coordinators: int
) -> None:
    """One deposition of each kind, in an order of chance: every job ends, every request is logged once, tree and log agree."""
    _, figures = deposed(zookeeper, tmp_path, coordinators, rng.sample(KINDS, len(KINDS)))
    assert figures["depositions"] == len(KINDS)
    assert figures["deposed_writes_accepted"] == 0


@pytest.mark.long
def test_fifty_depositions(
    zookeeper: str, tmp_path: Path, rng: random.Random, pytestconfig: pytest.Config, capfd: pytest.CaptureFixture[str]
) -> None:
    """Fifty, over all kinds, among two and among three coordinators. The output says how long each took."""
    kinds = rng.sample(KINDS * (IN_ALL // len(KINDS) + 1), IN_ALL)
    figures: Counter[str] = Counter()
    depositions: list[Deposition] = []
    for coordinators in (2, 3):
        folder = tmp_path / str(coordinators)
        folder.mkdir()
        made, counted = deposed(zookeeper, folder, coordinators, kinds[coordinators - 2 :: 2])
        depositions += made
        figures.update(counted)
    assert figures["depositions"] == IN_ALL
    assert figures["deposed_writes_accepted"] == 0
    took = {kind: [deposition.seconds for deposition in depositions if deposition.kind == kind] for kind in KINDS}
    reporter = pytestconfig.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:  # none in a process of xdist
        with capfd.disabled():
            reporter.write_line(f"seconds from the deed to the successor's first decision; sessions live {SESSION} s")
            for kind, seconds in took.items():
                median, most = statistics.median(seconds), max(seconds)
                reporter.write_line(f"{kind:10}{len(seconds):4}  median {median:.2f}  most {most:.2f}")
            for name, figure in figures.items():
                reporter.write_line(f"{name.replace('_', ' '):26}{figure:7,}")
    for kind, seconds in took.items():
        # What a deaf leader says still arrives: its session lives on until it gives up, two thirds of a timeout later.
        bound = SESSION + 1 + (SESSION * DEADLINE if kind == "deaf" else 0)
        assert statistics.median(seconds) < bound, f"{kind}: {seconds}"


@pytest.mark.parametrize("write", [2, pytest.param(5, marks=pytest.mark.gate), 8, 11])
def test_only_the_epoch_stops_a_write_that_was_decided_on(
    settings: Settings, zk: ZooKeeperSession, tmp_path: Path, write: int
) -> None:
    """Paused with a write in its hand, deposed meanwhile, its session alive: it sends the write, which is refused."""
    failpoint, audit = f"before-write:{write}:stop", tmp_path / "first.writes"
    lasting = settings.zookeeper.model_copy(update={"session_timeout": 30.0})
    settings = settings.model_copy(update={"zookeeper": lasting})
    with coordinator_process("first", tmp_path, settings, failpoint=failpoint, audit=audit) as first:
        until(lambda: zk.read(node_paths.EPOCH), what="the first leader")
        with coordinator(settings) as second, peers(settings, "p1", "p2"):
            submit(zk, "count-1")
            until(lambda: first.stopped, what="the first leader to stop")
            leader = min(zk.children(node_paths.ELECTION), key=lambda node: node[-10:])
            zk.delete(f"{node_paths.ELECTION}/{leader}")
            assert second.leading.wait(180)
            until(lambda: completed(zk, "count-1"), what="the job to be completed")
            comes_to_hold(zk, settings)
            before = list(event_log.read_entries(zk))
            first.send(signal.SIGCONT)
            until(lambda: len(zk.children(node_paths.ELECTION)) == 2, what="the first leader to stand again")
            assert Audit(tmp_path).writes()[-1].outcome == "deposed"
            assert list(event_log.read_entries(zk)) == before
            comes_to_hold(zk, settings)


# Topics


class Topics:
    """The topics of one deployment on the real Kafka."""

    def __init__(self, settings: Settings) -> None:
        self._prefix = f"{settings.deployment}."
        self._admin = AdminClient({**settings.kafka.client(), "log_level": 0})

    def stand(self) -> set[str]:
        return {topic for topic in self._admin.list_topics(timeout=60).topics if topic.startswith(self._prefix)}


def owned(settings: Settings, job: str) -> set[str]:
    """The topics that belong to a job while it runs."""
    return {link.topic for link in graph_of(SPEC, settings.deployment, job).links if link.owned}


@pytest.fixture
def quick(settings: Settings) -> Settings:
    return with_timers(settings)


@pytest.fixture
def zk(settings: Settings) -> Iterator[ZooKeeperSession]:
    with contextlib.closing(ZooKeeperSession.connect(settings)) as opened:
        yield opened


@contextmanager
def first_and_second(
    settings: Settings, zk: ZooKeeperSession, folder: Path, failpoint: str
) -> Iterator[tuple[Actor, Actor]]:
    """Two coordinators on the real Kafka, the first of which leads and dies or stops at ``failpoint``."""
    first = coordinator_process("first", folder, settings, failpoint=failpoint, kafka=True)
    until(lambda: zk.read(node_paths.EPOCH), what="the first leader")
    second = coordinator_process("second", folder, settings, kafka=True)
    try:
        until(lambda: len(zk.children(node_paths.ELECTION)) == 2, what="the standby")
        yield first, second
    except AssertionError as error:
        raise AssertionError(f"{error}\n{first.said()}\n{second.said()}") from None
    finally:
        first.kill()
        second.kill()


def comes_to_hold(zk: ZooKeeperSession, settings: Settings) -> None:
    """Peers may still be on their way out."""
    until(lambda: hold_together(zk, settings) is None, what="tree and log to agree")


def running(zk: ZooKeeperSession, job: str) -> bool:
    note = status(zk, job)
    return note is not None and note.status == "running"


@pytest.mark.parametrize(
    "failpoint",
    [
        *["before-side-effect:1", "in-create-links:1", "in-create-links:2", "after-side-effect:1"],
        *["before-side-effect:2", "in-delete-links:1", "in-delete-links:2", "after-side-effect:2"],
    ],
)
def test_the_successor_finishes_what_was_begun_on_kafka(
    settings: Settings, quick: Settings, zk: ZooKeeperSession, tmp_path: Path, failpoint: str
) -> None:
    """SIGKILL anywhere while topics are made or removed: the job runs on just its topics, and none stands after its end."""
    topics = Topics(settings)
    with first_and_second(quick, zk, tmp_path, f"{failpoint}:kill") as (first, _):
        submit(zk, "count-1")
        until(lambda: running(zk, "count-1"), what="the job to run")
        assert topics.stand() == owned(settings, "count-1")
        with peers(settings, "p1", "p2"):
            until(lambda: completed(zk, "count-1"), what="the job to be completed, and its topics to be removed")
        assert first.exit_code == -signal.SIGKILL
        until(lambda: topics.stand() == set(), what="the topics to be gone")
        comes_to_hold(zk, quick)
    kinds = Counter(type(event) for _, event in event_log.read_log(zk))
    assert (kinds[LinksCreated], kinds[LinksDeleted]) == (1, 1)


@pytest.mark.parametrize("failpoint", ["before-side-effect:1", "in-create-links:2"])
def test_a_job_that_is_killed_while_its_topics_are_half_made_leaves_none(
    settings: Settings, quick: Settings, zk: ZooKeeperSession, tmp_path: Path, failpoint: str
) -> None:
    """The leader dies while it makes them, and the job is killed before the standby has made them."""
    topics = Topics(settings)
    with first_and_second(quick, zk, tmp_path, f"{failpoint}:kill") as (first, _):
        submit(zk, "count-1")
        until(lambda: first.exit_code == -signal.SIGKILL, what="the leader to die")
        zk.request(JobKilled(job="count-1"))
        until(lambda: ended(zk, "count-1"), what="the job to be killed, and its topics to be removed")
        until(lambda: topics.stand() == set(), what="the topics to be gone")
        comes_to_hold(zk, quick)


def test_topics_that_a_paused_leader_makes_of_an_ended_job_are_removed(
    settings: Settings, quick: Settings, zk: ZooKeeperSession, tmp_path: Path
) -> None:
    """It wakes up right before it makes them, when the job has run to its end under another: they do not stay."""
    topics = Topics(settings)
    with first_and_second(quick, zk, tmp_path, "before-side-effect:1:stop") as (first, _), peers(settings, "p1", "p2"):
        submit(zk, "count-1")
        until(lambda: completed(zk, "count-1"), what="the job to be completed under the standby")
        until(lambda: topics.stand() == set(), what="the topics to be gone")
        assert first.stopped
        first.send(signal.SIGCONT)
        until(
            lambda: topics.stand() or "abandoned_topics_deleted" in first.said(200),
            what="the topics to be made once more",
        )
        until(lambda: topics.stand() == set(), what="the topics to be gone again")
        comes_to_hold(zk, quick)


def ended(zk: ZooKeeperSession, job: str) -> bool:
    note = status(zk, job)
    return note is not None and note.status == "killed" and note.links == "gone"
