"""A job that users change while it runs: its versions, and what of each must come out.

``read`` is a topic, ``work`` and ``steady`` are tasks, ``write`` is a topic. Taps come after any of them and go again, and so do
inputs with a tap of their own; tasks come between ``steady`` and ``write`` and go again. Each of ``work`` and ``steady`` writes
into each row by which version of it the row was worked. A change that gives a task another reader, or takes one away, makes
another version of the task. So it is known of each row which taps must have it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from tests.faults.shapes import PARTITIONS, SCHEMA, SOURCE

TAPS = 3
"""How many there are at a time, at most."""
_PARENTS = ("read", "work", "work", "steady")
"""What a tap comes after, as often as it is to."""

_STEADY = """
import pyarrow as pa

def steady(rows: pa.Table, version: int) -> pa.Table:
    return rows.append_column("steady", pa.array([version] * rows.num_rows, pa.int64()))
"""

_JOB = """
import pyarrow as pa
from sardonyx import Job, State, event_time, kafka
from steady import steady

def work(rows: pa.Table, version: int) -> pa.Table:
    return rows.append_column("work", pa.array([version] * rows.num_rows, pa.int64()))

def middle(row: dict, name: str) -> dict:
    return {{**row, "middle": name}}

def same(rows: pa.Table) -> pa.Table:
    return rows

def tap(row: dict, name: str) -> dict:
    return {{**row, "tap": name}}

def count(row: dict, seen: State[int], name: str) -> dict:
    seen.value += 1
    return {{**row, "tap": name, "seen": seen.value}}

job = Job("{name}", partitions=4)
source = kafka("{topic}", start="earliest", end={end}, format="json", schema="{schema}")
after = {{"read": job.input("read", source, time=event_time("at", unit="ms"))}}
after["work"] = job.task("work", work, after=after["read"], params={{"version": {work}}}, max_peers={peers}, batch_size={batch})
after["steady"] = job.task("steady", steady, after=after["work"], params={{"version": {steady}}}, max_peers=2)
last = after["steady"]
if {middle!r}:
    last = job.task({middle!r}, middle, after=last, params={{"name": {middle!r}}}, max_peers=2)
job.output("write", kafka("{out}", format="json", key="key"), after=last)
for name, parent, kind in {taps!r}:
    own = parent == "input"
    before = job.input(name + "-in", source, time=event_time("at", unit="ms")) if own else after[parent]
    if kind == "pair":
        before = job.task(name + "-first", same, after=before)
    if kind == "keyed":
        tapped = job.keyed(name, count, after=before, group_by="key", params={{"name": name}})
    else:
        tapped = job.task(name, tap, after=before, params={{"name": name}})
    job.output(name + "-out", kafka("{tapped}", format="json", key="key"), after=tapped)
"""


class Tap(NamedTuple):
    """What comes after a task for a while."""

    name: str
    parent: str
    """``read``, ``work`` or ``steady``; ``input``: an input that comes and goes with it, and reads the topic of ``read``."""
    kind: str
    """``plain``; ``pair``: two tasks, one after the other; ``keyed``: a task with a state."""
    since: int
    """The version of its parent from which on it gets all rows."""

    @property
    def in_place(self) -> bool:
        """Whether it reads a topic itself."""
        return self.parent in ("read", "input")

    @property
    def tasks(self) -> list[str]:
        first = [f"{self.name}-first"] if self.kind == "pair" else []
        first += [f"{self.name}-in"] if self.parent == "input" else []
        return [*first, self.name, f"{self.name}-out"]


@dataclass(frozen=True)
class Version:
    """One version of the job."""

    work: int = 1
    steady: int = 1
    middle: str = ""
    middle_since: int = 0
    taps: tuple[Tap, ...] = ()
    batch: int = 100
    peers: int = 2

    def past(self, task: str) -> Version:
        """The same with another version of a task. Inputs have none."""
        return replace(self, **{task: getattr(self, task) + 1}) if task in ("work", "steady") else self


class Step(NamedTuple):
    """A change."""

    what: str
    version: Version
    drop: Sequence[str] = ()
    drain: Sequence[str] = ()
    at_a_time: bool = False
    """By the times of the rows. No other task gets another version by it."""


@dataclass
class Tapped:
    """What a tap must have got: the rows that versions ``since`` to ``until`` of its parent have worked, without the last."""

    tap: Tap
    until: int | None = None
    sure: int | None = None
    """It must have got all rows of versions before this one. It need not have got what it had not read when it was dropped. If
    nothing new came when it was drained, its parent went on by the version before meanwhile."""
    first: int | None = None
    """The time of the first row, if it came by a change at a time."""
    last: int | None = None
    """The time after the last row, if it went by one. Then it must have got all before."""

    def times(self, number: int) -> bool:
        """Whether it gets a row with this id, as far as its time says."""
        time = number % SOURCE
        return (self.first is None or time >= self.first) and (self.last is None or time < self.last)


@dataclass
class Growing:
    """The job through all of its changes.

    Args:
        name: of the job.
        topic: that it reads.
        out: that it writes; taps write to another one.
        end: the offset at which each partition ends for the job.
        folder: for its files.
    """

    name: str
    topic: str
    out: str
    end: int
    folder: Path
    version: Version = field(default_factory=Version)
    tapped: dict[str, Tapped] = field(default_factory=dict)
    middles: list[tuple[str, int, int | None]] = field(default_factory=list)
    """(task, version of ``steady`` since which it was there, version until which)."""
    _number: int = 0

    @property
    def taps_out(self) -> str:
        """The topic that taps write to."""
        return f"{self.out}-taps"

    def write(self, version: Version) -> Path:
        """Write a version down; gives the file."""
        self._number += 1
        folder = self.folder / f"v{self._number}"
        folder.mkdir()
        (folder / "steady.py").write_text(_STEADY)
        (folder / "job.py").write_text(
            _JOB.format(
                name=self.name,
                topic=self.topic,
                out=self.out,
                tapped=self.taps_out,
                end=dict.fromkeys(range(PARTITIONS), self.end),
                schema=SCHEMA,
                work=version.work,
                steady=version.steady,
                middle=version.middle,
                peers=version.peers,
                batch=version.batch,
                taps=[(tap.name, tap.parent, tap.kind) for tap in version.taps],
            )
        )
        return folder / "job.py"

    def step(self, rng: random.Random, number: int) -> Step:
        """The next change. All kinds come in turn."""
        kinds: list[Callable[[random.Random, int], Step | None]] = [
            self._attach,
            self._scale,
            self._replace,
            self._between,
            self._remove,
            self._exchange,
            self._part,
        ]
        for kind in kinds[number % len(kinds) :] + kinds:
            found = kind(rng, number)
            if found is not None:
                return found
        raise AssertionError("a task can always be replaced")

    def done(self, step: Step, at: int | None = None) -> None:
        """The change was made. ``at``: at this time of the rows."""
        before, now = self.version, step.version
        for tap in now.taps:
            self.tapped.setdefault(tap.name, Tapped(tap, first=at))
        for tap in before.taps:
            if tap not in now.taps:
                known = self.tapped[tap.name]
                if at is not None:
                    known.last = at
                elif not tap.in_place:
                    known.until = getattr(now, tap.parent)
                    came = any(each not in before.taps for each in now.taps)
                    known.sure = (known.until - (0 if came else 1)) if tap.name in step.drain else tap.since
                else:
                    known.until = known.sure = 0
        if now.middle != before.middle:
            if before.middle:
                self.middles[-1] = before.middle, before.middle_since, now.steady
            if now.middle:
                self.middles.append((now.middle, now.middle_since, None))
        self.version = now

    def _scale(self, rng: random.Random, _number: int) -> Step:
        now = self.version
        return Step("scale", replace(now, peers=3 - now.peers, batch=now.batch + rng.randint(1, 50)))

    def _replace(self, rng: random.Random, _number: int) -> Step:
        task = rng.choice(["work", "steady"])
        return Step(f"replace {task}", self.version.past(task))

    def _attach(self, rng: random.Random, number: int) -> Step | None:
        if len(self.version.taps) >= TAPS:
            return None
        tap, version = self._with_tap(self.version, rng, number)
        return Step(f"attach {tap.kind} {tap.name} to {tap.parent}", version)

    def _remove(self, rng: random.Random, _number: int) -> Step | None:
        if not self.version.taps:
            return None
        tap, version = self._without_tap(self.version, rng)
        return self._gone(f"remove {tap.name}", version, tap, rng)

    def _exchange(self, rng: random.Random, number: int) -> Step | None:
        """One goes and another comes by the same change."""
        if not self.version.taps:
            return None
        gone, without = self._without_tap(self.version, rng)
        tap, version = self._with_tap(without, rng, number)
        return self._gone(f"exchange {gone.name} for {tap.kind} {tap.name} after {tap.parent}", version, gone, rng)

    def _part(self, rng: random.Random, number: int) -> Step:
        """At a time of the rows, one comes, and another goes, if there is any."""
        now = self.version
        able = [tap for tap in now.taps if tap.parent != "input"]
        gone, without = self._without_tap(now, rng, able) if able else (None, now)
        tap, version = self._with_tap(without, rng, number, _PARENTS)
        taps = [*without.taps, tap._replace(since=0 if tap.in_place else getattr(now, tap.parent))]
        version = replace(now, taps=tuple(taps))
        what = f"{gone.name} before a time and " if gone is not None else ""
        return Step(f"part {what}{tap.kind} {tap.name} after {tap.parent} from it on", version, at_a_time=True)

    def _between(self, _rng: random.Random, number: int) -> Step:
        """A task comes between two others, takes the place of one that stands there, or goes."""
        now = self.version
        drain = [now.middle] if now.middle else []
        then = now.past("steady")
        if now.middle and number % 4 == 3:
            return Step(f"take {now.middle} out", replace(then, middle="", middle_since=0), drain=drain)
        name = f"middle{number}"
        return Step(f"put {name} between", replace(then, middle=name, middle_since=then.steady), drain=drain)

    def _with_tap(
        self, now: Version, rng: random.Random, number: int, parents: Sequence[str] = (*_PARENTS, "input")
    ) -> tuple[Tap, Version]:
        tap = Tap(f"tap{number}", rng.choice(parents), "plain", 0)
        then = now.past(tap.parent)
        if not tap.in_place:
            tap = tap._replace(kind=rng.choice(["plain", "pair", "keyed"]), since=getattr(then, tap.parent))
        return tap, replace(then, taps=(*now.taps, tap))

    def _without_tap(self, now: Version, rng: random.Random, taps: Sequence[Tap] = ()) -> tuple[Tap, Version]:
        tap = rng.choice(taps or now.taps)
        return tap, replace(now.past(tap.parent), taps=tuple(each for each in now.taps if each != tap))

    def _gone(self, what: str, version: Version, tap: Tap, rng: random.Random) -> Step:
        if (
            tap.in_place or rng.random() < 0.5
        ):  # what reads a topic in place never comes to its end before the topic does
            return Step(f"{what}, dropped", version, drop=tap.tasks)
        return Step(f"{what}, drained", version, drain=tap.tasks)

    # What must have come out

    def wrong(self, rows: Mapping[int, Mapping[str, Any]], tapped: Iterable[Mapping[str, Any]]) -> list[str]:
        """What is wrong with the versions in the results, and with what taps have got.

        Args:
            rows: by id, the results of the job.
            tapped: those of its taps.
        """
        got: dict[str, dict[int, Mapping[str, Any]]] = {}
        found = []
        for row in tapped:
            mine = got.setdefault(row["tap"], {})
            if row["id"] in mine:
                found.append(f"{row['tap']} has given {row['id']} twice")
            mine[row["id"]] = row
        found += [f"{name} was never there, and gives rows" for name in got.keys() - self.tapped.keys()]
        for name, known in self.tapped.items():
            found += self._wrong_tap(known, got.get(name, {}), rows)
        for row in rows.values():
            name = self._middle_at(row["steady"])
            if (row.get("middle") or "") != name:
                found.append(f"{row} should have gone through {name or 'nothing'} in the middle")
        return found

    def _middle_at(self, steady: int) -> str:
        names = [name for name, since, until in self.middles if since <= steady and (until is None or steady < until)]
        return names[0] if names else ""

    def _wrong_tap(
        self, known: Tapped, got: Mapping[int, Mapping[str, Any]], rows: Mapping[int, Mapping[str, Any]]
    ) -> list[str]:
        tap, found = known.tap, []
        if tap.in_place:
            wanted = [number for number in rows if known.times(number)] if known.until is None else []
            found += _gaps(tap.name, got, wanted)
            found += [f"{tap.name} should not have {number}" for number in got if not known.times(number)][:5]
            found += [
                f"{tap.name} lacks {number}"
                for number in wanted
                if known.first is not None and number % SOURCE == known.first and number not in got
            ]
            if tap.parent == "input":  # it begins where the topic does
                firsts = {number - number % SOURCE for number in got}
                found += [
                    f"{tap.name} lacks {number}, the first of its partition" for number in firsts if number not in got
                ]
        else:
            wanted = {
                number
                for number, row in rows.items()
                if known.times(number)
                and tap.since <= row[tap.parent]
                and (known.until is None or row[tap.parent] < known.until)
            }
            strange = got.keys() - wanted
            missing = [n for n in wanted - got.keys() if known.sure is None or rows[n][tap.parent] < known.sure]
            found += [f"{tap.name} should not have {number}: {rows.get(number)}" for number in sorted(strange)[:5]]
            found += [f"{tap.name} should have {number}: {rows[number]}" for number in sorted(missing)[:5]]
        if tap.kind == "keyed":
            counts: dict[str, list[int]] = {}
            for row in got.values():
                counts.setdefault(row["key"], []).append(row["seen"])
            for key, seen in counts.items():
                if sorted(seen) != list(range(1, len(seen) + 1)):
                    found.append(f"{tap.name} has counted {sorted(seen)[:20]} of {key}")
        return found


def _gaps(name: str, got: Iterable[int], rows: Iterable[int]) -> list[str]:
    """What reads a topic in place must have read each partition without a gap from where it began.

    Args:
        name: of the tap.
        got: the ids that it has.
        rows: those that the job has read, if it must have gone on as far as the job.
    """
    parts: dict[int, list[int]] = {}
    for number in got:
        parts.setdefault(number // SOURCE, []).append(number)
    last: dict[int, int] = {}
    for number in rows:
        last[number // SOURCE] = max(number, last.get(number // SOURCE, number))
    found = [
        f"{name} has left out some of {min(numbers)} to {max(numbers)}"
        for numbers in parts.values()
        if len(numbers) != max(numbers) - min(numbers) + 1
    ]
    return found + [
        f"{name} has not read {number}" for source, number in last.items() if number not in parts.get(source, ())
    ]


__all__ = ["Growing", "Step", "Tap", "Version"]
