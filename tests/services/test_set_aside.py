"""A coordinator with a defect on real services: the job that it cannot decide about fails, and the other one loses nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator.core import decide
from coordinator.core.changeset import ChangeSet
from coordinator.core.setting_aside import concerned
from coordinator.kafka.job_links import KafkaLinks
from coordinator.loop import event_log
from sardonyx import Job, kafka
from sardonyx.core.events import Acked, SetAside
from sardonyx.runtime.settings import Settings
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.services.coordination import coordinator, status
from tests.services.crew import Crew
from tests.services.house import House

HALF = 200


def copies(name: str, topic: str, out: str) -> Job:
    """A job that copies a topic, and never ends."""
    job = Job(name, partitions=2)
    job.output("out", kafka(out), after=job.input("in", kafka(topic, start="earliest")))
    return job


def test_the_other_job_goes_on_to_its_exact_end(
    settings: Settings, zk: ZooKeeperSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One job runs while the other's first peers accept: about that no decision comes to an end. Each record of the first is
    copied once, those that come after the defect, too; the other one has failed, and its topics are gone.
    """
    handler = decide._HANDLERS[Acked]

    def handles(changes: ChangeSet, event: Acked) -> None:
        job = concerned(changes.state, event)
        handler(changes, event)  # the state is changed by then
        if job.startswith("victim-"):
            raise KeyError("a defect")

    monkeypatch.setitem(decide._HANDLERS, Acked, handles)
    with Crew(settings, tmp_path) as crew, coordinator(settings, KafkaLinks(settings)):
        house = House(settings, crew)
        topic, out, other = (house.make_topic(name) for name in ("in", "out", "other"))
        crew.peers(4)
        records = [json.dumps({"n": n}).encode() for n in range(2 * HALF)]
        house.fill(topic, *records[:HALF])
        sound = crew.client.submit(copies("sound", topic, out))
        crew.until(lambda: len(house.records(out)) >= HALF, "the first records")
        victim = crew.client.submit(copies("victim", topic, other))
        note = crew.until(lambda: (found := status(zk, victim.id)) and found.links == "gone" and found, "its end")
        assert (note.status, note.error.code) == ("failed", "SX-LOG-SET-ASIDE")
        house.fill(topic, *records[HALF:])
        crew.until(lambda: len(house.records(out)) >= 2 * HALF, "the records that came later")
        sound.stop()
        assert sound.await_completion(300).status == "stopped"
        assert sorted(row["n"] for row in house.records(out)) == list(range(2 * HALF))
        aside = [event for _, event in event_log.read_log(zk) if isinstance(event, SetAside)]
        assert {event.job for event in aside} == {victim.id}
