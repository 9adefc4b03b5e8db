"""Says what going back to a checkpoint and a replay read and publish again, and asks whether they may."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from sardonyx.cli.call import Call
from sardonyx.core.errors import SardonyxError
from sardonyx.core.replaying import SAME
from sardonyx.core.text import counted, listed

if TYPE_CHECKING:
    from sardonyx.client.going_back import GoingBack
    from sardonyx.client.replay import Replay


def ask(call: Call, back: GoingBack, *, yes: bool) -> None:
    """Say what is published again, and ask whether it may be.

    Raises:
        SardonyxError: ``SX-GO-BACK-ASK``: it may not, or there is no terminal to ask on.
    """
    for line in lines(back):
        call.say(line)
    confirm("Go back?", back.job, yes=yes)


def confirm(question: str, job: str, *, yes: bool) -> None:
    """Ask a question about a job on the terminal, unless it was answered with ``--yes``.

    Raises:
        SardonyxError: ``SX-GO-BACK-ASK``: the answer is no, or there is no terminal to ask on.
    """
    if yes or (sys.stdin.isatty() and typer.confirm(question, err=True)):
        return
    raise SardonyxError(
        "SX-GO-BACK-ASK",
        f"nothing was done: job {job} stays as it is",
        cause="results are published again, and that was not confirmed",
        fix="say `--yes` if that is wanted",
        where={"job": job},
    )


def lines(back: GoingBack) -> list[str]:
    """What going back means, for people."""
    found = [f"goes on from the checkpoint at {back.at:%Y-%m-%dT%H:%M:%SZ} of job {back.job}"]
    again = [f"{counted(count, 'record')} of {topic}" for topic, count in back.reads_again.items() if count]
    if again:
        found.append(f"reads again: {listed(again)}, without the rows before that time")
    if back.publishes_again:
        found.append(
            f"publishes again what the job has given for rows of that time or later: {listed(back.publishes_again)}"
        )
    return found


def replay_lines(planned: Replay) -> list[str]:
    """What a replay means, for people."""
    begin, end = (f"{each:%Y-%m-%dT%H:%M:%SZ}" for each in (planned.since, planned.until))
    states = f"with the states of {begin}" if planned.with_state else "with empty states"
    found = [f"works the rows of job {planned.job} from {begin} to before {end} once more, {states}"]
    reads = [f"{counted(count, 'record')} of {topic}" for topic, count in planned.reads.items()]
    found.append(f"reads {listed(reads)}, and leaves out the rows of other times")
    if planned.resumes:
        found.append(f"what job {planned.resumes} had read, from which this one went on, is not worked")
    if planned.deleted:
        gone = [f"{count:,} of {topic}" for topic, count in planned.deleted.items()]
        found.append(f"is without records that are deleted, of which some may be of these times: {listed(gone)}")
    if planned.partial:
        found.append(f"only rows of these times count in the results of {listed(planned.partial)}")
    again = "publishes again" if planned.outputs == SAME else "publishes"
    if planned.publishes:
        found.append(f"{again}: {listed(planned.publishes)}")
    return found
