"""One leadership: the election, the event log, the ordered writes, and the side effects that follow.

Imports :mod:`coordinator.core`, :mod:`sentinel` and :mod:`sardonyx.zookeeper`. :mod:`coordinator.loop.leader` drives all else.
"""
