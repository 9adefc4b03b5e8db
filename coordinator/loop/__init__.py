"""One leadership: the election, the event log, the ordered writes, and side effects on Kafka.

Imports :mod:`coordinator.core`, :mod:`sardonyx.zookeeper` and :mod:`queues`.
"""
