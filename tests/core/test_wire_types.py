"""Threads may read the first value of a type at the same moment."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
ROOMS = ("coordinator", "peer", "queues", "sentinel", "spark_tasks", "sardonyx")
FIRST_READ = """
import sys, threading
sys.setswitchinterval(1e-6)
from sardonyx.core.notes import JobNote, LinksNote, TaskNote, PeerNote
from sardonyx.core.spec import decode_spec
import msgspec

start = threading.Barrier(6)

def read():
    start.wait()
    decode_spec(b'{"name":"j","workflow":[["a","b"]],"catalog":[{"name":"a","type":"input","connector":"kafka"},'
        b'{"name":"b","type":"output","connector":"kafka"}]}')
    msgspec.json.decode(b'{"state":"acking","n":1,"assignment":{"id":1,"job":"j","task":"t","slot":0}}', type=PeerNote)

threads = [threading.Thread(target=read) for _ in range(6)]
for each in threads:
    each.start()
for each in threads:
    each.join()
"""


@pytest.mark.parametrize("attempt", range(2))
def test_six_threads_read_their_first_spec_at_once(attempt: int) -> None:
    """Without `ready_for_threads`, six of ten such processes died of SIGSEGV."""
    assert subprocess.run([sys.executable, "-c", FIRST_READ], cwd=ROOT, check=False).returncode == 0


def test_every_type_that_is_read_is_ready_for_threads() -> None:
    """It is decorated where it is defined, or given to a decoder while a module is loaded."""
    read: set[str] = set()
    ready: set[str] = set()
    defined: set[str] = set()
    for path in (path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                defined.add(node.name)
                if "ready_for_threads" in {name for decorator in node.decorator_list for name in _names(decorator)}:
                    ready.add(node.name)
            if not isinstance(node, ast.Call):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("decode", "convert"):
                read |= {name for word in node.keywords if word.arg == "type" for name in _names(word.value)}
            if called in ("ready_for_threads", "Decoder"):
                ready |= {name for value in node.args for name in _names(value)}
    assert len(read & defined) > 15
    assert not (read & defined) - ready


def _names(value: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
