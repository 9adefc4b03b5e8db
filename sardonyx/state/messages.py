"""The messages of a state log, and their headers. Pure.

A shard's log is one partition of a topic. A *commit* of the shard is the messages that one transaction wrote there: first what
is restated (``again``), then what the batch changed (``delta``). What is restated is what the store held before the commit. So
whatever a reader applies in this order, the last word about a key is the newest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from queues import block
from queues.messages import Logged
from sardonyx.core.errors import InputError, OutputError, SetupError
from sardonyx.state.base import KEY

Headers = list[tuple[str, bytes]]

STATE = "sx-state"
"""``delta``: entries that a batch has changed. ``again``: entries restated. ``undo``: entries of a checkpoint that differ from
those of the shard (:mod:`sardonyx.state.undo`); they change no entry of it. ``part``: the first bytes of what the next message
holds, for an entry that is larger than a message.
"""
SEQ = "sx-seq"
"""``4711 1/2``: the number of the shard's commit, from 1 on without a gap; which of how many messages of it."""
STORE = "sx-store"
SHAPE = "sx-shape"
"""The fingerprint of the store's columns."""
ROUND = "sx-round"
"""On ``again``: offset and commit number that the log begins after once the round is through. The last key of the block is
how far the round has come in its store."""
AT = "sx-at"
"""On ``undo``: the time of the checkpoint, in microseconds. The last word about a key holds, as in the log itself."""

KINDS = ("again", "delta", "undo", "part")

LARGEST = 64_000_000
"""Bytes of the largest entry. A batch's transaction holds it whole, and so does the memory of the peer."""


class Message(NamedTuple):
    """A message to write to the shard's partition, without a key."""

    headers: Headers
    value: bytes


class Mark(NamedTuple):
    """How far a shard has come; it is committed with the position of its partition.

    ``seq``: the last commit. ``low``: everything that the state needs stands in the log from this offset on. ``base``: and
    after this commit.
    """

    seq: int = 0
    low: int = 0
    base: int = 0


class Place(NamedTuple):
    """Where a round of restatement began: at this offset, after this commit."""

    low: int
    base: int


class About(NamedTuple):
    """What the headers of a message say."""

    kind: str
    seq: int
    number: int
    of: int
    store: str
    shape: bytes
    round: Place | None
    at: int | None = None


def values(about: About, entries: pa.Table, max_bytes: int) -> Iterator[tuple[About, bytes]]:
    """Encode entries as the values of messages, with what their headers say but for their numbers.

    Raises:
        OutputError: ``SX-STATE-ENTRY-LARGE``, an entry is larger than :data:`LARGEST`.
    """
    try:
        found = block.encode(entries, max_bytes, max_row=LARGEST)
    except OutputError as error:
        raise OutputError(
            "SX-STATE-ENTRY-LARGE",
            f"an entry of the state {about.store!r} is larger than {LARGEST:,} bytes",
            cause=error.cause,
            fix="let one key or window keep less: shorter windows, a key of more columns, `most=` of `Collect` and `Distinct`, "
            "or a `ListState` in place of a list",
        ) from error
    for each in found:
        cuts = range(max_bytes, len(each.value), max_bytes)
        for end in cuts:
            yield about._replace(kind="part"), each.value[end - max_bytes : end]
        yield about, each.value[cuts[-1] if cuts else 0 :]


def headers(about: About) -> Headers:
    """The reverse of :func:`about`."""
    found = [
        (STATE, about.kind.encode()),
        (SEQ, b"%d %d/%d" % (about.seq, about.number, about.of)),
        (STORE, about.store.encode()),
        (SHAPE, about.shape),
    ]
    if about.round is not None:
        found.append((ROUND, b"%d %d" % about.round))
    if about.at is not None:
        found.append((AT, b"%d" % about.at))
    return found


def about(message: Logged, where: dict[str, object]) -> About:
    """Read the headers of a message.

    Args:
        message: the message.
        where: its topic and partition, for the error.

    Raises:
        InputError: ``SX-STATE-FOREIGN``, this is not a message of a state log.
        SetupError: ``SX-BLOCK-FORMAT``, a newer release wrote it.
    """
    said = dict(message.headers)
    try:
        kind, store = said[STATE].decode(), said[STORE].decode()
        seq, place = said[SEQ].split(b" ")
        number, of = place.split(b"/")
        at = Place(*map(int, said[ROUND].split(b" "))) if ROUND in said else None
        time = int(said[AT]) if AT in said else None
        found = About(kind, int(seq), int(number), int(of), store, said[SHAPE], at, time)
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(
            "SX-STATE-FOREIGN",
            f"the message at offset {message.offset} of a state log is not one of Sardonyx",
            cause=f"its headers are {said!r}"[:300],
            fix="write nothing to the topics of a deployment; submit the job again",
            where={**where, "offset": message.offset},
        ) from error
    if found.kind not in KINDS:
        raise SetupError(
            "SX-BLOCK-FORMAT",
            f"a state log holds messages of kind {found.kind!r}, which this release does not know",
            cause="a newer release of Sardonyx wrote them",
            fix="upgrade this installation; `sardonyx upgrade --check` shows who runs which release",
            where={**where, "offset": message.offset},
        )
    return found


def last_key(entries: pa.Table) -> bytes:
    """The key of the last of these entries."""
    key: bytes = entries.column(KEY)[-1].as_py()
    return key
