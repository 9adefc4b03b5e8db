"""Jobs with windows, good ones for tests to spoil."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from sardonyx import (
    Collect,
    Count,
    Job,
    Max,
    Quantile,
    blackhole,
    calendar,
    every,
    kafka,
    kafka_time,
    sql,
    tumbling,
)
from sardonyx.core.errors import SardonyxError
from sardonyx.core.spec import JobSpec
from sardonyx.job.parse import read
from sardonyx.job.validate import problems_of

HERE = __name__

SCHEMA = "user string, at timestamp, ms double, n bigint, tags array<string>"


def top(rows: pa.Table) -> pa.Table:
    return rows


def each(row: dict) -> dict:
    return row


def by_user(row: dict) -> str:
    return str(row["user"])


class Hooks:
    def stop(self) -> None: ...


def found(job: Job | dict[str, Any]) -> list[SardonyxError]:
    data = job.data() if isinstance(job, Job) else job
    spec, problems = read(data)
    given = job.problems if isinstance(job, Job) else []
    return [*given, *problems, *problems_of(spec, functions=job.functions if isinstance(job, Job) else {})]


def only(job: Job | dict[str, Any]) -> SardonyxError:
    problems = found(job)
    assert len(problems) == 1, [str(problem) for problem in problems]
    return problems[0]


def a_job(
    windows: Any = None,
    *,
    time: Any = "at",
    source: Any = None,
    out: Any = None,
    more: Callable[[Job, Any], object] | None = None,
    **given: Any,
) -> Job:
    """A good job with windows, for tests to spoil."""
    job = Job("good")
    rows = job.input("hits", source or kafka("hits", schema=SCHEMA, start="earliest", end="latest"), time=time)
    given = {"group_by": "user", **({} if "fn" in given else {"aggregate": {"hits": Count()}}), **given}
    per_user = job.window("per-user", windows or tumbling("1 min"), after=rows, **given)
    job.output("out", out or blackhole(), after=per_user)
    if more is not None:
        more(job, per_user)
    return job


def spec_of(job: Job) -> JobSpec:
    spec, problems = read(job.data())
    assert [*job.problems, *problems] == []
    return spec


endless = kafka("hits", schema=SCHEMA, start="earliest")
plain = kafka("hits", start="earliest", end="latest")
upsert = sql("sqlite:////tmp/x.db", table="t", mode="upsert", key="user")


WHOLE_YAML = f"""
name: traffic
workflow: [[hits, per-user], [clicks, per-user], [per-user, best], [per-user, fix], [best, out], [fix, out]]
routes:
  per-user.fix: {{of: late}}
catalog:
  - name: hits
    type: input
    connector: kafka
    options: {{topic: hits, schema: "user string, at timestamp, ms double", start: earliest}}
    time: at
  - name: clicks
    type: input
    connector: kafka
    options: {{topic: clicks, schema: "user string, ms double", start: earliest}}
    time: {{kind: kafka, column: at, delay: "5 s", idle: "1 min"}}
  - name: per-user
    type: function
    group_by: user
    window: {{kind: tumbling, size: "1 min", grace: "10 s", emit: every 10 s}}
    aggregate: {{hits: count, slowest: {{max: ms}}, p99: {{quantile: ms, q: 0.99}}, all: {{of: collect, column: ms}}}}
  - {{name: best, type: function, fn: "{HERE}:top", window: {{kind: calendar, unit: day, zone: Europe/Berlin}}}}
  - {{name: fix, type: function, fn: "{HERE}:each"}}
  - {{name: out, type: output, connector: blackhole}}
"""


def whole() -> Job:
    job = Job("traffic")
    hits = job.input("hits", kafka("hits", schema="user string, at timestamp, ms double", start="earliest"), time="at")
    clicks = job.input(
        "clicks",
        kafka("clicks", schema="user string, ms double", start="earliest"),
        time=kafka_time("at", delay="5 s", idle="1 min"),
    )
    per_user = job.window(
        "per-user",
        tumbling("1 min"),
        after=[hits, clicks],
        group_by="user",
        aggregate={"hits": Count(), "slowest": Max("ms"), "p99": Quantile("ms", 0.99), "all": Collect("ms")},
        emit=every("10 s"),
        grace="10 s",
    )
    best = job.window("best", calendar("day", zone="Europe/Berlin"), after=per_user, fn=top)
    fix = job.task("fix", each, after=per_user.late)
    job.output("out", blackhole(), after=[best, fix])
    return job
