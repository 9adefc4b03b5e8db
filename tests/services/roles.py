"""A task on secured services, and users with the rights of their roles; and the error of a right that is missing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from queues.messages import Outgoing
from sardonyx.core.errors import SardonyxError
from sardonyx.core.kafka_rights import ROLES, Right, rights
from tests.services.one_task import Task, batch_of, commit
from tests.services.secured import WITHIN_SECONDS, Grants, SecuredServices


def error_of(call: Callable[[], Any]) -> SardonyxError:
    """What it raises, which is one of our errors. A right that is missing is said soon."""
    began = time.monotonic()
    with pytest.raises(SardonyxError) as raised:
        call()
    took = time.monotonic() - began
    assert raised.value.cause
    assert raised.value.fix
    if raised.value.code.endswith("-DENIED"):
        where = raised.value.where
        what = f"{where['operation']} on {where.get('resource') or where.get('path')}"
        print(f"{raised.value.code} {what}: {took:.2f} s")  # noqa: T201 (for the report)
        assert took < WITHIN_SECONDS, raised.value
    return raised.value


class Roles:
    """One task on a secured broker: made by the coordinator's user, worked on by the peer's."""

    def __init__(self, secured: SecuredServices, grants: Grants, deployment: str, **source: str) -> None:
        self.grants = grants
        self.settings = {user: secured.settings(user, deployment=deployment) for user in ("admin", *ROLES)}
        self.task = Task(self.settings["admin"], source or None)
        for role in ROLES:
            grants.give(role, rights(role, deployment, source.values()))

    def make(self) -> None:
        self.task.settings = self.settings["coordinator"]
        self.task.create()
        self.task.settings = self.settings["admin"]
        self.task.feed(9)
        self.task.settings = self.settings["peer"]

    def batch(self, out: str = "") -> None:
        """One batch of a peer, from its login to its commit; of its task, or to another topic."""
        writer, reader = self.task.writer(), self.task.reader()
        try:
            batch = batch_of(reader, 9)
            commit(writer, reader, batch, [Outgoing(out or self.task.stage.egress[0].topic, b"x", 0)])
        finally:
            writer.close()
            self.task.close()
            self.task.open_readers.clear()

    def named(self, what: str) -> str:
        """A name with ``{d}`` for the deployment, and ``{in}`` and ``{out}`` for topics of users."""
        deployment = self.settings["admin"].deployment
        return what.format_map({"d": deployment, "in": f"{deployment}-in", "out": f"{deployment}-out"})

    def close(self) -> None:
        self.task.close()


def right(kind: str, operation: str, prefix: str) -> Right:
    return Right(kind, prefix, True, operation)
