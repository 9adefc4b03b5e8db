"""Who matters in Les Misérables, and who belongs together: ranks and components of a graph.

    sardonyx run examples/graph/job.py

    meetings -+-> ranks ---> ranks-out      (CSV, a row for each character)
              +-> circles -> circles-out

Two characters have an edge if they appear in the same chapter. ``circles`` goes by edges of three chapters or more.
"""

import os

import novel_data

from sardonyx import Job, files


def often(meeting: dict) -> bool:
    """Whether two characters appear together in three chapters or more."""
    return meeting["chapters"] >= 3


def make_job(out: str | None = None) -> Job:
    """The job.

    Args:
        out: the folder for the results; GRAPH_OUT in the environment, or ``out``.
    """
    out = out or os.environ.get("GRAPH_OUT", "out")
    job = Job("novel", partitions=4, doc="Ranks and circles of the characters of Les Misérables")
    source = files(novel_data.unpack(), format="csv", header=True, schema="one string, other string, chapters int")
    meetings = job.input("meetings", source)
    novel = job.graph("novel", edges=meetings, source="one", target="other", id="name", directed=False)
    close = job.graph("close", edges=meetings.where(often), source="one", target="other", id="name", directed=False)
    ranks = novel.pagerank("ranks", tolerance=1e-10)
    circles = close.connected_components("circles")
    for task in (ranks, circles):
        target = files(f"{out}/{task.name}", format="csv", header=True, mode="overwrite")
        job.output(f"{task.name}-out", target, after=task)
    return job


job = make_job
"""What ``sardonyx run`` looks for: a Job, or a function that makes one."""
