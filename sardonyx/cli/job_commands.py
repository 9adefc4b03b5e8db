"""``sardonyx job submit|list|show|explain|await|stop|kill``, and ``check``, which needs no cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from sardonyx.cli import report
from sardonyx.cli.arguments import JobId, Spec, Timeout, duration_of
from sardonyx.cli.call import LOG_AND_KAFKA, SILENCE, Call, connected, local
from sardonyx.cli.job_end import end_error, tell_end, watch_to_end
from sardonyx.cli.publishing_again import ask
from sardonyx.cli.unread import unusable_settings, with_unread
from sardonyx.core.errors import Failure, Interrupted, JobFailed, SardonyxError
from sardonyx.core.text import counted, listed, plural
from sardonyx.core.units import duration

if TYPE_CHECKING:
    from coordinator.history.revisions import RevisionMade
    from coordinator.history.timeline import TimelineEvent
    from sardonyx.client.client import Client, JobHandle
    from sardonyx.client.reasons import Why
    from sardonyx.client.views import JobView
    from sardonyx.core.plan import JobPlan

Form = Literal["text", "mermaid", "dot", "json"]
"""How a plan is shown."""
PlanForm = Annotated[
    Form | None,
    typer.Option(
        "--plan",
        metavar="FORM",
        help="Show how the job runs: operators, by what rule rows go between them, peers. text, mermaid, dot or json.",
    ),
]

MOST_TIMELINE_EVENTS = 20
"""Timeline events that `job show` tells people of."""
KILL_PATIENCE = 15.0
"""Seconds that `job kill` waits for the coordinator to carry it out."""


def register(app: typer.Typer, job_app: typer.Typer) -> None:
    """Put the commands where they belong."""
    local(app, "check")(check)
    connected(job_app, "submit")(submit)
    connected(job_app, "list")(list_jobs)
    connected(job_app, "show", kafka=True)(show)
    connected(job_app, "explain", kafka=True)(explain)
    connected(job_app, "await", kafka=True)(await_job)
    connected(job_app, "stop", kafka=True)(stop)
    connected(job_app, "kill")(kill)


def check(call: Call, spec: Spec, plan: PlanForm = None) -> None:
    """Validate a job without any service, and draw its graph."""
    from sardonyx.cli.graph_text import draw, headline
    from sardonyx.core.graph import graph_of
    from sardonyx.core.secrets import masked
    from sardonyx.core.spec import encode_spec
    from sardonyx.job.load import load

    loaded = load(spec)
    unusable = _unusable(call)
    warnings = [*loaded.warnings, *([unusable.to_failure()] if unusable else [])]
    call.warn(warnings)
    if plan is not None:
        _put_plan(call, loaded.plan, plan)
        return
    graph = graph_of(loaded.spec, "default", loaded.spec.name)
    if call.json:
        call.put_json(
            {
                "name": loaded.spec.name,
                "valid": True,
                "bounded": graph.bounded,
                "tasks": graph.order,
                "links": [link.name for link in graph.links],
                "warnings": warnings,
                # Equal jobs, equal bytes, however they are written.
                "spec": masked(msgspec.json.decode(encode_spec(loaded.spec))),
            }
        )
        return
    call.put(headline(loaded.spec, graph))
    for line in draw(loaded.spec, graph):
        call.put(f"  {line}")
    warned = counted(len(loaded.warnings), "warning")
    if unusable is not None:
        call.put(f"no job can run with the settings given here ({unusable.code}); of the job itself there is {warned}")
    else:
        call.put(f"it can run, with {warned}" if loaded.warnings else "nothing is wrong with it")


def _unusable(call: Call) -> SardonyxError | None:
    """What is wrong with the settings here: no mistake of the job, so `check` only warns of it."""
    try:
        return unusable_settings(call)
    except SardonyxError as error:
        return error


def _put_plan(call: Call, plan: JobPlan, form: Form, working: Mapping[str, int] | None = None) -> None:
    """``working``: of a job that has not ended, how many peers each task has now."""
    if call.json or form == "json":
        call.put_json(plan)
        return
    from sardonyx.cli.plan_text import lines_of

    for line in lines_of(plan, form, working):
        call.put(line)


def submit(
    call: Call,
    spec: Spec,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="JOB[@TIME]",
            help="Read each topic from where the task of that name ended in this stopped job; with a time, go on from the last "
            "checkpoint of this ended job at or before it.",
        ),
    ] = None,
    *,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="With JOB@TIME: do not ask whether results may be published again.")
    ] = False,
    to_end: Annotated[
        bool, typer.Option("--await", help="Wait until the job has ended; the exit code says how, as of `job await`.")
    ] = False,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="DURATION", help='With --await: how long to wait, for example "2 h".'),
    ] = None,
) -> int:
    """Submit a job and print its id. The coordinator that leads runs it on the peers of the deployment.

    It waits a few seconds for the job to begin. If the job cannot, it says why, and exits as `job await` does.
    """
    wait = duration_of(timeout)
    if wait is not None and not to_end:
        raise SardonyxError("SX-USAGE", "--timeout says how long --await waits", fix="add --await, or leave it out")
    from sardonyx.job.load import load

    loaded = load(spec)  # reports mistakes in the job without waiting for a cluster
    call.warn(loaded.warnings)
    if unusable := unusable_settings(call):
        call.say_once(unusable.to_failure(), "warning: peers and coordinators with these settings do not start: ")
    with call.client() as client:
        before = None if resume else client.read_before(loaded.spec)
        if resume is not None and "@" in resume:
            name, _, time = resume.partition("@")
            back = client.job_to_resume(name).going_back(time)
            ask(call, back, yes=yes)
            with call.patience(f"the topics of job {back.job} to be deleted, and the coordinator"):
                handle = client.submit(loaded, back.job, back.at)
        else:
            with call.patience(
                f"the topics of job {resume} to be deleted, and the coordinator" if resume else "ZooKeeper"
            ):
                handle = client.submit(loaded, resume)
        data: dict[str, Any] = {"id": handle.id}
        if not call.json:
            call.put(handle.id)
        if before is not None:
            ended, topics = before
            data["reads_again"] = {"job": ended.id, "topics": topics}
            refusal = next((each.failure for each in ended.diff(loaded).refusals if each.way == "resume"), None)
            call.say(_reads_again(ended.status(live=False), topics, refusal))
        waits = handle.waits_for()
        if waits:
            data["waits_for"] = waits
        view = handle.status(live=False)
        error = end_error(view) if view.status == "failed" else None
        if error is not None:  # it could not begin, such as without its input topic
            call.tell(error, data)
            return report.exit_code(error)
        if waits and (to_end or not call.json):
            call.say(waits)
        if to_end:
            return _to_end(call, handle, wait)
        if call.json:
            call.put_json(data)
        return 0


def _reads_again(job: JobView, topics: Mapping[str, Any], refusal: Failure | None) -> str:
    """``refusal``: why the new job cannot resume the ended one; None: it can."""
    each = listed(f"{topic} from start={start!r}" for topic, start in topics.items())
    if refusal is None:
        how = f"submit with `--resume {job.id}`"
    else:
        how = f"give the offsets that `sardonyx job show {job.id}` shows; it cannot be resumed: {refusal.message}"
    return (
        f"job {job.id} of the same name has read {plural(len(topics), 'this topic', 'these topics')} before, and this job reads "
        f"{plural(len(topics), 'it', 'them')} again: {each}. To go on where that job ended, {how}"
    )


def list_jobs(
    call: Call,
    all_attempts: Annotated[
        bool, typer.Option("--all", help="Also list attempts that were refused before a later attempt of that name.")
    ] = False,
) -> None:
    """List the jobs of the deployment, the latest first."""
    from sardonyx.cli.tables import jobs_table

    with call.client() as client:
        views = client.jobs()
        hidden = set() if all_attempts else client.superseded_attempts()
        idle = not client.led()
    shown = [view for view in views if view.id not in hidden]
    if call.json:
        call.put_json(shown)
        return
    if shown:
        call.console.print(jobs_table(shown))
        if len(shown) < len(views):
            attempts = counted(len(views) - len(shown), "attempt")
            them = plural(len(views) - len(shown), "it", "them")
            verb = plural(len(views) - len(shown), "was", "were")
            call.say(f"{attempts} {verb} refused, and a later attempt was made: --all lists {them} too")
    else:
        call.put(f"no jobs in deployment {call.settings.deployment}")
    if idle:
        call.say("no coordinator leads this deployment")


def show(
    call: Call,
    job: JobId,
    plan: PlanForm = None,
    changes: Annotated[
        bool, typer.Option("--changes", help="Show who changed the job, when, what, and from which offsets on.")
    ] = False,
    cycles: Annotated[
        bool, typer.Option("--cycles", help="Show its loops: what is on its way in them, and what may still come.")
    ] = False,
) -> None:
    """Show a job: its status, its tasks with rows and positions, what went wrong. `job explain` says what it waits for."""
    from sardonyx.cli.event_text import clock
    from sardonyx.cli.history_text import timeline_line
    from sardonyx.cli.tables import job_headline, lag_legend, tasks_table

    with call.client() as client, call.patience(LOG_AND_KAFKA):
        handle = call.job(client, job)
        if changes:
            from sardonyx.client.change import revisions

            _put_changes(call, revisions(client, handle.id))
            return
        if cycles:
            from sardonyx.cli.cycle_text import put_cycles

            put_cycles(call, handle.cycles())
            return
        if plan is not None:
            from sardonyx.core.plan import plan_of

            shown = None if call.json or plan != "text" else handle.status()
            working = None if shown is None or shown.ended else {each.name: each.peers for each in shown.tasks}
            _put_plan(call, plan_of(handle.spec()), plan, working)
            return
        view = with_unread(call, handle, handle.status())
        waits = None if view.ended else handle.explain(look=False).in_short
        events = _timeline(call, handle)
        later = client.later_attempt(job, handle.id) if call.json else None
    if call.json:
        call.put_json({**report.as_data(view), "why": waits, "timeline": events, "later_attempt": later})
        return
    call.console.print(job_headline(view))
    if waits:
        call.console.print(waits, style="yellow", markup=False)
    call.console.print(tasks_table(view.tasks, ended=view.ended))
    for line in lag_legend(task.lag for task in view.tasks if task.lag):
        call.put(line)
    for line in _position_lines(view):
        call.put(line)
    if events:
        call.put("what happened")
    if len(events) > MOST_TIMELINE_EVENTS:
        call.put(f"  the last {MOST_TIMELINE_EVENTS} of {len(events):,}; --json gives all")
    for item in events[-MOST_TIMELINE_EVENTS:]:
        call.put(f"  {clock(item.at)}  {timeline_line(item, ended=view.ended)}")
    if view.error is not None:
        call.put("")
        call.put(report.error_text(JobFailed.from_failure(view.error)))


def _put_changes(call: Call, made: Sequence[RevisionMade]) -> None:
    from sardonyx.cli.history_text import revision_lines

    if call.json:
        call.put_json(made)
        return
    for each in made:
        for line in revision_lines(each):
            call.put(line)
    if not made:
        call.put("the job was never changed")


def _position_lines(view: JobView) -> list[str]:
    """Where each task goes on in its Kafka inputs, as ``start`` takes it."""
    verb = "stopped before" if view.ended else "goes on at"
    return [
        f"task {task.name} {verb} offsets {{{', '.join(f'{number}: {at}' for number, at in enumerate(offsets))}}} "
        f"of topic {topic}"
        for task in view.tasks
        for topic, offsets in task.positions.items()
    ]


def _timeline(call: Call, handle: JobHandle) -> list[TimelineEvent]:
    """What went wrong with a job. Says so, and gives none, if the log cannot be read."""
    try:
        return handle.timeline()
    except SardonyxError as error:
        call.say(f"the history of the job cannot be read: {error.code}: {error.message}")
        return []


def explain(call: Call, job: JobId) -> None:
    """Show why a job does not run: what is missing, which peers hold it, and since when."""
    with call.client() as client, call.patience(f"{LOG_AND_KAFKA}; slow tasks are looked at twice"):
        why = _why(call, client, job)
    found = why.explanation
    if call.json:
        call.put_json({**report.as_data(found), "outside": why.outside})
        return
    from coordinator.core.explanation import as_lines

    lines = as_lines(found, time.time())
    handed_in = any(reason.code == "submitted" for reason in why.outside)
    forgotten = found.reasons[0].code == "purged"
    call.put(f"{found.job} is {'submitted' if handed_in else 'purged'}" if handed_in or forgotten else lines[0])
    for reason in why.outside:
        call.put(f"  {reason.text}")
        if reason.fix:
            call.put(f"    fix: {reason.fix}")
    for line in lines[1:] if not handed_in else ():
        call.put(line)
    if any(reason.code == "runs" for reason in found.reasons):
        call.put(f"  a peer that dies is noticed within {duration(call.settings.zookeeper.session_timeout)}")


def _why(call: Call, client: Client, job: str) -> Why:
    """Why a job does not run; also of a purged job, if its whole id is given."""
    try:
        return call.job(client, job).explain()
    except SardonyxError as error:
        if error.code != "SX-JOB-UNKNOWN":
            raise
        why = client.explain(job, look=False)
        if why.explanation.reasons[0].code == "unknown":
            raise
        return why


def await_job(call: Call, job: JobId, timeout: Timeout = None) -> int:
    """Wait until a job has ended. Exit code 0: completed or stopped, 1: failed, 3: killed, 4: timed out."""
    wait = duration_of(timeout)
    with call.client() as client:
        return _to_end(call, call.job(client, job), wait)


def _to_end(call: Call, handle: JobHandle, wait: float | None) -> int:
    try:
        view = watch_to_end(call, handle, timeout=wait)
    except KeyboardInterrupt:
        call.say(f"stopped waiting; job {handle.id} goes on")
        raise
    return tell_end(call, view)


def stop(
    call: Call,
    job: JobId,
    timeout: Timeout = None,
    *,
    close_windows: Annotated[
        bool,
        typer.Option("--close-windows", help="End it as if its inputs had an end: open windows give their results."),
    ] = False,
    discard_state: Annotated[
        bool,
        typer.Option("--discard-state", help="Stop it also if no job can go on with its open windows and states."),
    ] = False,
) -> int:
    """Stop an unbounded job and wait until it has ended: all that its inputs have read goes through it, and nothing more.

    Open windows and states are kept for the job that goes on from there (`job submit --resume`), unless you close the windows.
    Of a job from which none can go on, they would be lost: it asks first, and without a terminal it refuses.

    It also waits until the other job can go on: the topics of the stopped one are deleted first. After --timeout or Ctrl-C,
    the job goes on to stop.
    """
    wait = duration_of(timeout)
    began = time.monotonic()
    with call.client() as client:
        handle = call.job(client, job)
        before = handle.status(live=False)
        if before.ended:
            if call.json:
                call.put_json(before)
                return report.COMPLETED
            return _told(call, before, f"job {before.id} has ended already: {before.status}")
        _ask_to_stop(call, handle, close_windows=close_windows, discard_state=discard_state)
        try:
            view = watch_to_end(call, handle, timeout=wait)
        except KeyboardInterrupt:
            call.say(f"job {handle.id} goes on to stop")
            raise
        code = tell_end(call, view)
        if view.status == "stopped":
            left = None if wait is None else max(0.0, began + wait - time.monotonic())
            _await_resumable(call, client, handle, left, closed=close_windows)
        return code


def _ask_to_stop(call: Call, handle: JobHandle, *, close_windows: bool, discard_state: bool) -> None:
    """Request the stop. On a terminal, a user may agree that states are lost. With ``discard_state``, say what is discarded."""
    from sardonyx.client.stopping import discarded_by

    lost = ""
    if discard_state and not close_windows:
        with call.patience("the count of what is discarded"):
            lost = discarded_by(handle, call.settings.deployment)
    try:
        handle.stop(close_windows=close_windows, discard_state=discard_state)
    except SardonyxError as error:
        if error.code != "SX-JOB-STATE-LOST" or not sys.stdin.isatty():
            raise
        call.say(f"{error.opening}: {error.cause}")
        if not typer.confirm("Stop it all the same?", err=True):
            raise
        handle.stop(discard_state=True)
    if lost:
        call.say(f"the stop discards {lost}, as counted right before it")


def _await_resumable(call: Call, client: Client, handle: JobHandle, timeout: float | None, *, closed: bool) -> None:
    """Say how another job goes on from a stopped one, as soon as it can, or that none can."""
    from sardonyx.client.stopping import goes_on_by, known_of

    known = handle.await_resumable(SILENCE if timeout is None else min(SILENCE, timeout))
    if not known:
        call.say(f"waiting until the topics of job {handle.id} are deleted: only then can another job go on from it")
        known = handle.await_resumable(None if timeout is None else max(0.0, timeout - SILENCE))
    words = goes_on_by(handle.id, handle.spec(), known_of(client, handle.id) if known else None, closed=closed)
    call.say(words if known else f"when they are deleted: {words}")


def kill(call: Call, job: JobId) -> int:
    """Kill a job. Everything that it has committed stays."""
    with call.client() as client:
        handle = call.job(client, job)
        before = handle.status(live=False)
        if before.ended:
            return _told(call, before, f"job {before.id} has ended already: {before.status}")
        handle.kill()
        try:
            with call.patience("the coordinator to process it"):
                view = handle.await_completion(KILL_PATIENCE)
        except (Interrupted, JobFailed) as error:
            if error.code == "SX-JOB-TIMEOUT":
                raise SardonyxError(
                    "SX-JOB-KILL-PENDING",
                    f"The kill of job {handle.id} was requested, but no coordinator has processed it yet.",
                    cause=error.cause,
                    fix="start a coordinator (`sardonyx coordinator`) if none leads; it then kills the job",
                    where={"job": handle.id},
                ) from error
            view = handle.status(live=False)
        return _told(call, view, f"job {view.id} is {view.status}")


def _told(call: Call, view: JobView, text: str) -> int:
    if call.json:
        call.put_json({"id": view.id, "status": view.status})
    else:
        call.put(text)
    return report.COMPLETED
