"""Simulated time, threads and processes: a whole cluster in one thread, driven by one seeded source of chance.

Everything that happens is an event on a heap, ordered by simulated time. What would be a thread is a greenlet: it runs
until it waits for something, and goes on when an event wakes it. Nothing looks at the machine's clock, so a history is
played as fast as it can be computed, and the same seed plays it again, step by step.

A process can be killed (none of its code runs any more, not even what stands in ``finally``, as far as other processes
can see) and paused (its threads stand still and believe, afterwards, that no time has passed).
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

JITTER = 0.002
"""Seconds, at most, until a thread that was woken runs: so threads overtake each other."""


class Waiter:
    """A thread that waits; it is woken once, with a value."""

    __slots__ = ("fired", "process", "thread", "value")

    def __init__(self, process: Process) -> None:
        self.process = process
        self.thread = getcurrent()
        self.fired = False
        self.value: Any = None

    def fire(self, value: Any = None) -> None:
        """Wake it soon; a second time does nothing."""
        if not self.fired:
            self.fired = True
            self.value = value
            sim = self.process.sim
            sim.at(sim.rng.random() * JITTER, self._resume)

    def park(self, timeout: float | None = None) -> Any:
        """Wait in the current thread; ``None`` after ``timeout`` seconds."""
        if not self.process.alive:
            raise GreenletExit
        if timeout is not None:
            self.process.sim.timer(max(timeout, 0.0), self)
        return self.process.sim.hub.switch()

    def _resume(self) -> None:
        self.process.run(self._switch)

    def _switch(self) -> None:
        self.thread.switch(self.value)


class Simulation:
    """The heap of events. ``rng`` decides everything that is left to chance."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.hub = getcurrent()
        self.now = 0.0
        self.steps = 0
        self._heap: list[tuple[float, int, Any]] = []
        self._tickets = 0
        self.processes: list[Process] = []
        self.broken: BaseException | None = None
        """An exception that a thread did not catch."""

    def at(self, delay: float, what: Callable[[], None]) -> None:
        """Let something happen in so many seconds."""
        self.on(self.now + delay, what)

    def on(self, when: float, what: Callable[[], None]) -> None:
        """Let something happen at that time; what is to happen at the same time keeps its order."""
        self._tickets += 1
        heapq.heappush(self._heap, (when, self._tickets, what))

    def timer(self, delay: float, waiter: Waiter) -> None:
        """Wake a waiter then, unless it was woken before."""
        self._tickets += 1
        heapq.heappush(self._heap, (self.now + delay, self._tickets, waiter))

    def step(self) -> bool:
        """Let the next thing happen. Whether there was one."""
        while self._heap:
            when, _, what = heapq.heappop(self._heap)
            if isinstance(what, Waiter):
                if what.fired:
                    continue
                self.now = when
                what.fired = True
                what._resume()
            else:
                self.now = when
                what()
            self.steps += 1
            if self.broken is not None:
                raise self.broken
            return True
        return False

    def close(self) -> None:
        """End every thread."""
        for process in self.processes:
            process.kill()
        self._heap.clear()


class Process:
    """Something that can be killed or paused as a whole: threads, and what they wait for."""

    def __init__(self, sim: Simulation, name: str) -> None:
        self.sim = sim
        self.name = name
        self.alive = True
        self.paused = False
        self.skew = sim.rng.choice((0.0, 0.0, sim.rng.uniform(-20, 20)))
        """Seconds by which its wall clock is ahead."""
        self.on_kill: list[Callable[[], None]] = []
        self.on_pause: list[Callable[[], None]] = []
        self.on_resume: list[Callable[[], None]] = []
        self._threads: dict[greenlet, None] = {}  # in order: what dies first must be the same in every run
        self._deferred: list[Callable[[], None]] = []
        sim.processes.append(self)

    def run(self, what: Callable[[], None]) -> None:
        """Let something happen within this process: now, after the pause, or never."""
        if self.paused:
            self._deferred.append(what)
        elif self.alive:
            what()

    def spawn(self, name: str, target: Callable[[], None]) -> Thread:
        thread = Thread(self, name, target)
        self._threads[thread.greenlet] = None
        self.sim.at(0.0, lambda: self.run(thread.greenlet.switch))
        return thread

    def kill(self) -> None:
        """SIGKILL, from outside of its own threads."""
        if not self.alive:
            return
        self.alive = False
        self.paused = False
        for told in self.on_kill:
            told()
        for thread in list(self._threads):
            thread.throw(GreenletExit)
        self._threads.clear()

    def crash(self) -> None:
        """SIGKILL, from one of its own threads, at this very point."""
        self.alive = False
        self.sim.at(0.0, self._bury)
        self.sim.hub.switch()

    def _bury(self) -> None:
        self.alive = True
        self.kill()

    def pause(self) -> None:
        """SIGSTOP."""
        if self.alive and not self.paused:
            self.paused = True
            for told in self.on_pause:
                told()

    def resume(self) -> None:
        """SIGCONT: what was due meanwhile happens now."""
        if not self.paused:
            return
        self.paused = False
        for told in self.on_resume:
            told()
        deferred, self._deferred = self._deferred, []
        for what in deferred:
            self.sim.at(0.0, lambda what=what: self.run(what))

    def forget(self, thread: greenlet) -> None:
        self._threads.pop(thread, None)


def current() -> Process:
    """The process whose thread runs."""
    found: Process = getcurrent().process
    return found


class Thread:
    """As ``threading.Thread``; what it raises ends the simulation."""

    def __init__(self, process: Process, name: str, target: Callable[[], None]) -> None:
        self._process = process
        self._name = name
        self._target = target
        self._alive = True
        self._joining: list[Waiter] = []
        self.greenlet = greenlet(self._run, process.sim.hub)
        self.greenlet.process = process

    def _run(self) -> None:
        try:
            self._target()
        except GreenletExit:
            pass
        except BaseException as error:  # noqa: BLE001 - told by the simulation
            if self._process.alive:
                error.add_note(f"in thread {self._name} of {self._process.name}")
                self._process.sim.broken = error
        finally:
            self._alive = False
            self._process.forget(self.greenlet)
            for waiter in self._joining:
                waiter.fire()

    def is_alive(self) -> bool:
        return self._alive

    def join(self, timeout: float | None = None) -> None:
        if self._alive:
            waiter = Waiter(self._process)
            self._joining.append(waiter)
            waiter.park(timeout)


class SimSignal:
    """As ``threading.Event``."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._set = False
        self._waiters: list[Waiter] = []

    def set(self) -> None:
        self._set = True
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.fire(True)

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        if self._set:
            return True
        waiter = Waiter(self._process)
        self._waiters.append(waiter)
        return bool(waiter.park(timeout)) or self._set


class SimCondition:
    """As ``threading.Condition``; threads only change at waits, so the lock is nothing."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._waiters: list[Waiter] = []

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *exc: object) -> None:
        return None

    def wait(self, timeout: float | None = None) -> bool:
        waiter = Waiter(self._process)
        self._waiters.append(waiter)
        return bool(waiter.park(timeout))

    def notify(self, n: int = 1) -> None:
        while n and self._waiters:
            waiter = self._waiters.pop(0)
            if not waiter.fired:
                waiter.fire(True)
                n -= 1

    def notify_all(self) -> None:
        self.notify(len(self._waiters))


class SimPost:
    """As ``queue.SimpleQueue``."""

    def __init__(self, process: Process) -> None:
        self._items: list[str] = []
        self._signal = SimSignal(process)

    def put(self, item: str) -> None:
        self._items.append(item)
        self._signal.set()

    def get(self) -> str:
        while not self._items:
            self._signal.clear()
            self._signal.wait()
        return self._items.pop(0)


class SimRuntime:
    """A process's clock, chance and threads; stands in for ``sardonyx.runtime.clock.Runtime``."""

    EPOCH = 1_700_000_000.0

    def __init__(self, process: Process) -> None:
        self.process = process

    def now(self) -> float:
        return self.process.sim.now

    def wall(self) -> float:
        return round(self.EPOCH + self.process.sim.now + self.process.skew, 6)

    def token(self) -> str:
        return f"{self.process.sim.rng.getrandbits(128):032x}"

    def signal(self) -> SimSignal:
        return SimSignal(self.process)

    def condition(self) -> SimCondition:
        return SimCondition(self.process)

    def post(self) -> SimPost:
        return SimPost(self.process)

    def spawn(self, name: str, run: Callable[[], None]) -> Thread:
        return self.process.spawn(name, run)

    def sleep(self, seconds: float) -> None:
        Waiter(self.process).park(seconds)
