"""What stands at the ends of a job, at run time: the code behind the media that a spec names.

How a user declares a medium is in :mod:`sardonyx.media`, what options each accepts in :mod:`sardonyx.options`; kafka, which is
read and written by the links' own reader and transaction, only has its formats here.
"""

from __future__ import annotations

from typing import Any

from queues.media.base import Output, PositionedOutput, SplitInput, TopicFormat
from queues.media.blackhole import Blackhole
from queues.media.console import Console
from queues.media.files import FilesInput
from queues.media.files_output import FilesOutput
from queues.media.formats import JsonFormat, RawFormat
from queues.media.generator import Generator
from queues.media.jdbc_input import JdbcInput
from queues.media.jdbc_output import JdbcOutput
from queues.media.own import Load, own_input, own_output
from queues.media.registered import AvroFormat, ProtobufFormat
from sardonyx.errors import InternalError
from sardonyx.functions import import_function
from sardonyx.media import is_own
from sardonyx.schema import arrow_schema
from sardonyx.spec import TaskSpec

__all__ = ["output", "split_input", "topic_format"]


def split_input(task: TaskSpec, load: Load = import_function) -> SplitInput:
    """What an input task reads in pieces.

    Args:
        task: the input task.
        load: finds a user's own medium.

    Raises:
        InputError: its options do not fit together.
        FunctionError: a user's own medium is none, or raises.
    """
    match task.medium:
        case "files":
            return FilesInput(task.options)
        case "generator":
            return Generator(task.options)
        case "jdbc":
            return JdbcInput(task.options)
        case str(own) if is_own(own):
            return own_input(own, task.options, load)
        case other:
            raise InternalError("SX-BUG-MEDIUM", f"medium {other!r} of task {task.name!r} is not read in pieces")


def output(
    task: TaskSpec, job: str, deployment: str = "default", load: Load = import_function
) -> Output | PositionedOutput:
    """Where an output task's results go if not into a topic.

    Args:
        task: the output task.
        job: the job's id: what it writes aside lies under that name.
        deployment: of the cluster; two of them may write to one database.
        load: finds a user's own medium.

    Raises:
        OutputError: its options do not fit together.
        FunctionError: a user's own medium is none, or raises.
    """
    match task.medium:
        case "files":
            return FilesOutput(task.options, job, task.name)
        case "jdbc":
            return JdbcOutput(task.options, deployment, job, task.name)
        case "blackhole":
            return Blackhole()
        case "console":
            return Console(task.options, task.name)
        case str(own) if is_own(own):
            return own_output(own, task.options, load, job=job, task=task.name)
        case other:
            raise InternalError("SX-BUG-MEDIUM", f"medium {other!r} of task {task.name!r} is not written in pieces")


def topic_format(options: dict[str, Any], registry: str | None = None) -> TopicFormat:
    """How rows stand as records on the topic of a ``kafka`` medium.

    Args:
        options: of the medium: format, schema, key, and what the format has besides.
        registry: the schema registry that is asked if the options name none.

    Raises:
        SetupError: the format needs a registry and there is none, or nothing that talks to it.
    """
    key = options.get("key")
    match options.get("format", "json"):
        case "raw":
            return RawFormat(key)
        case "avro":
            return AvroFormat(options, registry)
        case "protobuf":
            return ProtobufFormat(options, registry)
    ddl = options.get("schema")
    return JsonFormat(None if ddl is None else arrow_schema(ddl), key)
