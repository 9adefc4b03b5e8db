"""Links between tasks as Kafka topics: readers, transactional writers, admin calls, lag.

The only package that imports confluent_kafka.

Imports :mod:`sentinel` and below.
"""
