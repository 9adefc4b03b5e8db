"""Data that every other package shares: job specs and graphs, events and notes, errors, units. No clock, no I/O.

Imports data libraries only (msgspec, the standard library).
"""
