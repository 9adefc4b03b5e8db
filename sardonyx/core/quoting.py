"""Errors without what they may quote of records, for deployments whose errors must hold no personal data. Pure.

Nothing tells which part of a text comes from a record: a user's function puts it into the message of its exception, and so do
pyarrow and drivers of databases. So nothing is searched for. A text is shown if its code is one of those whose texts Sardonyx
makes of names, addresses and numbers alone; of other errors, what cannot come from a record is shown.
"""

from __future__ import annotations

import re

import msgspec

from sardonyx.core.errors import Failure

HIDDEN = "not shown: peer.quote_records is false"
"""What stands in place of a text that may quote a record."""

_HARMLESS = re.compile(
    r"SX-(CHECKPOINT|CODE|CONFIG|COORDINATOR|DATABASE-(DENIED|DRIVER|PASSWORD|UNREACHABLE)|FN-(ANNOTATION|IMPORT|NAME|PARAMS)"
    r"|INPUT-(CHANGED|DELETED|ENCODING|LARGE|MISSING|OPTION|POSITIONS|RECREATED)|JAVA|JOB|KAFKA-(?!REJECTED)|LINK|METRICS"
    r"|OUTPUT-(AWAY|CODEC|FULL|LOST|NOT|POSITIONS)|PEER|REGISTRY|RESUME|SECRET|SENTINEL|SIGNED|SLOT|SPARK-START"
    r"|STATE-(DISK|DRIVER|FULL|HELD|LIMIT|POSITIONS|SHARDS)|TELEMETRY|TRACES|VERSION|ZOOKEEPER)\b"
)
_PLACES = {"connector", "cycle", "database", "function", "job", "lifecycle", "line", "link", "offset"}
_PLACES |= {"partition", "path", "peer", "registry", "setting", "state", "table", "task", "topic"}
"""Keys of ``where`` whose values are names of the job, or places."""
_RAISES = ("SX-FN-RAISED", "SX-FN-LIFECYCLE", "SX-STATE-RAISED", "SX-CONNECTOR-RAISED")
_RAISED = re.compile(r".*? raised [\w.]+")
"""How the messages of these begin: with names of the job, and the class of an exception."""
_FRAME = re.compile(r'  File "[^"\n]*", line \d+, in \S+\n(    .*\n)?', re.MULTILINE)
"""A frame of a traceback, with its line of the source. (That of a syntax error names no function, and its line may be data.)"""


def without_records(failure: Failure) -> Failure:
    """An error that quotes no record: its code, its places and the frames of its traceback stay. Applied again it changes
    nothing.
    """
    if _HARMLESS.match(failure.code):
        return failure
    raised = _RAISED.match(failure.message) if failure.code in _RAISES else None
    return msgspec.structs.replace(
        failure,
        message=raised[0] if raised else f"what this error says is {HIDDEN}",
        cause=HIDDEN,
        fix="look at the record where it lies, if `where` names topic, partition and offset, or path and line",
        traceback=frames_of(failure.traceback),
        where={key: value for key, value in failure.where.items() if key in _PLACES},
    )


def frames_of(traceback: str) -> str:
    """The frames of a traceback, without the messages of its exceptions."""
    return "".join(found[0] for found in _FRAME.finditer(f"{traceback}\n"))
