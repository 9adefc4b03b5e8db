"""A daemon that starts before its services do: it imports its code, and then reads its settings from its standard input.

``run`` and ``dev`` start their daemons in this way (:mod:`sardonyx.dev.daemons`): ``python -m sardonyx.cli.early_daemon peer``
becomes ``sardonyx peer`` with these settings in its environment.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path

from sardonyx.cli import main as command
from sardonyx.cli import seldom_collect


def main() -> None:
    """Wait for the settings, then be the daemon. Without any the daemon is not needed any more."""
    seldom_collect()
    daemon = import_module(f"{sys.argv[1]}.daemon")
    if sys.argv[1] == "peer":  # it imports the rest while its probes answer already
        daemon.import_all()
    import_module("sardonyx.cli.app")
    given = sys.stdin.buffer.read()
    if given:
        with Path(os.devnull).open() as nothing:  # the pipe has no more to say
            os.dup2(nothing.fileno(), sys.stdin.fileno())
        os.environ.update(json.loads(given))
        command()


if __name__ == "__main__":
    main()
