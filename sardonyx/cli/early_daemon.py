"""A daemon that starts before its services do: it imports its code, and then reads its settings from its standard input.

``run`` and ``dev`` start their daemons in this way (:mod:`sardonyx.dev.daemons`): ``python -m sardonyx.cli.early_daemon peer``
becomes ``sardonyx peer`` with these settings in its environment. The daemon does not ask whether the services answer: ``run`` or
``dev`` has seen ZooKeeper answer before it sends the settings, and Kafka may still be starting.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from sardonyx.cli import seldom_collect
from sardonyx.cli.call import Call, guarded


def main() -> None:
    """Wait for the settings, then run the daemon. If the input ends without settings, the daemon is not needed: return."""
    seldom_collect()
    role = sys.argv[1]
    daemon = import_module(f"{role}.daemon")
    if role == "peer":  # it imports the rest while its probes answer already
        daemon.import_all()
    given = sys.stdin.buffer.read()
    if given:
        with Path(os.devnull).open() as nothing:  # the pipe has no more to say
            os.dup2(nothing.fileno(), sys.stdin.fileno())
        os.environ.update(json.loads(given))
        sys.exit(_run(role, daemon))


def _run(role: str, daemon: Any) -> int:
    """Run the daemon as the command with the name of its role does, and return the exit code."""
    if role == "coordinator":
        call = Call(role="coordinator")
        return guarded(call, lambda: daemon.main(call.settings))
    _, virtual_peers = sys.argv[2:]
    call = Call(role="peer", flags={"peer.virtual_peers": virtual_peers})
    return guarded(call, lambda: daemon.main(call.settings, reached=True))


if __name__ == "__main__":
    main()
