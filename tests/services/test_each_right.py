"""Each right of the table of Kafka's rights is taken away once: what needs it says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from queues import admin, marked_topics, topic_log, topics
from queues.transaction import TransactionalWriter
from sardonyx.core.kafka_rights import INPUT, OUTPUT, OWN, ROLES, Right, Role, rights
from sardonyx.core.positions import Partition
from tests.services.one_task import JOB
from tests.services.roles import Roles, error_of, right
from tests.services.secured import Grants, SecuredServices


class Act(NamedTuple):
    """What a process does that needs a right, and the resource that its error names."""

    do: Callable[[Roles], Any]
    resource: str


def _made(of: Roles) -> None:
    admin.create_links(of.settings["coordinator"], of.task.graph, of.task.spec)


def _compacted(topic: str) -> Callable[[Roles], Any]:
    return lambda of: marked_topics.refuse_compacted(of.settings["coordinator"], [of.named(topic)])


def _slot(of: Roles) -> None:
    writer = TransactionalWriter(
        of.settings["coordinator"], of.task.stage.transactional_id(of.task.settings.deployment, JOB, 0)
    )
    try:
        writer.open()
    finally:
        writer.close()


def _out(of: Roles) -> None:
    of.batch(of.named("{out}"))


def _counts(user: Role) -> Callable[[Roles], Any]:
    return lambda of: admin.counts(of.settings[user], of.task.graph, JOB)


def _records(user: Role, topic: str) -> Callable[[Roles], Any]:
    return lambda of: topics.read_committed(of.settings[user], of.named(topic))


def _end(user: Role, topic: str) -> Callable[[Roles], Any]:
    return lambda of: topic_log.stable_end(of.settings[user], Partition(of.named(topic), 0))


OWN_LINK, OUT_LINK, OWN_GROUP, SLOT = "{d}.q-1.a.b", "{d}.q-1.b.c", "{d}.q-1.b", "{d}/q-1/b/0"
ACTS: dict[tuple[Role, str, str], Act] = {
    ("coordinator", "topic", "Create"): Act(_made, "topic {d}.q-1.a.splits"),
    ("coordinator", "topic", "Delete"): Act(
        lambda of: admin.delete_topics(of.settings["coordinator"], [of.named(OWN_LINK)]), f"topic {OWN_LINK}"
    ),
    ("coordinator", "topic", "Alter"): Act(
        lambda of: admin.widen_topics(of.settings["coordinator"], {of.named(OWN_LINK): 5}), f"topic {OWN_LINK}"
    ),
    ("coordinator", "topic", "Read"): Act(_records("coordinator", OUT_LINK), f"topic {OUT_LINK}"),
    ("coordinator", "group", "Delete"): Act(
        lambda of: admin.delete_groups(of.settings["coordinator"], [of.named(OWN_GROUP)]), f"group {OWN_GROUP}"
    ),
    ("coordinator", "transactional-id", "Write"): Act(_slot, f"transactional id {SLOT}"),
    ("coordinator", "input", "Describe"): Act(_made, "topic {in}"),
    ("coordinator", "input", "DescribeConfigs"): Act(_compacted("{in}"), "topic {in}"),
    ("coordinator", "output", "Describe"): Act(
        lambda of: marked_topics.partitions(of.settings["coordinator"], of.named("{out}")), "topic {out}"
    ),
    ("coordinator", "output", "DescribeConfigs"): Act(_compacted("{out}"), "topic {out}"),
    ("peer", "topic", "Read"): Act(Roles.batch, f"topic {OWN_LINK}"),
    ("peer", "topic", "Write"): Act(Roles.batch, f"topic {OUT_LINK}"),
    ("peer", "group", "Read"): Act(Roles.batch, f"group {OWN_GROUP}"),
    ("peer", "transactional-id", "Write"): Act(Roles.batch, f"transactional id {SLOT}"),
    ("peer", "input", "Read"): Act(Roles.batch, "topic {in}"),
    ("peer", "output", "Write"): Act(_out, "topic {out}"),
    ("client", "topic", "Read"): Act(_records("client", OUT_LINK), f"topic {OUT_LINK}"),
    ("client", "group", "Describe"): Act(_counts("client"), "group {d}.q-1.a"),
    ("client", "input", "Read"): Act(_records("client", "{in}"), "topic {in}"),
    ("client", "output", "Describe"): Act(_end("client", "{out}"), "topic {out}"),
    ("viewer", "topic", "Describe"): Act(_end("viewer", OWN_LINK), f"topic {OWN_LINK}"),
    ("viewer", "group", "Describe"): Act(_counts("viewer"), "group {d}.q-1.a"),
    ("viewer", "input", "Describe"): Act(_end("viewer", "{in}"), "topic {in}"),
    ("viewer", "output", "Describe"): Act(_end("viewer", "{out}"), "topic {out}"),
}
"""By role, kind of resource and operation."""
ELSEWHERE = {("coordinator", "group", "Read"), ("coordinator", "topic", "Write")}
"""A coordinator reads groups only to take lost peers out of them, and logs that it could not: they go by themselves.
It writes only where topics have replicas, see ``test_denied.py``."""


def test_each_right_has_something_that_needs_it():
    """So that none is given for nothing, and none is left out below."""
    table = {
        (role, kind, operation)
        for role in ROLES
        for kind, operations in (*OWN[role].items(), ("input", INPUT[role]), ("output", OUTPUT[role]))
        for operation in operations
    }
    assert set(ACTS) == table - ELSEWHERE


@pytest.mark.parametrize(("role", "kind", "operation"), ACTS)
def test_a_right_that_is_taken_away_is_named(
    secured: SecuredServices, grants: Grants, deployment: str, role: Role, kind: str, operation: str
):
    """Nothing waits in silence: it raises who may not do what on what. With the right given, it goes through."""
    of = Roles(secured, grants, deployment, **({"topic": f"{deployment}-in"} if kind == "input" else {}))
    act = ACTS[role, kind, operation]
    try:
        for topic in ("{in}", "{out}"):
            topics.create(of.settings["admin"], of.named(topic), 3)
        for user in ROLES:
            grants.give(user, rights(user, deployment, [of.named("{in}")], [of.named("{out}")]))
        if act.do is not _made:
            of.make()
        if role != "peer" and act.do is not _made:
            of.batch()
        if kind in ("input", "output"):
            lacking = Right("topic", of.named(f"{{{kind.removesuffix('put')}}}"), False, operation)
        else:
            lacking = right(kind, operation, f"{deployment}/" if kind == "transactional-id" else f"{deployment}.")
        grants.take(role, lacking)
        if operation != "Describe":  # which reading, writing and deleting include
            grants.give(role, [lacking._replace(operation="Describe")])
        error = error_of(lambda: act.do(of))
        assert (error.code, error.where) == (
            "SX-KAFKA-DENIED",
            {"principal": f"User:{role}", "operation": operation, "resource": of.named(act.resource)},
        )
        grants.give(role, [lacking])
        act.do(of)
    finally:
        of.close()
