"""Sentinels end bounded jobs: the rules that tell when a partition is read to its end, and the election of a link's leader.

Imports :mod:`sardonyx.zookeeper` and below. :mod:`sentinel.rules` and :mod:`sentinel.nodes` are pure.
"""
