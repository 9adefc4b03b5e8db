"""The pages at scale: `python bench/bench_web.py [--part viewers decision attention past paint scrub]`.

- ``viewers``: what ``sardonyx web`` and the coordinator take of a processor, and what ZooKeeper and Kafka are asked, with none
  that looks, with one, and with 200 on one job that runs;
- ``decision``: how long it takes from a decision until a browser shows it, while a job runs under kills (needs Playwright and
  Chromium);
- ``attention``: how long it takes until the page of the deployment names a slow task, a missing peer and dead letters;
- ``past``: how long answers about any entry of a log of a million take, and what that takes of memory and disk;
- ``paint``: how long a browser with nothing cached takes until a job of 200 tasks is drawn (needs Playwright and Chromium);
- ``scrub``: how long the page of that job takes to show another entry of a film.

Uses the ZooKeeper and Kafka that are configured, or else starts its own. Before the last line, which is JSON, comes a table of
the goals (:mod:`bench_web_goals`) and whether they are met.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
from bench_web_attention import attention
from bench_web_goals import goals, table
from bench_web_job import job_of
from bench_web_kills import decision
from coordination_world import Crowd, Pure, pure_round
from machine import machine

from coordinator.core.state import new_state
from peer.gc_policy import seldom
from sardonyx.cli.web_commands import words
from sardonyx.client.client import Client
from sardonyx.core.events import Acked, AnyEvent, JobSubmitted, LinkFacts, LinksCreated, PeerBorn
from sardonyx.core.graph import graph_of
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.runtime.child_process import start_child
from sardonyx.runtime.daemon_metrics import REQUEST_SECONDS
from sardonyx.runtime.settings import Settings, load_settings
from sardonyx.web.api import ADDRESSES, Api
from sardonyx.web.app import FREE_PORTS, _Server, application, bound
from sardonyx.web.book import Book
from sardonyx.web.live import LiveSource
from sardonyx.web.overview import job_overview
from sardonyx.web.shelf import Line
from sardonyx.web.source import FileSource

SEED = 5
PORT = 18484


# Viewers


@contextlib.contextmanager
def services() -> Iterator[Settings]:
    """The configured services, or those that run meanwhile; a deployment of this run only."""
    settings = load_settings()
    name = f"bench{uuid.uuid4().hex[:8]}"
    if settings.zookeeper.hosts and settings.kafka.bootstrap_servers:
        yield load_settings(deployment=name)
        return
    from sardonyx.dev.services import embedded_services

    with embedded_services() as started:
        yield load_settings(
            deployment=name,
            zookeeper={"hosts": started.zookeeper},
            kafka={"bootstrap_servers": started.kafka},
        )


def viewers(args: argparse.Namespace) -> dict[str, Any]:
    """What looking costs, by how many look."""
    folder = Path(tempfile.mkdtemp(prefix="sardonyx-bench-web-"))
    with services() as settings, contextlib.ExitStack() as stack:
        env = settings.environment()
        daemons = {
            name: stack.enter_context(
                start_child(
                    [sys.executable, "-m", "sardonyx", *command], name=name, log_path=folder / f"{name}.log", env=env
                )
            )
            for name, command in (("coordinator", ["coordinator"]), ("peer", ["peer", "--virtual-peers", "4"]))
        }
        client = stack.enter_context(Client(settings=settings))
        handle = client.submit(job_of())
        while (handle.status().task("slow").rows_in or 0) < 100:
            time.sleep(0.2)
        source = LiveSource(settings, words())
        try:
            found = asyncio.run(_measured(source, handle.id, daemons["coordinator"].pid, args))
        finally:
            source.close()
            handle.kill()
        shutil.rmtree(folder, ignore_errors=True)
    one, many = (found["by_viewers"][str(count)] for count in (1, args.viewers))
    return found | {
        "zookeeper_many_to_one": round(many["zookeeper_per_s"] / one["zookeeper_per_s"], 3),
        "kafka_many_to_one": round(many["kafka_per_s"] / one["kafka_per_s"], 3) if one["kafka_per_s"] else None,
    }


async def _measured(source: LiveSource, job: str, coordinator: int, args: argparse.Namespace) -> dict[str, Any]:
    import uvicorn

    asks = 0
    sample = source._sample  # noqa: SLF001 - what it does is counted

    def counted(*asked: Any) -> Any:
        nonlocal asks
        asks += 1
        return sample(*asked)

    source._sample = counted  # type: ignore[method-assign] # noqa: SLF001
    listener = bound("127.0.0.1", PORT)
    port = listener.getsockname()[1]
    assert port < PORT + FREE_PORTS
    app, hub = application(source, port)
    server = _Server(uvicorn.Config(app, http="h11", ws="none", access_log=False, log_config=None), hub)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    leader = psutil.Process(coordinator)
    found: dict[str, Any] = {}
    for count in (0, 1, args.viewers):
        looking = None
        if count:
            command = [sys.executable, __file__, "--look", str(count), "--port", str(port), "--job", job]
            looking = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        await asyncio.sleep(args.settle)
        before = _spent(leader), _asked(), asks
        began = time.monotonic()
        await asyncio.sleep(args.seconds)
        span = time.monotonic() - began
        (own, led), asked = _spent(leader), _asked()
        found[str(count)] = {
            "web_core": round((own - before[0][0]) / span, 4),
            "coordinator_core": round((led - before[0][1]) / span, 4),
            "zookeeper_per_s": round((asked - before[1]) / span, 2),
            "kafka_per_s": round((asks - before[2]) / span, 3),
        }
        if looking is not None and looking.stdout is not None:
            looking.terminate()
            frames = (await looking.stdout.read()).decode().strip()
            found[str(count)]["frames_per_s"] = round(int(frames or 0) / (span + args.settle), 2)
            await looking.wait()
    server.should_exit = True
    hub.end()
    await serving
    return {"by_viewers": found, "seconds": args.seconds}


def _spent(leader: psutil.Process) -> tuple[float, float]:
    """Seconds of processor time of this process and of the coordinator."""
    times = leader.cpu_times()
    return time.process_time(), times.user + times.system


def _asked() -> int:
    """Requests of this process to ZooKeeper so far."""
    return sum(series.count for series in REQUEST_SECONDS.taken().series)


async def look(args: argparse.Namespace) -> None:
    """Be so many browsers, until SIGTERM; prints how many frames all of them got."""
    import signal

    frames, over = 0, asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)

    async def browser() -> None:
        nonlocal frames
        reader, writer = await asyncio.open_connection("127.0.0.1", args.port)
        path = f"/api/v1/stream?topics=job:{args.job}"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{args.port}\r\n\r\n".encode())
        async for line in reader:
            frames += line.startswith(b"event: ")
        writer.close()

    tasks = [asyncio.create_task(browser()) for _ in range(args.look)]
    await over.wait()
    for task in tasks:
        task.cancel()
    print(frames)


# The past


def past(args: argparse.Namespace) -> dict[str, Any]:
    """By number of peers: how long answers about any entry take, and what the log takes of memory and disk."""
    return {str(peers): _past(peers, args.entries, args.jumps) for peers in args.peers}


def _past(peers: int, entries: int, jumps: int) -> dict[str, Any]:
    rng = random.Random(SEED)  # noqa: S311 - repeatable, not secret
    pure, crowd = Pure(), Crowd(peers, rng)
    process = psutil.Process()
    held = process.memory_info().rss
    book = Book(new_state("bench"), words(), keep=entries + 100_000)
    api = Api(_File(book))
    spent = 0.0

    def take(events: list[tuple[int, AnyEvent]]) -> None:
        nonlocal spent
        began = time.perf_counter()
        for n, event in events:
            book.take(n, msgspec.structs.replace(event, at=float(n)))
        spent += time.perf_counter() - began

    take(pure.take([*crowd.born(peers), *crowd.jobs(pure.state)]))
    rounds = 0
    while book.last < entries:
        rounds += 1
        take(pure_round(pure, crowd, 6, int(rounds % 16 == 0)))
    seldom()  # as `serve` does
    asked = {
        "job": ("/jobs/{job}/overview", lambda line: ({"at": str(line.n)}, {"job": line.jobs[0]})),
        "deployment": ("/cluster", lambda line: ({"at": str(line.n)}, {})),
        "entry": ("/log/{n}", lambda line: ({}, {"n": str(line.n)})),
    }
    answers = {}
    for what, (path, question) in asked.items():
        address = next(address for address in ADDRESSES if address.path == path)
        answers[what] = _times(rng, book, jumps, lambda line, to=address, of=question: api.answer(to, *of(line)))
    size, pages = (book._shelf._asked(f"pragma {one}").fetchone()[0] for one in ("page_size", "page_count"))  # noqa: SLF001
    return {
        "entries": book.last,
        "us_per_entry": round(spent / book.last * 1e6, 1),
        "answers": answers,
        "mib": round((process.memory_info().rss - held) / 2**20, 1),
        "mib_on_disk": round(size * pages / 2**20, 1),
    }


def _times(rng: random.Random, book: Book, jumps: int, ask: Callable[[Line], object]) -> dict[str, float]:
    """Milliseconds that a question takes about entries at random at which a peer of a job says something."""
    times: list[float] = []
    while len(times) < jumps:
        line = next(book.lines(n := rng.randrange(book.first, book.last), n))
        if line.kind in ("ack", "exhausted") and line.jobs:
            began = time.perf_counter()
            ask(line)
            times.append((time.perf_counter() - began) * 1e3)
    times.sort()
    return {
        "ms_median": round(statistics.median(times), 1),
        "ms_p99": round(times[int(0.99 * (len(times) - 1))], 1),
        "ms_most": round(times[-1], 1),
    }


# The first drawing


def paint(args: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds until the graph of a job with so many tasks is drawn, in a browser with nothing cached."""
    book = Book(new_state("bench"), words())
    for n, event in enumerate(_wide(args.tasks), 1):
        book.take(n, event)
    state = book.state
    with book.lock:
        began = time.perf_counter()
        job_overview(book, state, "wide-1", _File(book).standing(), None, 3.0, None)
        made = time.perf_counter() - began
    times = []
    with served(book) as address, chromium() as browser:
        for _ in range(args.runs):
            context = browser.new_context()
            page = context.new_page()
            page.goto(f"{address}/jobs/wide-1")
            page.locator(".node").nth(args.tasks - 1).wait_for(state="attached")
            times.append(page.evaluate("performance.now()"))
            context.close()
    return {
        "tasks": args.tasks,
        "ms_median": round(statistics.median(times)),
        "ms_most": round(max(times)),
        "ms_server": round(made * 1e3, 1),
    }


@contextlib.contextmanager
def served(book: Book) -> Iterator[str]:
    """The address of the pages of a book, which a process of its own serves."""
    listener = bound("127.0.0.1", PORT)
    port = listener.getsockname()[1]
    child = os.fork()
    if child == 0:
        from sardonyx.web.app import serve

        serve(_File(book), listener)
        os._exit(0)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        os.kill(child, 15)
        os.waitpid(child, 0)


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A browser."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("SARDONYX_TEST_BROWSER") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


# Films

SCRUB = """async (to) => {
  const slider = document.getElementById("slider");
  const times = [];
  for (let n = 5; n < to; n++) {
    const before = new Promise((done) => requestAnimationFrame(() => done(performance.now())));
    const began = performance.now();
    slider.value = n;
    slider.dispatchEvent(new Event("input", { bubbles: true })); // asks for a drawing with the next frame
    const handled = performance.now() - began;
    const after = new Promise((done) => requestAnimationFrame(() => done(performance.now())));
    const [drawing, drawn] = await Promise.all([before, after]);
    const laying = performance.now();
    document.body.getBoundingClientRect();
    times.push(handled + (drawn - drawing) + (performance.now() - laying));
  }
  return times;
}"""
FILMED = """(n) => import("/static/film.js").then(({ frameOf }) => frameOf("job:wide-1", n) !== null)"""


def scrub(args: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds to show another entry of a film, with so many tasks on the page; questions to the server meanwhile."""
    book = Book(new_state("bench"), words())
    for n, event in enumerate(_wide(args.tasks), 1):
        book.take(n, event)
    for n in range(book.last + 1, args.frames + 1):
        book.take(n, PeerBorn(at=float(n), peer=f"q-{n}", host="h", pid=n, daemon="d"))
    source = _File(book)
    began = time.perf_counter()
    film = Api(source).answer(
        next(each for each in ADDRESSES if each.path == "/log/film"),
        {"from": "5", "to": str(args.frames - 1), "topic": "job:wide-1"},
        {},
    )
    made = time.perf_counter() - began
    asked: list[str] = []
    with served(book) as address, chromium() as browser:
        page = browser.new_page()
        page.goto(f"{address}/jobs/wide-1")
        page.locator(".node").nth(args.tasks - 1).wait_for(state="attached")
        page.locator("#slider").focus()
        while not page.evaluate(FILMED, args.frames - 1):
            page.wait_for_timeout(100)
        page.wait_for_timeout(500)
        page.on("request", lambda request: asked.append(request.url))
        times = sorted(page.evaluate(SCRUB, args.frames))
    return {
        "tasks": args.tasks,
        "frames": len(times),
        "ms_median": round(statistics.median(times), 1),
        "ms_p99": round(times[int(0.99 * (len(times) - 1))], 1),
        "asked": len([url for url in asked if "/log" in url or "/jobs" in url]),
        "ms_film": round(made * 1e3, 1),
        "frames_film": len(json.loads(film)["frames"]),
        "bytes_film": len(film),
    }


class _File(FileSource):
    """A book that is there already."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self._deployment, self._name = "bench", "bench"


def _wide(tasks: int) -> list[AnyEvent]:
    """A job of so many tasks, each of which reads one or two of the twelve before it."""
    rng = random.Random(SEED)  # noqa: S311
    names = [f"t{number:03d}" for number in range(tasks)]
    edges = [("in", names[0])]
    for number, name in enumerate(names[1:-2], 1):
        edges += [(before, name) for before in sorted(rng.sample(names[max(0, number - 12) : number], min(number, 2)))]
    ends = [name for name in names[:-2] if name not in {source for source, _ in edges}]
    edges += [(name, "out") for name in ends]
    spec = JobSpec(
        name="wide",
        workflow=edges,
        catalog=[
            TaskSpec(name="in", type="input", connector="generator", options={"count": 10}),
            *(TaskSpec(name=name, type="function", fn="m:f") for name in names[:-2]),
            TaskSpec(name="out", type="output", connector="blackhole"),
        ],
    )
    links = {link.name: LinkFacts(2) for link in graph_of(spec, "bench", "wide-1").links}
    return [
        PeerBorn(at=1.0, peer="p-0", host="h", pid=1, daemon="d"),
        JobSubmitted(at=2.0, job="wide-1", spec=spec),
        LinksCreated(at=3.0, job="wide-1", links=links),
        Acked(at=4.0, peer="p-0", assignment=3),
    ]


def decisions(args: argparse.Namespace) -> dict[str, Any]:
    """See :mod:`bench_web_kills`."""
    with services() as settings:
        return decision(settings, args)


def attentions(_args: argparse.Namespace) -> dict[str, Any]:
    """See :mod:`bench_web_attention`."""
    with services() as settings:
        return attention(settings)


PARTS = {
    "viewers": viewers,
    "decision": decisions,
    "attention": attentions,
    "past": past,
    "paint": paint,
    "scrub": scrub,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="The pages at scale.")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--viewers", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0, help="for which each number of viewers is measured")
    parser.add_argument("--settle", type=float, default=10.0, help="seconds before that")
    parser.add_argument("--peers", type=int, nargs="+", default=[500, 10_000])
    parser.add_argument("--entries", type=int, default=1_000_000, help="of the log whose past is looked at")
    parser.add_argument("--jumps", type=int, default=200)
    parser.add_argument("--tasks", type=int, default=200, help="of the job that is drawn")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--frames", type=int, default=195, help="of the film that is scrubbed")
    parser.add_argument("--kill-every", type=float, default=5.0, help="seconds between two kills")
    parser.add_argument("--look", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.look:
        asyncio.run(look(args))
        return 0
    found = {}
    for part in args.part:
        found[part] = PARTS[part](args) | {"machine": machine(), "load": round(os.getloadavg()[0], 2)}
        print(part, json.dumps(found[part], indent=2), file=sys.stderr)
    print(table(found), file=sys.stderr)
    print(json.dumps(found | {"goals": [each._asdict() for each in goals(found)]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
