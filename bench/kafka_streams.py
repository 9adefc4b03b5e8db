"""The program in `kafka-streams/`, built by Maven when a part needs it: Kafka Streams as an opponent."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import maven

from sardonyx.dev.kafka_jars import cache_dir
from sardonyx.runtime.java import find_java

PROJECT = Path(__file__).parent / "kafka-streams"
THREADS = 2
"""Of the program, which runs in one process."""


def command() -> list[str]:
    """What starts the program; raises if it is :func:`left_out`."""
    assert not left_out(), left_out()
    path = f"{output()}/kafka-streams-opponent-1.jar:{output()}/lib/*"
    return [str(find_java().path), "-Xmx1g", "-cp", path, "Opponent"]


@functools.cache
def left_out() -> str | None:
    """Why there is no such program here, after an attempt to build it; None: it is built."""
    if (output() / "ready").exists():
        return None
    print("building the program of Kafka Streams", flush=True)
    if why := maven.failed("-f", PROJECT / "pom.xml", f"-Doutput={output()}", "package"):
        return why
    (output() / "ready").touch()
    return None


def output() -> Path:
    """Where it is built: a folder for each state of its sources."""
    return cache_dir() / "bench" / f"kafka-streams-{digest(PROJECT)}"


def digest(project: Path) -> str:
    """Of the sources, by name and content."""
    found = hashlib.sha256()
    for path in sorted([project / "pom.xml", *(project / "src").rglob("*.java")]):
        content = path.read_bytes()
        found.update(f"{path.relative_to(project)} {len(content)}\n".encode() + content)
    return found.hexdigest()[:12]
