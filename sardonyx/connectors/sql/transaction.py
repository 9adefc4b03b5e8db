"""A transaction of a database that is held open between two calls: begun on one thread, committed or rolled back on another."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from sardonyx.connectors.base import PositionsMoved
from sardonyx.connectors.sql.database import Address

if TYPE_CHECKING:
    import sqlalchemy as sa

_log = structlog.get_logger()


class HeldTransaction:
    """At most one transaction at a time.

    Args:
        address: of the database.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._open: sa.Connection | None = None
        self._abandoned = False

    def begin(self, write: Callable[[sa.Connection], None]) -> None:
        """Roll back what is open, write in a new transaction, and leave it open. What ``write`` raises rolls it back."""
        self.abandon()
        with self._lock:
            self._abandoned = False
        connection = self._address.engine().connect()
        try:
            write(connection)
        except BaseException:
            _roll_back(connection)
            raise
        with self._lock:
            abandoned = self._abandoned
            if not abandoned:
                self._open = connection
        if abandoned:
            _roll_back(connection)

    def commit(self) -> None:
        """Commit. If this raises an error of the database, the transaction may or may not be committed.

        Raises:
            PositionsMoved: it was rolled back before.
        """
        with self._lock:
            connection, self._open = self._open, None
        if connection is None:
            raise PositionsMoved("the transaction was rolled back")
        try:
            connection.commit()
        finally:
            _roll_back(connection)

    def abandon(self) -> None:
        """Roll back what is open. If :meth:`begin` is still running, it rolls back when it is done. Any thread may call this.

        It raises nothing that the database says.
        """
        with self._lock:
            connection, self._open = self._open, None
            self._abandoned = True
        if connection is not None:
            _roll_back(connection)


def _roll_back(connection: sa.Connection) -> None:
    """Give a connection back, without what was written on it. A broken one is thrown away: the database rolls back by itself, and
    the error would only hide why the transaction is given up.
    """
    import sqlalchemy as sa

    try:
        connection.close()
    except sa.exc.SQLAlchemyError as error:
        _log.debug("rollback_failed", error=str(error))
        with contextlib.suppress(sa.exc.SQLAlchemyError):
            connection.invalidate()
            connection.close()
