"""Maven, which builds and fetches what some opponents need."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def failed(*arguments: str | Path) -> str | None:
    """Why Maven did not do what it was told; None: it did."""
    maven = shutil.which("mvn")
    if maven is None:
        return "Maven makes what it needs, and there is no mvn on the PATH"
    done = subprocess.run([maven, "-q", "-B", *arguments], capture_output=True, text=True, check=False)
    if not done.returncode:
        return None
    said = next((line for line in done.stdout.splitlines() if "ERROR" in line), "it said nothing")
    return f"Maven failed: {said}"
