"""One daemon of a release, in a process of its own: ``python process.py coordinator|peer FOLDER``.

It runs from whatever sources come first on PYTHONPATH. Functions run in the peer's process instead of on Spark, as in the fault
runs of that release.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path


def main(kind: str, folder: str) -> None:
    import tests.faults.processes as of_release

    of_release.follow = lambda: None  # the parent ends this process: see sardonyx.runtime.child_process
    if kind == "coordinator":
        of_release._coordinate()
    else:
        serve = of_release._serve
        rest = [None] * (len(inspect.signature(serve).parameters) - 1)
        serve(Path(folder), *rest)


if __name__ == "__main__":
    main(*sys.argv[1:])
