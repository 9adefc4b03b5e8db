"""The Kafka broker's jars: fetched once by Ivy, which is among PySpark's own jars, and kept in the user's cache."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs
import structlog

from sardonyx.core.errors import SetupError
from sardonyx.runtime.child_process import start_child
from sardonyx.runtime.java import Java

if TYPE_CHECKING:
    from rich.console import Console

KAFKA_VERSION = "4.2.1"
MAIN_JAR = f"kafka_2.13-{KAFKA_VERSION}.jar"
JARS = 45
"""How many there are; Ivy looks each up, then downloads it."""
FETCH_TIMEOUT = 900.0

Progress = Callable[[str, int, int], None]
"""Called with what is going on, how much of it is done, and how much there is."""

log = structlog.get_logger()


def cache_dir() -> Path:
    """Where fetched things are kept: ``SARDONYX_CACHE_DIR``, else the user's cache directory."""
    given = os.environ.get("SARDONYX_CACHE_DIR")
    return Path(given) if given else Path(platformdirs.user_cache_dir("sardonyx"))


def jars_dir() -> Path:
    """Where the broker's jars are, or will be."""
    return cache_dir() / f"kafka-{KAFKA_VERSION}"


def cached() -> bool:
    """Whether the broker's jars are there."""
    return (jars_dir() / MAIN_JAR).is_file()


def pyspark_jars() -> Path:
    """The jars that PySpark brings: ZooKeeper's server, Ivy and log4j are among them.

    Raises:
        SetupError: ``SX-PYSPARK-MISSING``.
    """
    spec = find_spec("pyspark")
    folder = Path(spec.origin).parent / "jars" if spec and spec.origin else None
    if folder is None or not any(folder.glob("zookeeper-3.*.jar")):
        raise SetupError(
            "SX-PYSPARK-MISSING",
            "PySpark with its jars is not installed",
            cause=f"no ZooKeeper jar in {folder}" if folder else "there is no module pyspark",
            fix="pip install 'pyspark>=4.3,<5' (pyspark-client, without jars, is not enough)",
        )
    return folder


def ensure_kafka(java: Java, progress: Progress | None = None) -> Path:
    """The directory of the broker's jars; fetches them if they are not there (about 44 MB).

    One process fetches, others that want the same wait for it. What is incomplete is never taken for complete.

    Raises:
        SetupError: ``SX-KAFKA-FETCH``.
    """
    if cached():
        return jars_dir()
    target = jars_dir()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(target.with_name(f"{target.name}.lock"), progress):
            if not cached():
                _fetch(java, target, progress)
    except OSError as error:
        raise _failed(f"{type(error).__name__}: {error}") from error
    return target


@contextlib.contextmanager
def _only_one(path: Path, progress: Progress | None) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("waiting for another process that fetches Kafka", lock=str(path))
            if progress:
                progress("waiting for another process that fetches Kafka", 0, 2 * JARS)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(java: Java, target: Path, progress: Progress | None) -> None:
    """Into a directory of its own, which gets its name only when all is there. Ivy checks the checksums."""
    ivy = target.parent / "ivy"  # kept after a failure, so that the next try goes on where this one stopped
    log.info("fetching the Kafka broker, once", version=KAFKA_VERSION, to=str(target))
    started = time.monotonic()
    for leftover in target.parent.glob(".kafka-*"):  # of a fetch that was killed: we hold the lock
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".kafka-", dir=target.parent) as folder:
        lib = Path(folder) / "lib"
        said = _run_ivy(_ivy_command(java, ivy, lib), Path(folder) / "ivy.log", progress)
        if not (lib / MAIN_JAR).is_file() or len(list(lib.glob("*.jar"))) < JARS:
            raise _failed(said)
        shutil.rmtree(target, ignore_errors=True)  # a leftover without the main jar
        lib.rename(target)
    shutil.rmtree(ivy, ignore_errors=True)
    log.info("fetched the Kafka broker", seconds=round(time.monotonic() - started, 1), to=str(target))


def _ivy_command(java: Java, ivy: Path, lib: Path) -> list[str]:
    (jar,) = sorted(pyspark_jars().glob("ivy-*.jar"))[-1:]
    return [
        str(java.path),
        "-Xmx256m",
        f"-Divy.default.ivy.user.dir={ivy}",
        "-cp",
        str(jar),
        "org.apache.ivy.Main",
        *("-cache", str(ivy)),
        *("-dependency", "org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
        *("-confs", "default"),
        *("-retrieve", f"{lib}/[artifact]-[revision](-[classifier]).[ext]"),
    ]


def _run_ivy(command: list[str], log_path: Path, progress: Progress | None) -> str:
    """Run it to its end, telling the progress; gives the lines that say what went wrong."""
    found = done = 0
    said: deque[str] = deque(maxlen=8)
    deadline = time.monotonic() + FETCH_TIMEOUT
    log_path.touch()
    with start_child(command, name="Ivy", log_path=log_path) as child, log_path.open(encoding="utf-8") as lines:
        while True:
            ended = child.poll() is not None
            for line in lines:
                found += "\tfound " in line
                done += "[SUCCESSFUL ]" in line
                if re.search(r"module not found|Server access error|Exception|No space|invalid", line):
                    said.append(" ".join(line.split()))
            if progress:
                progress("downloading Kafka" if done else "looking up Kafka's jars", found + done, 2 * JARS)
            if ended:
                return "; ".join(dict.fromkeys(said)) or f"Ivy ended with {child.poll()}"
            if time.monotonic() > deadline:
                return f"not done after {FETCH_TIMEOUT:g} s"
            time.sleep(0.1)


def _failed(cause: str) -> SetupError:
    return SetupError(
        "SX-KAFKA-FETCH",
        f"the Kafka {KAFKA_VERSION} broker could not be fetched",
        cause=cause[:1000],
        fix="it comes from Maven Central by Ivy and needs the network once (behind a proxy: "
        "export JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=HOST -Dhttps.proxyPort=PORT'), then try again; "
        f"or copy {jars_dir()} from a machine that has it; or use a Kafka of your own: --kafka HOST:PORT",
        where={"directory": jars_dir()},
    )


@contextlib.contextmanager
def shown_progress() -> Iterator[Progress | None]:
    """A bar on a terminal, a line at every tenth otherwise; nothing at all when there is nothing to fetch."""
    if cached():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _plain_lines(console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console) as bar:
        task = bar.add_task("fetching Kafka, once", total=2 * JARS)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def _plain_lines(console: Console) -> Progress:
    shown = -1

    def tell(what: str, done: int, total: int) -> None:
        nonlocal shown
        if done * 10 // total > shown:
            shown = done * 10 // total
            console.print(f"{what}: {shown * 10} %", highlight=False)

    return tell
