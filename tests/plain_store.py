"""The store of a user's own that docs/state.md shows, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_PAGE = (Path(__file__).parents[1] / "docs/state.md").read_text("utf-8")
(CODE,) = re.findall(r"```python\n(# stores\.py\n.*?)```", _PAGE, re.S)
"""The module ``stores``."""


def plain_store() -> Any:
    """Its class."""
    module: dict[str, Any] = {}
    exec(CODE, module)  # noqa: S102 - it is a page of ours
    return module["PlainStore"]
