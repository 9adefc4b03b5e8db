"""Reads the event log back: replay, verification, timelines, export.

Imports :mod:`coordinator.loop` and :mod:`coordinator.core`.
"""
