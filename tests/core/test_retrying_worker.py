"""Work is repeated until it is done, in order for each key, and no key waits for another."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

import pytest

from sardonyx.runtime.retrying_worker import RetryingWorker
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.usefixtures("threads_end")

Make = Callable[..., RetryingWorker]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[RetryingWorker] = []

    def start(threads: int = 1, pause: float = 0.001) -> RetryingWorker:
        made.append(RetryingWorker("test", threads=threads, first_pause=pause, longest_pause=pause))
        return made[-1]

    yield start
    for worker in made:
        worker.close()


def test_work_is_repeated_until_it_is_done(make: Make) -> None:
    """Each attempt gets its number, from 1 on."""
    attempts: queue.Queue[int] = queue.Queue()

    def attempt(number: int) -> bool:
        attempts.put(number)
        return number == 4

    worker = make()
    worker.submit("a", attempt)
    worker.submit("b", lambda _number: attempts.put(0) is None)
    assert sorted(attempts.get(timeout=PATIENCE) for _ in range(5)) == [0, 1, 2, 3, 4]
    assert attempts.empty()


def test_pieces_of_one_key_keep_their_order(make: Make) -> None:
    """The second one is not begun before the first one is done, however many threads there are and however often it fails."""
    did: queue.Queue[str] = queue.Queue()

    def first(number: int) -> bool:
        did.put(f"first {number}")
        return number == 3

    worker = make(threads=4)
    worker.submit("a", first)
    worker.submit("a", lambda _number: did.put("second") is None)
    assert [did.get(timeout=PATIENCE) for _ in range(4)] == ["first 1", "first 2", "first 3", "second"]


def test_no_key_waits_for_one_that_pauses(make: Make) -> None:
    """One thread is enough for many keys that fail and one that does not."""
    failed = threading.Semaphore(0)
    done = threading.Event()

    def fails(_number: int) -> bool:
        failed.release()
        return False

    worker = make(pause=3600)
    for key in range(5):
        worker.submit(key, fails)
    for _ in range(5):
        assert failed.acquire(timeout=PATIENCE)
    worker.submit("other", lambda _number: done.set() is None)
    assert done.wait(PATIENCE)


def test_only_so_many_pieces_run_at_once_in_threads_that_are_started_when_needed(make: Make) -> None:
    """There is no thread before there is work."""
    before = set(threading.enumerate())
    release, running = threading.Event(), threading.Semaphore(0)

    def waits(_number: int) -> bool:
        running.release()
        return release.wait(PATIENCE)

    worker = make(threads=3)
    assert set(threading.enumerate()) <= before
    for key in range(9):
        worker.submit(key, waits)
    for _ in range(3):
        assert running.acquire(timeout=PATIENCE)
    assert not running.acquire(timeout=0.1)
    assert len(set(threading.enumerate()) - before) == 3
    release.set()
    for _ in range(6):
        assert running.acquire(timeout=PATIENCE)


def test_nothing_is_begun_after_the_end(make: Make) -> None:
    """What pauses is not tried again, what is submitted is not begun, and the threads end."""
    before = set(threading.enumerate())
    attempts: list[int] = []

    def fails(number: int) -> bool:
        attempts.append(number)
        return False

    worker = make(pause=3600)
    worker.submit("a", fails)
    until(lambda: attempts == [1], what="the first attempt")
    assert not worker.closed
    worker.close()
    assert worker.closed
    worker.submit("b", fails)
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert attempts == [1]
