"""The deployment and one job as the pages show them, from the coordinator's state and what was seen beside it. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from coordinator.core.explain import explain
from coordinator.core.explanation import Code, Explanation, Reason
from coordinator.core.state import Job, State
from coordinator.history.timeline import TimelineEvent
from sardonyx.client.lags import LinkLag
from sardonyx.client.reasons import HOLDING, Outside, Why
from sardonyx.client.verdict import Word
from sardonyx.client.views import JobView, ViewStatus, job_view, laid_out
from sardonyx.core.events import ENDED, PeerState
from sardonyx.core.text import counted
from sardonyx.core.units import duration
from sardonyx.web.book import Book
from sardonyx.web.graph_view import GraphView, graph_view
from sardonyx.web.shelf import Line
from sardonyx.web.sight import Sample, Samples, Standing

ENDED_SHOWN = 20
"""Ended jobs on the page of the deployment; the list of jobs has all."""
ENTRIES = 12
"""Entries of the log on the page of a job."""
LATELY = 600.0
"""Seconds in which deaths of one machine are counted together."""
LATE_REQUEST = 5.0
"""Seconds after which a request that no coordinator has processed is a sign that the coordinator is stalled."""

OLD = 120.0
"""Seconds after which what Kafka said of a job draws no attention any more."""
LATE_WORDS: dict[Word, str] = {"stuck": "task-stuck", "bottleneck": "task-bottleneck", "behind": "task-behind"}
"""The verdicts on a task that draw attention, with their codes. What the log says is told by reasons."""

HELP: dict[str, str] = {
    "no-live-peers": "sardonyx peer",
    "peers-missing": "sardonyx peer --virtual-peers {needed}",
    "starved-by-unbounded-jobs": "sardonyx peer",
    "queued-behind": "sardonyx cluster policy",
    "peers-too-old": "sardonyx upgrade --check",
    "task-backing-off": "sardonyx job show {job}",
    "failed": "sardonyx job show {job}",
    "refused": "sardonyx job show {job}",
    "not-led": "sardonyx coordinator",
    "suspended": "sardonyx job resume {job}",
}
"""By the code of a reason, the command that would help or tell more. For the others it is the first one in the reason's fix."""


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """Something that needs a look."""

    level: Literal["bad", "warn"]
    code: str
    text: str
    job: str = ""
    task: str = ""
    since: float | None = None
    """Seconds since 1970."""
    help: str = ""
    """A command that would help or tell more."""


class JobLine(msgspec.Struct, frozen=True, kw_only=True):
    """One job in a list."""

    id: str
    name: str
    status: ViewStatus
    stopping: bool
    suspended: bool
    queued: bool
    tasks: int
    complete: int
    peers: int
    submitted_at: float
    ended_at: float | None
    by: str
    why: str
    """What keeps it from going on; empty if nothing does."""


class DaemonLine(msgspec.Struct, frozen=True, kw_only=True):
    """One peer daemon, by what its virtual peers registered with."""

    daemon: str
    host: str
    pid: int
    version: str
    tags: list[str]
    peers: int
    at_work: int
    jobs: list[str]


class ClusterOverview(msgspec.Struct, frozen=True, kw_only=True):
    """A whole deployment after one entry of its log."""

    n: int
    at: float | None
    live: bool
    """Whether this is the present."""
    standing: Standing
    attention: list[Attention]
    """The weightiest first."""
    peers: dict[PeerState, int]
    """How many virtual peers are in each state."""
    daemons: list[DaemonLine]
    jobs: list[JobLine]
    """The latest first; of those that have ended only the last few."""
    ended: dict[str, int]
    """How many ended jobs are kept, by how they ended."""
    scheduler: str


class ShownReason(msgspec.Struct, frozen=True, kw_only=True):
    """A reason of ``why``, with what would help."""

    code: str
    text: str
    holds: bool
    """Whether it keeps the job, or a part of it, from going on."""
    since: float | None = None
    task: str | None = None
    help: str = ""


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """Something that went wrong while the job ran, as data and in a sentence."""

    event: TimelineEvent
    text: str


class JobOverview(msgspec.Struct, frozen=True, kw_only=True):
    """A job after one entry of the log, with all that its page shows."""

    n: int
    at: float | None
    live: bool
    standing: Standing
    job: JobView
    graph: GraphView
    why: Why
    reasons: list[ShownReason]
    timeline: list[Incident]
    """The latest first."""
    entries: list[Line]
    """The last entries of the log about it, the newest first."""
    lags: list[LinkLag] | None
    """None: not known, or not recorded for that moment."""
    sampled_at: float | None = None
    """When Kafka was asked for rows and lags."""
    problem: str = ""
    """Why they are not known."""
    every: float | None = None
    """Seconds between two questions to Kafka."""


def view_of(state: State, name: str, job: Job) -> JobView:
    """A job as clients see it, from the coordinator's state alone: rows are known of complete tasks only."""
    return job_view(
        name,
        job.spec,
        laid_out(job.spec, state.deployment, name),
        job.note(),
        {task: each.note() for task, each in job.tasks.items()},
    )


def cluster_overview(
    book: Book, state: State, standing: Standing, now: float, glances: Mapping[str, Samples] = {}
) -> ClusterOverview:
    """Show the deployment as it is in ``state``.

    Args:
        book: the log.
        state: after the entry to be shown.
        standing: of the page.
        now: the time of that moment, seconds since 1970.
        glances: by running job, what Kafka has said of it lately; nothing in the past, of which it was not recorded.
    """
    live = state.n == book.last
    running = {name: job for name, job in state.jobs.items() if not job.ended}
    ended = {name: job for name, job in state.jobs.items() if job.ended}
    why = {name: explain(state, name, who=False) for name in running}
    shown = [*running, *sorted(ended, key=lambda name: ended[name].ended_at or 0.0)[-ENDED_SHOWN:]]
    return ClusterOverview(
        n=state.n,
        at=book.time_of(state.n),
        live=live,
        standing=standing,
        attention=list(_attention(book, state, standing if live else None, why, now, glances)),
        peers={found: len(peers) for found, peers in state.by_state.items() if peers and found != "dead"},
        daemons=_daemons(state),
        jobs=sorted(
            (_job_line(name, state.jobs[name], why.get(name)) for name in shown),
            key=lambda line: (line.ended_at is None, line.submitted_at),
            reverse=True,
        ),
        ended=dict(Counter(job.status for job in ended.values())),
        scheduler=state.scheduler,
    )


def job_lines(state: State) -> list[JobLine]:
    """Every job that is kept, the latest first."""
    return [
        _job_line(name, job, None if job.ended else explain(state, name, who=False))
        for name, job in reversed(state.jobs.items())
    ]


def job_overview(
    book: Book, state: State, name: str, standing: Standing, samples: Samples | None, now: float, every: float | None
) -> JobOverview:
    """Show a job as it is in ``state``.

    Args:
        book: the log.
        state: after the entry to be shown.
        name: the job's id; it is in ``state``.
        standing: of the page.
        samples: what Kafka has said; not used for the past, of which it was not recorded.
        now: the time of that moment, seconds since 1970.
        every: seconds between two questions to Kafka.
    """
    job = state.jobs[name]
    live = state.n == book.last
    sample = samples.last if samples is not None and live else None
    view = view_of(state, name, job)
    if sample is not None and not job.ended:
        view = _with_counts(view, sample.view)
    explanation = explain(state, name)
    outside = _outside(standing, now) if live and not job.ended else []
    lags = sample.lags if sample is not None and not job.ended else None
    graph = graph_view(state, name, job, view, lags, samples if live else None)
    outside += [Outside("held", hold.text) for hold in graph.held]
    return JobOverview(
        n=state.n,
        at=book.time_of(state.n),
        live=live,
        standing=standing,
        job=view,
        graph=graph,
        why=Why(explanation, outside),
        reasons=[*_reasons(name, outside, explanation)],
        timeline=[
            Incident(event=event, text=book.words.incident(event, job.ended))
            for event in reversed(book.timeline(name, state.n))
        ],
        entries=book.about(name, state.n, ENTRIES),
        lags=lags,
        sampled_at=sample.at if sample is not None else None,
        problem="" if sample is None else sample.problem,
        every=every if live else None,
    )


# Underneath


def _with_counts(view: JobView, counted: JobView) -> JobView:
    """The view with the row counts of another one of the same job, which is a moment older."""
    rows = {task.name: task for task in counted.tasks}
    tasks = [
        msgspec.structs.replace(
            task,
            rows_in=rows[task.name].rows_in,
            rows_out=rows[task.name].rows_out,
            skipped=rows[task.name].skipped,
            late=rows[task.name].late,
            dead=rows[task.name].dead,
            positions=rows[task.name].positions,
        )
        if task.name in rows and task.rows_in is None and task.rows_out is None
        else task
        for task in view.tasks
    ]
    return msgspec.structs.replace(view, tasks=tasks)


def _outside(standing: Standing, now: float) -> list[Outside]:
    if standing.source != "live" or not standing.connected:
        return []
    if standing.leader is None:
        return [Outside("not-led", "no coordinator leads this deployment; start one with `sardonyx coordinator`")]
    waited = 0.0 if standing.oldest_request is None else now - standing.oldest_request
    if waited < LATE_REQUEST:
        return []
    many = f"{counted(standing.requests, 'request')} {'is' if standing.requests == 1 else 'are'}"
    text = f"{many} not processed, for {duration(waited)}; look at the log of the coordinator on {standing.leader}"
    return [Outside("backlog", text)]


def _reasons(job: str, outside: Iterable[Outside], explanation: Explanation) -> Iterator[ShownReason]:
    for each in outside:
        yield ShownReason(
            code=each.code,
            text=each.text,
            holds=each.code != "held",  # the job goes on
            help=_help(each.code, job),
        )
    for reason in explanation.reasons:
        yield ShownReason(
            code=reason.code,
            text=reason.text,
            holds=reason.code in HOLDING,
            since=reason.since,
            task=reason.task,
            help=_help(reason.code, job, reason),
        )


def _help(code: str, job: str, reason: Reason | None = None) -> str:
    if code not in HELP and reason is not None:
        return next(iter(re.findall(r"`(sardonyx [^`]+)`", reason.fix)), "")
    return HELP.get(code, "").format(job=job, needed=(reason.needed if reason else None) or 1)


def _attention(
    book: Book,
    state: State,
    standing: Standing | None,
    why: dict[str, Explanation],
    now: float,
    glances: Mapping[str, Samples],
) -> Iterator[Attention]:
    found = []
    if standing is not None:
        found += [
            Attention(level="bad", code=each.code, text=each.text, help=_help(each.code, ""))
            for each in _outside(standing, now)
        ]
    for name, explanation in why.items():
        for reason in explanation.reasons:
            if reason.code in HOLDING and reason.code != "topics-creating":
                stands: Code = reason.code
                found.append(
                    Attention(
                        level="warn" if stands in ("task-backing-off", "unanswered") else "bad",
                        code=stands,
                        text=reason.text,
                        job=name,
                        task=reason.task or "",
                        since=reason.since,
                        help=_help(stands, name, reason),
                    )
                )
    for name, job in state.jobs.items():
        if job.status == "failed" and now - (job.ended_at or 0.0) < LATELY * 6:
            code = job.error.code if job.error is not None else "SX-JOB-FAILED"
            text = f"failed: {code}" + (f": {job.error.message}" if job.error is not None else "")
            found.append(
                Attention(level="bad", code=code, text=text, job=name, since=job.ended_at, help=_help("failed", name))
            )
        if job.letters:
            found.append(_letters(name, job.letters))
    for name in why:
        found += _of_glance(state, name, glances.get(name), now)
    found += _kafka_away(glances, now)
    found += _deaths(book, state, now)
    yield from sorted(found, key=lambda each: (each.level != "bad", each.since or now))


def _of_glance(state: State, name: str, samples: Samples | None, now: float) -> Sequence[Attention]:
    """Tasks of a running job that are late or stuck, and its dead letters, by what Kafka said of it last."""
    sample = None if samples is None else samples.last
    if samples is None or sample is None or now - sample.at > OLD:
        return ()
    # the page of the deployment is made at every change of any job, and this one's graph only when Kafka has told again
    return samples.judged(sample, lambda: list(_late_or_dead(state, name, samples, sample)))


def _late_or_dead(state: State, name: str, samples: Samples, sample: Sample) -> Iterator[Attention]:
    job = state.jobs[name]
    view = _with_counts(view_of(state, name, job), sample.view)
    for node in graph_view(state, name, job, view, sample.lags, samples).nodes:
        if node.verdict.word in LATE_WORDS:
            yield Attention(
                level="bad" if node.verdict.level == "bad" else "warn",
                code=LATE_WORDS[node.verdict.word],
                text=f"task {node.name}: {node.verdict.text}",
                job=name,
                task=node.name,
                help=f"sardonyx job explain {name}",
            )
    letters = sum(
        max((task.dead or 0) - job.tasks[task.name].claimed, 0) for task in view.tasks if task.name in job.tasks
    )
    if letters:
        yield _letters(name, letters)


def _letters(job: str, letters: int) -> Attention:
    text = f"{counted(letters, 'dead letter')} not redone or dropped"
    return Attention(level="warn", code="dead-letters", text=text, job=job, help=f"sardonyx dlq list {job}")


def _kafka_away(glances: Mapping[str, Samples], now: float) -> Iterator[Attention]:
    """Kafka does not say how far jobs are."""
    last = [samples.last for samples in glances.values() if samples.last is not None]
    problems = [sample for sample in last if sample.problem and now - sample.at <= OLD]
    if problems:
        text = f"Kafka does not tell how far jobs are: {problems[0].problem}"
        yield Attention(level="bad", code="kafka-away", text=text, help="sardonyx doctor")


def _deaths(book: Book, state: State, now: float) -> Iterator[Attention]:
    """Machines of which several peers died lately."""
    died: dict[str, float] = {}
    for line in book.newest_of(("died", "leave", "evict"), state.n):
        if now - line.at > LATELY:
            break
        for peer in line.peers:
            if line.kind == "died" and line.mark == "incident":
                died[peer] = line.at
            elif line.kind != "died":  # it died because of that
                died.pop(peer, None)
    dead: dict[str, list[float]] = {}
    for peer, at in died.items():
        known = state.peers.get(peer)
        dead.setdefault(known.host if known is not None and known.host else "an unknown machine", []).append(at)
    for host, times in dead.items():
        if len(times) > 1:
            text = f"{counted(len(times), 'virtual peer')} of {host} died within {LATELY / 60:.0f} min"
            yield Attention(level="warn", code="peers-died", text=text, since=min(times), help="sardonyx peers list")


def _daemons(state: State) -> list[DaemonLine]:
    groups: dict[tuple[str, int, str], list[str]] = {}
    for name, peer in state.peers.items():
        if peer.state != "dead":
            groups.setdefault((peer.host, peer.pid, peer.daemon), []).append(name)
    lines = []
    for (host, pid, daemon), names in sorted(groups.items()):
        peers = [state.peers[name] for name in names]
        working = [peer.assignment for peer in peers if peer.assignment is not None]
        lines.append(
            DaemonLine(
                daemon=daemon,
                host=host,
                pid=pid,
                version=peers[0].version,
                tags=sorted({tag for peer in peers for tag in peer.tags}),
                peers=len(peers),
                at_work=len(working),
                jobs=sorted({assignment.job for assignment in working}),
            )
        )
    return lines


def _job_line(name: str, job: Job, why: Explanation | None) -> JobLine:
    holding = () if why is None else (reason.text for reason in why.reasons if reason.code in HOLDING)
    return JobLine(
        id=name,
        name=job.spec.name,
        status=job.status,
        stopping=job.stopping,
        suspended=job.suspended,
        queued=job.queued,
        tasks=len(job.spec.catalog),
        complete=sum(task.state == "complete" for task in job.tasks.values()),
        peers=0 if job.status in ENDED else sum(len(task.peers) for task in job.tasks.values()),
        submitted_at=job.submitted_at,
        ended_at=job.ended_at,
        by=job.by,
        why=next(iter(holding), ""),
    )
