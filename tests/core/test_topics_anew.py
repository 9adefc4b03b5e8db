"""A topic that was deleted and created again is another one: its id says so, wherever a job goes on in it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from coordinator.core.decide import decide
from coordinator.core.projection import project
from coordinator.core.state import new_state
from peer import preparation, prepared_task
from sardonyx.client import replay
from sardonyx.core import node_paths
from sardonyx.core.errors import InputError
from sardonyx.core.events import AnyEvent, JobChanged, JobSubmitted, LinkFacts, LinksCreated
from sardonyx.core.notes import Assignment, LinksNote
from sardonyx.core.replaying import Offsets
from sardonyx.core.spec import JobSpec, TaskSpec, encode_spec
from sardonyx.runtime.settings import load_settings
from spark_tasks.on_demand import SparkOnDemand

ORDERS = TaskSpec(name="orders", type="input", connector="kafka", options={"topic": "shop.orders"})
BILLS = TaskSpec(name="bills", type="input", connector="kafka", options={"topic": "shop.bills"})


def copies(*inputs: TaskSpec) -> JobSpec:
    outputs = [TaskSpec(name=f"{each.name}-out", type="output", connector="blackhole") for each in inputs]
    edges = [(each.name, f"{each.name}-out") for each in inputs]
    return JobSpec(name="j", workflow=edges, catalog=[*inputs, *outputs])


def made(*names: str, revision: int = 0, **topics: str) -> LinksCreated:
    links = {f"{name}.{name}-out": LinkFacts(2, start=[0, 0]) for name in names}
    return LinksCreated(
        at=2.0, job="j-1", links=links, revision=revision, topics={f"shop.{name}": of for name, of in topics.items()}
    )


def noted(*events: AnyEvent) -> dict[str, str]:
    """The ids that the peers of a job are told after these events."""
    state = new_state("d")
    for n, event in enumerate(events, 1):
        decide(state, n, event)
    return msgspec.json.decode(project(state)[node_paths.job_links("j-1")], type=LinksNote).topics


def test_peers_are_told_the_ids_and_a_change_keeps_those_of_topics_that_are_read() -> None:
    begun: tuple[AnyEvent, ...] = (
        JobSubmitted(at=1.0, job="j-1", spec=copies(ORDERS)),
        made("orders", orders="A"),
    )
    assert noted(*begun) == {"shop.orders": "A"}
    change = JobChanged(at=3.0, job="j-1", spec=copies(ORDERS, BILLS), revision=1)
    after = made("orders", "bills", revision=2, orders="anew", bills="B")
    assert noted(*begun, change, after) == {"shop.orders": "A", "shop.bills": "B"}


class Nodes(dict[str, bytes]):
    """The nodes that the preparation of a task reads."""

    def read(self, path: str) -> bytes | None:
        return self.get(path)


def prepared(folder: Path) -> Any:
    """A task that copies an input, as a peer prepares it."""
    nodes = Nodes(
        {
            node_paths.job_spec("j-1"): encode_spec(copies(ORDERS)),
            node_paths.job_links("j-1"): msgspec.json.encode(LinksNote(made("orders").links, {"shop.orders": "A"})),
        }
    )
    assignment = Assignment(1, "j-1", "orders-out", 0)
    no_spark = SparkOnDemand(object)  # type: ignore[arg-type]
    return preparation.prepare(load_settings(), nodes, no_spark, "p", assignment, folder)


@pytest.mark.parametrize("now", ["A", "anew", "gone"])
def test_a_task_does_not_begin_in_a_topic_that_was_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: str
) -> None:
    """As after a rest: its job was suspended, or waited for peers. What Kafka does not tell stops no task. A peer accepts a task
    without asking Kafka, which may be away for longer than the coordinator waits for the peer's answer.
    """
    asked: list[list[str]] = []

    def told(_settings: object, topics: dict[str, str]) -> dict[str, str]:
        asked.append([*topics])
        return {} if now == "gone" else {"shop.orders": now}

    monkeypatch.setattr(prepared_task, "topic_ids", SimpleNamespace(topic_ids=told))
    monkeypatch.setattr(preparation, "state_topics", SimpleNamespace(StateTopic=object))
    work = prepared(tmp_path)
    assert asked == []
    if now == "anew":
        with pytest.raises(InputError, match="SX-INPUT-RECREATED") as caught:
            work.check_topics()
        assert caught.value.where == {"task": "orders-out", "topic": "shop.orders"}
    else:
        work.check_topics()
    assert asked == [["shop.orders"]]


def test_a_job_is_not_replayed_in_a_topic_that_was_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new topic has as many partitions as the former one, and more records, so that the positions fit."""
    client: Any = SimpleNamespace(settings=load_settings())
    kafka = SimpleNamespace(first_offsets=lambda *_: ([0, 0], [0, 0]), topic_ids=lambda *_: {"shop.orders": "B"})
    for module in ("queues.admin", "queues.topic_ids"):
        monkeypatch.setitem(sys.modules, module, kafka)  # type: ignore[arg-type]
    wanted = Offsets([3, 4], [7, 9])
    for known in ({"shop.orders": "B"}, {}):
        assert replay._as_kept(client, ORDERS, wanted, 0, known).offsets == wanted
    with pytest.raises(InputError, match="SX-INPUT-RECREATED"):
        replay._as_kept(client, ORDERS, wanted, 0, {"shop.orders": "A"})
    with pytest.raises(InputError, match="SX-RESUME-TOPIC"):
        replay._as_kept(client, ORDERS, Offsets([3, 4, 0], [7, 9, 5]), 0, {"shop.orders": "B"})
