"""Every error a user can meet: a stable code, one sentence, the cause, and what to do about it.

The class hierarchy sorts errors by where the fault lies, so that a caller can catch those it can handle. An error
travels between processes as a :class:`Failure` (plain data). It comes back as :class:`JobFailed` with the same code.

``docs/errors.md`` lists the codes with their meaning. A test checks that the list is complete.
"""

from __future__ import annotations

import traceback as tracebacks
from collections.abc import Iterable, Mapping
from typing import Any, Self

import msgspec

from sardonyx.core.text import shorten
from sardonyx.core.wire_types import ready_for_threads


@ready_for_threads
class Failure(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The wire form of an error: ZooKeeper stores it and ``job show`` prints it.

    ``traceback`` is the user's own traceback, if there is one. It is shown before everything else.
    """

    code: str
    message: str
    cause: str = ""
    fix: str = ""
    traceback: str = ""
    where: dict[str, str] = {}


class SardonyxError(Exception):
    """Root of all errors of Sardonyx.

    Args:
        code: stable identifier such as ``SX-JOB-CYCLE``; never reused with another meaning.
        message: one sentence that says what is wrong.
        cause: why, as far as Sardonyx knows; one or two sentences.
        fix: what the user can do about it.
        traceback: the user's own traceback, if user code raised.
        where: what the error concerns (job, task, peer, topic, partition, offset, path ...).
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        cause: str = "",
        fix: str = "",
        traceback: str = "",
        where: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.cause = cause
        self.fix = fix
        self.traceback = traceback
        self.where = {key: str(value) for key, value in (where or {}).items()}

    def __str__(self) -> str:
        lines = [f"{self.code}: {self.message}"]
        if self.cause:
            lines.append(f"  cause: {self.cause}")
        if self.fix:
            lines.append(f"  fix:   {self.fix}")
        return "\n".join(lines)

    @classmethod
    def from_failure(cls, failure: Failure) -> Self:
        """The error that a failure describes."""
        return cls(
            failure.code,
            failure.message,
            cause=failure.cause,
            fix=failure.fix,
            traceback=failure.traceback,
            where=failure.where,
        )

    def to_failure(self) -> Failure:
        """This error as plain data, for ZooKeeper and for ``--json``."""
        return Failure(self.code, self.message, self.cause, self.fix, self.traceback, self.where)

    @property
    def opening(self) -> str:
        """The message without its full stop, for a text that goes on after it."""
        return self.message.removesuffix(".")

    @property
    def problems(self) -> list[SardonyxError]:
        """The single errors in a collection; an error that is no collection gives itself."""
        return [self]


class JobInvalid(SardonyxError):
    """The job as written cannot run. Holds every problem found, not just the first."""

    def __init__(self, problems: Iterable[SardonyxError]) -> None:
        found = list(problems)
        first = found[0]
        super().__init__(
            first.code,
            first.message if len(found) == 1 else f"{first.message} (and {len(found) - 1} more)",
            cause=first.cause,
            fix=first.fix,
            traceback=first.traceback,
            where=first.where,
        )
        self._problems = found

    @property
    def problems(self) -> list[SardonyxError]:
        return list(self._problems)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self._problems)


class SpecUnreadable(SardonyxError):
    """The file that should describe a job is missing, raises, or holds no job."""


class SetupError(SardonyxError):
    """The machine or the cluster lacks something that it must provide: Java, ZooKeeper, Kafka, a setting."""


class InputError(SardonyxError):
    """A job's input does not hold what the job says it holds."""


class OutputError(SardonyxError):
    """Sardonyx cannot write a job's result where the job says."""


class FunctionError(SardonyxError):
    """The user's function raised, could not be imported, or returned something that is not a batch of records."""


class JobFailed(SardonyxError):
    """A job failed. Carries the code and the first traceback of the error that failed it."""


class Interrupted(SardonyxError):
    """A wait ended without its result: it timed out or was killed."""


class InternalError(SardonyxError):
    """A rule of Sardonyx itself was broken. This is always a bug, and it always stops the work in progress."""


def refuse_newer(what: str, version: int, known: int) -> None:
    """Raises ``SX-BLOCK-FORMAT`` if what stands on a link has a form that this release does not read."""
    if version > known:
        raise SetupError(
            "SX-BLOCK-FORMAT",
            f"{what} on a link have format {version}, and this release reads format {known}",
            cause="a newer release of Sardonyx wrote them",
            fix="upgrade this installation; `sardonyx upgrade --check` shows who runs which release",
        )


TEXT_KEPT = 2_000
"""Characters kept of each sentence of a failure: a record that was quoted may be large."""
TRACEBACK_KEPT = 8_000
"""Characters kept of a traceback: its end, where the reason stands."""


def failure_of(error: BaseException, *, where: Mapping[str, Any] | None = None) -> Failure:
    """Any exception as a :class:`Failure`; one that is not ours becomes ``SX-UNEXPECTED`` with its traceback.

    Cuts the texts to the length that one entry of the coordinator's log can hold.
    """
    if isinstance(error, SardonyxError):
        failure = error.to_failure()
    else:
        failure = Failure(
            "SX-UNEXPECTED",
            f"{type(error).__name__}: {error}",
            traceback="".join(tracebacks.format_exception(error)),
            fix="this is not an error that Sardonyx knows; please report it with this traceback",
        )
    return msgspec.structs.replace(
        failure,
        message=shorten(failure.message, TEXT_KEPT),
        cause=shorten(failure.cause, TEXT_KEPT),
        fix=shorten(failure.fix, TEXT_KEPT),
        traceback=failure.traceback[-TRACEBACK_KEPT:],
        where={**{k: str(v) for k, v in (where or {}).items()}, **failure.where},
    )
