"""What a figure was measured on."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path

import psutil


def machine() -> str:
    """What it was measured on, of which commit, and when."""
    gib = round(psutil.virtual_memory().total / 2**30)
    at = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    return f"{os.cpu_count()} cores, {gib} GiB, Python {platform.python_version()}, {COMMIT}, {at} UTC"


def _commit() -> str:
    here = Path(__file__).parent
    said = ["git", "-C", here, "describe", "--always", "--dirty=, changed", "--abbrev=10", "--exclude=*"]
    found = subprocess.run(said, capture_output=True, text=True, check=False)
    return f"commit {found.stdout.strip()}" if found.returncode == 0 else "of no commit"


COMMIT = _commit()
"""What is measured: what stands there when the process begins."""
