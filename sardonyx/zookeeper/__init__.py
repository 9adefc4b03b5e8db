"""The session with ZooKeeper: reads, writes, transactions, and their errors. The only package that imports kazoo.

Imports :mod:`sardonyx.runtime` and :mod:`sardonyx.core`.
"""
