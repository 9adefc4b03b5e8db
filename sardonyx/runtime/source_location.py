"""Where in the user's own code Sardonyx was called: for messages that point at the user's line."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_OURS = "sardonyx"


@dataclass(frozen=True)
class SourceLocation:
    """A line of the user's code."""

    file: Path | None
    """None in an interactive session."""
    module: str
    """The name under which the module can be imported; ``__main__`` in an interactive session."""
    line: int

    def __str__(self) -> str:
        return f"{self.file or '<interactive session>'}:{self.line}"

    def where(self) -> dict[str, str]:
        """The fields ``path`` and ``line`` of an error."""
        return {"path": str(self.file), "line": str(self.line)} if self.file else {}


def calling_code() -> SourceLocation:
    """The line outside of this package that made the present call."""
    frame = inspect.currentframe()
    while frame is not None and _is_ours(str(frame.f_globals.get("__name__", ""))):
        frame = frame.f_back
    scope: Mapping[str, Any] = frame.f_globals if frame is not None else {}
    module_spec = scope.get("__spec__")
    name = module_spec.name if scope.get("__name__") == "__main__" and module_spec else scope.get("__name__")
    file = scope.get("__file__")
    line = frame.f_lineno if frame is not None else 0
    return SourceLocation(Path(file).absolute() if file else None, str(name or "__main__"), line)


def _is_ours(module: str) -> bool:
    return module == _OURS or module.startswith(f"{_OURS}.")
