"""The page "Try to break it" does what it says: services, a coordinator and two peer daemons, one of which is killed."""

from __future__ import annotations

import os
import re
import signal
from contextlib import ExitStack
from pathlib import Path

import psutil

from tests.services.test_tutorial import BLOCK, Reader, Terminal, follow

PAGE = Path(__file__).parents[2] / "docs" / "break_it.md"
LEFT_RUNNING = re.compile(r"sardonyx (dev|coordinator|peer)\b.*\n")


def test_the_page_does_what_it_says_and_dev_tells_what_ended(tmp_path: Path) -> None:
    """One of two peer daemons is killed, and stays away: the other one takes its work, and the result is exact. Then ZooKeeper is
    killed: `dev` says so, it runs again, and the daemons that are left are there.
    """
    reader, left = Reader(tmp_path), list[tuple[str, Terminal]]()
    with ExitStack() as stack:
        for kind, text in BLOCK.findall(PAGE.read_text("utf-8")):
            if kind == "sh" and (command := LEFT_RUNNING.fullmatch(text)):
                left.append((command[1], stack.enter_context(reader.terminal(text.strip()))))
            else:
                follow(reader, [(kind, text)])
        assert [name for name, _ in left] == ["dev", "coordinator", "peer", "peer"]
        ended = [terminal.process.poll() for name, terminal in left if name == "peer"]
        assert sorted(map(str, ended)) == [str(-signal.SIGKILL), "None"]
        dev = left[0][1]
        os.kill(zookeeper_of(dev), signal.SIGKILL)
        dev.says(r"zookeeper \(process \d+\) was ended by SIGKILL: it runs again as \d+")
        reader.run("until sardonyx peers list --json | grep -q '\"idle\"'; do sleep 1; done")


def zookeeper_of(dev: Terminal) -> int:
    """The process of ZooKeeper that this `dev` has started."""
    (found,) = [
        child.pid
        for child in psutil.Process(dev.process.pid).children(recursive=True)
        if Path(child.name()).name == "java" and any("QuorumPeerMain" in word for word in child.cmdline())
    ]
    return found
