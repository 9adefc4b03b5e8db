"""A thread for work that takes long, whose end no caller needs to wait for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundThread:
    """Runs calls one after the other on a thread of its own.

    Unlike a pool's, this thread does not keep the process from ending: a user's function may never return, and a daemon that
    a signal asks to stop must stop all the same.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Have ``call`` run after those before it; the future holds what it gives or raises."""
        if not self._thread.ident:
            self._thread.start()
        future: Future[T] = Future()
        self._calls.put(partial(_settle, future, call))
        return future

    def close(self) -> None:
        """Let the thread end once what it does is through. Does not wait for that."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # its result may be a whole batch, and the next call may come late


class NotReturned(Exception):
    """A call has not returned in time. It goes on."""


class PatientCalls:
    """Calls that may never return, such as in a folder of a share that hangs, each on a thread of its own.

    A call that has not returned in time is not made again: who asks for it once more waits for the same one, and not as long.

    Args:
        name: of the threads.
        patience: seconds to wait for a call that was just made.
        again: seconds to wait for one that was made before.
    """

    def __init__(self, name: str, patience: float, again: float = 1.0) -> None:
        self._name = name
        self._patience = patience
        self._again = again
        self._lock = threading.Lock()
        self._made: dict[Hashable, Future[Any]] = {}

    def call(self, key: Hashable, call: Callable[[], T]) -> T:
        """Make a call, or wait for the one that was made under this key; gives what it gives, or raises what it raises.

        Raises:
            NotReturned: it has not returned in time.
        """
        with self._lock:
            made = self._made.get(key)
            patience = self._patience if made is None else self._again
            if made is None:
                thread = BackgroundThread(self._name)
                made = self._made[key] = thread.submit(call)
                thread.close()
        if not wait([made], patience).done:
            raise NotReturned(self._name)
        with self._lock:
            if self._made.get(key) is made:
                del self._made[key]
        found: T = made.result()
        return found


def _settle(future: Future[Any], call: Callable[[], Any]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 (the future hands it to its reader)
        future.set_exception(error)
        del future, call  # the error keeps this frame, and must not keep what they hold
