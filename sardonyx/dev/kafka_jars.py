"""The jars of the embedded Kafka broker: which they are, where they are kept, and how they are downloaded.

Ivy, which is among PySpark's jars, downloads them once from Maven Central into the user's cache. Their SHA-256 digests are in
``kafka_jars.sha256`` beside this module. A jar with another digest never runs, wherever it came from.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
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
FETCH_TIMEOUT = 900.0

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many steps of it are done, and how many there are."""

log = structlog.get_logger()


@cache
def pinned() -> dict[str, str]:
    """The SHA-256 digest of each jar that the broker needs, in hexadecimal, by file name."""
    text = files("sardonyx.dev").joinpath("kafka_jars.sha256").read_text("utf-8")
    return {name: digest for digest, name in (line.split() for line in text.splitlines())}


def cache_dir() -> Path:
    """Where downloaded files are kept: ``SARDONYX_CACHE_DIR``, or else the user's cache directory."""
    given = os.environ.get("SARDONYX_CACHE_DIR")
    return Path(given) if given else Path(platformdirs.user_cache_dir("sardonyx"))


def jars_dir() -> Path:
    """Where the broker's jars are, or will be."""
    return cache_dir() / f"kafka-{KAFKA_VERSION}"


def cached() -> bool:
    """Whether all of the broker's jars are there. Only :func:`verify` reads them."""
    return all((jars_dir() / name).is_file() for name in pinned())


def verify(folder: Path) -> None:
    """Compare every jar in a directory with its pinned digest. Takes about 0.1 s.

    A jar that is not pinned is refused too, because the whole directory is on the broker's class path.

    Raises:
        SetupError: ``SX-KAFKA-JAR``.
        OSError: a jar cannot be read.
    """
    for path in sorted(path for path in folder.iterdir() if path.suffix.lower() == ".jar"):
        wanted = pinned().get(path.name)
        with path.open("rb") as jar:
            found = hashlib.file_digest(jar, "sha256").hexdigest()
        if found != wanted:
            raise SetupError(
                "SX-KAFKA-JAR",
                f"{path.name} is not a file of the Kafka {KAFKA_VERSION} that this Sardonyx runs",
                cause=f"its SHA-256 digest is {found}; "
                + (f"wanted is {wanted}" if wanted else "no file of this name is wanted"),
                fix=f"delete {jars_dir()} and try again, so that it is downloaded again; if the error comes back, "
                "check the mirror or proxy that the download goes through",
                where={"path": path, "found": found, "wanted": wanted or ""},
            )


def pyspark_jars() -> Path:
    """The directory of the jars that come with PySpark: ZooKeeper's server, Ivy and log4j are among them.

    Raises:
        SetupError: ``SX-PYSPARK-MISSING``.
    """
    spec = find_spec("pyspark")
    folder = Path(spec.origin).parent / "jars" if spec and spec.origin else None
    if folder is None or not any(folder.glob("zookeeper-3.*.jar")):
        raise SetupError(
            "SX-PYSPARK-MISSING",
            "PySpark with its jars is not installed",
            cause=f"there is no ZooKeeper jar in {folder}" if folder else "there is no module pyspark",
            fix="run: pip install 'pyspark>=4.3,<5' (pyspark-client does not suffice: it has no jars)",
        )
    return folder


def ensure_kafka(java: Java, progress: Progress | None = None) -> Path:
    """The directory of the broker's jars, verified. Downloads them (about 44 MB) if they are not there.

    If several processes need them, one downloads and the others wait. The directory gets its name only when it is
    complete and verified.

    Raises:
        SetupError: ``SX-KAFKA-FETCH``, ``SX-KAFKA-JAR``.
    """
    target = jars_dir()
    try:
        if not cached():
            target.parent.mkdir(parents=True, exist_ok=True)
            with _only_one(target.with_name(f"{target.name}.lock"), progress):
                if not cached():
                    _fetch(java, target, progress)
        verify(target)
    except OSError as error:
        raise _failed(f"{type(error).__name__}: {error}") from error
    return target


@contextlib.contextmanager
def _only_one(path: Path, progress: Progress | None) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("kafka_download_awaited", lock=str(path))
            if progress:
                progress("waiting for another process that downloads Kafka", 0, _steps())
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _steps() -> int:
    """Ivy looks up each jar, then downloads it."""
    return 2 * len(pinned())


def _fetch(java: Java, target: Path, progress: Progress | None) -> None:
    """Download into a directory of its own, verify, and rename it to ``target``."""
    ivy = target.parent / "ivy"  # kept after a failure, so that the next try continues where this one stopped
    log.info("kafka_download_started", version=KAFKA_VERSION, path=str(target))
    started = time.monotonic()
    for leftover in target.parent.glob(".kafka-*"):  # of a download that was killed: we hold the lock
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".kafka-", dir=target.parent) as folder:
        lib = Path(folder) / "lib"
        problems = _run_ivy(_ivy_command(java, ivy, lib), Path(folder) / "ivy.log", progress)
        if not all((lib / name).is_file() for name in pinned()):
            raise _failed(problems)
        try:
            verify(lib)
        except SetupError:
            shutil.rmtree(ivy, ignore_errors=True)  # or the next try would take the same file from there
            raise
        shutil.rmtree(target, ignore_errors=True)  # an incomplete one
        lib.rename(target)
    shutil.rmtree(ivy, ignore_errors=True)
    log.info("kafka_download_done", seconds=round(time.monotonic() - started, 1), path=str(target))


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
    """Run Ivy to its end and report progress. Returns the lines of its log that say what went wrong."""
    found = done = 0
    problems: deque[str] = deque(maxlen=8)
    deadline = time.monotonic() + FETCH_TIMEOUT
    log_path.touch()
    with start_child(command, name="Ivy", log_path=log_path) as child, log_path.open(encoding="utf-8") as lines:
        while True:
            ended = child.poll() is not None
            for line in lines:
                found += "\tfound " in line
                done += "[SUCCESSFUL ]" in line
                if re.search(r"module not found|Server access error|Exception|No space|invalid", line):
                    problems.append(" ".join(line.split()))
            if progress:
                progress("downloading Kafka" if done else "looking up Kafka's jars", found + done, _steps())
            if ended:
                return "; ".join(dict.fromkeys(problems)) or f"Ivy ended with exit code {child.poll()}"
            if time.monotonic() > deadline:
                return f"Ivy had not ended after {FETCH_TIMEOUT:g} s"
            time.sleep(0.1)


def _failed(cause: str) -> SetupError:
    return SetupError(
        "SX-KAFKA-FETCH",
        f"the Kafka {KAFKA_VERSION} broker could not be downloaded",
        cause=cause[:1000],
        fix="check the network and try again: it comes from Maven Central once (behind a proxy: "
        "export JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=HOST -Dhttps.proxyPort=PORT'); "
        f"or copy {jars_dir()} from a machine that has it; or use a Kafka of your own: --kafka HOST:PORT",
        where={"path": jars_dir()},
    )


@contextlib.contextmanager
def shown_progress() -> Iterator[Progress | None]:
    """Show the download: a bar on a terminal, else a line for every tenth. Nothing if nothing has to be downloaded."""
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
        task = bar.add_task("downloading Kafka, once", total=_steps())
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def _plain_lines(console: Console) -> Progress:
    shown = -1

    def report(what: str, done: int, total: int) -> None:
        nonlocal shown
        if done * 10 // total > shown:
            shown = done * 10 // total
            console.print(f"{what}: {shown * 10} %", highlight=False)

    return report
