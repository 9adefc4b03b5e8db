"""A custom connector: a user's class, named as ``module:Class``. Its exceptions become errors that name the connector.

A class can be an input (``splits``, ``read``), an output (``stage``, ``publish``, ``seal``), or an output that keeps
positions itself (:class:`sardonyx.connectors.base.PositionedOutput`). It can also be several of these. Sardonyx creates
an input with the job's options as keyword arguments. An output also gets ``job`` (the job's id) and ``task``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa

from sardonyx.connectors.base import DivisibleInput, Output, PositionedOutput, Split, SplitInput
from sardonyx.connectors.records import to_table
from sardonyx.core.column_types import UnfitTypes
from sardonyx.core.errors import FunctionError
from sardonyx.core.plain_types import plain_table
from sardonyx.core.tracebacks import user_errors

Load = Callable[[str], Callable[..., Any]]
"""Finds the object that ``module:name`` names."""

_NOTHING = pa.schema([])
_INPUT = ("splits", "read")
_OUTPUT = ("stage", "publish", "seal")


def custom_input(reference: str, options: Mapping[str, Any], load: Load) -> CustomInput:
    """Create a user's input.

    Raises:
        FunctionError: ``SX-CONNECTOR-CLASS`` if the class lacks a method of an input; ``SX-CONNECTOR-RAISED``;
            ``SX-FN-IMPORT``.
    """
    return CustomInput(reference, _made(reference, options, load, _INPUT))


def custom_output(
    reference: str, options: Mapping[str, Any], load: Load, *, job: str, task: str
) -> CustomOutput | PositionedOutput:
    """Create a user's output. An output that keeps positions itself is returned as it is.

    Raises:
        FunctionError: as :func:`custom_input`.
    """
    kind = load(reference)
    positioned = hasattr(kind, "begin") and hasattr(kind, "positions")
    made = _made(reference, {**options, "job": job, "task": task}, load, () if positioned else _OUTPUT)
    if not positioned:
        return CustomOutput(reference, made)
    if not isinstance(made, PositionedOutput):
        raise _not_one(reference, "it has begin and positions, but not commit, abandon, seal and reach as well")
    return made


def _made(reference: str, options: Mapping[str, Any], load: Load, methods: Sequence[str]) -> Any:
    kind = load(reference)
    missing = [name for name in methods if not callable(getattr(kind, name, None))]
    if not isinstance(kind, type) or missing:
        raise _not_one(reference, f"it has no {missing[0]}" if missing else "it is not a class")
    with _explained(reference, "it was made"):
        return kind(**options)


class CustomInput:
    """Calls a user's input for Sardonyx. It is sent to Spark workers together with the user's object."""

    def __init__(self, reference: str, inner: SplitInput) -> None:
        self._reference = reference
        self._inner = inner

    def splits(self) -> Iterator[Split]:
        """Yield the user's splits. A plain dict is a split of unknown size."""
        with _explained(self._reference, "splits was called"):
            for found in self._inner.splits():
                yield found if isinstance(found, Split) else Split(dict(found))

    def divide(self, data: dict[str, Any], most: int) -> list[dict[str, Any]] | None:
        """Return the user's parts of a split, if the user's class can divide splits."""
        if not isinstance(self._inner, DivisibleInput):
            return None
        with _explained(self._reference, "divide was called"):
            parts = self._inner.divide(data, most)
            return None if parts is None else [dict(part) for part in parts]

    def read(self, data: dict[str, Any]) -> pa.Table:
        """Return the user's rows as a table. The user may return a list of dicts instead."""
        with _explained(self._reference, "read was called"):
            found: Any = self._inner.read(data)
            if isinstance(found, pa.Table):
                return plain_table(found)
            try:
                return to_table(list(found), _NOTHING)
            except UnfitTypes as error:
                raise error.of(f"the rows of connector {self._reference}", {"connector": self._reference}) from error


class CustomOutput:
    """Calls a user's output for Sardonyx."""

    def __init__(self, reference: str, inner: Output) -> None:
        self._reference = reference
        self._inner = inner

    def stage(self, table: pa.Table) -> list[bytes]:
        with _explained(self._reference, "stage was called"):
            return [bytes(entry) for entry in self._inner.stage(table)]

    def publish(self, entries: Sequence[bytes]) -> None:
        with _explained(self._reference, "publish was called"):
            self._inner.publish(entries)

    def seal(self, entries: Sequence[bytes]) -> None:
        with _explained(self._reference, "seal was called"):
            self._inner.seal(entries)


def _explained(reference: str, when: str) -> AbstractContextManager[None]:
    return user_errors(
        "SX-CONNECTOR-RAISED",
        f"connector {reference}",
        when,
        fix="correct the line that the traceback shows; docs/connectors.md says what a connector must do",
        where={"connector": reference},
    )


def _not_one(reference: str, cause: str) -> FunctionError:
    return FunctionError(
        "SX-CONNECTOR-CLASS",
        f"{reference} cannot be used as a connector here",
        cause=cause,
        fix="write a class with splits and read as an input, or with stage, publish and seal as an output: docs/connectors.md",
        where={"connector": reference},
    )
