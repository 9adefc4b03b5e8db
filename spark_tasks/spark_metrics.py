"""The memory of Spark on this machine: its JVM and its Python workers are processes beside the daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import psutil

from sardonyx.runtime.metrics import REGISTRY

JVM = REGISTRY.gauge("sardonyx_spark_jvm_resident_bytes", "Resident memory of Spark's JVM.", most=1)
WORKERS = REGISTRY.gauge(
    "sardonyx_spark_workers_resident_bytes",
    "Resident memory of Spark's Python workers on this machine; what several of them share counts in each.",
    most=1,
)


def follow(jvms: Callable[[], Iterable[int]]) -> None:
    """Have the metrics read from these processes, and from those below them.

    Args:
        jvms: gives the ids of the JVMs that were started and not stopped.
    """

    def of(found: Callable[[psutil.Process], list[psutil.Process]]) -> Mapping[tuple[str, ...], float]:
        sizes = []
        for pid in jvms():
            try:
                sizes += [each.memory_info().rss for each in found(psutil.Process(pid))]
            except psutil.Error:  # it has ended
                continue
        return {(): sum(sizes)} if sizes else {}

    JVM.follow(lambda: of(lambda jvm: [jvm]))
    WORKERS.follow(lambda: of(lambda jvm: jvm.children(recursive=True)))
