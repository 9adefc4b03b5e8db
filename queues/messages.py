"""The messages that we write to Kafka, and their headers. Pure: code that makes or reads messages needs no client."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sardonyx.core.chains import WriterChains
from sardonyx.core.wire_types import ready_for_threads

if TYPE_CHECKING:
    from queues.record_columns import Pair, RecordColumns

ROWS_HEADER = "sx-rows"
"""On messages of internal links: how many rows they hold."""

OF_HEADER = "sx-of"
"""On messages whose rows are combined: how many rows went in. All counts are of those; messages without it count their rows."""

REFUSED_HEADER = "sx-refused"
"""On messages of internal links with a row that the writer has refused for their reader, or in the place of one that is too large
for a message: the failure, as JSON."""

DUE_HEADER = "sx-due"
"""On splits of a paced input: the earliest time to read them, in seconds since 1970, by the reader's clock."""

SENTINEL_HEADER = "sx-sentinel"
"""On a sentinel: its uuid. Such a message holds no rows."""

WRITER_HEADER = "sx-writer"
"""On messages of internal links and sentinels: the peer that wrote it."""

CLOCK_HEADER = "sx-clock"
"""On a statement of the clock, a message of an internal link without rows: no row after it in its partition is older than this,
in microseconds since 1970, late ones apart. Proof and idea: :mod:`sardonyx.core.clocks`."""

FRONT_HEADER = "sx-front"
"""On a statement, if the job keeps its lineage: below this offset of each source partition nothing comes after it in its
partition. See :mod:`sardonyx.core.fronts`."""

FROM_HEADER = "sx-from"
"""On what a batch writes to links of its job, if the job keeps its lineage, and on records of users' topics, if their output has
``lineage``: which offsets the batch has read. See :mod:`sardonyx.core.batch_origins`."""

STOP_HEADER = "sx-stop"
"""On a sentinel of a job with clocks: its rows end because the job was stopped. The clock stays where it is."""

HOPS_HEADER = "sx-hops"
"""On messages with rows in a loop with ``max_hops``: how many feedback links their rows have come over. Without it: none."""

BARRIER_HEADER = "sx-barrier"
"""On a block in which a marker of shards stands that compute together: of which superstep. It only says when a batch is due."""

CHAIN_HEADER = "sx-chain"
"""On messages with rows of internal links: the writer's chain, and the number in it. See :mod:`sardonyx.core.chains`."""

LINK_HEADER = "sx-link"
"""On a sentinel: the link that ends with it."""


END_HEADER = "sx-end"
"""On an end marker in a user's topic: a uuid. Such a message has no key and no value."""

JOB_HEADER = "sx-job"
"""On an end marker: the job that wrote it."""


@ready_for_threads
class Outgoing(NamedTuple):
    """One message to write. With ``partition`` -1, the client chooses the partition by the key."""

    topic: str
    value: bytes | None
    partition: int = -1
    key: bytes | None = None
    headers: list[tuple[str, bytes]] | None = None


class Logged(NamedTuple):
    """A message of a state log as it was read."""

    offset: int
    headers: Sequence[tuple[str, bytes]]
    value: bytes


class Followed(NamedTuple):
    """What has come of a state log that is followed, since the last call."""

    messages: list[Logged]
    reached: int
    """All committed messages before this offset have come."""
    at_end: bool = False
    """That was the end of what is committed."""


class Records(NamedTuple):
    """Many records for one of the user's topics. The client chooses each record's partition by its key.

    This is a class apart from :class:`Outgoing` because an object for each record would cost more than sending the
    record.
    """

    topic: str
    records: RecordColumns | Sequence[Pair]
    """Key and value."""
    headers: list[tuple[str, bytes]] | None = None
    """Of each of them."""
    link: str = ""
    """The name of the link that they go over, for the process that counts them. Empty: they are counted already."""


def digest_of(key: bytes | None, value: bytes | None) -> bytes:
    """A short name for a record: those of equal records are equal, and those of others are not."""
    sizes = repr((None if key is None else len(key), None if value is None else len(value)))
    return hashlib.blake2b(b"".join((sizes.encode(), key or b"", value or b"")), digest_size=16).digest()


def rows_counted(headers: Mapping[str, bytes], unknown: int = 1) -> int:
    """How many rows a message of an internal link counts for. ``unknown``: if its headers do not say it."""
    found = headers.get(OF_HEADER, headers.get(ROWS_HEADER))
    return unknown if found is None else int(found)


def statement(topic: str, partition: int, clock: int, writer: str, front: bytes | None = None) -> Outgoing:
    """A message that states the clock in one partition of a link, and a front if there is one to state."""
    headers = [(CLOCK_HEADER, str(clock).encode()), (WRITER_HEADER, writer.encode())]
    headers += [] if front is None else [(FRONT_HEADER, front)]
    return Outgoing(topic, None, partition, headers=headers)


def numbered(
    messages: Sequence[Outgoing | Records], chains: WriterChains, topics: Collection[str]
) -> list[Outgoing | Records]:
    """Give each message with rows its number, for one transaction.

    Args:
        messages: in the order in which they are written.
        chains: of the producer that writes them.
        topics: those of the internal links.
    """
    chains.begin()
    found: list[Outgoing | Records] = []
    for message in messages:
        if isinstance(message, Outgoing) and message.value is not None and message.topic in topics:
            topic, value, partition, key, headers = message
            link = CHAIN_HEADER, chains.number(topic, partition)
            found.append(Outgoing(topic, value, partition, key, [*(headers or ()), link]))
        else:
            found.append(message)
    return found


def with_hops(messages: Sequence[Outgoing | Records], hops: int, links: Mapping[str, int]) -> list[Outgoing | Records]:
    """Say on the messages of a batch how many feedback links their rows have come over.

    Args:
        messages: what the batch writes.
        hops: those of the rows that it read.
        links: by topic of a link in the loop, 1 if it is a feedback link, otherwise 0.
    """
    found: list[Outgoing | Records] = []
    for message in messages:
        more = links.get(message.topic) if isinstance(message, Outgoing) and message.value is not None else None
        if isinstance(message, Outgoing) and more is not None and hops + more:
            header = HOPS_HEADER, str(hops + more).encode()
            message = message._replace(headers=[*(message.headers or ()), header])  # noqa: PLW2901
        found.append(message)
    return found


def rows_to(messages: Iterable[Outgoing | Records], topic: str) -> int:
    """How many rows messages hold for an internal link."""
    return sum(
        rows_counted(dict(message.headers or ()))
        for message in messages
        if message.topic == topic and isinstance(message, Outgoing) and message.value is not None
    )


def rows_over(messages: Iterable[Outgoing | Records], links: Collection[str]) -> dict[str, int]:
    """How many rows messages hold for links to topics of the user's, of those that get any."""
    found: Counter[str] = Counter()
    for message in messages:
        if isinstance(message, Records) and message.link in links:
            found[message.link] += len(message.records)
    return dict(found)


def is_marker(message: Any) -> bool:
    """Whether a message of a user's topic is an end marker, and not a record."""
    return not len(message) and any(name == END_HEADER for name, _ in message.headers() or ())


def without_markers(messages: list[Any]) -> tuple[int | None, list[Any]]:
    """The offset of the first end marker among messages of a user's topic, and the messages that are records."""
    records = [message for message in messages if not is_marker(message)]
    first = None
    if len(records) < len(messages):
        first = next(message.offset() for message in messages if is_marker(message))
    return first, records
