"""``sardonyx job submit|list|show|explain|await|stop|kill``, and ``check``, which needs no cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from sardonyx.cli import report
from sardonyx.cli.call import SILENCE, Call, connected, local
from sardonyx.core.errors import Interrupted, JobFailed, SardonyxError, SetupError
from sardonyx.core.text import counted, listed, plural
from sardonyx.core.units import duration, seconds

if TYPE_CHECKING:
    from coordinator.history.timeline import TimelineEvent
    from sardonyx.client.client import Client, JobHandle
    from sardonyx.client.views import JobView, Why
    from sardonyx.core.plan import JobPlan
    from sardonyx.core.spec import JobSpec

Spec = Annotated[
    str, typer.Argument(metavar="SPEC", help="FILE.py, FILE.py:job, MODULE:job, a YAML or TOML file, or -.")
]
JobId = Annotated[
    str, typer.Argument(metavar="ID", help="A job's id, the beginning of it, or its name: the latest job of that name.")
]
Timeout = Annotated[
    str | None, typer.Option("--timeout", metavar="DURATION", help='How long to wait, for example "60 s".')
]

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
LAG_PATIENCE = 10.0
"""Seconds that `job show` waits for Kafka to tell positions and what is unread; twice what one task's links may take."""
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
    from sardonyx.core.spec import encode_spec
    from sardonyx.job.load import load

    loaded = load(spec)
    call.warn(loaded.warnings)
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
                "warnings": loaded.warnings,
                "spec": msgspec.Raw(encode_spec(loaded.spec)),  # equal jobs, equal bytes, however they are written
            }
        )
        return
    call.put(headline(loaded.spec, graph))
    for line in draw(loaded.spec, graph):
        call.put(f"  {line}")
    warned = counted(len(loaded.warnings), "warning")
    call.put(f"it can run, with {warned}" if loaded.warnings else "nothing is wrong with it")


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
            metavar="JOB",
            help="Read each topic from where the task of that name ended in this stopped job.",
        ),
    ] = None,
) -> None:
    """Submit a job and print its id. The coordinator that leads runs it on the peers of the deployment."""
    from sardonyx.job.load import load

    loaded = load(spec)  # reports mistakes in the job without waiting for a cluster
    call.warn(loaded.warnings)
    with call.client() as client:
        before = None if resume else client.read_before(loaded.spec)
        handle = client.submit(loaded, resume)
        data: dict[str, Any] = {"id": handle.id}
        if not call.json:
            call.put(handle.id)
        if before is not None:
            ended, topics = before
            data["reads_again"] = {"job": ended.id, "topics": topics}
            call.say(_reads_again(ended.status(live=False), topics))
        waits = handle.waits_for()
        if waits:
            data["waits_for"] = waits
        if call.json:
            call.put_json(data)
        elif waits:
            call.say(waits)


def _reads_again(job: JobView, topics: Mapping[str, Any]) -> str:
    each = listed(f"{topic} from start={start!r}" for topic, start in topics.items())
    if job.status in ("stopped", "completed") and not job.resumed_by:
        how = f"submit with `--resume {job.id}`"
    else:
        how = f"give the offsets that `sardonyx job show {job.id}` shows"
    return (
        f"job {job.id} of the same name has read {plural(len(topics), 'this topic', 'these topics')} before, and this job reads "
        f"{plural(len(topics), 'it', 'them')} again: {each}. To go on where that job ended, {how}"
    )


def list_jobs(call: Call) -> None:
    """List the jobs of the deployment, the latest first."""
    from sardonyx.cli.tables import jobs_table

    with call.client() as client:
        views = client.jobs()
        idle = not client.led()
    if call.json:
        call.put_json(views)
        return
    if views:
        call.console.print(jobs_table(views))
    else:
        call.put(f"no jobs in deployment {call.settings.deployment}")
    if idle:
        call.say("no coordinator leads this deployment")


def show(call: Call, job: JobId, plan: PlanForm = None) -> None:
    """Show a job: its status, its tasks with rows and positions, what went wrong. `job explain` says what it waits for."""
    from sardonyx.cli.event_text import clock
    from sardonyx.cli.history_text import timeline_line
    from sardonyx.cli.tables import job_headline, lag_legend, tasks_table

    with call.client() as client, call.patience("the log to be replayed"):
        handle = client.job(job)
        if plan is not None:
            from sardonyx.core.plan import plan_of

            shown = None if call.json or plan != "text" else handle.status()
            working = None if shown is None or shown.ended else {each.name: each.peers for each in shown.tasks}
            _put_plan(call, plan_of(handle.spec()), plan, working)
            return
        view = _with_lag(call, handle, handle.status())
        waits = None if view.ended else handle.explain(look=False).in_short
        events = _timeline(call, handle)
    if call.json:
        call.put_json({**report.as_data(view), "why": waits, "timeline": events})
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


def _position_lines(view: JobView) -> list[str]:
    """Where each task goes on in its Kafka inputs, as ``start`` takes it."""
    verb = "stopped before" if view.ended else "goes on at"
    return [
        f"task {task.name} {verb} offsets {{{', '.join(f'{number}: {at}' for number, at in enumerate(offsets))}}} "
        f"of topic {topic}"
        for task in view.tasks
        for topic, offsets in task.positions.items()
    ]


def _with_lag(call: Call, handle: JobHandle, view: JobView) -> JobView:
    """The view with positions and what is unread before each task. Says so if Kafka does not tell in time."""
    from sardonyx.client.views import with_lag, with_positions
    from sardonyx.runtime.background import BackgroundThread

    if view.status != "running" or not call.settings.kafka.bootstrap_servers:
        return view
    if any(task.rows_in is None and not task.bound for task in view.tasks):
        call.say("rows, positions and what is unread are not known: Kafka has not answered in time")
        return view
    thread = BackgroundThread("lag")
    positions, lag = thread.submit(handle.positions), thread.submit(handle.lag)
    thread.close()
    try:
        view = with_positions(view, positions.result(LAG_PATIENCE))
        return with_lag(view, lag.result(LAG_PATIENCE))
    except TimeoutError:
        call.say(f"what is unread is not known: Kafka has not answered within {LAG_PATIENCE:.0f} s")
    except SetupError as error:
        call.say(f"what is unread is not known: {error.code}: {error.message}")
    return view


def _timeline(call: Call, handle: JobHandle) -> list[TimelineEvent]:
    """What went wrong with a job. Says so, and gives none, if the log cannot be read."""
    try:
        return handle.timeline()
    except SardonyxError as error:
        call.say(f"the history of the job cannot be read: {error.code}: {error.message}")
        return []


def explain(call: Call, job: JobId) -> None:
    """Show why a job does not run: what is missing, which peers hold it, and since when."""
    with call.client() as client, call.patience("the log to be replayed, and for Kafka"):
        why = _why(client, job)
    found = why.explanation
    if call.json:
        call.put_json({**report.as_data(found), "outside": why.outside})
        return
    from coordinator.core.explain import as_lines

    lines = as_lines(found, time.time())
    handed_in = any(reason.code == "submitted" for reason in why.outside)
    forgotten = found.reasons[0].code == "purged"
    call.put(f"{found.job} is {'submitted' if handed_in else 'purged'}" if handed_in or forgotten else lines[0])
    for reason in why.outside:
        call.put(f"  {reason.text}")
    for line in lines[1:] if not handed_in else ():
        call.put(line)
    if any(reason.code == "runs" for reason in found.reasons):
        call.put(f"  a peer that dies is noticed within {duration(call.settings.zookeeper.session_timeout)}")


def _why(client: Client, job: str) -> Why:
    """Why a job does not run; also of a purged job, if its whole id is given."""
    try:
        return client.job(job).explain()
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
        handle = client.job(job)
        try:
            view = watch_to_end(call, handle, timeout=wait)
        except KeyboardInterrupt:
            call.say(f"stopped waiting; job {handle.id} goes on")
            raise
        return tell_end(call, view)


def stop(call: Call, job: JobId, timeout: Timeout = None) -> int:
    """Stop an unbounded job and wait until it has ended: all that its inputs have read goes through it, and nothing more.

    It also waits until another job can go on from there (`job submit --resume`): the topics of the stopped job are deleted first.
    After --timeout, or after Ctrl-C, the job goes on to stop.
    """
    wait = duration_of(timeout)
    began = time.monotonic()
    with call.client() as client:
        handle = client.job(job)
        before = handle.status(live=False)
        if before.ended:
            return _told(call, before, f"job {before.id} has ended already: {before.status}")
        handle.stop()
        try:
            view = watch_to_end(call, handle, timeout=wait)
        except KeyboardInterrupt:
            call.say(f"job {handle.id} goes on to stop")
            raise
        code = tell_end(call, view)
        if view.status == "stopped":
            _await_resumable(call, handle, None if wait is None else max(0.0, began + wait - time.monotonic()))
        return code


def _await_resumable(call: Call, handle: JobHandle, timeout: float | None) -> None:
    """Say how another job goes on from a stopped one, as soon as it can."""
    known = handle.await_resumable(SILENCE if timeout is None else min(SILENCE, timeout))
    if not known:
        call.say(f"waiting until the topics of job {handle.id} are deleted: only then can another job go on from it")
        known = handle.await_resumable(None if timeout is None else max(0.0, timeout - SILENCE))
    command = f"sardonyx job submit SPEC --resume {handle.id}"
    call.say(f"to go on from here: {command}" if known else f"when they are deleted, go on from here: {command}")


def kill(call: Call, job: JobId) -> int:
    """Kill a job. Everything that it has committed stays."""
    with call.client() as client:
        handle = client.job(job)
        before = handle.status(live=False)
        if before.ended:
            return _told(call, before, f"job {before.id} has ended already: {before.status}")
        handle.kill()
        try:
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


def duration_of(text: str | None, flag: str = "--timeout") -> float | None:
    """A duration from the command line in seconds. Raises ``SX-USAGE``."""
    if text is None:
        return None
    try:
        return seconds(text)
    except ValueError as error:
        raise SardonyxError("SX-USAGE", str(error), fix=f'write for example {flag} "60 s"') from None


def upstream_of(spec: JobSpec) -> Mapping[str, Sequence[str]]:
    """Task name -> the tasks in front of it."""
    found: dict[str, list[str]] = {}
    for source, target in spec.workflow:
        found.setdefault(target, []).append(source)
    return found


def watch_to_end(call: Call, handle: JobHandle, *, timeout: float | None = None) -> JobView:
    """Show progress on stderr until the job has ended. Raises Interrupted ``SX-JOB-TIMEOUT``."""
    from sardonyx.cli.progress import progress

    silence = Silence(handle)
    with progress(call.error_console, upstream_of(handle.spec())) as shown:
        for view in handle.follow(timeout=timeout):
            shown.show(view, silence.remark(view, time.monotonic()))
    return view


class Silence:
    """Finds out what a job waits for when nothing has happened to it for a few seconds."""

    def __init__(self, handle: JobHandle) -> None:
        self._handle = handle
        self._last: object = None
        self._since = 0.0

    def remark(self, view: JobView, now: float) -> str | None:
        """What to say at this moment (seconds, monotonic), if anything."""
        state = (view.status, view.tasks)
        if state != self._last:
            self._last, self._since = state, now
        quiet = now - self._since >= SILENCE
        return self._handle.waiting(view) if quiet or view.waits_for else None


def tell_end(call: Call, view: JobView) -> int:
    """Say how a job ended, and give the exit code for it."""
    error = end_error(view)
    if error is not None:
        call.tell(error, report.as_data(view))
    elif call.json:
        call.put_json(view)
    else:
        from sardonyx.cli.tables import took

        call.put(f"job {view.id} is {view.status}, took {took(view)}")
    return report.exit_code_of(view.status if view.ended else "killed")


def end_error(view: JobView) -> SardonyxError | None:
    """Why a job ended otherwise than it should; None if it completed, or was stopped."""
    if view.status in ("completed", "stopped"):
        return None
    if view.status == "failed" and view.error is not None:
        return JobFailed.from_failure(view.error)
    what = "was killed" if view.ended else "is to be killed, but no coordinator has processed the request yet"
    return Interrupted("SX-JOB-KILLED", f"job {view.id} {what}", where={"job": view.id})
