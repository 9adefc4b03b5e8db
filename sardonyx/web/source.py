"""Where the pages get their data: a running deployment (:mod:`sardonyx.web.live`), or a file that ``log export`` wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from coordinator.history.export import LogFile
from sardonyx.web.actions import Actions
from sardonyx.web.batches import Batches, NoBatches
from sardonyx.web.book import Book, Words
from sardonyx.web.partitions import NoPartitions, Partitions
from sardonyx.web.rows import Rows
from sardonyx.web.sight import Samples, Standing
from sardonyx.web.targets import Targets


class Source(Protocol):
    """What the pages read."""

    book: Book
    batches: Batches
    """The last batches of each task."""
    partitions: Partitions
    """What is unread in the partitions of each task."""
    rows: Rows | str
    """What reads rows of links and dead letters; or why they are not shown."""
    actions: Actions | str
    """What carries out what operators want; or why nothing can be changed."""
    targets: Targets | str
    """Finds the daemons that serve metrics; or why there are none."""

    def on_change(self, call: Callable[[], None]) -> None:
        """Call this, in a thread of its own, whenever there is something new."""
        ...

    def standing(self) -> Standing:
        """Where it stands now."""
        ...

    def samples(self, job: str) -> Samples | None:
        """What Kafka has said of a job; asking for it makes Kafka asked for a while. None: it is never asked."""
        ...

    def glances(self, jobs: Iterable[str]) -> Mapping[str, Samples]:
        """What Kafka has said of these running jobs, of which it is asked now and then from now on for a while."""
        ...

    def every(self, job: str) -> float | None:
        """Seconds between two questions to Kafka about a job."""
        ...

    def close(self) -> None:
        """Stop reading."""
        ...


class FileSource:
    """A file that ``log export`` wrote, read as a whole.

    Raises:
        SardonyxError: ``SX-LOG-FILE``: the file is missing, damaged or cut short.
        SetupError: ``SX-LOG-FORMAT``: another version of Sardonyx wrote it.
    """

    batches: Batches = NoBatches("this is a file, which holds no batches")
    partitions: Partitions = NoPartitions("this is a file, which holds no positions")
    rows: Rows | str = "this is a file, which holds no rows"
    actions: Actions | str = "this is a file, and no running deployment"
    targets: Targets | str = "this is a file, and no running deployment"

    def __init__(self, file: LogFile, name: str, words: Words) -> None:
        self.book = Book(file.begin(), words)
        for entry in file.entries():
            self.book.take(entry.n, entry.event, entry.request)
        self._deployment = file.header.deployment
        self._name = Path(name).name

    def standing(self) -> Standing:
        book = self.book
        return Standing(
            source="file",
            deployment=self._deployment,
            first=book.first,
            last=book.last,
            at=book.time_of(book.last),
            file=self._name,
        )

    def on_change(self, call: Callable[[], None]) -> None:
        """A file does not change."""

    def samples(self, job: str) -> Samples | None:  # noqa: ARG002 - a file holds none
        return None

    def glances(self, jobs: Iterable[str]) -> Mapping[str, Samples]:  # noqa: ARG002
        return {}

    def every(self, job: str) -> float | None:  # noqa: ARG002
        return None

    def close(self) -> None:
        """Nothing is open."""
