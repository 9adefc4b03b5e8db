"""Where a job says that the state of a task is kept. Pure data."""

from __future__ import annotations

import msgspec

STORES = ("memory", "rocksdb")
"""Our stores beside a log in Kafka, by name. A database is another kind: :class:`SqlStore`."""


class SqlStore(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The state is in a database, with the positions of the task. There is no log of it in Kafka."""

    url: str
    """``postgresql://host:5432/name`` or ``sqlite:////path/to/file``, without a password."""
    user: str | None = None
    """Who logs in, unless the URL says it."""
    password_env: str | None = None
    """The environment variable that holds the password, where peers run."""


Store = str | SqlStore
"""One of :data:`STORES`, the user's own as ``module:Class``, or a database."""


def kind_of(store: Store) -> str:
    """``memory``, ``rocksdb``, ``sql``, or ``module:Class``."""
    return store if isinstance(store, str) else "sql"


def store_text(store: Store) -> str:
    """How messages call a store."""
    return store if isinstance(store, str) else store.url


def is_own(store: Store) -> bool:
    """Whether a store is the user's own class, named as ``module:Class``."""
    return isinstance(store, str) and ":" in store
