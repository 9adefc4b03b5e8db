"""What the coordinator decides: events in, effects out. Pure: no clock, no chance, no I/O.

Imports :mod:`sardonyx.core`.
"""
