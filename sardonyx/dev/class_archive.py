"""Archives of the classes that a server's JVM loads (class data sharing). With one the server starts in half of the time.

The first JVM of a kind that ends in order writes the archive, and later ones map it into their memory. The JVM does not use an
archive whose jars have changed, by their sizes and times. What stands in the cache is trusted as the downloaded jars beside it
are: only its user can write there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
import uuid
from pathlib import Path

from sardonyx.dev.kafka_jars import cache_dir
from sardonyx.runtime.java import Java

_UNUSED = 30 * 24 * 3600.0
"""Seconds after which an archive that no server has used is removed: each environment of Python has its own."""


class ClassArchive:
    """The archive of one server: used if it is there, otherwise made.

    Args:
        java: the server's JVM.
        name: what the server is.
        class_path: as the server gets it.
        home: a directory of the server, where the JVM writes a new archive.
    """

    def __init__(self, java: Java, name: str, class_path: str, home: Path) -> None:
        places = [Path(each.removesuffix("*")) for each in class_path.split(os.pathsep)]
        with contextlib.suppress(OSError):
            places.append(java.path.resolve().parent.parent / "release")
        known = [f"{place} {place.stat().st_mtime_ns}" for place in places if place.exists()]
        digest = hashlib.sha256("\n".join(known).encode()).hexdigest()
        self._name = name
        self.path = cache_dir() / f"{name}-{digest[:16]}.jsa"
        self._new = home / "classes.jsa"

    @property
    def exists(self) -> bool:
        return self.path.is_file()

    def options(self) -> list[str]:
        """The options of the JVM: with the archive, or such that it writes one when it ends."""
        use = f"-XX:SharedArchiveFile={self.path}" if self.exists else f"-XX:ArchiveClassesAtExit={self._new}"
        with contextlib.suppress(OSError):
            os.utime(self.path)
        # What it says of archives is of no use to the reader of a server's log: it runs without one, too.
        return ["-XX:+IgnoreUnrecognizedVMOptions", "-Xshare:auto", "-Xlog:cds*=off", use]

    def keep(self) -> None:
        """Take what the JVM has written at its end, for the next one; and remove archives that nothing uses any more."""
        if not self._new.is_file():
            return
        # With this ending it counts as an archive that nothing uses, if this process is killed meanwhile.
        copy = self.path.with_suffix(f".{uuid.uuid4().hex}.jsa")
        with contextlib.suppress(OSError):
            try:
                shutil.copyfile(self._new, copy)
                copy.chmod(0o600)
                copy.rename(self.path)  # at once: another server may be starting
            finally:
                copy.unlink(missing_ok=True)  # half of one, if the disk is full
            self._new.unlink()
            for other in self.path.parent.glob(f"{self._name}-*.jsa"):
                if other.stat().st_mtime < time.time() - _UNUSED:
                    other.unlink()

    def drop(self) -> None:
        """Remove it: a JVM that had it did not start."""
        with contextlib.suppress(OSError):
            self.path.unlink()
