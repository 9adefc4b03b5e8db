"""How the command ends and what it says about it: exit codes, errors as text and as JSON. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from sardonyx.core.errors import SardonyxError

COMPLETED = 0
FAILED = 1
USAGE = 2
KILLED = 3
TIMED_OUT = 4

_CODES = {"SX-JOB-KILLED": KILLED, "SX-JOB-TIMEOUT": TIMED_OUT}
_BY_STATUS = {"completed": COMPLETED, "stopped": COMPLETED, "failed": FAILED, "killed": KILLED}


def exit_code(error: SardonyxError) -> int:
    """Return the exit code for an error. 2: flags or settings cannot be understood; 3: killed; 4: timed out; 1: any other."""
    if error.code.startswith("SX-CONFIG-") or error.code == "SX-USAGE":
        return USAGE
    return _CODES.get(error.code, FAILED)


def exit_code_of(status: str) -> int:
    """The exit code for how a job ended."""
    return _BY_STATUS.get(status, FAILED)


def error_text(error: SardonyxError) -> str:
    """Every problem: the user's own traceback first, then code, message, cause and what to do."""
    parts = []
    for problem in error.problems:
        if problem.traceback:
            parts.append(problem.traceback.rstrip() + "\n")
        parts.append(str(problem))
    if len(error.problems) > 1:
        parts.append(f"{len(error.problems)} problems")
    return "\n".join(parts)


def error_json(error: SardonyxError) -> dict[str, Any]:
    """The same as data: the first problem, and all of them under ``problems`` if there are several."""
    first = _plain(error.problems[0])
    if len(error.problems) > 1:
        first["problems"] = [_plain(problem) for problem in error.problems]
    return {"error": first}


def to_json(value: Any) -> str:
    """One line of JSON."""
    return msgspec.json.encode(value).decode()


def as_data(value: msgspec.Struct) -> dict[str, Any]:
    """A view as a dict that can be added to."""
    data: dict[str, Any] = msgspec.to_builtins(value)
    return data


def _plain(error: SardonyxError) -> dict[str, Any]:
    return {
        "code": error.code,
        "message": error.message,
        "cause": error.cause,
        "fix": error.fix,
        "traceback": error.traceback,
        "where": error.where,
    }
