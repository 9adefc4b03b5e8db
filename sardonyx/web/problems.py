"""Errors over HTTP: ``application/problem+json`` with our code, cause and fix. Pure."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from sardonyx.core.errors import SardonyxError
from sardonyx.core.text import near

STATUS = {
    "SX-WEB-LOGIN": 401,
    "SX-WEB-ROLE": 403,
    "SX-ZOOKEEPER-DENIED": 403,
    "SX-KAFKA-DENIED": 403,
    "SX-JOB-GONE": 410,
    "SX-JOB-ENDED": 409,
    "SX-JOB-BOUNDED": 409,
    "SX-JOB-STATE-LOST": 409,
    "SX-DLQ-RESTORED": 409,
    "SX-JOB-UNKNOWN": 404,
    "SX-JOB-AMBIGUOUS": 404,
    "SX-LOG-RANGE": 404,
    "SX-PEEK-LINK": 404,
    "SX-PEEK-GONE": 409,
    "SX-DLQ-NONE": 404,
    "SX-DLQ-TASK": 404,
    "SX-WEB-ROWS": 403,
    "SX-WEB-BUSY": 503,
    "SX-WEB-PATH": 404,
    "SX-WEB-QUERY": 400,
    "SX-WEB-CURSOR": 410,
    "SX-WEB-HOST": 421,
    "SX-WEB-ORIGIN": 403,
    "SX-WEB-METHOD": 405,
    "SX-WEB-STREAMS": 503,
    "SX-WEB-DISK": 503,
}


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """An error as RFC 9457 has it, with our own fields."""

    type: str
    """``urn:sardonyx:`` and the code."""
    title: str
    status: int
    code: str
    detail: str
    cause: str = ""
    fix: str = ""
    where: dict[str, str] = {}


class Answer(NamedTuple):
    """A problem, ready to be sent."""

    status: int
    problem: Problem

    def encode(self) -> bytes:
        return msgspec.json.encode(self.problem)


def status_of(code: str) -> int:
    """The HTTP status of an error."""
    if code in STATUS:
        return STATUS[code]
    return 503 if code.startswith(("SX-ZOOKEEPER-", "SX-KAFKA-", "SX-CONFIG-")) else 500


def problem_of(error: SardonyxError) -> Answer:
    """An error as an answer."""
    status = status_of(error.code)
    problem = Problem(
        type=f"urn:sardonyx:{error.code}",
        title=error.message,
        status=status,
        code=error.code,
        detail=str(error),
        cause=error.cause,
        fix=error.fix,
        where=error.where,
    )
    return Answer(status, problem)


def no_task(job: str, task: str, known: list[str]) -> SardonyxError:
    """The error for a task that a job does not have."""
    return SardonyxError(
        "SX-WEB-PATH",
        f"job {job} has no task {task!r}{near(task, known)}",
        fix=f"name one of {', '.join(known)}",
        where={"job": job},
    )


def no_method(method: str) -> SardonyxError:
    """The error for a method that an address does not have."""
    return SardonyxError(
        "SX-WEB-METHOD",
        f"the method {method} is not allowed",
        cause="this address does not have it",
        fix="/api/v1/openapi.json lists the methods of each address",
    )


def no_path(path: str) -> SardonyxError:
    """The error for an address at which there is nothing."""
    return SardonyxError(
        "SX-WEB-PATH",
        f"there is nothing at {path}",
        fix="/api/v1/openapi.json lists all addresses of the API; the pages begin at /",
        where={"path": path},
    )
