"""The rows of a user's topic, or of a topic with dead letters, and the records of it that cannot be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from peer.failed_records import Failed, unread
from peer.row_times import timed
from queues import block, dead_letters
from queues.batch import Batch
from queues.shown_values import records
from sardonyx.connectors import registry
from sardonyx.connectors.base import TopicFormat
from sardonyx.core.clocks import SourceClock
from sardonyx.core.column_types import together
from sardonyx.core.errors import failure_of
from sardonyx.core.graph import Link
from sardonyx.core.positions import Partition
from sardonyx.core.settled_types import Misfit, ReadTypes
from sardonyx.core.spec import LETTERS_FORMAT, LETTERS_ORIGINS
from sardonyx.core.text import shorten
from sardonyx.core.timing import TimeSpec
from sardonyx.runtime.settings_sections import SchemaRegistry
from sardonyx.state.times import Times


@dataclass
class TopicRows:
    """The records decoded from a user's topic."""

    table: pa.Table
    messages: Sequence[Any]
    """The message of each row."""
    unread: list[Failed]
    clocks: dict[Partition, SourceClock] = field(default_factory=dict)
    """Of the topic's partitions after these rows, if the input has times."""
    in_force: Times | None = None
    """The clock in force before each of the rows, if the input has times. It is that of the row's partition."""


class Formats:
    """The formats of the topics that one reader reads. They know which types the records have had so far.

    Args:
        known: the schema registry of the settings.
    """

    def __init__(self, known: SchemaRegistry) -> None:
        self._known = known
        self._made: dict[tuple[str, str], TopicFormat] = {}
        self._letters: dict[str, ReadTypes] = {}

    def of(self, link: Link) -> TopicFormat:
        """That of a topic."""
        return self._format(link, "", link.options)

    def of_letters(self, link: Link) -> dict[str, TopicFormat]:
        """Those of the records in a topic of dead letters, by the topic that they came from."""
        origins = link.options.get(LETTERS_ORIGINS, {})
        return {topic: self._format(link, topic, options) for topic, options in origins.items()}

    def types(self, link: Link) -> ReadTypes:
        """What the rows of a topic of dead letters have settled."""
        return self._letters.setdefault(link.name, ReadTypes())

    def _format(self, link: Link, origin: str, options: dict[str, Any]) -> TopicFormat:
        name = (link.name, origin)
        if name not in self._made:
            self._made[name] = registry.topic_format(options, self._known)
        return self._made[name]


def read_topic(
    link: Link,
    messages: Sequence[Any],
    formats: Formats,
    batch: Batch,
    now: float,
    since: int | None = None,
    *,
    leaves_out: bool = False,
) -> TopicRows:
    """Decode records of a user's topic to rows, and give them their times if the input says where these come from.

    Args:
        link: the topic.
        messages: those of the batch on this link.
        formats: of the reader.
        batch: says which partitions the messages came from, and the clocks before them.
        now: seconds since 1970, by this machine.
        since: rows before this time are left out (:attr:`sardonyx.core.events.LinkFacts.since`), as are those of times that the
            link leaves out.
        leaves_out: whether the task leaves bad records out.

    Raises:
        InputError: the records do not have the format that the job declares.
        FunctionError: ``SX-TIME-COLUMN``, ``SX-TIME-TYPE``.
    """
    read = (_letters if _holds_letters(link) else _records)(link, messages, formats)
    return read if link.time is None else _timed(link, link.time, messages, read, batch, now, since, leaves_out)


def _records(link: Link, messages: Sequence[Any], formats: Formats) -> TopicRows:
    values, keys = [message.value() for message in messages], [message.key() for message in messages]
    decoded = formats.of(link).decode(values, keys)
    if not decoded.bad:
        return TopicRows(decoded.table, messages, [])
    unreadable = dict(decoded.bad)
    good = [message for index, message in enumerate(messages) if index not in unreadable]
    return TopicRows(decoded.table, good, [unread(messages[index], failure) for index, failure in decoded.bad])


def _timed(
    link: Link,
    spec: TimeSpec,
    messages: Sequence[Any],
    read: TopicRows,
    batch: Batch,
    now: float,
    since: int | None,
    leaves_out: bool,
) -> TopicRows:
    """Give the rows of a topic their times. A record without a time is one that cannot be read."""
    if len(read.messages) == len(messages):
        kept = np.ones(len(messages), np.bool_)
    else:
        decoded = set(map(id, read.messages))
        kept = np.fromiter((id(message) in decoded for message in messages), np.bool_, len(messages))
    found = timed(link, spec, read.table, messages, kept, batch, now, since, leaves_out=leaves_out)
    if not found.bad and found.left_out is None:
        return TopicRows(found.table, read.messages, read.unread, found.clocks, found.in_force)
    good = [message for index, message in enumerate(read.messages) if index not in found.bad]
    if found.left_out is not None:
        good = [message for message, left_out in zip(good, found.left_out, strict=True) if not left_out]
    failed = [*read.unread, *(unread(read.messages[index], failure) for index, failure in found.bad.items())]
    return TopicRows(found.table, good, failed, found.clocks, found.in_force)


def _holds_letters(link: Link) -> bool:
    return link.options.get("format") == LETTERS_FORMAT


def _letters(link: Link, messages: Sequence[Any], formats: Formats) -> TopicRows:
    """Decode dead letters to the rows that they hold. Decode raw ones again, by the format of their original topic."""
    origins, types = formats.of_letters(link), formats.types(link)
    tables: list[pa.Table] = []
    good: list[Any] = []
    bad: list[Failed] = []
    for message in messages:
        letter = dead_letters.told(message)
        if letter is None:  # another program wrote this message to our topic
            bad.append(unread(message, dead_letters.NO_LETTER))
            continue
        value = message.value()
        if letter.kind == "row":
            table = block.decode([value])
        elif letter.kind in ("large", "made"):
            bad.append(unread(message, dead_letters.NO_VALUE if letter.kind == "large" else dead_letters.MADE))
            continue
        elif letter.origin.topic in origins:
            decoded = origins[letter.origin.topic].decode([value], [message.key()])
            bad += [unread(message, failure) for _, failure in decoded.bad]
            if decoded.bad:
                continue
            table = decoded.table
        else:
            bad.append(unread(message, letter.failure))
            continue
        try:
            types.take_rows(table)
        except Misfit as error:
            unfit = error.of(f"topic {link.topic}", shorten(repr(records(table)[0])), {"topic": link.topic})
            bad.append(unread(message, failure_of(unfit)))
            continue
        tables.append(table)
        good.append(message)
    return TopicRows(together(tables) if tables else pa.table({}), good, bad)
