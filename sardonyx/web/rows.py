"""What the pages show of rows: those of links, and dead letters. They read Kafka when a user looks, a few looks at a time."""

from __future__ import annotations

import threading
import time
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from queues.dead_letters import told
from queues.shown_rows import plain
from sardonyx.client import letter_claims
from sardonyx.client.dead_letters import DeadLetters, Pile, Stored
from sardonyx.client.job_handle import JobHandle
from sardonyx.client.peek import Peek
from sardonyx.client.views import laid_out
from sardonyx.core.errors import SardonyxError
from sardonyx.core.spec import JobSpec
from sardonyx.web.turns import Turns

if TYPE_CHECKING:
    from sardonyx.client.client import Client

AT_ONCE = 4
"""Looks into Kafka at one time."""
COUNTING = 5.0
"""Seconds for which letters are counted in one look; the next one goes on from there."""
ERRORS = 50
"""Kinds of errors of a pile that are counted apart."""


class PeekQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which rows of a link."""

    begin: Annotated[
        Literal["position", "end"], Meta(description="Around the position of its reader, or the last ones.")
    ] = "position"
    partition: Annotated[int, Meta(description="Only this partition.", ge=0)] | None = None
    limit: Annotated[int, Meta(description="How many of each partition at most.", ge=1, le=200)] = 20


class PilesQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which job's dead letters."""

    job: Annotated[str, Meta(description="Only those of this job: its id, the beginning of it, or its name.")] = ""


class LettersQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which letters of a task."""

    first: Annotated[int, Meta(description="The number of the first of them.", ge=0)] = 0
    limit: Annotated[int, Meta(description="How many at most.", ge=1, le=200)] = 50


class LetterPile(Pile, frozen=True, kw_only=True):
    """The dead letters of one task, with what went wrong with them."""

    errors: dict[str, int]
    """How many there are of each class of error, the most frequent first."""
    counting: bool = False
    """They are being counted: so far. Ask again."""


class PilesPage(msgspec.Struct, frozen=True):
    """Dead letters by job and task."""

    items: list[LetterPile]


class LettersPage(msgspec.Struct, frozen=True):
    """Letters of a task, in the order in which they were written."""

    items: list[Stored]
    next: str | None
    """The address of those that follow."""


class Rows:
    """Reads rows for the pages. Threads may share it.

    Args:
        client: a connection to the deployment.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._turns = Turns("rows", AT_ONCE)
        self._lock = threading.Lock()
        self._piles: dict[tuple[str, str], _Pile] = {}

    def peek(self, job: str, spec: JobSpec, link: str, query: PeekQuery) -> Peek:
        """Rows of a link. Raises what :meth:`JobHandle.peek` raises, and ``SX-WEB-BUSY``."""
        wanted = link, query.limit, query.partition, query.begin
        return self._turns.shared((job, *wanted), lambda: JobHandle(self._client, job, spec).peek(*wanted))

    def piles(self, jobs: Mapping[str, JobSpec], only: str = "") -> list[LetterPile]:
        """The dead letters of all jobs by task, or of one job. Each letter is read once, however many viewers ask.

        Raises:
            SardonyxError: ``SX-WEB-BUSY``, and what Kafka and ZooKeeper say.
        """
        kept = {
            (job, link.source): link.topic
            for job, spec in jobs.items()
            for link in laid_out(spec, self._client.settings.deployment, job).links
            if link.kind == "dead"
        }
        if not any(only in ("", job) for job, _ in kept):
            return []
        self._client.settings.require("kafka")
        from queues.admin import topics

        with self._turns.turn(), self._lock:  # one counts, and the others get what it has counted
            there = topics(self._client.settings)
            until = time.monotonic() + COUNTING
            self._piles = {key: pile for key, pile in self._piles.items() if key in kept}
            found = []
            for (job, task), topic in kept.items():
                if topic in there and only in ("", job):
                    pile = self._piles.setdefault((job, task), _Pile())
                    pile.count(self._client, topic, until)
                    if pile.offsets or pile.counting:
                        found.append(pile.view(self._client, job, task))
            return found

    def letters(self, job: str, task: str, first: int, most: int) -> list[Stored]:
        """Letters of a task. Raises what :meth:`DeadLetters.letters` raises, and ``SX-WEB-BUSY``."""
        with self._turns.turn():
            return [_shown(each) for each in DeadLetters(self._client).letters(job, task, first, most)]

    def letter(self, job: str, task: str, offset: int) -> Stored:
        """One letter. Raises what :meth:`DeadLetters.show` raises, and ``SX-WEB-BUSY``."""
        with self._turns.turn():
            return _shown(DeadLetters(self._client).show(job, offset, task))


class _Pile:
    """The letters of one task as far as they are counted."""

    def __init__(self) -> None:
        self.offsets = array("q")
        self._reached = 0
        self._first = self._last = 0.0
        self._errors: Counter[str] = Counter()
        self.counting = False

    def count(self, client: Client, topic: str, until: float) -> None:
        """Count the letters that are new, until a moment of the monotonic clock."""
        from queues.dead_letter_topics import read, stable_end

        end = stable_end(client.settings, topic)
        self.counting = self._reached < end
        if not self.counting:
            return
        for message in read(client.settings, topic, self._reached, end):
            self._reached = message.offset() + 1
            letter = told(message)
            if letter is not None:
                self._take(letter.error, message.offset(), message.timestamp()[1] / 1000)
            if time.monotonic() > until:
                return
        self._reached, self.counting = end, False

    def _take(self, error: str, offset: int, at: float) -> None:
        self._first = self._first if self.offsets else at
        self._last = at
        self.offsets.append(offset)
        known = error in self._errors or len(self._errors) < ERRORS
        self._errors[error if known else "others"] += 1

    def view(self, client: Client, job: str, task: str) -> LetterPile:
        claims, _ = letter_claims.read(client.zk, job, task)
        before = bisect_left(self.offsets, claims.next)
        dropped = sum(
            bisect_left(self.offsets, claim.end) - bisect_left(self.offsets, claim.start)
            for claim in claims.claims
            if claim.dropped
        )
        return LetterPile(
            job=job,
            task=task,
            letters=len(self.offsets),
            waiting=len(self.offsets) - before,
            dropped=dropped,
            first_at=self._first,
            last_at=self._last,
            redone_by=[claim.job for claim in claims.claims if not claim.dropped],
            errors=dict(self._errors.most_common()),
            counting=self.counting,
        )


def _shown(stored: Stored) -> Stored:
    return msgspec.structs.replace(stored, record=plain(stored.record))


def not_here(why: str) -> SardonyxError:
    """The error for a look at rows where there are none to be seen."""
    return SardonyxError(
        "SX-WEB-ROWS",
        "rows and dead letters are not shown here",
        cause=why,
        fix="`sardonyx link peek` and `sardonyx dlq show` show them to who may read them in Kafka",
    )
