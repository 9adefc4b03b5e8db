"""Which dead letters of a task were redone or dropped: the note in ``/redo``. Pure."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from sardonyx.core.wire_types import ready_for_threads

KEPT = 1_000
"""How many claims a node holds, about: ZooKeeper takes a node of 1 MB. Of older ones, those beside each other become one."""


class Claim(msgspec.Struct, frozen=True, omit_defaults=True):
    """Letters that were handed to a new job, or dropped."""

    job: str
    """Id of the new job; of dropped letters a unique name for the claim."""
    start: int
    end: int
    """The offset after the last one."""
    dropped: bool = False


@ready_for_threads
class Claims(msgspec.Struct, frozen=True):
    """``/redo/<job>.<task>``."""

    next: int = 0
    """The first offset that no claim covers."""
    claims: list[Claim] = []
    letters: int = 0
    """How many letters the claims cover."""
    restored: int = 0
    """After a restore: a claim that was made after the backup may cover letters before this offset. 0: none."""

    def plus(self, claim: Claim, letters: int) -> Claims:
        """One more claim, of so many letters. A restore's warning is answered by it."""
        claims = [*self.claims, claim]
        while len(claims) > KEPT:
            pairs = range(1, len(claims) - 1)  # without the new one, by whose name its writer finds it
            at = next((n for n in pairs if claims[n - 1].dropped == claims[n].dropped), None)
            if at is None:
                break
            claims[at - 1 : at + 1] = [replace(claims[at], start=claims[at - 1].start)]
        return Claims(claim.end, claims, self.letters + letters)
