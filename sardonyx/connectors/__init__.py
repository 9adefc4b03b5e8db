"""Connectors: how users declare an input or output, and the code that reads and writes it.

Imports :mod:`queues` and below. To add one, see CONTRIBUTING.md.
"""
