"""The errors of a consumer that cannot be used any more. Pure."""

from __future__ import annotations


class ReaderLost(Exception):
    """The consumer cannot be used any more. A new one continues from the committed positions."""


class NotLetIn(ReaderLost):
    """The group did not answer the consumer that tried to join. The caller retries with new consumers until one joins."""
