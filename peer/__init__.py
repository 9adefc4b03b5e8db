"""The peer daemon: virtual peers, their assignments, and the loop that runs batches and commits them.

Imports :mod:`spark_tasks` and below, never :mod:`coordinator`.
"""
