"""The pages as a child process of ``run`` and ``dev``; and the request to stop."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sardonyx.cli.web_commands import require_installed
from sardonyx.client.ids import asker
from sardonyx.core.names import is_name
from sardonyx.dev.daemons import Daemons
from sardonyx.runtime.child_process import ChildProcess, start_child

if TYPE_CHECKING:
    from sardonyx.runtime.settings import Settings

INTERRUPTED = 130
"""Exit code of a process that Ctrl-C ended."""
_SHOW_CURSOR = b"\x1b[?25h\n"  # live bars hide it

ADDRESS = re.compile(r"^http://\S+$", re.MULTILINE)
"""What `sardonyx web` prints when it serves."""
_ADDRESS_WITHIN = 100_000
"""Bytes at the beginning of its log in which this stands."""


class LocalPages(Daemons):
    """The pages of ``sardonyx web``. Made by :func:`local_pages`."""

    def __init__(self, settings: Settings, folder: Path, tokens: Path, token: str) -> None:
        super().__init__()
        self._settings = settings
        self._log = folder / "web.log"
        self._tokens = tokens
        self._token = token
        self._at = ""
        self._from = 0
        """Where in their log that begins what they have written since their last start."""
        self._serve = False
        """Whether the address is found there."""
        try:
            self.start(self._begin)
            while not self._find():
                self.check()
                time.sleep(0.1)
        except BaseException:
            self.stop()
            raise

    @property
    def address(self) -> str:
        """Where they are, with the token."""
        return f"{self._at}#token={self._token}"

    def revive(self) -> list[str]:
        """Start them again if they have ended, at the same port if it is free, and give the words for it. A later call gives the
        address, if it is another one.
        """
        found = super().revive()
        before = self._at
        if not self._serve and self._find() and self._at != before:
            found.append(f"pages at {self.address}")
        return found

    def _begin(self) -> ChildProcess:
        self._from = self._log.stat().st_size if self._log.exists() else 0
        self._serve = False
        same = ["--port", str(urlsplit(self._at).port)] if self._at else []
        return start_child(
            [sys.executable, "-m", "sardonyx", "web", "--tokens", str(self._tokens), *same],
            name="web",
            log_path=self._log,
            env=self._settings.environment(),
        )

    def _find(self) -> bool:
        """Look for the address that they print when they serve."""
        with self._log.open("rb") as log:
            log.seek(self._from)
            found = ADDRESS.search(log.read(_ADDRESS_WITHIN).decode("utf-8", "replace"))
        if found is not None:
            self._at, self._serve = found[0], True
        return self._serve


@contextlib.contextmanager
def local_pages(settings: Settings, folder: Path) -> Iterator[LocalPages]:
    """Serve the pages of ``sardonyx web`` for as long as the block runs.

    Only the holder of the token may look, and act: the user of this process. Other users of this machine reach the port too.

    Args:
        settings: with the addresses of running services.
        folder: where ``web.log`` and the token are written. No other pages may use it at the same time.

    Raises:
        SetupError: ``SX-WEB-MISSING``; ``SX-DAEMON-DIED``: it did not begin, with its last lines.
    """
    require_installed()
    token, tokens = secrets.token_hex(32), folder / "web.tokens"
    tokens.unlink(missing_ok=True)
    tokens.touch(0o600)
    tokens.write_text(f"{_own_name()} operator {token}\n", "utf-8")
    try:
        pages = LocalPages(settings, folder, tokens, token)
        try:
            yield pages
        finally:
            pages.stop()
    finally:
        tokens.unlink(missing_ok=True)


def _own_name() -> str:
    """The user of this process, as tokens name people."""
    name = asker().partition("@")[0]
    return name if is_name(name) else "user"


class StopRequest:
    """Ctrl-C or SIGTERM, noted instead of obeyed at once. The second one is obeyed: our children die with us."""

    def __init__(self) -> None:
        self.asked = False
        self._at_once = False
        self._told, self._tell = os.pipe()

    def wait(self, most: float) -> bool:
        """Wait for the request so many seconds; whether it has come."""
        select.select([self._told], [], [], most)
        return self.asked

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Obey the first one, too, as KeyboardInterrupt, while the block runs: nothing is there yet that must end in order."""
        self._at_once = True
        try:
            if self.asked:
                raise KeyboardInterrupt
            yield
        finally:
            self._at_once = False

    def close(self) -> None:
        os.close(self._told)
        os.close(self._tell)

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Runs in the midst of whatever the main thread does, so it takes no locks (a ``threading.Event`` has one)."""
        if self.asked:
            if sys.stderr.isatty():
                os.write(sys.stderr.fileno(), _SHOW_CURSOR)
            os._exit(INTERRUPTED)
        self.asked = True
        os.write(self._tell, b"!")
        if self._at_once:
            raise KeyboardInterrupt


@contextlib.contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Catch Ctrl-C and SIGTERM for as long as the block runs."""
    request = StopRequest()
    before = {number: signal.signal(number, request.on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        request.close()
