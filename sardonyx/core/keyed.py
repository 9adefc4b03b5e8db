"""What a job says about the state that a task keeps for each key. Pure data."""

from __future__ import annotations

import msgspec

from sardonyx.core.stores import Store

ALL_STATES = "*"
"""In ``ttl``: all states that it does not name."""


class KeyedSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The state of a task with keys."""

    on_timer: str | None = None
    """``module:function``, which is called when a timer is due."""
    ttl: dict[str, str] = {}
    """By the name of the state (the parameter that it is given to), or ``*``: how long after it was last written it is kept, by
    the clock of the rows."""
    state: str | None = None
    """Of a function of tables: the columns of its state, as Spark writes a schema."""
    time: str | None = None
    """The column with a row's time; None: that of the inputs."""
    state_limit: int | None = None
    """The most entries of one partition's state; the job fails at more, and does not fill the memory."""
    store: Store = "memory"
    """Where the state is kept: ``memory``, ``rocksdb``, or a database."""
