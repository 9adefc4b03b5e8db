"""Which devices of a network can reach each other, minute by minute: components of a graph that changes.

    sardonyx run examples/live_graph/job.py

    links -> reach -> out     (CSV: who has come into another component in a minute, which has the name of its first device)

A link that comes up is an edge that is added, one that goes down is removed. Each minute makes a version of the graph. The file
has ten minutes, which all come at its end. To have versions as they come, let the job read a topic that has no end:

    LIVE_GRAPH_TOPIC=links sardonyx job submit examples/live_graph/job.py
"""

import os

import network_data

from sardonyx import Job, event_time, files, kafka, tumbling

SCHEMA = "one string, other string, at timestamp, down boolean"


def make_job(out: str | None = None, topic: str | None = None, end: str | None = None) -> Job:
    """The job.

    Args:
        out: the folder for the results; LIVE_GRAPH_OUT in the environment, or ``out``.
        topic: with the links; LIVE_GRAPH_TOPIC in the environment, or none: a file with generated ones.
        end: where the job ends, such as ``latest``, if it reads a topic; LIVE_GRAPH_END in the environment, or nowhere.
    """
    out = out or os.environ.get("LIVE_GRAPH_OUT", "out")
    topic = topic or os.environ.get("LIVE_GRAPH_TOPIC")
    end = end or os.environ.get("LIVE_GRAPH_END")
    if topic:
        source = kafka(topic, schema=SCHEMA, start="earliest", end=end)
    else:
        source = files(network_data.write(), format="csv", header=True, schema=SCHEMA)

    job = Job("live-graph", partitions=2, doc="Which devices of a network can reach each other")
    links = job.input("links", source, time=event_time("at", delay="5 s", idle="1 min"))
    network = job.graph(
        "network",
        edges=links,
        source="one",
        target="other",
        id="device",
        directed=False,
        window=tumbling("1 min"),
        remove="down",
        emit="changes",
    )
    mode = "append" if topic and not end else "overwrite"
    target = files(f"{out}/reach", format="csv", header=True, mode=mode)
    job.output("out", target, after=network.connected_components("reach"))
    return job


job = make_job
"""What ``sardonyx run`` looks for: a Job, or a function that makes one."""
