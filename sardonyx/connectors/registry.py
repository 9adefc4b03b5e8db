"""Builds the connector that a task of a job spec names.

:mod:`sardonyx.connectors.declarations` is how a user declares one, :mod:`sardonyx.connectors.options` what options it accepts.
Kafka topics are read and written by :mod:`queues`; only their record formats are connectors.
"""

from __future__ import annotations

from typing import Any

from sardonyx.connectors.base import Output, PositionedOutput, SplitInput, TopicFormat
from sardonyx.connectors.blackhole import Blackhole
from sardonyx.connectors.console import Console
from sardonyx.connectors.custom import Load, custom_input, custom_output
from sardonyx.connectors.files.input import FilesInput
from sardonyx.connectors.files.output import FilesOutput
from sardonyx.connectors.files.roll import DEFAULT, Roll
from sardonyx.connectors.files.rolling import RollingFiles
from sardonyx.connectors.generator import Generator
from sardonyx.connectors.schema import arrow_schema
from sardonyx.connectors.sql.input import SqlInput
from sardonyx.connectors.sql.output import SqlOutput
from sardonyx.connectors.topics.formats import JsonFormat, RawFormat
from sardonyx.connectors.topics.registry_formats import AvroFormat, ProtobufFormat
from sardonyx.core.errors import InternalError
from sardonyx.core.spec import TaskSpec, is_custom
from sardonyx.runtime.functions import import_function
from sardonyx.runtime.settings_sections import SchemaRegistry

__all__ = ["files_output", "output", "read_by_peers", "split_input", "topic_format"]

NO_REGISTRY = SchemaRegistry()


def split_input(task: TaskSpec, load: Load = import_function) -> SplitInput:
    """What an input task reads in pieces.

    Args:
        task: the input task.
        load: finds a user's own connector.

    Raises:
        InputError: its options do not fit together.
        FunctionError: a user's own connector is not a connector, or raises.
    """
    match task.connector:
        case "files":
            return FilesInput(task.options)
        case "generator":
            return Generator(task.options)
        case "sql":
            return SqlInput(task.options)
        case str(reference) if is_custom(reference):
            return custom_input(reference, task.options, load)
        case other:
            raise InternalError("SX-BUG-CONNECTOR", f"connector {other!r} of task {task.name!r} does not read splits")


def read_by_peers(task: TaskSpec) -> bool:
    """Whether a peer reads the splits of an input itself, and not Spark's workers.

    Arrow reads files, and makes generated rows, within milliseconds a split, and lets other threads run meanwhile: less than a
    Spark job costs. A database or a user's own connector may take its time in Python, so they are read by several processes.
    """
    return task.connector in ("files", "generator")


def output(
    task: TaskSpec, job: str, deployment: str = "default", load: Load = import_function, *, bounded: bool = True
) -> Output | PositionedOutput:
    """Where an output task's results go if not into a topic.

    Args:
        task: the output task.
        job: the job's id; staged results are kept under that name.
        deployment: of the cluster; two of them may write to one database.
        load: finds a user's own connector.
        bounded: whether the job ends by itself; files of one that does not hold rows of several batches unless it says otherwise.

    Raises:
        OutputError: its options do not fit together.
        FunctionError: a user's own connector is not a connector, or raises.
    """
    match task.connector:
        case "files":
            return files_output(task, job, bounded=bounded)
        case "sql":
            return SqlOutput(task.options, deployment, job, task.name)
        case "blackhole":
            return Blackhole()
        case "console":
            return Console(task.options, task.name)
        case str(reference) if is_custom(reference):
            return custom_output(reference, task.options, load, job=job, task=task.name)
        case other:
            raise InternalError("SX-BUG-CONNECTOR", f"connector {other!r} of task {task.name!r} does not write pieces")


def files_output(task: TaskSpec, job: str, *, bounded: bool) -> FilesOutput:
    """The folder that an output task writes. Arguments and errors as of :func:`output`."""
    overwrites = task.options.get("mode") == "overwrite"  # then files are published at the end only
    roll = task.options.get("roll", None if bounded or overwrites else DEFAULT)
    if roll is None:
        return FilesOutput(task.options, job, task.name)
    return RollingFiles(task.options, job, task.name, Roll.parse(roll))


def topic_format(options: dict[str, Any], registry: SchemaRegistry = NO_REGISTRY) -> TopicFormat:
    """How rows are written as records on the topic of a ``kafka`` connector. Where no schema declares the types, the records that
    the object reads settle them, in their order: a reader keeps one.

    Args:
        options: of the connector: format, schema, key, and the format's own options.
        registry: the schema registry of the settings, which is asked if the options name none.

    Raises:
        SetupError: the format needs a registry, and its address or its driver is missing.
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
    return JsonFormat(None if ddl is None else arrow_schema(ddl), key, options.get("topic", ""))
