"""The side effects of :mod:`coordinator.loop`, done on Kafka.

Imports :mod:`coordinator.loop`, :mod:`queues` and :mod:`sardonyx.connectors`.
"""
