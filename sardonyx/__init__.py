"""Exactly-once dataflow jobs on Spark between Kafka queues: what users import."""
