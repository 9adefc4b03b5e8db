"""Spark for a process that may never need it: the session starts when the first task asks for it.

Windows, joins, outputs and tables run in the peer, on Arrow. A daemon that has only such tasks starts no JVM, which would take
seconds of processor time and hundreds of megabytes. For a task with functions the JVM starts as soon as the task is offered, so
that it gets ready while the task joins its consumer group, restores its state and reads.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sardonyx.core.errors import SardonyxError
from sardonyx.runtime.functions import import_function
from sardonyx.runtime.lazy import lazy_module
from spark_tasks.code import CodeBundle

if TYPE_CHECKING:
    from spark_tasks import session as sessions
    from spark_tasks.session import SparkSession
else:  # a test in its own process prepares tasks without it
    sessions = lazy_module("spark_tasks.session")


class SparkOnDemand:
    """The Spark session of a process, which starts when it is needed. Many threads may use it.

    Args:
        start: starts a session. Raises SetupError.
        started: called with each session that has started, on the thread that started it.
    """

    def __init__(
        self, start: Callable[[], SparkSession], started: Callable[[SparkSession], None] = lambda _session: None
    ) -> None:
        self._start, self._started = start, started
        self._lock = threading.Lock()
        self._future: Future[SparkSession] | None = None

    def begin(self) -> None:
        """Let a thread start Spark, unless it runs or starts already. Returns at once."""
        future, is_new = self._begun()
        if is_new:
            threading.Thread(target=self._run, args=(future,), name="spark-start", daemon=True).start()

    def session(self) -> SparkSession:
        """Return the session. If there is none, start it; if it starts, wait for it.

        Raises:
            SetupError: ``SX-SPARK-START``, ``SX-JAVA-MISSING``, ``SX-JAVA-OLD``. The next call tries again.
        """
        future, is_new = self._begun()
        if is_new:
            self._run(future)
        return future.result()

    @property
    def running(self) -> SparkSession | None:
        """The session; None while there is none."""
        future = self._future
        ready = future is not None and future.done() and future.exception() is None
        return future.result() if future is not None and ready else None

    @property
    def starts(self) -> bool:
        """Whether it is starting now."""
        future = self._future
        return future is not None and not future.done()

    @property
    def has_ended(self) -> bool:
        """Whether its JVM has ended since it started."""
        session = self.running
        return session is not None and not sessions.is_alive(session)

    def forget(self) -> None:
        """Remove what is left of a session whose JVM has ended. The next use starts another one."""
        session = self.running
        if session is None:
            return
        sessions.stop_session(session)
        self._future = None

    def stop(self) -> None:
        """Stop the session. If it is starting, wait until it has started."""
        future = self._future
        if future is not None:
            with contextlib.suppress(SardonyxError):  # it did not start
                sessions.stop_session(future.result())

    def _begun(self) -> tuple[Future[SparkSession], bool]:
        """The start of the session, and whether the caller is to make it."""
        with self._lock:
            if self._future is not None:
                return self._future, False
            self._future = Future()
            return self._future, True

    def _run(self, future: Future[SparkSession]) -> None:
        try:
            session = self._start()
        except BaseException as error:
            self._future = None  # first: who asks next tries again
            future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            future.set_result(session)
            self._started(session)


class TaskSpark:
    """Spark for one assignment, with the code of its job. The Spark jobs of an assignment are a group, which can be cancelled
    together.

    Args:
        spark: of the process.
        group: names the assignment.
        code: the job's code bundle, if it has one. The workers get it with the session.
    """

    def __init__(self, spark: SparkOnDemand, group: str, code: CodeBundle | None = None) -> None:
        self._spark, self._group, self.code = spark, group, code
        if code is not None:
            code.users.add(self)
        self._session: SparkSession | None = None
        """What the assignment works with. It stays the same, also if the process starts another one."""
        self._is_cancelled = False

    def session(self) -> SparkSession:
        """Return the session, whose workers have the job's code, and put the Spark jobs that the calling thread begins from now
        on into the group.

        Raises:
            SetupError: as :meth:`SparkOnDemand.session`.
        """
        if self._session is None:
            session = self._spark.session()
            if self.code is not None:
                self.code.ship(session)
            self._session = session
        sessions.enter_group(self._session, self._group)
        if self._is_cancelled:  # while Spark started
            sessions.cancel_group(self._session, self._group)
        return self._session

    @cached_property
    def cores(self) -> int:
        """How many items the session's workers work on at a time. Raises as :meth:`session`."""
        return int(self.session().sparkContext.defaultParallelism)

    @property
    def package(self) -> str | None:
        """The package of the job's code in each process; None: it has no code of its own."""
        return None if self.code is None else self.code.package

    def load(self, reference: str) -> Callable[..., Any]:
        """Return the function that ``module:function`` names, in this process: see :meth:`CodeBundle.load`."""
        return import_function(reference) if self.code is None else self.code.load(reference)

    @property
    def used(self) -> SparkSession | None:
        """The session, if the assignment has used it."""
        return self._session

    @property
    def starts(self) -> bool:
        """Whether the assignment has to wait until Spark has started."""
        return self._session is None and self._spark.starts

    @property
    def is_alive(self) -> bool:
        """Whether Spark still works, as far as the assignment has needed it."""
        return self._session is None or sessions.is_alive(self._session)

    def cancel(self) -> None:
        """Cancel the group's jobs, also later ones. Any thread may call it."""
        self._is_cancelled = True  # before the session is looked at: it may come at this moment
        if self._session is not None:
            sessions.cancel_group(self._session, self._group)
