"""What is shown of the state of a running job on real services is what its committed batches made."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from sardonyx import Count, Job, ListState, State, Timer, Timers, event_time, kafka, tumbling
from sardonyx.core.errors import SardonyxError
from sardonyx.testing import Cluster, kill_at
from tests.waiting import until

USERS, ROWS = 5, 40
QUICK = {"zookeeper.session_timeout": "2 s", "peer.session_timeout": "3 s"}


def add(row: dict, total: State[int], seen: ListState[int], timers: Timers) -> dict:
    total.value += row["n"]
    seen.append(row["n"])
    timers.set(datetime.fromisoformat(row["at"]) + timedelta(days=1), "later")
    return row


def due(timer: Timer, total: State[int]) -> None:
    return None


def rows() -> list[dict[str, Any]]:
    return [{"user": n % USERS, "n": n, "at": f"2026-11-26T10:00:{n % 60:02}+00:00"} for n in range(ROWS)]


def test_keys_and_open_windows_are_shown_while_peers_die(sardonyx_clusters: Callable[..., Cluster]) -> None:
    """Each key once, with what all rows made of it, and the open window of each; a key that there is not has nothing."""
    with sardonyx_clusters(**QUICK) as cluster:
        out = cluster.topic("sums")
        job = Job("shown", partitions=3)
        schema = "user long, n long, at string, time timestamp"
        given = [{**row, "time": row["at"]} for row in rows()]
        topic = cluster.topic("given", given)
        read = job.input("read", kafka(topic, schema=schema, start="earliest"), time=event_time("time"))
        kept = job.keyed("keep", add, after=read, group_by="user", on_timer=due, batch_size=10)
        window = job.window(
            "count", tumbling("1 h"), after=kept, group_by="user", aggregate={"hits": Count()}, time="time"
        )
        job.output("out", kafka(out), after=window)
        cluster.peers(3, faults=[kill_at("committed", 3)])
        handle = cluster.submit(job)

        def kept_rows() -> int:
            with contextlib.suppress(SardonyxError):  # its topics are made a moment later
                return sum(len(each.states.get("seen", ())) for each in handle.state("keep"))
            return 0

        until(lambda: kept_rows() == ROWS, what="all rows in the state")
        found = {each.key[0]: each for each in handle.state("keep")}
        assert sorted(found) == list(range(USERS))
        for user, each in found.items():
            own = [row["n"] for row in rows() if row["user"] == user]
            assert (sorted(each.states["seen"]), each.states["total"]) == (own, sum(own))
            assert [(timer.name, timer.by) for timer in each.timers] == [("later", "event")]
        (one,) = handle.state("keep", ["3"])
        assert one == found[3]
        assert list(handle.state("keep", ["99"])) == []
        until(lambda: sum(row["hits"] for row in handle.state("count")) == ROWS, what="all rows in windows")
        (open_window,) = handle.state("count", ["3"])
        assert (open_window["user"], open_window["hits"]) == (3, ROWS // USERS)
        with pytest.raises(SardonyxError, match="SX-STATE-NONE"):
            list(handle.state("read"))
        handle.kill()
        everyone = set(range(USERS))
        with pytest.raises(SardonyxError, match="SX-STATE-GONE"):  # while it ends, all is shown or nothing
            until(lambda: {each.key[0] for each in handle.state("keep")} != everyone, what="a part of the state")
