"""The topics of a task with windows: its state has the partitions of what it reads, and may stay until the job is purged."""

from __future__ import annotations

from queues.admin import create_links, delete_links, topics
from queues.dead_letter_topics import forget
from queues.membership import requires_copartitioning
from sardonyx import Count, Job, blackhole, event_time, generator, tumbling
from sardonyx.core.graph import graph_of
from sardonyx.runtime.settings import Settings
from tests.waiting import until


def test_the_log_of_a_state_stays_until_its_job_is_purged(settings: Settings) -> None:
    """It has as many partitions as the queues that the windows read. The end of the job deletes these, and the log, too, if no
    other job can begin with it; else the purge deletes it.
    """
    job = Job("counts", partitions=3)
    one = job.input("one", generator(9), time=event_time("id", unit="s"))
    two = job.input("two", generator(9), time=event_time("id", unit="s"))
    counts = job.window("counts", tumbling("1 s"), after=[one, two], group_by="id", aggregate={"rows": Count()})
    job.output("out", blackhole(), after=counts)
    spec = job.spec()
    graph = graph_of(spec, settings.deployment, "counts-x")
    facts = create_links(settings, graph, spec)
    links = {link.name: link for link in graph.links}
    read, state = ["one.counts", "two.counts"], links["counts.state"].topic
    assert {facts[name].partitions for name in [*read, "counts.state"]} == {3}
    assert requires_copartitioning([links[name] for name in read])

    def ours() -> set[str]:
        return {topic for topic in topics(settings) if topic.startswith(f"{settings.deployment}.")}

    assert ours() == {link.topic for link in graph.links}
    delete_links(settings, graph, "counts-x")
    until(lambda: ours() == {state}, what="the queues to be deleted")
    delete_links(settings, graph, "counts-x")
    assert ours() == {state}, "also when the deletion is repeated"
    forget(settings, ["counts-x"])
    until(lambda: not ours(), what="the state to be deleted with its job")
    create_links(settings, graph, spec)
    delete_links(settings, graph, "counts-x", keeps_states=False)
    until(lambda: not ours(), what="the state to be deleted with the queues")
