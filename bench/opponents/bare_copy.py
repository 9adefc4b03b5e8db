"""The limit: confluent-kafka in a loop, values handed from one topic to the other in transactions of 50,000, and nothing else.

One argument: JSON with ``bootstrap``, ``topics`` (two) and ``records``. Says ``ready`` and ``done``.
"""

import json
import sys

from confluent_kafka import Consumer, Producer

given = json.loads(sys.argv[1])
servers = {"bootstrap.servers": given["bootstrap"]}
source, target = given["topics"]
consumer = Consumer(
    servers
    | {
        "group.id": f"{target}-bare",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
    }
)
producer = Producer(
    servers
    | {
        "transactional.id": f"{target}-bare",
        "linger.ms": 50,
        "retry.backoff.ms": 10,
        "compression.type": "lz4",
        "queue.buffering.max.messages": 1_000_000,
    }
)
producer.init_transactions()
consumer.subscribe([source])
print("ready", flush=True)
copied, left = 0, given["records"]
producer.begin_transaction()
while left:
    messages = consumer.consume(min(10_000, left, 50_000 - copied), 1.0)
    for message in messages:
        producer.produce(target, message.value())
    copied += len(messages)
    left -= len(messages)
    if copied == 50_000 or (copied and not left):
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata()
        )
        producer.commit_transaction()
        copied = 0
        if left:
            producer.begin_transaction()
consumer.close()
print("done", flush=True)
