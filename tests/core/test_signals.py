"""Signals are heard whatever thread the system gives them to."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

ASLEEP = """
import queue, signal, threading
from sardonyx.runtime.signals import heard

told = queue.SimpleQueue()
with heard([signal.SIGUSR1, signal.SIGTERM], told.put):
    other = threading.Thread(target=threading.Event().wait, daemon=True)
    other.start()
    for number in (signal.SIGUSR1, signal.SIGTERM):
        threading.Timer(0.2, signal.pthread_kill, (other.ident, number)).start()
        print(told.get(timeout=40) == number)
print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
"""


def test_a_signal_to_another_thread_is_heard_while_the_main_one_waits() -> None:
    """Each of those that were asked for, one after the other; behind the block everything is as it was."""
    ran = subprocess.run(
        [sys.executable, "-c", ASLEEP],
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    assert (ran.stdout.split(), ran.stderr, ran.returncode) == (["True"] * 3, "", 0)


WOKEN_BY_NOBODY = """
import queue, signal, sys, threading, time

sys.setswitchinterval(1000)  # so a thread gives way only where it waits: a thread that is found in `wait` is asleep in there
told, sent = queue.SimpleQueue(), threading.Event()
signal.signal(signal.SIGUSR1, lambda number, _: told.put(number))
other = threading.Thread(target=threading.Event().wait, daemon=True)
other.start()

def wait():
    told.get(timeout=1)

def send():
    while sys._current_frames()[threading.main_thread().ident].f_code is not wait.__code__:
        time.sleep(0.01)
    sent.set()
    signal.pthread_kill(other.ident, signal.SIGUSR1)

threading.Thread(target=send).start()
found = "slept"
while found == "slept" and not sent.is_set():  # on a slow machine it may be sent only after a wait
    try:
        wait()
        found = "heard"
    except queue.Empty:
        pass
print(found)
"""


def test_a_handler_alone_would_sleep_through_it() -> None:
    """Why the module is there: if Python wakes the main thread by itself one day, it can go."""
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    ran = subprocess.run(
        [sys.executable, "-c", WOKEN_BY_NOBODY], capture_output=True, check=True, text=True, timeout=60
    )
    assert ran.stdout.split() == ["slept"]
