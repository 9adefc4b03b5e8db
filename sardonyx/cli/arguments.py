"""Arguments that several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

from sardonyx.core.errors import SardonyxError
from sardonyx.core.units import seconds

Spec = Annotated[
    str, typer.Argument(metavar="SPEC", help="FILE.py, FILE.py:job, MODULE:job, a YAML or TOML file, or -.")
]
JobId = Annotated[
    str, typer.Argument(metavar="ID", help="A job's id, the beginning of it, or its name: the latest job of that name.")
]
Timeout = Annotated[
    str | None, typer.Option("--timeout", metavar="DURATION", help='How long to wait, for example "60 s".')
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask whether results may be published again.")]


def duration_of(text: str | None, flag: str = "--timeout") -> float | None:
    """A duration from the command line in seconds. Raises ``SX-USAGE``."""
    if text is None:
        return None
    try:
        return seconds(text)
    except ValueError as error:
        raise SardonyxError("SX-USAGE", str(error), fix=f'write for example {flag} "60 s"') from None
