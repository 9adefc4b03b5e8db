"""Dead letters of windows on real services: late rows, windows for which a function raises, and their results; and a redo."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sardonyx import Count, Job, event_time, kafka, tumbling
from sardonyx.client.dead_letters import DeadLetters
from sardonyx.job.load import load_job
from sardonyx.testing import Cluster
from tests.waiting import until

HOUR = 3_600
START = 490_000 * HOUR


def counted(rows: pa.Table, *, strict: bool) -> pa.Table:
    """How many rows each window of a key has; raises for a negative number."""
    if strict and pc.min(rows["n"]).as_py() < 0:
        raise ValueError("a negative number")
    counts = rows.group_by(["key", "window_start"]).aggregate([("n", "count")])
    return counts.rename_columns(["key", "window_start", "hits"])


def few(results: pa.Table, *, strict: bool) -> pa.Table:
    """Raises for a window with more than five rows."""
    if strict and pc.max(results["hits"]).as_py() > 5:
        raise ValueError("too many rows")
    return results


def windows(topic: str, of_rows: str, of_results: str, *, strict: bool) -> Job:
    job = Job("windows", partitions=2)
    schema = "at long, key string, n long"
    read = job.input("read", kafka(topic, schema=schema, start="earliest"), time=event_time("at", unit="s"))
    both: dict[str, Any] = {"group_by": "key", "on_error": "dead_letter", "params": {"strict": strict}}
    rows = job.window("rows", tumbling("1 h"), after=read, fn=counted, **both)
    results = job.window(
        "results", tumbling("1 h"), after=read, fn=few, aggregate={"hits": Count()}, late="dead_letter", **both
    )
    job.output("of-rows", kafka(of_rows), after=rows)
    job.output("of-results", kafka(of_results), after=results)
    return job


def test_what_windows_keep_of_their_failures_is_redone_or_refused(sardonyx_clusters: Callable[..., Cluster]) -> None:
    """A window for which its function raises is kept row by row, and a redo makes its result of all of them. Late rows are
    redone too. The result of an aggregate is no row that the task could read: a redo keeps it, and says so.
    """
    given = [
        {"at": START + HOUR * hour + n, "key": "a" if n < (6 if hour == 1 else 4) else "b", "n": n}
        for hour in range(2)
        for n in range(8)
    ]
    given[9]["n"] = -1  # the second hour, key a, which has six rows
    closing = {"at": START + 2 * HOUR, "key": "a", "n": 0}
    late = {"at": START + 1, "key": "b", "n": 100}
    hits = {(hour, key): (6 if key == "a" else 2) if hour == 1 else 4 for hour in range(2) for key in "ab"}
    with sardonyx_clusters() as cluster:
        topic = cluster.topic("in", [*given, closing], partitions=1)
        of_rows, of_results = cluster.topic("of-rows"), cluster.topic("of-results")
        cluster.peers(6)
        job = cluster.submit(windows(topic, of_rows, of_results, strict=True))
        until(
            lambda: (1, "b") in found(cluster.records(of_rows)) and (1, "b") in found(cluster.records(of_results)),
            what="the windows of two hours to close",
        )
        cluster.fill(topic, [late], partitions=1)
        letters = DeadLetters(cluster.client)
        until(
            lambda: any(each.letter.failure.code == "SX-TIME-LATE" for each in letters.letters(job.id, "results")),
            what="the late row to be kept",
        )
        job.stop()
        first = job.await_completion("5 min")
        without = {window: count for window, count in hits.items() if window != (1, "a")}
        assert found(cluster.records(of_rows)) == Counter(without)
        assert found(cluster.records(of_results)) == Counter(without)
        of_one = [each.record["n"] for each in letters.letters(first.id, "rows")]
        assert sorted(of_one) == [-1, 0, 2, 3, 4, 5]
        kept = {each.letter.failure.code: each.record for each in letters.letters(first.id, "results")}
        assert (kept["SX-FN-RAISED"]["hits"], kept["SX-TIME-LATE"]["n"], len(kept)) == (6, 100, 2)

        mended = load_job(windows(topic, of_rows, of_results, strict=False))
        for task, handle in letters.redo_each(first.id, corrected=mended):
            view = handle.await_completion("5 min")
            if task == "results":
                assert [(each.letter.kind, each.letter.failure.code) for each in letters.letters(view.id)] == [
                    ("made", "SX-LETTER-MADE")
                ]
        assert found(cluster.records(of_rows)) == Counter(hits)
        assert found(cluster.records(of_results)) == Counter(without) + Counter([(0, "b")])


def found(records: list[dict]) -> Counter[tuple[int, str]]:
    """By hour and key, the sum of the results."""
    sums: Counter[tuple[int, str]] = Counter()
    for each in records:
        sums[int(each["window_start"][11:13]) - 16, each["key"]] += each["hits"]
    return sums
