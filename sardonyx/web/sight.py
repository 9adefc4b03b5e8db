"""What is seen of a running deployment beside its log: who leads, whether ZooKeeper answers, what Kafka says of jobs. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from sardonyx.client.lags import LinkLag
from sardonyx.client.views import JobView

SPAN = 12.0
"""Seconds over which rates are taken."""
LONGEST = 90.0
"""Seconds between two samples that still tell a rate, where Kafka answers slowly."""
MOST = 64
"""Samples of a job that are kept."""


_Judgement = TypeVar("_Judgement")


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Where the page stands: what it reads, and whether that is up to date."""

    source: Literal["live", "file"]
    deployment: str
    first: int
    """The oldest entry that can be shown."""
    last: int
    """The newest entry that has been read."""
    at: float | None = None
    """When that was taken in, seconds since 1970."""
    connected: bool = True
    """Whether ZooKeeper answers."""
    since: float | None = None
    """Since when it does not, seconds since 1970."""
    problem: str = ""
    """Why nothing newer is shown."""
    leader: str | None = None
    """``host:pid`` of the coordinator that leads; None if none does, or if that is not known."""
    epoch: int = 0
    standbys: int = 0
    requests: int = 0
    """Requests that no coordinator has processed yet."""
    oldest_request: float | None = None
    """When the oldest of them was made, seconds since 1970."""
    rows: bool = False
    """Whether rows of links and dead letters are shown."""
    file: str = ""
    """The file that is shown, if it is one."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What Kafka said of a job at one moment."""

    at: float
    view: JobView
    lags: list[LinkLag] | None = None
    """None: Kafka did not tell."""
    problem: str = ""
    """Why it did not."""


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """How fast a task goes on. None: not known yet."""

    rows_in: float | None = None
    rows_out: float | None = None
    still: float | None = None
    """Seconds since its row counts changed last, as far as we have watched."""


class Samples:
    """The last samples of one job, and what follows from their differences."""

    def __init__(self) -> None:
        self._kept: deque[Sample] = deque(maxlen=MOST)
        self.worked: Mapping[str, float] | None = None
        """By task, how many peers the work on its last batches fills; None: peers do not tell."""
        self._judged: tuple[Sample, Any] | None = None

    def add(self, sample: Sample) -> None:
        self._kept.append(sample)

    @property
    def last(self) -> Sample | None:
        return self._kept[-1] if self._kept else None

    def judged(self, sample: Sample, judge: Callable[[], _Judgement]) -> _Judgement:
        """What ``judge`` makes of this sample, the last one. It is called once for each sample, however often one asks."""
        if self._judged is None or self._judged[0] is not sample:
            self._judged = sample, judge()
        judgement: _Judgement = self._judged[1]
        return judgement

    @property
    def kept(self) -> Sequence[Sample]:
        """Those that are kept, the oldest first."""
        return self._kept

    def rates(self, task: str) -> Rates:
        """The rates of a task over the last seconds."""
        counts = [
            (sample.at, view.rows_in, view.rows_out)
            for sample in self._kept
            for view in sample.view.tasks
            if view.name == task
        ]
        return Rates(
            rows_in=_rate([(at, rows) for at, rows, _ in counts]),
            rows_out=_rate([(at, rows) for at, _, rows in counts]),
            still=_still([(at, (rows, out)) for at, rows, out in counts if rows is not None or out is not None]),
        )

    def able(self, task: str) -> float:
        """Seconds for which a task has had a peer and unread rows, as far as we have watched. What is not known counts as so."""
        if not self._kept:
            return 0.0
        since = end = self._kept[-1].at
        for sample in reversed(self._kept):
            peers = next((view.peers for view in sample.view.tasks if view.name == task), 0)
            unread = [lag.records for lag in sample.lags or () if lag.reader == task]
            if not peers or (unread and not any(count is None or count for count in unread)):
                break
            since = sample.at
        return end - since

    def busy(self, task: str, peers: int, unread: int | None) -> float | None:
        """The share of their last seconds in which the peers on a task had a batch in hand; None: not known. One batch that takes
        long is not known of before it ends.
        """
        if self.worked is None or not peers:
            return None
        if task not in self.worked:
            return 0.0 if unread == 0 else None
        return min(self.worked[task] / peers, 1.0)

    def growth(self, link: str) -> float | None:
        """By how many rows a second what is unread on a link grows."""
        return _rate(
            [(sample.at, lag.records) for sample in self._kept for lag in sample.lags or () if lag.link == link]
        )


def _rate(counts: list[tuple[float, int | None]]) -> float | None:
    known = [(at, count) for at, count in counts if count is not None]
    if len(known) < 2:
        return None
    end, last = known[-1]
    begin, first = next((at, count) for at, count in known if at >= end - SPAN)
    if begin == end and known[-2][0] >= end - LONGEST:
        begin, first = known[-2]
    return (last - first) / (end - begin) if end > begin else None


def _still(counts: list[tuple[float, tuple[int | None, int | None]]]) -> float | None:
    if not counts:
        return None
    end, last = counts[-1]
    same = end
    for at, count in reversed(counts):
        if count != last:
            break
        same = at
    return end - same
