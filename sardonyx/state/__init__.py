"""Windows and keyed state: from rows and clocks to changes of state and results.

Nothing here knows Kafka, Spark or ZooKeeper. What is planned is applied only after the transaction that holds it has committed.
"""
