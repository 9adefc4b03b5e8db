"""For development: embedded ZooKeeper and Kafka, and ``sardonyx doctor``.

May import the layers below. The daemons, ``coordinator`` and ``peer``, never import it.
"""
