"""Jobs with keyed state, good ones for tests to spoil."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from sardonyx import Job, Key, ListState, MapState, State, Timer, Timers, blackhole, kafka

if TYPE_CHECKING:
    from decimal import Decimal

HERE = __name__
SCHEMA = "user string, at timestamp, ms double, n bigint, tags array<string>"


class Account(msgspec.Struct):
    total: float = 0.0


class Hooks:
    def start(self, context) -> dict:
        return {"rate": 1.0}


def plain(row: dict) -> dict:
    return row


def total(row: dict, account: State[Account]) -> dict:
    return {**row, "total": account.value.total}


def spend(
    row: dict, account: State[Account], seen: ListState[int], timers: Timers, key: Key, rate: float = 1.0
) -> None:
    return None


def review(timer: Timer, account: State[Account], by: MapState[str, int], most: int = 5) -> dict:
    return {"user": timer.key}


def no_timer(when, account: State[Account]) -> None: ...


def other_state(timer: Timer, account: State[int]) -> None: ...


def sets(row: dict, timers: Timers) -> None: ...


def needs_rate(row: dict, account: State[Account], rate: float) -> None: ...


def unknown_type(row: dict, account: State[object]) -> None: ...


def lists_as_keys(row: dict, by: MapState[list[int], int]) -> None: ...


def only_for_checking(row: dict, account: State[Decimal]) -> None: ...


def frames(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    return rows, state


def one_table(rows: pa.Table) -> pa.Table:
    return rows


def of_frames_with(rows: pa.Table, state: pa.Table, rate: float) -> tuple[pa.Table, pa.Table]:
    return rows, state


def by_user(row: dict) -> str:
    return str(row["user"])


endless = kafka("orders", schema=SCHEMA, start="earliest")
ends = kafka("orders", schema=SCHEMA, start="earliest", end="latest")


def a_job(
    fn: Any = total, *, times: Any = "at", source: Any = ends, fields: dict[str, Any] | None = None, **given: Any
) -> Job:
    """A good job with keyed state, for tests to spoil.

    ``times``: of the input. ``fields``: of the task, as a YAML file would have them.
    """
    job = Job("good")
    rows = job.input("orders", source, time=times)
    spent = job.keyed("spend", fn, after=rows, **{"group_by": "user", **given})
    job.output("out", blackhole(), after=spent)
    if fields:
        job._catalog[1].update(fields)
    return job


WHOLE_YAML = f"""
name: good
workflow: [[orders, spend], [spend, out]]
catalog:
  - name: orders
    type: input
    connector: kafka
    options: {{topic: orders, schema: "{SCHEMA}", start: earliest, end: latest}}
    time: at
  - name: spend
    type: function
    fn: "{HERE}:spend"
    group_by: user
    params: {{rate: 2.0}}
    keyed: {{on_timer: "{HERE}:review", ttl: 30 days, store: rocksdb, state_limit: 1000000}}
  - {{name: out, type: output, connector: blackhole}}
"""


def whole() -> Job:
    return a_job(spend, on_timer=review, ttl="30 days", store="rocksdb", state_limit=1_000_000, params={"rate": 2.0})
