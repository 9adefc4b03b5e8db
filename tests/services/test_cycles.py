"""Loops on real services: each row goes round as often as it should, and the job ends when all are through, whatever dies."""

from __future__ import annotations

import json
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sardonyx import Job, State, blackhole, generator, kafka
from sardonyx.client.job_handle import JobHandle
from sardonyx.core.errors import JobFailed
from sardonyx.testing import Cluster, Fault, kill_at, pause_at, run_job
from tests.waiting import until

QUICK = {"zookeeper.session_timeout": "2 s", "peer.session_timeout": "3 s"}
SCHEMA = "id string, left long"


def visit(row: dict) -> dict:
    return {**row, "seen": True}


def grow(row: dict) -> list[dict]:
    return [{"id": f"{row['id']}.{n}", "left": row["left"] - 1} for n in range(fan(row["id"], row["left"]))]


def fan(name: str, left: int) -> int:
    """How many children a node of a tree has: it follows from its name."""
    return 0 if left <= 0 else zlib.crc32(name.encode()) % 3


def tree(roots: list[dict]) -> list[str]:
    """The names of all nodes."""
    found, waiting = [], list(roots)
    while waiting:
        row = waiting.pop()
        found.append(row["id"])
        waiting += grow(row)
    return sorted(found)


def roots(seed: int, count: int = 40, left: int = 9) -> list[dict]:
    rng = random.Random(f"{seed}/loops")
    return [{"id": f"{rng.randrange(10**9)}-{n}", "left": rng.randint(0, left)} for n in range(count)]


def growing(source: str, out: str, *, end: str | None = "latest", name: str = "growing", **more: Any) -> Job:
    job = Job(name, partitions=3)
    seeds = job.input("seeds", kafka(source, format="json", schema=SCHEMA, start="earliest", end=end))
    with job.cycle("tree", after=seeds, **more) as again:
        seen = job.task("visit", visit, after=again, batch_size=20, on_error="fail")
        again.feedback(job.task("grow", grow, after=seen, batch_size=20))
    job.output("out", kafka(out, format="json"), after=seen)
    return job


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(
            [kill_at("applied", 3), kill_at("begin", 5), kill_at("committed", 6)], id="batches", marks=pytest.mark.long
        ),
        pytest.param(
            [kill_at("loop-end"), kill_at("loop-ended"), kill_at("exhausted", 2)], id="end", marks=pytest.mark.long
        ),
        pytest.param(
            [pause_at("loop-ended", 5.0), kill_at("seal"), kill_at("sealed")], id="seals", marks=pytest.mark.long
        ),
    ],
)
def test_a_loop_ends_when_all_its_rows_are_through(
    seed: int, faults: list[Fault], sardonyx_clusters: Callable[..., Cluster]
) -> None:
    """Peers die in batches of the loop, before and after the sentinels that end it, and while its tasks are sealed: each node of
    the trees comes out once, and none is missing.
    """
    given = roots(seed)
    with sardonyx_clusters(**QUICK) as cluster:
        source, out = cluster.topic("seeds", given), cluster.topic("out")
        cluster.peers(4, faults=faults)
        cluster.run(growing(source, out), timeout="6 min")
        assert sorted(row["id"] for row in cluster.records(out)) == tree(given), f"seed {seed}"


OFTEN = ("read", "applied", "begin", "committed")
"""Where a peer daemon dies in a run of many loops: points that a job passes many times,"""
SELDOM = ("loop-end", "loop-ended", "seal", "sealed", "completed")
"""and those that it passes once or a few times."""


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("jobs", "kills"), [(200, 60)])
def test_many_loops_end_and_none_of_them_early(
    seed: int, jobs: int, kills: int, sardonyx_clusters: Callable[..., Cluster]
) -> None:
    """Loops one after the other, three at a time, on a daemon that is killed again and again: each ends, with all its rows."""
    rng = random.Random(f"{seed}/many")
    faults = [
        kill_at(rng.choice(OFTEN), rng.randint(1, 12))
        if rng.random() < 0.5
        else kill_at(rng.choice(SELDOM), rng.randint(1, 3))
        for _ in range(kills)
    ]
    with sardonyx_clusters(**QUICK) as cluster:
        cluster.peers(8, faults=faults)
        waiting: list[tuple[JobHandle, str, list[str]]] = []
        for number in range(jobs):
            given = roots(seed + number, count=rng.randint(1, 12), left=rng.randint(0, 6))
            source, out = cluster.topic(f"seeds{number}", given), cluster.topic(f"out{number}")
            waiting.append((cluster.submit(growing(source, out, name=f"growing{number}")), out, tree(given)))
            if len(waiting) == 3 or number == jobs - 1:
                for handle, topic, wanted in waiting:
                    handle.await_completion("8 min")
                    assert sorted(row["id"] for row in cluster.records(topic)) == wanted, f"seed {seed}, {topic}"
                waiting = []


def test_one_peer_is_enough_for_a_loop(seed: int, sardonyx_clusters: Callable[..., Cluster]) -> None:
    """The only peer takes turns at the tasks of the loop, until nothing is on its way."""
    given = roots(seed, count=6, left=3)
    with sardonyx_clusters(**QUICK) as cluster:
        source, out = cluster.topic("seeds", given), cluster.topic("out")
        cluster.peers(1)
        cluster.run(growing(source, out), timeout="6 min")
        assert sorted(row["id"] for row in cluster.records(out)) == tree(given), f"seed {seed}"


def test_an_unbounded_job_with_a_loop_stops_when_its_rows_are_through(
    seed: int, sardonyx_clusters: Callable[..., Cluster]
) -> None:
    """What its inputs have read goes round to its end before the job is stopped."""
    given = roots(seed)
    with sardonyx_clusters(**QUICK) as cluster:
        source, out = cluster.topic("seeds", given), cluster.topic("out")
        cluster.peers(4)
        handle = cluster.submit(growing(source, out, end=None))
        read = {row["id"] for row in given}
        until(lambda: read <= {row["id"] for row in cluster.records(out)}, what="all that is there to be read")
        handle.stop()
        until(lambda: handle.status().status == "stopped", what="the job to stop")
        assert sorted(row["id"] for row in cluster.records(out)) == tree(given), f"seed {seed}"


def test_a_loop_says_that_it_is_empty_and_that_more_may_come(
    seed: int, sardonyx_clusters: Callable[..., Cluster]
) -> None:
    """``handle.cycles()`` counts rows on their way, and names the queue over which an input without end may give more."""
    given = roots(seed, count=6)
    back = len(tree(given)) - len(given)
    with sardonyx_clusters(**QUICK) as cluster:
        cluster.peers(4)
        handle = cluster.submit(growing(cluster.topic("seeds", given), cluster.topic("out"), end=None))
        until(lambda: handle.status().status == "running", what="the job to run")

        def stands() -> tuple[list[str], int | None, int]:
            (found,) = handle.cycles()
            assert not found.ended
            return found.fed_by, found.unread, next(queue.read for queue in found.queues if queue.feedback)

        until(lambda: stands() == (["seeds.visit"], 0, back), what="the loop to be empty")


def test_a_loop_that_does_not_stop_is_why_its_job_does_not_end(sardonyx_cluster: Cluster) -> None:
    """`job explain` names it, and says how many rows are on their way in it, and that no more come from outside."""
    job = Job("endless", partitions=2)
    with job.cycle("round", after=job.input("numbers", generator(3))) as again:
        again.feedback(job.task("same", visit, after=again))
    job.output("out", blackhole(), after="same")
    handle = sardonyx_cluster.submit(job)

    def said() -> list[str]:
        why = handle.explain()
        codes = {reason.code for reason in why.explanation.reasons}
        return [each.text for each in why.outside if each.code == "loop-goes-on" and "loop-goes-on" in codes]

    wanted = ["loop round: 3 rows are on their way in it (3 for same)"]
    until(lambda: said() == wanted, what="it to say that three rows go round")
    handle.kill()


# --- A loop that remembers --------------------------------------------------------------------------------------------


def follow(row: dict) -> Iterator[dict]:
    for link in json.loads(row["links"]):
        yield {"page": link}


def look_up(row: dict, graph: dict[str, list[str]]) -> dict:
    return {"page": row["page"], "links": json.dumps(graph[row["page"]])}


def once(row: dict, known: State[bool]) -> dict | None:
    if known.value:
        return None
    known.value = True
    return row


def crawling(graph: dict[str, list[str]], out: str) -> Job:
    job = Job("crawling", partitions=3)
    seeds = job.input("seeds", kafka("seeds", format="json", schema="page string", start="earliest", end="latest"))
    with job.cycle("crawl", after=seeds) as again:
        fresh = job.keyed("fresh", once, after=again, group_by="page")
        pages = job.task("fetch", look_up, after=fresh, params={"graph": graph})
        again.feedback(job.task("follow", follow, after=pages))
    job.output("out", kafka(out, format="json"), after=pages)
    return job


def web(seed: int) -> dict[str, list[str]]:
    rng = random.Random(f"{seed}/web")
    pages = [f"p{n}" for n in range(120)]
    return {page: rng.sample(pages, rng.choice([0, 1, 2, 3])) for page in pages}


def reached(graph: dict[str, list[str]], starts: list[str]) -> list[str]:
    found, waiting = set(starts), list(starts)
    while waiting:
        new = set(graph[waiting.pop()]) - found
        found |= new
        waiting += new
    return sorted(found)


def test_a_crawl_ends_whatever_dies(seed: int, sardonyx_clusters: Callable[..., Cluster]) -> None:
    """Each page is fetched once, though peers die with its state planned, committed and not applied yet."""
    graph, starts = web(seed), ["p0", "p1", "p0"]
    with sardonyx_clusters(**QUICK) as cluster:
        source, out = cluster.topic("seeds", [{"page": page} for page in starts], 3), cluster.topic("out")
        cluster.peers(4, faults=[kill_at("apply-state", 2), kill_at("committed", 4), kill_at("loop-ended")])
        cluster.run(of_topic(crawling(graph, out), source), timeout="6 min")
        assert sorted(row["page"] for row in cluster.records(out)) == reached(graph, starts), f"seed {seed}"


def of_topic(job: Job, topic: str) -> Job:
    """The same job, whose input reads another topic."""
    job._catalog[0]["options"]["topic"] = topic
    return job


# --- How often rows come back -----------------------------------------------------------------------------------------


def pass_on(row: dict) -> dict:
    return row


def pass_on_counted(row: dict, seen: State[int]) -> dict:
    seen.value += 1
    return row


def bouncing(max_hops: int, on_error: str, *, edge: bool, keyed: bool) -> Job:
    job = Job("bouncing", partitions=2)
    rows = job.input("in", generator(5, columns={"n": "sequence"}))
    with job.cycle("bounce", after=rows, max_hops=max_hops) as again:
        first = (
            job.keyed("first", pass_on_counted, after=again, group_by="n", on_error=on_error)
            if keyed
            else job.task("first", pass_on, after=again, on_error=on_error)
        )
        again.feedback(job.task("second", pass_on, after=first))
    job.output("out", blackhole(), after=first)
    if edge:
        job.output("far", blackhole(), after=first.failed)
    return job


def flaky(row: dict) -> dict:
    """Fails for a row as often as its number says. A row that comes back is in the record of what is said about it."""
    tries = 0
    while row.get("record"):
        row, tries = json.loads(row["record"]), tries + 1
    if tries < row["n"]:
        raise ValueError("not yet")
    return {"n": row["n"], "tries": tries}


@pytest.mark.parametrize("repaired", [False, True])
def test_a_record_is_tried_again_only_so_often(repaired: bool, spark: Any) -> None:
    """Failed records that are fed back, as they are or by a task that repairs them, come back ``max_hops`` times at most, though
    what comes back too often is a failed record, too.
    """
    job = Job("trying", partitions=2)
    rows = job.input("in", generator(6, columns={"n": "sequence"}))
    with job.cycle("again", after=rows, max_hops=2) as again:
        tried = job.task("try", flaky, after=again, on_error="dead_letter")
        again.feedback(job.task("repair", pass_on, after=tried.failed) if repaired else tried.failed)
    job.output("out", blackhole(), after=tried)
    result = run_job(job, spark=spark)
    assert sorted((row["n"], row["tries"]) for row in result.rows("out")) == [(0, 0), (1, 1), (2, 2)]
    assert [letter.failure.code for letter in result.dead_letters("try")] == ["SX-CYCLE-HOPS"] * 3


@pytest.mark.parametrize("keyed", [False, True])
def test_rows_that_have_come_back_too_often_are_failed_records(keyed: bool, spark: Any) -> None:
    """Each row passes once more than it may come back. Then it is skipped, a dead letter, on the failed edge, or the end."""
    for batch_size in (1, 3, 100):
        result = run_job(bouncing(3, "skip", edge=False, keyed=keyed), batch_size=batch_size, spark=spark)
        assert Counter(row["n"] for row in result.rows("out")) == dict.fromkeys(range(5), 4)
        assert result.counts("first").skipped == 5
    far = run_job(bouncing(3, "fail", edge=True, keyed=keyed), spark=spark).rows("far")
    assert [row["code"] for row in far] == ["SX-CYCLE-HOPS"] * 5
    assert sorted(json.loads(row["record"])["n"] for row in far) == list(range(5))
    letters = run_job(bouncing(1, "dead_letter", edge=False, keyed=keyed), spark=spark)
    assert letters.counts("first").dead == 5
    with pytest.raises(JobFailed) as raised:
        run_job(bouncing(2, "fail", edge=False, keyed=keyed), spark=spark)
    assert raised.value.code == "SX-CYCLE-HOPS"
