"""Says in words what the coordinator decided: what an event changed, and a peer's history. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from coordinator.history.replay import Change, Decided, Note, concerned_peers, place_of
from coordinator.history.revisions import RevisionMade
from coordinator.history.timeline import TimelineEvent
from sardonyx.cli.event_text import clock, failure_words, rows, summary
from sardonyx.core.effects import ChangeLinks, CreateLinks, DeleteLinks, DeletePulse, DropLinks, Effect, ReadLinks
from sardonyx.core.events import (
    Completed,
    Declined,
    Drained,
    Evicted,
    GraceEnded,
    Left,
    PeerBorn,
    PeerDied,
    TaskFailed,
    kind_of,
)
from sardonyx.core.node_paths import peer_state
from sardonyx.core.notes import Assignment, JobNote, PeerNote, TaskNote
from sardonyx.core.text import listed, plural
from sardonyx.core.units import duration


class Moment(msgspec.Struct, frozen=True):
    """One entry in a peer's history. ``state``: its state after the entry; None: unknown."""

    n: int
    at: float
    kind: str
    state: str | None
    text: str


_LINKS: dict[type, tuple[str, str]] = {
    CreateLinks: ("create", "make the links"),
    ReadLinks: ("read", "read what was committed last on the links"),
    DeleteLinks: ("delete", "remove the links"),
    ChangeLinks: ("change", "fence the slots, and make the new links,"),
    DropLinks: ("drop", "remove the links that it does not have any more,"),
}
"""What is done with links: a word, and a sentence that ends in the job."""


def change_lines(decided: Decided) -> list[str]:
    """Say what an event changed, one line for each peer, job or task, and what to do outside the tree."""
    lines = [line for change in decided.changes if (line := _change(change))]
    return lines + [line for effect in decided.effects if (line := _outside(effect))]


def difference_line(change: Change) -> str:
    """Say what differs between two moments at one node; empty if other nodes say it."""
    place = place_of(change.path)
    if place.part == "spec" and change.before and change.after:
        return f"job {place.job}: its spec was changed"
    return _change(change)


def change_data(change: Change) -> dict[str, Any]:
    """A change as data: the node's path, and its notes before and after."""
    return {"path": change.path, "before": _data(change.before), "after": _data(change.after)}


def effect_data(effect: Effect) -> dict[str, Any]:
    """An effect as data: the action, and its object."""
    what = {"do": type(effect).__name__.lower()}
    if isinstance(effect, CreateLinks | ReadLinks | DeleteLinks | ChangeLinks | DropLinks):
        return {"do": f"{_LINKS[type(effect)][0]}-links", "job": effect.job}
    if isinstance(effect, DeletePulse):
        return {"do": "delete-pulse", "peer": effect.peer}
    return {**what, "path": effect.path}


def _data(data: bytes | None) -> Any:
    return msgspec.Raw(data) if data else None if data is None else ""


def _change(change: Change) -> str:
    place = place_of(change.path)
    if place.peer:
        return f"peer {place.peer}: {_peer(change.was)} -> {_peer(change.now)}"
    if place.task:
        return f"task {place.job}/{place.task}: {_from_to(_task(change.was), _task(change.now))}"
    if place.part == "status":
        return f"job {place.job}: {_from_to(_job(change.was), _job(change.now))}"
    return ""


def _from_to(before: str, after: str) -> str:
    return after if before == "not there" else f"{before} -> {after}"


def _outside(effect: Effect) -> str:
    match effect:
        case CreateLinks() | ReadLinks() | DeleteLinks() | ChangeLinks() | DropLinks():
            return f"then: {_LINKS[type(effect)][1]} of job {effect.job}"
        case DeletePulse():
            return f"then: take the pulse of peer {effect.peer} away"
    return ""


def _peer(note: Note | None) -> str:
    if not isinstance(note, PeerNote):
        return "not there"
    state = note.state + (f" on {place_words(note.assignment)}" if note.assignment else "")
    return f"{state}, drained" if note.drained else state


def _task(note: Note | None) -> str:
    if not isinstance(note, TaskNote):
        return "not there"
    words: list[str] = [note.state]
    if note.peers:
        words.append(f"peers {', '.join(sorted(note.peers))}")
    if note.failures:
        words.append(f"failures {note.failures}")
    if note.backing_off:
        words.append("backing off")
    return ", ".join(words + ([rows(note.counts)] if note.counts else []))


def _job(note: Note | None) -> str:
    if not isinstance(note, JobNote):
        return "not there"
    words: list[str] = [note.status]
    if note.waits_for:
        words.append(f"waits for {note.waits_for} more virtual {plural(note.waits_for, 'peer')}")
    if note.revision > 1:
        words.append(f"revision {note.revision}")
    if note.changing:
        words.append("changing")
    if note.suspended:
        words.append("suspended")
    if note.queued:
        words.append("queued")
    if note.links != "none":
        words.append(f"links {note.links}")
    return ", ".join(words + ([failure_words(note.error)] if note.error else []))


def place_words(assignment: Assignment) -> str:
    """A place on a task in words."""
    return f"{assignment.job}/{assignment.task}, slot {assignment.slot} (assignment {assignment.id})"


# A peer's life


def life(peer: str, past: Iterable[Decided]) -> Iterator[Moment]:
    """Yield everything that a peer did and that happened to it."""
    path = peer_state(peer)
    for decided in past:
        if peer not in concerned_peers(decided):
            continue
        change = next((change for change in decided.changes if change.path == path), None)
        event = decided.event
        if change is None:
            text = f"{summary(event)}: changes nothing"
            state = None
        else:
            text = "; ".join(_turn(peer, decided, change))
            state = _state(change.now)
        yield Moment(decided.n, event.at, kind_of(event), state, text)


def _state(note: Note | None) -> str:
    return note.state if isinstance(note, PeerNote) else "dead"


def _turn(peer: str, decided: Decided, change: Change) -> list[str]:
    """Say what happened to the peer: why it left its task, and which task it has now."""
    before = change.was if isinstance(change.was, PeerNote) else None
    after = change.now if isinstance(change.now, PeerNote) else None
    words = []
    if before is None and isinstance(decided.event, PeerBorn):
        words.append(_birth(decided.event))
    if after is None:
        return [f"dead: {_end(peer, decided)}"]
    if before is not None and before.drained != after.drained:
        words.append("drained: gets no further task" if after.drained else "taken in again")
    elif before is None and after.drained:
        words.append("its host is drained")
    had = before.assignment if before else None
    if after.state == "revoked":
        return [f"revoked: {_end(peer, decided)}" + (f"; had {place_words(had)}" if had else "")]
    if had is not None and after.assignment != had:
        words.append(f"leaves {had.job}/{had.task}: {_release(peer, decided, had)}")
    if after.assignment is not None and (after.assignment != had or not isinstance(decided.event, Drained)):
        words.append(_at_work(peer, decided, after))
    return words


def _birth(event: PeerBorn) -> str:
    where = [f"on {event.host}" if event.host else "", f"process {event.pid}" if event.pid else ""]
    where.append(f"daemon {event.daemon}" if event.daemon else "")
    return ", ".join(["born", *filter(None, where)])


def _end(peer: str, decided: Decided) -> str:
    event = decided.event
    if getattr(event, "peer", None) != peer:
        return summary(event)
    match event:
        case PeerDied():
            return "its pulse vanished"
        case Left():
            return "it left by itself"
        case Evicted():
            return "a user evicted it"
        case GraceEnded():
            return "it did not withdraw in time"
    return "it did not answer the offer in time"


def _at_work(peer: str, decided: Decided, note: PeerNote) -> str:
    assignment = note.assignment
    if assignment is None:
        return note.state
    task = f"{assignment.job}/{assignment.task}"
    words = {
        "acking": f"offered {place_words(assignment)}",
        "active": f"takes {task}",
        "sealing": f"the last to have read all of {task}: seals",
        "waiting": f"has read all there is of {task}: waits for the others",
    }
    if note.state == "waiting" and isinstance(decided.event, Completed) and decided.event.peer == peer:
        return "has sealed, but another peer joined meanwhile: waits"
    return words.get(note.state, note.state)


def _release(peer: str, decided: Decided, had: Assignment) -> str:
    """Say why a peer no longer has its task."""
    event = decided.event
    if getattr(event, "peer", None) == peer and isinstance(event, Declined | TaskFailed):
        return ("cannot run it: " if isinstance(event, Declined) else "gives it up: ") + failure_words(event.error)
    job, task = decided.job_note(had.job), decided.task_note(had.job, had.task)
    if job is not None and job.ended_at is not None:
        return f"the job is {job.status}"
    if task is not None and task.state == "complete":
        return "the task is complete"
    return f"preempted, since {summary(event)}"


_COMES_BACK = "its daemon brings it back under a new id; `sardonyx peers drain` takes peers out for good"


class Eviction(msgspec.Struct, frozen=True):
    """What happened to an evicted peer and to its task."""

    peer: str
    state: str
    task: str | None
    """``job/task``; None if it had none."""
    lines: list[str]


def eviction(decided: Decided) -> Eviction:
    """Say what the event that removed a peer has done."""
    event = decided.event
    peer = str(getattr(event, "peer", ""))
    state = _state(decided.peer_note(peer))
    why = "" if isinstance(event, Evicted) else f" ({summary(event)}, before a user could evict it)"
    lines = [f"peer {peer} is {state}{why}"]
    held = decided.held
    if held is None:
        return Eviction(peer, state, None, [*lines, f"it had no task; {_COMES_BACK}"])
    task = f"{held.job}/{held.task}"
    note = decided.task_note(held.job, held.task)
    if note is not None:
        offered = [name for name in sorted(note.peers) if decided.peer_note(name) is not None]
        if offered:
            lines.append(f"its task {task} is offered to {', '.join(offered)}")
        elif note.peers:
            lines.append(f"its task {task} goes on with {', '.join(sorted(note.peers))}")
        else:
            lines.append(f"no peer works on its task {task} until one is free")
    return Eviction(peer, state, task, [*lines, _COMES_BACK])


# What went wrong with a job


def revision_lines(made: RevisionMade) -> list[str]:
    """Say who changed a job, when and what, in a line or more."""
    by = f" by {made.by}" if made.by else ""
    parts = [
        f"{word} {listed(names)}"
        for word, names in (("added", made.added), ("removed", made.removed), ("changed", made.changed))
        if names
    ]
    parts += ["other code"] if made.code else []
    lines = [
        f"revision {made.revision}  {clock(made.at)}  entry {made.n}{by}: {'; '.join(parts) or 'settings of the job'}"
    ]
    if made.at_time:
        lines.append(f"  {made.at_time}")
    if made.given_up:
        why = f": {failure_words(made.error)}" if made.error is not None else ""
        lines.append(f"  given up{why}")
    elif made.done is None:
        lines.append("  not made yet")
    else:
        stayed = f"; {listed(made.went_on)} went on meanwhile" if made.went_on else ""
        lines.append(f"  took over after {duration(max(made.done - made.at, 0.0))}{stayed}")
    if made.taken_back is not None and made.error is not None:
        lines.append(f"  taken back {clock(made.taken_back)}, as revision {made.revision + 1}: {made.error.cause}")
    for task, topics in made.since.items():
        for topic, offsets in topics.items():
            at = ", ".join(f"{number}: {offset}" for number, offset in enumerate(offsets) if offset is not None)
            what = "that is removed had read up to" if task in made.removed else "works by it from"
            lines.append(f"  task {task} {what} offsets {{{at}}} of topic {topic}")
    return lines


def timeline_line(item: TimelineEvent, *, ended: bool) -> str:
    """Say in one line what happened and how the job continued. ``ended``: whether the job has ended by now."""
    if item.kind == "coordinator":
        return f"coordinator {item.leader} had taken over (its first entry in the log)"
    words = [f"peer {item.peer} {_mishap(item)}"]
    if item.fatal:
        words.append("which failed the job")
    elif item.by or item.others or item.resumed_by:
        words += _continued(item)
    elif ended:
        words.append(f"no peer took its place on task {item.task} before the job ended")
    else:
        words.append(f"no peer has taken its place on task {item.task} yet")
    return ", ".join(words)


def _mishap(item: TimelineEvent) -> str:
    error = failure_words(item.error) if item.error is not None else ""
    match item.kind:
        case "died":
            return "died"
        case "left":
            return "left"
        case "evicted":
            return "was evicted by a user"
        case "unanswered":
            return f"did not answer the offer of task {item.task}"
        case "declined":
            return f"could not run task {item.task} ({error})"
    count = "" if item.fatal or not item.failures else f", failure {item.failures}"
    return f"gave task {item.task} up ({error}{count})"


def _continued(item: TimelineEvent) -> Iterator[str]:
    """How the task went on, and when the place was filled: the task did not wait for that if it had, or got, another peer."""
    filled = f"after {duration(item.after or 0.0)}{_backoff(item)}"
    if item.others:
        yield f"task {item.task} went on with {', '.join(item.others)}{' meanwhile' if item.by else ''}"
    elif item.resumed_by:
        yield f"task {item.task} resumed by {item.resumed_by} after {duration(item.resumed_after or 0.0)}"
    else:
        yield f"task {item.task} resumed by {item.by} {filled}"
        return
    if item.by:
        yield f"and {item.by} took the place of {item.peer} {filled}"


def _backoff(item: TimelineEvent) -> str:
    return "" if item.backoff is None else f" ({duration(item.backoff)} of them backing off)"
