"""What a peer daemon counts and measures of its clients of Kafka, over all its tasks: the brokers are the same for all."""

from __future__ import annotations

import weakref
from typing import Protocol

from sardonyx.runtime.metrics import REGISTRY

TRANSACTIONS = REGISTRY.counter(
    "sardonyx_transactions_total",
    "Transactions of Kafka by outcome: committed, aborted (nothing was written), lost (another peer has the slot, or the outcome "
    "is not known: the next client asks the broker).",
    ["outcome"],
    most=3,
)
ABORTS = REGISTRY.counter(
    "sardonyx_transaction_aborts_total",
    "Aborted transactions by reason: group (it has given the partitions to another peer), timeout (a broker did not answer in "
    "time), records (Kafka does not take one), denied (a right is missing), other.",
    ["reason"],
    most=5,
)
TRANSACTION_SECONDS = REGISTRY.histogram(
    "sardonyx_transaction_seconds",
    "Time from the begin of a transaction that was committed until its commit is confirmed.",
    bounds=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    most=1,
)
TAKEOVER_SECONDS = REGISTRY.histogram(
    "sardonyx_slot_takeover_seconds",
    "Time until Kafka lets a peer write in a slot. Kafka ends first what the slot's last peer left open.",
    bounds=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    most=1,
)
CONNECTIONS = REGISTRY.counter(
    "sardonyx_kafka_connection_errors_total",
    "Connections to brokers that broke or could not be made, as producers of the daemon told.",
    most=1,
)
REBALANCES = REGISTRY.counter(
    "sardonyx_rebalances_total",
    "How often consumer groups gave partitions to virtual peers of the daemon (assigned), took some (revoked), or had taken them "
    "before the peer heard of it (lost).",
    ["kind"],
    most=3,
)
BUFFERED = REGISTRY.gauge(
    "sardonyx_reader_buffered_rows", "Rows that tasks have read ahead and not yet worked on.", most=1
)
PAUSED = REGISTRY.gauge("sardonyx_readers_paused", "Tasks that read nothing more because their buffer is full.", most=1)


class Measured(Protocol):
    """What is read of a reader, in any thread: :class:`queues.reader.Reader`."""

    @property
    def rows_ahead(self) -> int:
        """Rows that it has read ahead."""
        ...

    @property
    def is_paused(self) -> bool:
        """Whether it reads nothing more."""
        ...


_READERS: weakref.WeakValueDictionary[int, Measured] = weakref.WeakValueDictionary()


def follow(reader: Measured) -> None:
    """Have the gauges read from a reader, too, for as long as there is one."""
    _READERS[id(reader)] = reader


def _readers() -> list[Measured]:
    return [reader for found in _READERS.valuerefs() if (reader := found()) is not None]


BUFFERED.follow(lambda: {(): sum(reader.rows_ahead for reader in _readers())})
PAUSED.follow(lambda: {(): sum(reader.is_paused for reader in _readers())})
