"""The tutorial does what it says: its blocks are run in their order, as a reader would run them.

- A ``python`` block whose first line is ``# name.py`` is saved under that name. ``# name.py: replaces the function f`` puts
  the block in place of that function.
- A ``sh`` block is run by bash. ``sardonyx dev`` is the second terminal: it is left running, and the line for other terminals
  that it prints goes before all later blocks.
- A ``text`` block holds lines that the output of the block before it must contain.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.waiting import until

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DEV = "sardonyx dev"


class Terminal(NamedTuple):
    """A command that is left running."""

    process: subprocess.Popen[bytes]
    printed: Path

    def says(self, words: str) -> str:
        """Wait until it prints what this expression matches, in a line."""
        found = until(
            lambda: re.search(words, self.printed.read_text("utf-8"), re.MULTILINE), what=f"{words!r} in a terminal"
        )
        return str(found[0])


class Reader:
    """Does what a reader of the tutorial does, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.exports = ""
        self.output = ""
        self.terminals = 0
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("SARDONYX__", "PYTEST_", "PYTHONPATH"))}
        self.env["PATH"] = f"{Path(sys.executable).parent}:{self.env['PATH']}"

    def save(self, code: str) -> None:
        name, function = re.match(r"# (\w+\.py)(?:: replaces the function (\w+))?\n", code).groups()
        file = self.folder / name
        if function:
            before = file.read_text("utf-8")
            body = code.partition("\n")[2]
            code = re.sub(
                rf"^def {function}\(.*?(?=^\S)", lambda _: f"{body}\n\n", before, flags=re.MULTILINE | re.DOTALL
            )
            assert code != before
        file.write_text(code, "utf-8")

    def run(self, commands: str) -> None:
        script = f"set -eu\n{self.exports}\n{commands}"
        bash = ["bash", "-c", script]
        done = subprocess.run(
            bash, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=240, check=False
        )
        self.output = done.stdout + done.stderr
        assert done.returncode == 0, f"{commands}\n{self.output}"

    @contextmanager
    def terminal(self, command: str) -> Iterator[Terminal]:
        """Another terminal, in which a command is left running. It ends with Ctrl-C, as the reader ends it."""
        self.terminals += 1
        printed = self.folder / f"terminal_{self.terminals}.log"
        script = ["bash", "-c", f"{self.exports}\nexec {command}"]
        with (
            printed.open("w") as log,
            subprocess.Popen(
                script, cwd=self.folder, env=self.env, stdout=log, stderr=log, start_new_session=True
            ) as process,
        ):
            terminal = Terminal(process, printed)
            try:
                if command.startswith(DEV):
                    self.exports = terminal.says(r"^\. /.*$")
                yield terminal
                process.send_signal(signal.SIGINT)
                process.wait(180)
            finally:
                process.kill()


def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    """From the first block to the last, with the output that it shows. `dev` says that the killed daemon runs again."""
    blocks = BLOCK.findall(TUTORIAL.read_text("utf-8"))
    start = next(n for n, (kind, text) in enumerate(blocks) if kind == "sh" and text.startswith(DEV))
    reader = Reader(tmp_path)
    follow(reader, blocks[:start])
    with reader.terminal(blocks[start][1]) as dev:
        follow(reader, blocks[start + 1 :])
        dev.says(r"peer \(process \d+\) was ended by SIGKILL: it runs again as \d+")


def follow(reader: Reader, blocks: list[tuple[str, str]]) -> None:
    for kind, text in blocks:
        if kind == "python":
            reader.save(text)
        elif kind == "sh":
            reader.run(text)
        else:
            assert kind == "text"
            missing = [line for line in text.splitlines() if line not in reader.output]
            assert not missing, f"{missing} is not in\n{reader.output}"
