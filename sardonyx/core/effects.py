"""The closed set of effects: what is to be done about an event. Pure.

Effects on the tree carry paths relative to the root; the service applies all of an event's in one transaction with the
checkpoint. The others run after it, are idempotent, and end as a new event.
"""

from __future__ import annotations

import msgspec


class Create(msgspec.Struct, frozen=True, gc=False):
    path: str
    data: bytes = b""


class Set(msgspec.Struct, frozen=True, gc=False):
    path: str
    data: bytes


class Delete(msgspec.Struct, frozen=True, gc=False):
    path: str


class DeletePulse(msgspec.Struct, frozen=True):
    """Take a revoked peer's pulse away, if it is still there; its session may be alive, but it is not a peer any more."""

    peer: str


class CreateLinks(msgspec.Struct, frozen=True):
    """Make the job's topics and look the user's up; ends as LinksCreated or LinksFailed."""

    job: str


class ReadLinks(msgspec.Struct, frozen=True):
    """Read what the job's groups had committed last; ends as LinksRead."""

    job: str


class DeleteLinks(msgspec.Struct, frozen=True):
    """Remove the job's topics, groups and sentinels; ends as LinksDeleted."""

    job: str


class ChangeLinks(msgspec.Struct, frozen=True):
    """Fence the slots of a job that a change touches, read where they stand, and make the topics that it has from then on; ends
    as LinksCreated or LinksFailed.
    """

    job: str


class DropLinks(msgspec.Struct, frozen=True):
    """Remove the topics and groups that a change has taken from a job; ends as LinksDropped."""

    job: str


TreeEffect = Create | Set | Delete
OuterEffect = DeletePulse | CreateLinks | ReadLinks | DeleteLinks | ChangeLinks | DropLinks
Effect = TreeEffect | OuterEffect
