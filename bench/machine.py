"""What a figure was measured on."""

from __future__ import annotations

import os
import platform
import time

import psutil


def machine() -> str:
    """What it was measured on, and when."""
    gib = round(psutil.virtual_memory().total / 2**30)
    at = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    return f"{os.cpu_count()} cores, {gib} GiB, Python {platform.python_version()}, {at} UTC"
