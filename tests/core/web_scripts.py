"""Plays tests of the pages' scripts in a small browser of our own (``web_browser.mjs``), with a clock and a server that the test
moves: what they show, and when they ask. ``tests/browser`` has what only a real browser shows.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from web_site import EVENTS, Running, Site

from sardonyx.web.app import static_files

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(
    NODE is None, reason="node is not on PATH; Debian and Ubuntu: sudo apt-get install nodejs"
)

PATHS = {"standing": "standing", "job": "jobs/j-1/overview", "jobs": "jobs", "cluster": "cluster", "log": "log"}


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """A folder with the scripts, in which node takes them for modules."""
    folder = tempfile.TemporaryDirectory(prefix="sardonyx-pages-")
    (Path(folder.name) / "package.json").write_text('{"type": "module"}')
    for name, data in static_files().items():
        (Path(folder.name) / name).write_bytes(data)
    for name in ("web_browser.mjs", "web_play.mjs"):
        shutil.copy(Path(__file__).parent / name, folder.name)
    return folder


@cache
def _answers() -> dict[str, Any]:
    """What the server says about a deployment with one job."""
    asked = Site(Running(EVENTS))
    return {name: asked.get(f"/api/v1/{path}").json() for name, path in PATHS.items()}


def play(script: str, **given: Any) -> Any:
    """Play the text of a test in JavaScript; gives what it returns.

    Args:
        script: has ``page``, what ``web_browser.mjs`` exports; ``load``, which gives a module of the pages; and ``given``.
        given: beside the server's answers: those of :data:`PATHS`.
    """
    assert NODE
    command = [NODE, str(Path(_folder().name) / "web_play.mjs")]
    told = json.dumps({"script": script, "given": {**_answers(), **given}})
    done = subprocess.run(command, input=told, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
