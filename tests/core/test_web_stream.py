"""The stream of a page: each topic is made once for all who listen."""

from __future__ import annotations

import asyncio
import json

import pytest
from web_site import EVENTS, Site, file_like

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


def test_streams_are_counted() -> None:
    """From the first line that a reader gets."""
    site = Site(file_like(EVENTS))
    assert b'sardonyx_web_streams{deployment="test"} 0.0' in site.get("/metrics").body
    stream = site.hub.stream(["cluster"])
    with pytest.raises(StopIteration):
        stream.__anext__().send(None)  # as far as to the first line
    assert b'sardonyx_web_streams{deployment="test"} 1.0' in site.get("/metrics").body
