"""How the log looks: lines for people or JSON, on standard error, with what is bound in context on every line.

Code that works on something binds it, ``structlog.contextvars.bind_contextvars(job=..., task=..., peer=..., n=...)``, and
then every line that is logged meanwhile carries it.
"""

from __future__ import annotations

import io
import logging
import re
import sys
import traceback
from collections import Counter
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog

from sardonyx.core.quoting import HIDDEN, frames_of
from sardonyx.core.secrets import MASK, is_secret
from sardonyx.runtime.daemon_metrics import LINES
from sardonyx.runtime.secret_values import KNOWN, QUOTING, unquoted_text
from sardonyx.runtime.settings import Settings
from sardonyx.runtime.this_process import THIS


def configure_logging(settings: Settings, *, stream: TextIO | None = None) -> None:
    """Set up logging for this process; may be called again.

    Args:
        settings: ``log.format`` and ``log.level``. Libraries that use the standard library's logging (kazoo, py4j) come
            through the same way, from warnings upwards.
        stream: where to; standard error if not given. Colours only on a terminal.
    """
    out = stream or sys.stderr
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _count,
        *([] if THIS.role == "client" or settings.log.format == "console" else [_whose(settings.deployment)]),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        mask_secrets,
        hide_records,
    ]
    final: list[structlog.typing.Processor]
    if settings.log.format == "json":
        # Local variables stay out: they hold records, and at times secrets.
        frames = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        final = [
            structlog.processors.ExceptionRenderer(frames),
            _mask_exception,
            structlog.processors.JSONRenderer(default=str),
        ]
    else:
        final = [
            structlog.dev.ConsoleRenderer(
                colors=out.isatty(), exception_formatter=_masked_traceback, pad_event_to=0, pad_level=False
            )
        ]
    structlog.configure(
        processors=[*shared, *final],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[settings.log.level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,  # a cached logger would keep what is configured before
    )
    _route_standard_logging(shared, final, out)


def _count(_: Any, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor: counts the line."""
    LINES.add(level="error" if level in ("exception", "critical", "fatal") else level)
    return event


def _whose(deployment: str) -> structlog.typing.Processor:
    """A structlog processor: the line says which process of which deployment wrote it. What the line itself says stays."""

    def said(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        return {**THIS.facts(deployment), **event}

    return said


def mask_secrets(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor: no line holds a value whose key names a secret, a password in a URL, or a secret that was read."""
    for key, value in event.items():
        if value and is_secret(key):
            event[key] = MASK
        elif isinstance(value, str):
            event[key] = KNOWN.text(value)
    return event


def _mask_exception(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor: the same of an exception, once it is data."""
    if "exception" in event:
        event["exception"] = KNOWN.plain(event["exception"])
    return event


def _masked_traceback(out: TextIO, exc_info: Any) -> None:
    """The same of an exception that is shown as text."""
    told = io.StringIO()
    structlog.dev.plain_traceback(told, exc_info)
    out.write(KNOWN.text(told.getvalue()))


_SAID = ("error", "cause", "line", "traceback")
"""Fields that hold what an exception, or another program, says."""
_OF_SERVICES = (
    "kafka_",
    "zookeeper_",
    "offsets_",
    "telemetry_",
    "unread_rows_",
    "clocks_",
    "report_",
    "group_",
    "consumer_",
)
"""How events begin whose texts come from ZooKeeper and Kafka, and say nothing of records."""


def hide_records(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor: if this process may not quote records, no line holds a text that may; frames stay."""
    if QUOTING.records:
        return event
    raised = event.pop("exc_info", None)
    if raised is True:
        raised = sys.exc_info()
    if isinstance(raised, tuple):
        raised = raised[1]
    if isinstance(raised, BaseException):
        event["frames"] = frames_of("".join(traceback.format_exception(raised)))
    record = event.get("_record")  # of a library, and what it says may be what a JVM, or a user's code, said
    if record is not None and not record.name.startswith("kazoo"):
        event["event"] = f"a line of {record.name}, {HIDDEN}"
    if not str(event.get("event")).startswith(_OF_SERVICES):
        for key in _SAID:
            if isinstance(said := event.get(key), str):
                event[key] = frames_of(said) if key == "traceback" else unquoted_text(said, event.get("code", ""))
    return event


def _route_standard_logging(
    shared: list[structlog.typing.Processor], final: list[structlog.typing.Processor], out: TextIO
) -> None:
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


class Collected(logging.Handler):
    """Collects what a client library logs while it tries to connect, for the cause of an error. None of it is shown.

    Args:
        decoration: what the library puts around the reason; it is cut off.
    """

    def __init__(self, decoration: re.Pattern[str] | None = None) -> None:
        super().__init__(logging.WARNING)
        self._decoration = decoration
        self._messages: Counter[str] = Counter()
        self.logger = logging.Logger("connectivity")  # noqa: LOG001 - outside the hierarchy, so nothing is passed on
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        self._messages[self._decoration.sub("", message) if self._decoration else message] += 1

    def most(self) -> str:
        """The most frequent message; empty if there is none."""
        return max(self._messages, key=self._messages.__getitem__, default="")
