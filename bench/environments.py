"""What the opponents need besides their program: an environment for each, made when a part first asks for it."""

from __future__ import annotations

import functools
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

import kafka_streams
import maven
from races import Row

from sardonyx.dev.kafka_jars import cache_dir

ENVIRONMENTS = {
    "structured_streaming": ["pyspark==4.0.0"],
    "structured_windows": ["pyspark==4.0.0"],
    "structured_join": ["pyspark==4.0.0"],
    "structured_keyed": ["pyspark==4.0.0", "pandas==2.3.3", "pyarrow==22.0.0", "protobuf==5.29.5"],
    "quix_streams": ["quixstreams==3.28.1"],
    "quix_windows": ["quixstreams==3.28.1"],
    "bytewax_flow": ["bytewax[kafka]==0.21.1", "confluent-kafka==2.16.1", "orjson==3.13.0"],
    "pathway_rows": ["pathway==0.33.0"],
    "flink_sql": ["apache-flink==2.2.0"],
    "bare_copy": [],
    "plain_arrow": [],
}
"""What each opponent needs; nothing: it runs in our own environment."""
ONCE = {"flink_sql", "bytewax_flow"}
"""Opponents of which a window gives one result, as it does of ours; others give it again whenever it has changed."""
KAFKA_STREAMS = "kafka_streams"
"""An opponent in Java: see ``kafka_streams.py``."""
FLINK_CONNECTOR = "org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2"
"""It is in no Python package."""
BYTEWAX = "Bytewax, at least once, two processes"
PATHWAY = "Pathway, at least once, two threads"
FLINK = "Flink SQL, exactly once, checkpoints of 1 s"
STREAMS = "Kafka Streams, exactly once, two threads"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"


class CannotBeHadError(Exception):
    """Something that an opponent needs is not there, and could not be made."""


def environment(name: str) -> Path:
    """The Python of an opponent's environment, made if it is not there.

    Raises:
        CannotBeHadError: that failed.
    """
    needs = ENVIRONMENTS[name]
    if not needs:
        return Path(sys.executable)
    folder = cache_dir() / "bench" / "-".join(needs).replace("==", "-")
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        print(f"making the environment of {name}", flush=True)
        try:
            venv.create(folder, with_pip=True, clear=True)
        except subprocess.CalledProcessError as error:  # Debian without python3-venv
            raise CannotBeHadError(f"an environment cannot be made: {error}") from error
        _install(python, needs)
        (folder / "ready").touch()
    return python


def _install(python: Path, needs: Sequence[str]) -> None:
    pip = [python, "-m", "pip", "--quiet", "install", *needs]
    done = subprocess.run(pip, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stdout.splitlines() if "error" in line.lower()]
        raise CannotBeHadError(f"pip failed: {said[-1] if said else 'it said nothing'}")


def flink_jars() -> Path:
    """Where Flink's connector is, or will be."""
    return cache_dir() / "bench" / "-".join(FLINK_CONNECTOR.split(":")[1:])


def _fetch_flink_jars() -> None:
    if any(flink_jars().glob("*.jar")):
        return
    why = maven.failed(COPY, f"-Dartifact={FLINK_CONNECTOR}", f"-DoutputDirectory={flink_jars()}")
    if why:
        raise CannotBeHadError(why)


@functools.cache
def is_left_out(name: str) -> bool:
    """Whether an opponent cannot be had here, which is said then, after an attempt to make what it needs."""
    if name == KAFKA_STREAMS:
        why = kafka_streams.left_out()
    else:
        why = None
        try:
            environment(name)
            if name == "flink_sql":
                _fetch_flink_jars()
        except (CannotBeHadError, OSError) as error:
            why = str(error)
    if why:
        print(f"  {name} is left out: {why}", flush=True)
    return why is not None


def entered(row: Row, name: str) -> Row:
    """A row of a race, which says so if its opponent is left out."""
    row.gone = "left out" if is_left_out(name) else ""
    return row
