"""Hits of each user in each minute, by the time of the hits. Hits that come when their minute is closed go to their own topic.

    sardonyx topic create hits                      # on a cluster, such as that of `sardonyx dev`
    sardonyx job submit examples/traffic/job.py     # it runs until `sardonyx job stop traffic`

    hits -> per-user -+-> counts          (Kafka, a record for each user and minute)
                      +-> (late) -> late  (Kafka, the rows that no minute counts)

A hit may be 5 seconds older than those before it. A minute takes rows until 10 seconds after its end by the clock of the hits. A
partition of the topic without hits for a minute keeps no other back.
"""

import os

from sardonyx import Count, Job, Max, Mean, event_time, kafka, tumbling


def make_job(
    end: str | None = None, hits: str | None = None, counts: str | None = None, late: str | None = None
) -> Job:
    """The job.

    Args:
        end: where it ends, such as ``latest``; TRAFFIC_END in the environment, or nowhere.
        hits: the topic with the hits; TRAFFIC_HITS in the environment, or ``hits``.
        counts: the topic for the counts; TRAFFIC_COUNTS in the environment, or ``hits-per-minute``.
        late: the topic for late hits; TRAFFIC_LATE in the environment, or ``hits-late``.
    """
    end = end or os.environ.get("TRAFFIC_END")
    hits = hits or os.environ.get("TRAFFIC_HITS", "hits")
    counts = counts or os.environ.get("TRAFFIC_COUNTS", "hits-per-minute")
    late = late or os.environ.get("TRAFFIC_LATE", "hits-late")

    job = Job("traffic", doc="Hits of each user in each minute, late ones apart")
    read = job.input(
        "hits",
        kafka(hits, schema="user string, at timestamp, ms double", start="earliest", end=end),
        time=event_time("at", delay="5 s", idle="1 min"),
    )
    per_user = job.window(
        "per-user",
        tumbling("1 min"),
        after=read,
        group_by="user",
        aggregate={"hits": Count(), "slowest": Max("ms"), "mean": Mean("ms")},
        grace="10 s",
    )
    job.output("counts", kafka(counts, key="user"), after=per_user)
    job.output("late", kafka(late, key="user"), after=per_user.late)
    return job


job = make_job
"""What ``sardonyx run`` looks for: a Job, or a function that makes one."""
