"""The samples of a soak as a picture."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any


def plot(result: dict[str, Any], path: Path) -> None:
    """The samples, one panel for each kind of figure; a line for each fault."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    samples = result["samples"]
    minutes = [sample["at"] / 60 for sample in samples]
    figure, axes = plt.subplots(7, figsize=(9, 17), sharex=True, layout="constrained")
    rates = [(b["out"] - a["out"]) / max(b["at"] - a["at"], 0.1) / 1000 for a, b in itertools.pairwise(samples)]
    axes[0].plot(minutes[1:], rates)
    axes[0].set_ylabel("records out,\n1000/s")
    names = list(dict.fromkeys(name for sample in samples for name in sample["daemons"]))
    spared = ("peer0", "coordinator0")
    for panel, what in ((1, "rss"), (3, "threads"), (4, "descriptors")):
        for name in names:
            held = [
                (at, s["daemons"][name][what]) for at, s in zip(minutes, samples, strict=True) if name in s["daemons"]
            ]
            of_all = name.startswith(spared)
            style = {"linewidth": 2.0, "label": name} if of_all else {"linewidth": 0.7, "color": "gray"}
            axes[panel].plot(*zip(*held, strict=True), **style)
        axes[panel].set_ylabel({"rss": "RSS of daemons,\nMiB"}.get(what, what))
        axes[panel].legend()
    for name in names:
        for what in ("jvm", "workers"):
            held = [
                (at, s["daemons"][name][what])
                for at, s in zip(minutes, samples, strict=True)
                if what in s["daemons"].get(name, {})
            ]
            if held:
                axes[2].plot(*zip(*held, strict=True), label=f"{what} of {name}")
    axes[2].set_ylabel("RSS of Spark,\nMiB")
    axes[2].legend()
    for what in ("topics", "groups", "nodes", "log"):
        axes[5].plot(minutes, [sample.get(what) for sample in samples], label=what)
    axes[5].set_ylabel("topics, groups, nodes of\nZooKeeper and its log")
    axes[5].legend()
    labels = {"disk": "all", "disk_links": "internal links", "disk_users": "in and out", "disk_zookeeper": "ZooKeeper"}
    for what, label in labels.items():
        axes[6].plot(minutes, [sample[what] for sample in samples], label=label)
    axes[6].set_ylabel("on the disk,\nMiB")
    axes[6].legend()
    axes[6].set_xlabel("minutes")
    struck = [at for at, a, b in zip(minutes[1:], samples, samples[1:], strict=False) if b["faults"] > a["faults"]]
    for panel in axes:
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
        for at in struck:
            panel.axvline(at, color="red", linewidth=0.4, alpha=0.5)
    asked = f"{result['rate_asked']:,.0f} asked for" if result["rate_asked"] else "as many as go through"
    figure.suptitle(f"{result['rate']:,} records/s ({asked}), {len(result['struck'])} faults; seed {result['seed']}")
    figure.savefig(path, dpi=80)
    plt.close(figure)
