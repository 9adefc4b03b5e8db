"""The values of secrets that specs refer to: read where they are used, and never shown by the process that has read them.

A spec holds a reference in place of a secret: ``{"$env": "API_KEY"}`` or ``{"$file": "/run/secrets/api_key"}``. What an error
may quote of records is left out here, too, where the settings say so.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from sardonyx.core.errors import Failure, SetupError
from sardonyx.core.graph import Stage
from sardonyx.core.quoting import without_records
from sardonyx.core.secrets import Secret, Secrets, reference, refers
from sardonyx.core.spec import TaskSpec

KNOWN = Secrets()
"""All that this process has read."""


@dataclass
class Quoting:
    """What this process may quote of records."""

    records: bool = True
    """Whether its errors, and the lines that it logs, may quote them: ``peer.quote_records``."""


QUOTING = Quoting()


def resolved(stage: Stage) -> Stage:
    """A stage with the secrets of its tasks in place of the references to them.

    Raises:
        SetupError: ``SX-SECRET-MISSING``: there is no such variable, or the file cannot be read.
    """
    if not any(refers(task.params) or refers(task.options) for task in (stage.task, *stage.fused)):
        return stage
    return msgspec.structs.replace(stage, task=_task(stage.task), fused=[_task(task) for task in stage.fused])


def unquoted(failure: Failure) -> Failure:
    """An error whose texts quote no secret that this process has read, and no record if it may not quote them."""
    if not QUOTING.records:
        failure = without_records(failure)
    if not KNOWN:
        return failure
    return msgspec.structs.replace(
        failure,
        message=KNOWN.text(failure.message),
        cause=KNOWN.text(failure.cause),
        fix=KNOWN.text(failure.fix),
        traceback=KNOWN.text(failure.traceback),
        where={key: KNOWN.text(value) for key, value in failure.where.items()},
    )


def unquoted_text(text: str, code: str = "") -> str:
    """The same of a message alone. ``code``: of its error; by default the one that the text begins with, if it does."""
    if not QUOTING.records:
        text = without_records(Failure(code or text.partition(":")[0], text)).message
    return KNOWN.text(text)


def _task(task: TaskSpec) -> TaskSpec:
    return msgspec.structs.replace(task, params=_value(task.params, task.name), options=_value(task.options, task.name))


def _value(value: Any, task: str) -> Any:
    found = reference(value)
    if found is not None:
        read = _read(found, task)
        KNOWN.learn(read, secret=True)
        return read
    if isinstance(value, dict):
        return {key: _value(inner, task) for key, inner in value.items()}
    return [_value(inner, task) for inner in value] if isinstance(value, list) else value


def _read(secret: Secret, task: str) -> str:
    if secret.kind == "env":
        value = os.environ.get(secret.name)
        if value is None:
            raise _missing(task, f"the environment variable {secret.name}", "it is not set for the daemon")
        return value
    try:
        return Path(secret.name).read_text("utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise _missing(task, f"the file {secret.name}", str(error)) from error


def _missing(task: str, what: str, cause: str) -> SetupError:
    return SetupError(
        "SX-SECRET-MISSING",
        f"task {task} takes a secret from {what}, which cannot be read",
        cause=cause,
        fix="give it to every peer daemon, and start those again that are to have a new variable",
        where={"task": task},
    )
