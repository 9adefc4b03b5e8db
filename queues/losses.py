"""What to say of an internal link that has lost rows or has them twice. Pure."""

from __future__ import annotations

from queues.batch import Chunk, HeldPartition
from queues.messages import WRITER_HEADER
from sardonyx.core.chains import Broken
from sardonyx.core.errors import InputError
from sardonyx.core.graph import Link
from sardonyx.core.link_counts import LinkTally
from sardonyx.core.positions import Partition

_LOST = "A broker has lost committed records: by an unclean election, a deletion by hand, or a fault of the broker."
_TWICE = "A broker has shown records of a transaction that it had aborted or refused, or this is a fault of Sardonyx."
_FIX = (
    "Find out what the brokers did at that time (unclean.leader.election.enable, `kafka-delete-records`, their logs and "
    "releases), then submit the job again: its results so far are not complete."
)
_FIX_TWICE = "Look into the logs of the brokers, then submit the job again: some of its results so far are there twice."


def hear(held: HeldPartition, link: Link, chunk: Chunk) -> None:
    """Check a block that is taken into a batch against what its writer wrote before it.

    Args:
        held: the partition that it comes from.
        link: what is read.
        chunk: the block, with its chain.

    Raises:
        InputError: ``SX-LINK-LOSS``, ``SX-LINK-TWICE``.
    """
    message = chunk.messages[0]
    broken = held.chains.hear(chunk.chain or b"", message.offset())
    if broken is not None:
        writer = dict(message.headers() or ()).get(WRITER_HEADER, b"?").decode()
        since = held.committed.offset if held.committed else held.first
        raise broken_chain(link, chunk.partition, broken, since, message.offset(), writer)


def broken_chain(link: Link, partition: Partition, broken: Broken, since: int, offset: int, writer: str) -> InputError:
    """The error for blocks that are missing, or come again.

    Args:
        link: what is read.
        partition: of its topic.
        broken: what is wrong.
        since: the offset from which the reader has read; all before it was in order.
        offset: of the block that does not fit.
        writer: the peer that wrote it.
    """
    after = since if broken.after is None else broken.after
    place = f"{partition.topic}[{partition.number}]"
    where = {
        "task": link.target,
        "link": link.name,
        "topic": partition.topic,
        "partition": partition.number,
        "after": after,
        "offset": offset,
        "writer": writer,
        "chain": broken.chain,
        "count": abs(broken.lost),
    }
    if broken.lost > 0:
        return InputError(
            "SX-LINK-LOSS",
            f"Link {link.name} has lost {_messages(broken.lost)} of peer {writer} in {place}, between offsets {after} and "
            f"{offset}: number {broken.found} of its chain {broken.chain} follows where {broken.expected} must.",
            cause=_LOST,
            fix=_FIX,
            where=where,
        )
    return InputError(
        "SX-LINK-TWICE",
        f"Link {link.name} has messages of peer {writer} twice in {place}: at offset {offset} comes number {broken.found} of its "
        f"chain {broken.chain} again, of which {_messages(broken.expected)} stand up to offset {after}.",
        cause=_TWICE,
        fix=_FIX_TWICE,
        where=where,
    )


def totals_differ(link: Link, written: int, read: int) -> InputError:
    """The error for a link that is read to its end, and holds other rows than were written to it.

    Args:
        link: what was read.
        written: rows that the task before it has committed as written to the link.
        read: rows that the task has committed as read from it.
    """
    where = {"task": link.target, "link": link.name, "topic": link.topic, "written": written, "read": read}
    if read < written:
        return InputError(
            "SX-LINK-LOSS",
            f"Link {link.name} has lost {_rows(written - read)}: task {link.source} has written {written:,}, and task "
            f"{link.target} has read the link to its end, and found {read:,}.",
            cause=_LOST,
            fix=_FIX,
            where={**where, "count": written - read},
        )
    return InputError(
        "SX-LINK-TWICE",
        f"Link {link.name} has {_rows(read - written)} too many: task {link.source} has written {written:,}, and task "
        f"{link.target} has read {read:,}.",
        cause=_TWICE,
        fix=_FIX_TWICE,
        where={**where, "count": read - written},
    )


def audit_differs(link: Link, tally: LinkTally) -> InputError | None:
    """The error for a link on which an audit finds other rows than were written to it; None: it does not."""
    if not (tally.lost or tally.twice):
        return None
    written, unread = tally.written or 0, tally.unread or 0
    found = totals_differ(link, written, written - (tally.lost or 0) + (tally.twice or 0))
    message = f"Link {link.name} has " + (
        f"lost {_rows(tally.lost)}" if tally.lost else f"{_rows(tally.twice or 0)} too many"
    )
    message += f": task {link.source} has written {written:,}, task {link.target} has read {tally.read:,}, and {unread:,} more "
    message += "stand there unread."
    where = {**found.where, "read": tally.read, "unread": unread}
    return InputError(found.code, message, cause=found.cause, fix=found.fix, where=where)


def _messages(count: int) -> str:
    return f"{count:,} message" + ("s" if count != 1 else "")


def _rows(count: int) -> str:
    return f"{count:,} row" + ("s" if count != 1 else "")
