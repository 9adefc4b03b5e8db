"""What stands at the ends of a job, at run time: the code behind the media that a spec names.

How a user declares a medium, and what options it accepts, is in :mod:`sardonyx.media`; kafka, which is read and written by
the links' own reader and transaction, only has its format here.
"""

from __future__ import annotations

from typing import Any

from queues.media.base import Output, SplitInput, TopicFormat
from queues.media.blackhole import Blackhole
from queues.media.files import FilesInput
from queues.media.files_output import FilesOutput
from queues.media.formats import JsonFormat, RawFormat
from queues.media.generator import Generator
from sardonyx.errors import InternalError
from sardonyx.schema import arrow_schema
from sardonyx.spec import TaskSpec

__all__ = ["output", "split_input", "topic_format"]


def split_input(task: TaskSpec) -> SplitInput:
    """What an input task reads in pieces: ``files`` or ``generator``.

    Raises:
        InputError: its options do not fit together.
    """
    match task.medium:
        case "files":
            return FilesInput(task.options)
        case "generator":
            return Generator(task.options)
        case other:
            raise InternalError("SX-BUG-MEDIUM", f"medium {other!r} of task {task.name!r} is not read in pieces")


def output(task: TaskSpec, job: str) -> Output:
    """Where an output task's results go if not into a topic: ``files`` or ``blackhole``.

    Args:
        task: the output task.
        job: the job's id: what it writes aside lies under that name.

    Raises:
        OutputError: its options do not fit together.
    """
    match task.medium:
        case "files":
            return FilesOutput(task.options, job, task.name)
        case "blackhole":
            return Blackhole()
        case other:
            raise InternalError("SX-BUG-MEDIUM", f"medium {other!r} of task {task.name!r} is not written in pieces")


def topic_format(options: dict[str, Any]) -> TopicFormat:
    """How rows stand as records on the topic of a ``kafka`` medium, from its options (format, schema, key)."""
    key = options.get("key")
    if options.get("format", "json") == "raw":
        return RawFormat(key)
    ddl = options.get("schema")
    return JsonFormat(None if ddl is None else arrow_schema(ddl), key)
