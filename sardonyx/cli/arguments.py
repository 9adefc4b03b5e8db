"""Arguments that several commands take."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from sardonyx.core.errors import SardonyxError
from sardonyx.core.units import ago, seconds

if TYPE_CHECKING:
    from sardonyx.cli.call import Call

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
        text: a number; a time of day, which is the last one that was; a date and time; or how long ago, such as "10 min ago" and
            "10 min".
        now: the present, with the zone of times that say none.

    Raises:
        SardonyxError: ``SX-USAGE``.
    """
    if text.isdecimal():
        return int(text)
    past = ago(text)
    try:
        return (now - timedelta(seconds=seconds(text) if past is None else past)).timestamp()
    except (ValueError, OverflowError):  # the latter: before all calendars
        pass
    of_day = _time_of_day(text, now)
    if of_day is not None:
        return of_day.timestamp()
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise SardonyxError(
            "SX-USAGE",
            f"{text!r} is neither the number of an entry nor a time",
            fix='write for example 1200, 23:40, 2026-11-26T23:40, or "10 min ago" (ms, s, min, h, d)',
        ) from None
    return (found if found.tzinfo else found.replace(tzinfo=now.tzinfo)).timestamp()


def _time_of_day(text: str, now: datetime) -> datetime | None:
    """The last moment at which it was that time of day; None if the text is none."""
    try:
        day = datetime.combine(now.date(), time.fromisoformat(text), now.tzinfo)
    except ValueError:
        return None
    return day if day <= now else day - timedelta(days=1)


def place_in_log(call: Call, text: str, now: datetime | None = None) -> int | float:
    """The same as :func:`entry_or_time`, as of now. Says of a time of day which day it took, if that is not today."""
    now = now or datetime.now().astimezone()
    found = entry_or_time(text, now)
    of_day = None if isinstance(found, int) else _time_of_day(text, now)
    if of_day is not None and of_day.date() != now.date():
        call.say(f"{text} is yesterday's, {of_day:%Y-%m-%d %H:%M:%S}: today it is not so late yet")
    return found
