"""Methods of the builder that collect wrong arguments in the job's problems, instead of raising for the first."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from sardonyx.core.errors import SardonyxError
from sardonyx.runtime.arguments import match_arguments


class Collecting(ABC):
    """Keeps the problems that its methods find, for all to be raised together."""

    @abstractmethod
    def _collect(self, problems: Iterable[SardonyxError], task: str | None) -> None:
        """Keep problems; ``task``: whose they are."""


C = TypeVar("C", bound=Collecting)
P = ParamSpec("P")
R = TypeVar("R")


def collects(method: Callable[Concatenate[C, P], R]) -> Callable[Concatenate[C, P], R]:
    """Let a method of a job or its graph collect wrong arguments. All but ``__init__`` have the name of a task among them."""
    signature = inspect.signature(method)
    signature = signature.replace(parameters=list(signature.parameters.values())[1:])  # all but self
    is_task = method.__name__ != "__init__"
    owner = "graph" if method.__qualname__.startswith("GraphView.") else "job"
    called = f"{owner}.{method.__name__}()" if is_task else "Job()"

    @wraps(method)
    def collected(self: C, /, *args: P.args, **kwargs: P.kwargs) -> R:
        values, problems = match_arguments(signature, args, kwargs, called=called, code="SX-JOB-FIELD")
        given = method(self, **values)  # type: ignore[call-arg]  # all parameters, by name
        self._collect(problems, task=values["name"] if is_task else None)
        return given

    return collected


__all__ = ["Collecting", "collects"]
