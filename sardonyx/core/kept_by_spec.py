"""Keeps what was worked out from a job's spec for those who ask again. Pure.

A daemon asks for the same thing again and again, and each time it has read the spec anew. So a spec counts by what it says, and
not by which object it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

import msgspec

from sardonyx.core.spec import JobSpec

Found = TypeVar("Found")

MOST = 256
"""So many results of a function are kept: those that were asked for last."""


def kept_by_spec(work_out: Callable[[JobSpec, str, str], Found]) -> Callable[[JobSpec, str, str], Found]:
    """Make a pure function of a spec and two names keep its last results. All callers share a result and must not change it."""

    @lru_cache(maxsize=MOST)
    def kept(asked: _Asked, deployment: str, job: str) -> Found:
        return work_out(asked.spec, deployment, job)

    @wraps(work_out)
    def ask(spec: JobSpec, deployment: str, job: str) -> Found:
        try:
            written = msgspec.msgpack.encode(spec)
        except (TypeError, ValueError, OverflowError):  # no spec that was read: it has a value that cannot be written
            return work_out(spec, deployment, job)
        return kept(_Asked(written, spec), deployment, job)

    return ask


class _Asked:
    """A spec, equal to others that say the same."""

    __slots__ = ("spec", "written")

    def __init__(self, written: bytes, spec: JobSpec) -> None:
        self.written = written
        self.spec = spec

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Asked) and self.written == other.written

    def __hash__(self) -> int:
        return hash(self.written)


__all__ = ["MOST", "kept_by_spec"]
