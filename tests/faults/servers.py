"""Faults of the servers of ZooKeeper and Kafka: they die, are restarted, or stand still."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from contextlib import ExitStack

from sardonyx.core.errors import SetupError
from tests.faults.cluster import BROKER, Cluster, now
from tests.faults.scene import Scene, Verb

Pick = Callable[[Cluster, random.Random], list[str]]
"""Which servers are hit: their names."""


def any_of(kind: str) -> Pick:
    return lambda cluster, rng: [cluster.server(kind, rng)]


def majority_of(kind: str) -> Pick:
    def pick(cluster: Cluster, rng: random.Random) -> list[str]:
        numbers = rng.sample(range(1, cluster.servers + 1), cluster.servers // 2 + 1)
        return [f"{kind}{number}" for number in numbers]

    return pick


def back_again(pick: Pick, *, kill: bool) -> Verb:
    """Servers go down and come back. Records keep coming in while enough servers remain."""

    def verb(scene: Scene, rng: random.Random) -> str:
        with scene.services, ExitStack() as stack:
            names = pick(scene.cluster, rng)
            if 2 * len(names) > scene.cluster.servers:
                stack.enter_context(scene.fasting())
            _restart(scene, names, kill=kill)
        return ", ".join(names)

    return verb


def _restart(scene: Scene, names: list[str], *, kill: bool) -> None:
    services = scene.cluster.services
    services.stop(*names, kill=kill)
    try:
        services.start(*names)
    except SetupError:  # the machine has other things to do; the longer they were down
        services.stop(*names, kill=True)
        services.start(*names)
    scene.up = now()


def rolling(kind: str) -> Verb:
    """Every server in turn, while records come in."""

    def verb(scene: Scene, _rng: random.Random) -> str:
        names = [f"{kind}{number}" for number in range(1, scene.cluster.servers + 1)]
        with scene.services:
            for name in names:
                _restart(scene, [name], kill=False)
        return ", ".join(names)

    return verb


def standing_still(pick: Pick) -> Verb:
    """A server that stands still (SIGSTOP) for longer than the others wait for it, and then believes that it still leads."""

    def verb(scene: Scene, rng: random.Random) -> str:
        with scene.services:
            names = pick(scene.cluster, rng)
            pids = [scene.cluster.services.pids[name] for name in names]
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            scene.hold(BROKER + 1.5)
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            scene.up = now()
        return ", ".join(names)

    return verb
