"""Failpoints that are armed while processes run (:mod:`sardonyx.runtime.failpoints`), seen from the process that arms them."""

from __future__ import annotations

from pathlib import Path


class Armed:
    """A directory of failpoints that processes share.

    Args:
        folder: made if it is missing; what ``SARDONYX_FAILPOINT`` says.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def arm(self, point: str, action: str) -> None:
        """The next process to pass that point dies (``kill``), stops (``stop``), or only says so (``pass``)."""
        aside = self.folder / f".{point}"
        aside.write_text(action)
        aside.rename(self.folder / point)

    def disarm(self, point: str) -> bool:
        """False: it was taken already."""
        try:
            (self.folder / point).unlink()
        except FileNotFoundError:
            return False
        return True

    def struck(self, point: str) -> int:
        """The process id that it hit; 0 if none yet. Given once."""
        for taken in self.folder.glob(f"{point}.*"):
            taken.unlink()
            return int(taken.suffix[1:])
        return 0
