"""What all Kafka clients of this package share."""

from __future__ import annotations

import logging

from confluent_kafka import Message

__all__ = ["CLIENT_LOG", "RECONNECT_MS", "Message"]

CLIENT_LOG = logging.getLogger("librdkafka")
"""Where the Kafka client logs. At warning its lines are mostly about reconnects, which it deals with by itself."""

RECONNECT_MS = 1000
"""The most milliseconds between attempts to reach a broker that is away. With the client's own ten seconds a task would stand
still for longer than a broker takes to restart."""
