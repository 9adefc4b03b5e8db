"""Arguments that several commands take."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from typing import Annotated

import typer

from sardonyx.core.errors import SardonyxError
from sardonyx.core.units import seconds

Spec = Annotated[
    str, typer.Argument(metavar="SPEC", help="FILE.py, FILE.py:job, MODULE:job, a YAML, TOML or JSON file, or -.")
]
WHICH_JOB = (
    "A job's id, the beginning of it, or its name: the job of that name that runs, or else the latest not refused."
)
"""What an argument that names a job means; ``docs/cli.md`` says it too."""
JobId = Annotated[str, typer.Argument(metavar="ID", help=WHICH_JOB)]
Timeout = Annotated[
    str | None, typer.Option("--timeout", metavar="DURATION", help='How long to wait, for example "60 s".')
]
Restart = Annotated[
    bool, typer.Option("--restart", help="Stop the job, and have another one go on from there, with its states.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask whether results may be published again.")]


def duration_of(text: str | None, flag: str = "--timeout") -> float | None:
    """A duration from the command line in seconds. Raises ``SX-USAGE``."""
    if text is None:
        return None
    try:
        return seconds(text)
    except ValueError as error:
        raise SardonyxError("SX-USAGE", str(error), fix=f'write for example {flag} "60 s"') from None


def entry_or_time(text: str, now: datetime) -> int | float:
    """The place in the coordinator's log that a user means: the number of an entry (an int), or a time in seconds since 1970 (a
    float).

    Args:
        text: a number; a time of day, which is the last one that was; a date and time; or how long ago, such as "10 min".
        now: the present, with the zone of times that say none.

    Raises:
        SardonyxError: ``SX-USAGE``.
    """
    if text.isdecimal():
        return int(text)
    try:
        return (now - timedelta(seconds=seconds(text))).timestamp()
    except (ValueError, OverflowError):  # the latter: before all calendars
        pass
    try:
        day = datetime.combine(now.date(), time.fromisoformat(text), now.tzinfo)
        return (day if day <= now else day - timedelta(days=1)).timestamp()
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise SardonyxError(
            "SX-USAGE",
            f"{text!r} is neither the number of an entry nor a time",
            fix='write for example 1200, 23:40, 2026-11-26T23:40, or "10 min" for so long ago',
        ) from None
    return (found if found.tzinfo else found.replace(tzinfo=now.tzinfo)).timestamp()
