"""What the parts of ``bench_web.py`` are to reach, and whether they do. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

ALIKE = (0.95, 1.05)
"""Requests that many who look cost, to those that one costs."""
COORDINATOR, WEB = 0.02, 0.05
"""Shares of a core: what the coordinator takes more because many look, and what the pages take."""
DECISION, PAINT, ENTRY, FRAME = 500, 1000, 100, 16
"""Milliseconds: from a decision to the page; until a job is drawn; of an answer about any entry; of a frame of a film."""
NAMED = 30
"""Seconds until the page of the deployment names what is wrong with a job."""
CROWD = 10_000
"""Peers of the deployment whose entries are asked about. Of smaller ones it is reported."""


class Goal(NamedTuple):
    """One line of the table."""

    part: str
    what: str
    measured: float | None
    """None: it was not measured, such as Kafka's requests where one who looks asked it nothing."""
    goal: str
    met: bool | None

    @property
    def line(self) -> str:
        shown = "-" if self.measured is None else f"{self.measured:g}"
        verdict = {None: "cannot be told", True: "met", False: "missed"}[self.met]
        return f"| {self.part} | {self.what} | {shown} | {self.goal} | {verdict} |"


def goals(found: Mapping[str, Any]) -> Iterator[Goal]:
    """The goals of the parts that were measured. ``found``: what each part gave, as in the last line that the bench prints."""
    for part, of in (
        ("viewers", _viewers),
        ("decision", _decision),
        ("attention", _attention),
        ("past", _past),
        ("paint", _paint),
        ("scrub", _scrub),
    ):
        if part in found:
            yield from of(found[part])


def table(found: Mapping[str, Any]) -> str:
    """All of them, as a table in Markdown."""
    return "\n".join(
        [
            "| part | what | measured | goal | |",
            "| --- | --- | --- | --- | --- |",
            *(each.line for each in goals(found)),
        ]
    )


def _at_most(part: str, what: str, measured: float, most: float, unit: str) -> Goal:
    return Goal(part, what, measured, f"at most {most:g} {unit}".rstrip(), measured <= most)


def _viewers(found: Mapping[str, Any]) -> Iterator[Goal]:
    counts = sorted(found["by_viewers"], key=int)
    none, many = (found["by_viewers"][count] for count in (counts[0], counts[-1]))
    for service, key in (("ZooKeeper", "zookeeper_many_to_one"), ("Kafka", "kafka_many_to_one")):
        ratio = found[key]
        met = None if ratio is None else ALIKE[0] <= ratio <= ALIKE[1]
        what = f"requests to {service}: {counts[-1]} who look to one"
        yield Goal("viewers", what, ratio, f"{ALIKE[0]:g} to {ALIKE[1]:g}", met)
    more = round(many["coordinator_core"] - none["coordinator_core"], 4)
    yield _at_most("viewers", f"coordinator, more with {counts[-1]} who look", more, COORDINATOR, "of a core")
    yield _at_most("viewers", f"the pages, with {counts[-1]} who look", many["web_core"], WEB, "of a core")


def _decision(found: Mapping[str, Any]) -> Iterator[Goal]:
    for count, seen in found["by_viewers"].items():
        yield _at_most("decision", f"decision to page, p99, {count} who look", seen["ms_p99"], DECISION, "ms")


def _attention(found: Mapping[str, Any]) -> Iterator[Goal]:
    for what, seconds in found["seconds"].items():
        met = seconds is not None and seconds <= NAMED
        yield Goal("attention", f"until the page names {what}", seconds, f"at most {NAMED} s", met)


def _past(found: Mapping[str, Any]) -> Iterator[Goal]:
    for peers, seen in found.items():
        if peers.isdecimal():
            for what, took in seen["answers"].items():
                title = f"{what} after any of {seen['entries']:,} entries, {int(peers):,} peers, p99"
                if int(peers) >= CROWD:
                    yield _at_most("past", title, took["ms_p99"], ENTRY, "ms")


def _paint(found: Mapping[str, Any]) -> Iterator[Goal]:
    yield _at_most("paint", f"first drawing of {found['tasks']} tasks, median", found["ms_median"], PAINT, "ms")


def _scrub(found: Mapping[str, Any]) -> Iterator[Goal]:
    yield _at_most("scrub", f"a frame of a film, {found['tasks']} tasks, p99", found["ms_p99"], FRAME, "ms")
    yield _at_most("scrub", "questions to the server meanwhile", found["asked"], 0, "")
