"""Which dead letters of a task were redone or dropped: the note in ``/redo``. Pure."""

from __future__ import annotations

import msgspec


class Claim(msgspec.Struct, frozen=True, omit_defaults=True):
    """Letters that were handed to a new job, or dropped."""

    job: str
    """Id of the new job; of dropped letters a unique name for the claim."""
    start: int
    end: int
    """The offset after the last one."""
    dropped: bool = False


class Claims(msgspec.Struct, frozen=True):
    """``/redo/<job>.<task>``."""

    next: int = 0
    """The first offset that no claim covers."""
    claims: list[Claim] = []
    letters: int = 0
    """How many letters the claims cover."""
    restored: int = 0
    """After a restore: a claim that was made after the backup may cover letters before this offset. 0: none."""
