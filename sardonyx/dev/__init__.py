"""For development: ZooKeeper and Kafka as child processes, and ``sardonyx doctor``.

Daemons never import it.
"""
