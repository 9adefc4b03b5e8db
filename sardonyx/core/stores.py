"""Where a job says that the state of a task is kept. Pure data."""

from __future__ import annotations

from typing import Any

import msgspec

from sardonyx.core.errors import FunctionError

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


METHODS = ("__len__", "read", "scan", "apply", "clear", "close")
"""The methods of a store of the user's own."""

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
    return isinstance(store, str) and ":" in store and "://" not in store


def check_store(kind: Any, reference: str) -> None:
    """Refuse a class that lacks what a store needs: see ``sardonyx.state.base.Store``.

    Raises:
        FunctionError: ``SX-STATE-CLASS``.
    """
    missing = [name for name in METHODS if not callable(getattr(kind, name, None))]
    if not isinstance(kind, type) or missing:
        raise FunctionError(
            "SX-STATE-CLASS",
            f"{reference} cannot be used as a store of state",
            cause="it is not a class" if not isinstance(kind, type) else f"it has no {missing[0]}",
            fix="write a class with the methods of a store: docs/state.md, A store of your own",
            where={"store": reference},
        )
