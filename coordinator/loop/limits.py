"""Sizes and times of the coordinator's loop. Tests pass smaller ones."""

from __future__ import annotations

import msgspec

from sardonyx.zookeeper.transactions import ENTRY_LIMIT, PIECE


class Limits(msgspec.Struct, frozen=True):
    """How much the loop reads and writes at a time."""

    log_node: int = ENTRY_LIMIT
    """Bytes of the entries in one node of the log; a larger entry gets a node of its own."""
    transaction: int = PIECE
    """Bytes at which a transaction is sent, where many follow each other: ZooKeeper works on one while the next is prepared."""
    in_flight: int = 4
    """Transactions of one pipeline that are in flight at once: ZooKeeper takes longer to answer one than to work on it."""
    requests: int = 512
    """Requests that are read at a time, at most: about as many as fill a transaction of the log, and few enough that ZooKeeper
    has something to do while they are decided."""
    client_requests: int = 1_000
    """Requests of clients that are taken in one turn of the loop, at most, from each author in turn. What peers ask for is not
    counted. So however much one client asks for, peers, timers and other clients wait no longer than for these."""
    pulse_pause: float = 50e-6
    """Seconds between two reads of the list of pulses, for each name in it. With many peers the list is long, and it changes all
    the time. A read takes 2 to 3 us a name, so this is a twentieth of a leader's time."""
    longest_pulse_pause: float = 0.5
    """Seconds between two reads of the list of pulses, at most: at ten thousand peers the leader sees a birth or a death up to
    half a second late."""


DEFAULT = Limits()
