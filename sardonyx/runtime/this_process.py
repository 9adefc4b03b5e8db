"""Says who this process is: in its lines of log, and to the brokers that its Kafka clients talk to."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterator
from typing import Any, Literal

from sardonyx.core.version import VERSION

Role = Literal["coordinator", "peer", "web", "client"]


class ThisProcess:
    """What is known of the process, beside its settings. There is one object, :data:`THIS`."""

    def __init__(self) -> None:
        self.role: Role = "client"
        self._epoch: int | None = None

    @contextlib.contextmanager
    def leads(self, epoch: int) -> Iterator[None]:
        """While the block runs, the process leads its deployment: its lines say in which epoch, whatever thread writes them."""
        self._epoch = epoch
        try:
            yield
        finally:
            self._epoch = None

    def facts(self, deployment: str) -> dict[str, Any]:
        """What each line of a daemon's log carries, so that lines of many processes can lie in one place."""
        known = {"deployment": deployment, "role": self.role, "host": socket.gethostname(), "pid": os.getpid()}
        epoch = self._epoch
        return {**known, "version": VERSION} if epoch is None else {**known, "version": VERSION, "epoch": epoch}

    def client_id(self, deployment: str) -> str:
        """What Kafka's brokers call the process: in quotas, in the log of requests, and where members of groups are listed."""
        host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())
        return f"sardonyx-{self.role}-{deployment}-{host}-{os.getpid()}"


THIS = ThisProcess()
