"""Finding Java: Spark, ZooKeeper and Kafka need 17 or newer."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from sardonyx.core.errors import SetupError

MINIMUM = 17
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_RELEASE = re.compile(r'^JAVA_VERSION="(\d+)(?:\.(\d+))?', re.MULTILINE)
"""In the file ``release`` of a Java's directory."""
_FIX = (
    "Debian and Ubuntu: sudo apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17 && export JAVA_HOME=$(brew --prefix openjdk@17)/libexec/openjdk.jdk/Contents/Home"
)


@dataclass(frozen=True)
class Java:
    """A Java that is good enough: its executable and major version."""

    path: Path
    version: int


def find_java() -> Java:
    """The Java of ``JAVA_HOME``, else the one on the path.

    Raises:
        SetupError: ``SX-JAVA-MISSING`` or ``SX-JAVA-OLD``, with the line that installs it.
    """
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    looked = f"JAVA_HOME is {home}" if home else "JAVA_HOME is not set and there is no java on the PATH"
    if found is None or not os.access(found, os.X_OK):
        cause = f"{looked}, but there is no {found}" if home else looked
        raise SetupError("SX-JAVA-MISSING", f"Java {MINIMUM} or newer is not installed", cause=cause, fix=_FIX)
    version = _version_of(found)
    if version < MINIMUM:
        raise SetupError(
            "SX-JAVA-OLD",
            f"{found} is Java {version}, and Java {MINIMUM} or newer is needed",
            cause="Spark 4 and Kafka 4 do not run on older versions",
            fix=_FIX + (f"; then set JAVA_HOME to it, which now is {home}" if home else ""),
            where={"java": found},
        )
    return Java(Path(found), version)


def _version_of(executable: str) -> int:
    """The major version; 8 calls itself 1.8. Its directory says it; one that does not is asked, which starts a JVM."""
    with contextlib.suppress(OSError):
        release = Path(executable).resolve().parent.parent / "release"
        if match := _RELEASE.search(release.read_text("utf-8", "replace")):
            return _major(match)
    try:
        answer = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=60, check=False)
        said = answer.stderr + answer.stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    match = _VERSION.search(said)
    if match is None:  # macOS has a java that only says that there is none
        raise SetupError(
            "SX-JAVA-MISSING",
            f"{executable} does not run",
            cause=" ".join(said.split())[:300] or "it said nothing",
            fix=_FIX,
            where={"java": executable},
        )
    return _major(match)


def _major(match: re.Match[str]) -> int:
    return int(match[2] or 0) if match[1] == "1" else int(match[1])
