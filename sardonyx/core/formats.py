"""What the release before this one reads, and how it is served while both run: during a rolling upgrade. Pure.

Delete this module when no release reads format 4 any more.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import FORMAT, OLDEST, JobSubmitted, Request, UserEvent, encode_event, kind_of
from sardonyx.core.graph import has_end
from sardonyx.core.secrets import refers
from sardonyx.core.spec import JobSpec, function_of

_REQUESTS = {
    "ack": {"peer", "assignment"},
    "decline": {"peer", "assignment", "error"},
    "exhausted": {"peer", "assignment"},
    "completed": {"peer", "assignment", "counts"},
    "failed": {"peer", "assignment", "error", "fatal"},
    "leave": {"peer"},
    "submit": {"job", "spec"},
    "kill": {"job"},
    "purge": {"job", "dead_letters"},
    "letters-claimed": {"job", "task", "letters"},
    "evict": {"peer"},
}
"""The fields of each request in format 4."""
_SPARED = {"by", "positions", "passing"}
"""Fields of later formats without which a request means the same, or nearly so."""
_JOB = {"name", "workflow", "catalog", "routes", "partitions", "failure_limit", "code", "doc"}
_TASK = {
    *("name", "type", "connector", "options", "fn", "params", "consumption", "min_peers", "max_peers", "batch_size"),
    *("batch_timeout", "on_error", "group_by", "lifecycle", "fuse", "doc"),
}
_NEWER_OPTIONS: dict[str, set[str]] = {"kafka": {"end_marker"}, "files": {"roll"}}
"""Options of connectors that format 4 does not know. Its readers would ignore them without a word."""


def encode_request(event: Request, known: int = FORMAT, oldest: int = FORMAT) -> bytes:
    """A request as a coordinator reads it whose newest format is ``known``.

    Args:
        event: the request.
        known: the newest format that each coordinator reads which leads, or can lead next.
        oldest: the newest format that each coordinator reads which stands for election. As long as one of an older release does,
            the leader keeps to what that release decides, and its peers to what they read. So users cannot ask for more.

    Raises:
        SardonyxError: ``SX-VERSION-REQUEST``: the older release does not know what is asked.
    """
    oldest = min(known, oldest)
    if oldest >= FORMAT or (known >= FORMAT and not isinstance(event, UserEvent)):
        return encode_event(event)
    kind, defaults = kind_of(event), _defaults(type(event))
    fields = _REQUESTS.get(kind, set())
    said = {name for name, value in msgspec.structs.asdict(event).items() if value != defaults.get(name)}
    newer = said - fields - _SPARED - {"at"}
    if not fields or newer or (isinstance(event, JobSubmitted) and spec_format(event.spec) > oldest):
        raise SardonyxError(
            "SX-VERSION-REQUEST",
            "a coordinator is of an older release, and does not know what is asked",
            cause=f"it reads format {oldest}, and the request ({', '.join([kind, *sorted(newer)])}) needs format {FORMAT}",
            fix="upgrade all coordinators first; `sardonyx upgrade --check` shows who runs which release",
        )
    if known >= FORMAT:
        return encode_event(event)
    return encode_event(msgspec.structs.replace(event, **{name: defaults[name] for name in said & _SPARED - fields}))


def spec_format(spec: JobSpec) -> int:
    """The oldest format whose readers know all that a job uses: :data:`OLDEST`, or this release's."""
    job = msgspec.structs.asdict(spec)
    defaults = _defaults(JobSpec)
    inputs = [task for task in spec.catalog if task.type == "input"]
    newer = {name for name, value in job.items() if name not in _JOB and value != defaults.get(name)}
    if any(route.bounds is not None for route in spec.routes.values()):
        newer.add("bounds")
    for task in spec.catalog:
        defaults = _defaults(type(task))
        fields = msgspec.structs.asdict(task)
        newer |= {name for name, value in fields.items() if name not in _TASK and value != defaults.get(name)}
        if task.connector in _NEWER_OPTIONS:
            newer |= _NEWER_OPTIONS[task.connector] & task.options.keys()
        if refers(task.params) or refers(task.options):  # a reader of format 4 would take the reference for the value
            newer.add("secrets")
        if any(map(function_of, task.params.values())):
            newer.add("functions in params")
        if task.type == "input" and task.options.get("end") == "marker":
            newer.add("end")
        if task.type == "output" and task.connector == "files" and not all(map(has_end, inputs)):
            newer.add("roll")  # files of an unbounded job roll by default
    return FORMAT if newer else OLDEST


@cache
def _defaults(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """The defaults of a struct's fields, of those that have one."""
    found = {field.name: field for field in msgspec.structs.fields(struct)}
    return {
        name: field.default_factory() if field.default is msgspec.NODEFAULT else field.default
        for name, field in found.items()
        if not field.required
    }
