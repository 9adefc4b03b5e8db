"""The changes of a job that users have asked for, and what became of each, read from the log. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from coordinator.core.decide import decide
from coordinator.core.state import State
from sardonyx.core.changing import rewiring
from sardonyx.core.changing_at import step_text
from sardonyx.core.errors import Failure
from sardonyx.core.events import AnyEvent, JobChanged, LinksCreated, LinksFailed, happened
from sardonyx.core.graph import graph_of
from sardonyx.core.spec import JobSpec
from sardonyx.core.untouched import untouched


class RevisionMade(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A change of a job. Times are seconds since 1970."""

    revision: int
    """The one that it made, or would have made."""
    n: int
    """The entry of the log with which the user asked for it."""
    at: float
    by: str = ""
    """The user, and the version of the client."""
    added: list[str] = []
    """Tasks that it has added."""
    removed: list[str] = []
    changed: list[str] = []
    """Tasks that stay, and of which something differs."""
    went_on: list[str] = []
    """Tasks that kept their peers."""
    code: bool = False
    """Whether the job's modules differ."""
    at_time: str = ""
    """What it does for a change at a time, in words."""
    done: float | None = None
    """When it took over; None: not yet, or it was given up."""
    since: dict[str, dict[str, list[int | None]]] = {}
    """By task and topic, the offsets from which the revision works; of the tasks that did not go on."""
    error: Failure | None = None
    """Why it was given up or taken back."""
    taken_back: float | None = None
    """When the job went back to the version before, since no peer could begin with this one. That made a revision, too."""
    given_up: bool = False
    """Whether it was given up: Kafka has refused it, or the job has ended or was stopped before it was made."""


def revisions_of(job: str, state: State, log: Iterable[tuple[int, AnyEvent]]) -> list[RevisionMade]:
    """The changes of a job that were taken in, in their order.

    Args:
        job: its id.
        state: before the first entry; changed.
        log: the entries after that.
    """
    found: list[RevisionMade] = []
    open_: RevisionMade | None = None
    for n, entry in log:
        event = happened(entry)
        known = state.jobs.get(job)
        spec, revision = (None, 0) if known is None else (known.spec, known.revision)
        facts = {} if known is None or known.suspended else dict(known.facts or {})
        decide(state, n, entry)
        now = state.jobs.get(job)
        if now is None or spec is None:
            continue
        taken = isinstance(event, JobChanged) and event.job == job
        if taken and open_ is None and (now.next_spec is not None or now.revision > revision):
            assert isinstance(event, JobChanged)  # noqa: S101 (for the type checker)
            goes_on = untouched(spec, event.spec, event.same, facts, state.rules) if facts else []
            open_ = _asked(n, event, spec, goes_on)
            found.append(open_)
        if found and open_ is None and now.revision > revision and now.error is not None and not taken:
            found[-1].taken_back, found[-1].error = event.at, now.error
        if open_ is not None and now.revision > revision:
            open_.done = event.at
            if isinstance(event, LinksCreated):
                open_.since = event.since
            open_ = None
        elif open_ is not None and now.next_spec is None:
            open_.given_up = True
            if isinstance(event, LinksFailed):
                open_.error = event.error
            open_ = None
    return found


def _asked(n: int, event: JobChanged, old: JobSpec, goes_on: list[str]) -> RevisionMade:
    before, after = ({task.name: task for task in spec.catalog} for spec in (old, event.spec))
    touched = {stage.name for stage in rewiring(graph_of(old, "", ""), graph_of(event.spec, "", "")).touched}
    return RevisionMade(
        revision=event.revision + 1,
        n=n,
        at=event.at,
        by=event.by,
        added=[name for name in after if name not in before],
        removed=[name for name in before if name not in after],
        changed=[name for name in after if name in before and (name in touched or after[name] != before[name])],
        went_on=goes_on,
        code=event.spec.code != old.code,
        at_time=step_text(old, event.spec),
    )


__all__ = ["RevisionMade", "revisions_of"]
