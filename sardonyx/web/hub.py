"""One hub for all that look: each topic is made once for all of them, and a slow reader gets the newest state of it, not all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable

import structlog

from sardonyx.core.errors import SardonyxError, failure_of

log = structlog.get_logger()

LEAST = 0.25
"""Seconds between two frames of one topic."""
AGAIN = 5.0
"""Seconds after which topics are made again if nothing is new: some of what they say goes by the time."""
SILENCE = 15.0
"""Seconds after which an idle stream gets a comment, so that proxies keep it."""
STREAMS = 1000
"""Streams at once."""
STANDING = "standing"
"""The topic that each stream has: where the page stands."""


class _Stream:
    """One reader: by topic, the newest frame that it has not got yet."""

    def __init__(self, topics: Iterable[str]) -> None:
        self.topics = {STANDING, *topics}
        self.waiting: dict[str, bytes] = {}
        self.woken = asyncio.Event()

    def put(self, topic: str, frame: bytes) -> None:
        self.waiting[topic] = frame
        self.woken.set()


def _internal_error(error: Exception) -> SardonyxError:
    return SardonyxError.from_failure(failure_of(error))


class Hub:
    """Makes frames and hands them out. Everything but :meth:`changed` runs in the event loop.

    Args:
        make: makes the JSON of a topic; called in a thread. Raises ``SardonyxError`` if there is no such thing (any more). Any
            other error of it is a defect: the hub logs it, and sends it to the streams of this topic. Other topics go on.
        shown: makes of a defect the error that the hub sends.
    """

    def __init__(
        self, make: Callable[[str], bytes], shown: Callable[[Exception], SardonyxError] = _internal_error
    ) -> None:
        self._make = make
        self._shown = shown
        self._streams: set[_Stream] = set()
        self._frames: dict[str, bytes] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        """By topic, held while it is made: so what is made later is handed out later."""
        self._next: dict[str, asyncio.Task[bytes]] = {}
        """By topic, the making that has not begun yet: all who ask until then share it."""
        self._number = 0
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.over = False

    @property
    def streams(self) -> int:
        return len(self._streams)

    def changed(self) -> None:
        """Something is new; may be called from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile
                self._loop.call_soon_threadsafe(self._changed.set)

    def end(self) -> None:
        """Say good-bye on every stream, and end it."""
        self.over = True
        for stream in self._streams:
            stream.woken.set()

    async def run(self) -> None:
        """Hand out what is new until cancelled."""
        self._loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), AGAIN)
            self._changed.clear()
            for topic in {topic for stream in self._streams for topic in stream.topics}:
                await self._refresh(topic)
            await asyncio.sleep(LEAST)

    async def stream(self, topics: Iterable[str]) -> AsyncIterator[bytes]:
        """The frames of one reader: first the state of each topic, then each change."""
        mine = _Stream(topics)
        self._streams.add(mine)
        try:
            yield b"retry: 1000\n\n"
            for topic in sorted(mine.topics):
                mine.put(topic, await self._refresh(topic))
            while not self.over:
                frames, mine.waiting = mine.waiting, {}
                for frame in frames.values():
                    yield frame
                mine.woken.clear()
                if mine.waiting or self.over:
                    continue
                try:
                    await asyncio.wait_for(mine.woken.wait(), SILENCE)
                except TimeoutError:
                    yield b": still here\n\n"
            yield b"event: bye\ndata: {}\n\n"
        finally:
            self._streams.discard(mine)
            still = {topic for stream in self._streams for topic in stream.topics}
            self._frames = {topic: frame for topic, frame in self._frames.items() if topic in still}
            self._locks = {
                topic: lock for topic, lock in self._locks.items() if topic in {*still, *self._next} or lock.locked()
            }

    async def _refresh(self, topic: str) -> bytes:
        """Make the frame of a topic anew, and hand it out if it differs from the last one; gives the newest."""
        if topic not in self._next:
            self._next[topic] = asyncio.create_task(self._made(topic))
        return await asyncio.shield(self._next[topic])  # a reader that leaves ends it for no other one

    async def _made(self, topic: str) -> bytes:
        async with self._locks.setdefault(topic, asyncio.Lock()):
            del self._next[topic]  # who asks from now on wants what is new from now on
            return await self._make_frame(topic)

    async def _make_frame(self, topic: str) -> bytes:
        defect: Exception | None = None
        try:
            data = await asyncio.to_thread(self._make, topic)
            event = "state"
        except Exception as error:  # noqa: BLE001 - a defect in one topic ends no other's news
            from sardonyx.web.problems import problem_of

            shown = error if isinstance(error, SardonyxError) else self._shown(error)
            defect = None if shown is error else error
            data, event = problem_of(shown).encode(), "gone"
        last = self._frames.get(topic)
        body = b"event: " + event.encode() + b'\ndata: {"topic":"' + topic.encode() + b'","data":' + data + b"}\n\n"
        if last is not None and last.partition(b"\n")[2] == body:
            return last
        if defect:
            log.error("web_topic_failed", topic=topic, exc_info=defect)
        self._number += 1
        frame = self._frames[topic] = f"id: {self._number}\n".encode() + body
        for stream in self._streams:
            if topic in stream.topics:
                stream.put(topic, frame)
        return frame
