"""The stream of a page: each topic is made once for all who listen."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from web_site import EVENTS, HERE, Site, file_like

from sardonyx.web.api import Api
from sardonyx.web.hub import Hub
from tests.waiting import PATIENCE


def test_each_topic_is_made_once_however_many_listen_and_a_slow_reader_gets_the_newest() -> None:
    """Three readers of one topic cost one making of each state; one that does not read meanwhile misses what was overtaken."""
    made: list[str] = []
    value = 0

    def make(topic: str) -> bytes:
        made.append(topic)
        return json.dumps(value).encode()

    async def play() -> list[list[int]]:
        nonlocal value
        hub = Hub(make)
        runs = asyncio.create_task(hub.run())
        streams = [hub.stream(["cluster"]) for _ in range(3)]
        got: list[list[int]] = [[], [], []]

        async def read(which: int, until: int) -> None:
            async for frame in streams[which]:
                if b'"cluster"' in frame:
                    got[which].append(json.loads(frame.partition(b"data: ")[2])["data"])
                    if got[which][-1] >= until:
                        return

        await asyncio.gather(*(read(which, 0) for which in range(3)))
        made.clear()
        for value in (1, 2, 3):
            hub.changed()
            await asyncio.gather(read(0, value), read(1, value))
        once = made.count("cluster")
        await read(2, 3)
        hub.end()
        ends = [frame async for frame in streams[0]]
        assert ends[-1].startswith(b"event: bye")
        for stream in streams:
            await stream.aclose()
        assert hub.streams == 0
        runs.cancel()
        assert once == 3
        return got

    assert asyncio.run(play()) == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 3]]


def test_a_job_that_is_gone_is_told_as_a_problem_on_the_stream() -> None:
    """The stream goes on: its other topics are still there."""
    api = Api(file_like(EVENTS))

    async def first(topic: str) -> list[bytes]:
        frames = []
        async for frame in Hub(api.topic).stream([topic]):
            frames.append(frame)
            if len(frames) == 3:
                return frames
        return frames

    frames = asyncio.run(first("job:nix"))
    assert any(b"event: gone" in frame and b"SX-JOB-UNKNOWN" in frame for frame in frames)
    assert any(b'"topic":"standing"' in frame for frame in frames)


def test_a_defect_in_one_topic_is_told_and_the_others_go_on() -> None:
    """On the streams of those who look at it; it is a state again as soon as it can be made."""
    value = 0

    def make(topic: str) -> bytes:
        if topic == "job:odd" and value == 1:
            raise KeyError("x")
        return json.dumps(value).encode()

    async def play() -> list[tuple[int, str, bytes]]:
        nonlocal value
        hub = Hub(make)
        runs = asyncio.create_task(hub.run())
        streams = {topic: hub.stream([topic]) for topic in ("job:odd", "cluster")}
        got: list[tuple[int, str, bytes]] = []
        for value in (0, 1, 2):
            hub.changed()
            for topic, stream in streams.items():
                async for frame in stream:
                    if topic.encode() in frame:
                        got.append((value, topic, frame))
                        break
        runs.cancel()
        return got

    frames = asyncio.run(asyncio.wait_for(play(), PATIENCE))
    gone = {(value, topic): frame for value, topic, frame in frames if b"event: gone" in frame}
    assert len(frames) == 6
    assert list(gone) == [(1, "job:odd")]
    assert b"SX-UNEXPECTED" in gone[1, "job:odd"]


def test_an_older_state_never_comes_after_a_newer_one() -> None:
    """Also if one stream begins while the state for another one is being made, and that takes longer."""
    value = 0
    slow, begun = threading.Event(), threading.Event()

    def make(topic: str) -> bytes:
        made = value
        if topic == "cluster" and made == 1:
            begun.set()
            slow.wait(PATIENCE)
        return json.dumps(made).encode()

    async def play() -> list[int]:
        nonlocal value
        hub = Hub(make)
        runs = asyncio.create_task(hub.run())
        streams = [hub.stream(["cluster"]) for _ in range(2)]
        got: list[int] = []

        async def read(which: int, until: int) -> None:
            async for frame in streams[which]:
                if b'"cluster"' in frame:
                    got.append(json.loads(frame.partition(b"data: ")[2])["data"])
                    if got[-1] == until:
                        return

        await read(0, 0)
        value = 1
        hub.changed()
        await asyncio.to_thread(begun.wait, PATIENCE)
        value = 2
        late = asyncio.create_task(read(1, 2))
        await asyncio.wait({late}, timeout=0.2)
        slow.set()
        await late
        got.clear()
        older = asyncio.create_task(read(0, 1))
        await asyncio.wait({older}, timeout=0.5)
        runs.cancel()
        return got

    assert asyncio.run(asyncio.wait_for(play(), PATIENCE)) == [2]


def test_many_streams_that_begin_at_once_cost_two_makings() -> None:
    """As after a new start of the pages: those that come while the state is being made share the next one."""
    made: list[str] = []

    def make(topic: str) -> bytes:
        made.append(topic)
        return b"0"

    async def play() -> int:
        hub = Hub(make)

        async def first(stream: AsyncIterator[bytes]) -> None:
            async for frame in stream:
                if b'"cluster"' in frame:
                    return

        await asyncio.gather(*(first(hub.stream(["cluster"])) for _ in range(100)))
        return made.count("cluster")

    assert asyncio.run(asyncio.wait_for(play(), PATIENCE)) <= 2


def test_what_a_topic_says_of_the_time_is_made_anew_while_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that a request has waited for long: no change of the log says so, since no coordinator processes it."""
    monkeypatch.setattr("sardonyx.web.hub.AGAIN", 0.01)
    count = 0

    def make(topic: str) -> bytes:
        nonlocal count
        count += topic == "cluster"
        return json.dumps(count).encode()

    async def play() -> None:
        hub = Hub(make)
        runs = asyncio.create_task(hub.run())
        async for frame in hub.stream(["cluster"]):
            if b'"cluster"' in frame and json.loads(frame.partition(b"data: ")[2])["data"] >= 3:
                break
        runs.cancel()

    asyncio.run(asyncio.wait_for(play(), PATIENCE))


def test_streams_are_counted() -> None:
    """From the first line that a reader gets."""
    site = Site(file_like(EVENTS))
    assert b'sardonyx_web_streams{deployment="test"} 0.0' in site.get("/metrics").body
    stream = site.hub.stream(["cluster"])
    with pytest.raises(StopIteration):
        stream.__anext__().send(None)  # as far as to the first line
    assert b'sardonyx_web_streams{deployment="test"} 1.0' in site.get("/metrics").body


def test_no_proxy_keeps_a_stream_back() -> None:
    """Such as nginx, which collects what it passes on, unless it is asked not to."""
    app = Site(file_like(EVENTS)).app
    sent: list[dict[str, Any]] = []
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/api/v1/stream",
        "raw_path": b"/api/v1/stream",
        "query_string": b"",
    }
    scope |= {"root_path": "", "scheme": "http", "headers": [(b"host", HERE.encode())]}

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(asyncio.wait_for(app(scope, receive, send), PATIENCE))
    assert (b"x-accel-buffering", b"no") in sent[0]["headers"]
