"""Pages of the API's lists, and the scale of the log."""

from __future__ import annotations

import msgspec

from sardonyx.client.views import PeerView
from sardonyx.web.overview import JobLine
from sardonyx.web.shelf import Line, Mark


class JobsPage(msgspec.Struct, frozen=True):
    """Jobs, the latest first."""

    items: list[JobLine]
    next: str | None
    """The address of those that follow."""


class PeersPage(msgspec.Struct, frozen=True):
    """Virtual peers, by id."""

    items: list[PeerView]
    next: str | None
    """The address of those that follow."""


class LogPage(msgspec.Struct, frozen=True):
    """Entries of the log."""

    items: list[Line]
    first: int
    """The oldest entry that there is."""
    last: int
    """The newest entry that there is."""
    next: str | None
    """The address of those that follow."""


class Found(msgspec.Struct, frozen=True):
    """An entry and its time."""

    n: int
    at: float | None


class ScaleMark(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that stands out."""

    n: int
    at: float
    what: Mark
    text: str


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """The whole log in short: how many entries were taken in when, and those that stand out."""

    first: int
    last: int
    first_at: float | None
    last_at: float | None
    buckets: list[int]
    """Entries in equal parts of the time between the two."""
    marks: list[ScaleMark]
