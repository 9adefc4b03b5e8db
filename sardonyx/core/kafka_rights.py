"""The rights that each process needs on Kafka, and no others: what an administrator gives its user. Pure.

Topics and groups of a deployment begin with its name and a dot, transactional ids with its name and a slash. So one prefix covers
all jobs. Only the topics that users name themselves have rights of their own. A right to read, write or delete includes Describe.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

Role = Literal["coordinator", "peer", "client", "viewer"]
Kind = Literal["topic", "group", "transactional-id"]

ROLES: tuple[Role, ...] = ("coordinator", "peer", "client", "viewer")


class Right(NamedTuple):
    """One operation on one resource, or on all whose names begin so."""

    kind: Kind
    name: str
    prefixed: bool
    operation: str
    """As Kafka's ACLs name it: ``Read``."""


OWN: dict[Role, dict[Kind, tuple[str, ...]]] = {
    "coordinator": {
        "topic": ("Create", "Delete", "Alter", "Read", "Write"),
        "group": ("Read", "Delete"),
        "transactional-id": ("Write",),
    },
    "peer": {"topic": ("Read", "Write"), "group": ("Read",), "transactional-id": ("Write",)},
    "client": {"topic": ("Read",), "group": ("Describe",)},
    "viewer": {"topic": ("Describe",), "group": ("Describe",)},
}
"""On what belongs to the deployment."""

INPUT: dict[Role, tuple[str, ...]] = {
    "coordinator": ("Describe", "DescribeConfigs"),
    "peer": ("Read",),
    "client": ("Read",),
    "viewer": ("Describe",),
}
"""On a topic that a job reads."""

OUTPUT: dict[Role, tuple[str, ...]] = {
    "coordinator": ("Describe", "DescribeConfigs"),
    "peer": ("Write",),
    "client": ("Describe",),
    "viewer": ("Describe",),
}
"""On a topic that a job writes. The coordinator creates it, with the right to create it, if it does not exist."""


def rights(role: Role, deployment: str, inputs: Iterable[str] = (), outputs: Iterable[str] = ()) -> Iterator[Right]:
    """All rights of a role.

    Args:
        role: whose.
        deployment: its name.
        inputs: topics that its jobs read.
        outputs: topics that its jobs write.
    """
    for kind, operations in OWN[role].items():
        prefix = f"{deployment}/" if kind == "transactional-id" else f"{deployment}."
        for operation in operations:
            yield Right(kind, prefix, True, operation)
    for topics, needed in ((inputs, INPUT), (outputs, OUTPUT)):
        for topic in topics:
            for operation in needed[role]:
                yield Right("topic", topic, False, operation)
