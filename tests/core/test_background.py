"""The thread for what takes long."""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref

import pytest

from sardonyx.runtime.background import BackgroundThread, NotReturned, PatientCalls
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.usefixtures("threads_end")


def test_calls_run_in_order() -> None:
    """On one thread; what a call gives or raises is in its future."""
    ran: list[object] = []
    aside = BackgroundThread("aside")
    aside.submit(lambda: ran.append(threading.current_thread().name))

    def fail() -> None:
        ran.append("fail")
        raise SystemExit("no")

    one, two, three = aside.submit(lambda: ran.append(1)), aside.submit(fail), aside.submit(lambda: 3)
    aside.close()
    assert three.result(PATIENCE) == 3
    assert one.result(0) is None
    with pytest.raises(SystemExit):
        two.result(0)
    assert ran == ["aside", 1, "fail"]


def test_what_a_call_has_given_is_not_kept() -> None:
    """A task's batch is freed when its results are written, not when the next batch has been worked off."""

    class Batch:
        pass

    aside = BackgroundThread("aside")
    future = aside.submit(Batch)
    batch = weakref.ref(future.result(PATIENCE))
    del future
    until(lambda: batch() is None, what="the batch to be freed")
    aside.close()


def test_a_call_that_never_returns_does_not_keep_the_process() -> None:
    """A daemon that gets SIGTERM ends, whatever a user's function does."""
    program = (
        "import threading; from sardonyx.runtime.background import BackgroundThread;"
        "BackgroundThread('a').submit(threading.Event().wait)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


def test_a_call_that_does_not_return_is_waited_for_and_not_made_again() -> None:
    """Who asks once more waits for the same one, and others are not held up by it. When it has returned, the next one is made."""
    calls, answers, begun = PatientCalls("share", patience=0.1, again=0.01), threading.Event(), list[str]()

    def hangs() -> int:
        begun.append("hangs")
        answers.wait(PATIENCE)
        return 7

    for _ in range(3):
        with pytest.raises(NotReturned):
            calls.call("one", hangs)
    assert calls.call("another", lambda: 8) == 8
    answers.set()
    returned: list[int] = []

    def ask() -> bool:
        try:
            returned.append(calls.call("one", hangs))
        except NotReturned:
            return False
        return True

    until(ask, what="the call to return")
    assert (returned, begun) == ([7], ["hangs"])
    with pytest.raises(ValueError, match="no"):
        calls.call("one", lambda: int("no"))
    assert calls.call("one", lambda: 9) == 9
