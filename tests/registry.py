"""A real schema registry for tests: Apicurio's, which also speaks the API of Confluent's. Fetched once by Maven's own client."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sardonyx.dev.kafka_jars import cache_dir
from sardonyx.runtime.child_process import start_child
from sardonyx.runtime.java import find_java
from tests.waiting import until

VERSION = "2.6.13.Final"
_ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"


@contextmanager
def schema_registry() -> Iterator[str]:
    """Address of a registry that keeps everything in memory and dies with us. Skips, with the reason, if none can be had."""
    jar = _jar()
    with tempfile.TemporaryDirectory(prefix="sx-registry-") as folder:
        log = Path(folder) / "log"
        options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dquarkus.http.host=127.0.0.1"]
        command = [find_java().path, *options, "-Dquarkus.http.port=0", "-jar", jar]
        with start_child(command, name="registry", log_path=log, cwd=Path(folder)) as keeper:

            def answers() -> str | None:
                """On the port that it chose: one chosen for it could be taken before it has come so far."""
                if keeper.poll() is not None:
                    raise RuntimeError(f"the schema registry ended: {log.read_text()}")
                said = re.search(r"Listening on: (http://[\w.:]+)", log.read_text())
                if said is None:
                    return None
                address = f"{said[1]}/apis/ccompat/v7"
                try:
                    with urllib.request.urlopen(f"{address}/subjects", timeout=5) as answer:  # noqa: S310 - our own
                        return address if answer.status == 200 else None
                except (urllib.error.URLError, TimeoutError, ConnectionError):
                    return None

            yield until(answers, what="the schema registry to answer")


def _jar() -> Path:
    folder = cache_dir() / f"apicurio-{VERSION}"
    jar = folder / f"apicurio-registry-app-{VERSION}-runner.jar"
    if jar.exists():
        return jar
    if shutil.which("mvn") is None:
        pytest.skip("there is no mvn to fetch a schema registry with")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        copy = [f"-DoutputDirectory={made}", "-Dmdep.useBaseVersion=true", "-Dtransitive=false"]
        for goal in (
            ["dependency:get", f"-Dartifact={_ARTIFACT}", copy[2]],
            ["dependency:copy", f"-Dartifact={_ARTIFACT}", *copy],
        ):
            done = subprocess.run(["mvn", "-q", "-B", *goal], cwd=made, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"no schema registry can be fetched: {done.stdout[-300:]}")
        (archive,) = Path(made).glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(Path(made) / "unpacked", filter="data")
        (Path(made) / "unpacked").rename(folder)
    return jar
