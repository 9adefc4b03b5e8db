"""Why a job does not run, as clients see it. Pure; :mod:`sardonyx.client.why` finds it out."""

from __future__ import annotations

from typing import Literal

import msgspec

from coordinator.core.explanation import Code, Explanation
from sardonyx.core.errors import SardonyxError


class Outside(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that keeps a job, or its clock, from going on, or makes it slow, and that the coordinator's log does not know."""

    code: Literal[
        "not-led",
        "backlog",
        "service-away",
        "submitted",
        "kafka-away",
        "clock-held",
        "rows-wait",
        "held",
        "long-batch",
        "late",
        "batch-time",
        "loop-goes-on",
    ]
    text: str
    fix: str = ""
    """What the user can do about it, if that is known."""


def kafka_away(error: SardonyxError) -> Outside:
    """Kafka does not answer, or cannot be asked, with this error."""
    cause = f": {error.cause}" if error.cause else ""
    return Outside("kafka-away", f"{error.code}: {error.opening}{cause}", error.fix)


HOLDING: frozenset[Code] = frozenset(
    {
        "topics-creating",
        "no-live-peers",
        "no-tag",
        "peers-drained",
        "peers-missing",
        "peers-too-old",
        "starved-by-unbounded-jobs",
        "task-backing-off",
        "unanswered",
    }
)
"""Reasons that keep a job, or a part of it, from going on. Tasks that only wait for their turn are not among them."""


class Why(msgspec.Struct, frozen=True):
    """Why a job does not run, or that it does."""

    explanation: Explanation
    """What follows from the log."""
    outside: list[Outside] = []
    """What does not follow from the log. It matters more."""

    @property
    def in_short(self) -> str | None:
        """The main thing that keeps the job from continuing, in one line, or else the change that is made at a time."""
        if self.outside:
            return self.outside[0].text
        reasons = self.explanation.reasons
        held = next((reason.text for reason in reasons if reason.code in HOLDING), None)
        return held or next((reason.text for reason in reasons if reason.code == "changing-at"), None)

    @property
    def lacks(self) -> str | None:
        """What keeps the job from going on though peers may become free: there is none, a user has drained all, or none that
        there is has the tags of a task. None: nothing does, or what is outside the log matters more.
        """
        if self.outside:
            return None
        for reason in self.explanation.reasons:
            of_tags = reason.code == "no-tag" or (reason.code == "peers-drained" and reason.task)
            first = reason is self.explanation.reasons[0] and reason.code in ("no-live-peers", "peers-drained")
            if of_tags or first:
                return reason.text
        return None
