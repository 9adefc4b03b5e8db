"""The table of docs/changes.md: what `job change` takes, and what takes a job that goes on from a stopped one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sardonyx import Count, Job, Max, event_time, files, kafka, tumbling
from sardonyx.core.job_diff import job_diff
from sardonyx.core.spec import JobSpec

PAGE = (Path(__file__).parents[2] / "docs" / "changes.md").read_text("utf-8")
TOPIC: dict[str, Any] = {"schema": "user string, at timestamp", "start": "earliest"}


def spec(fn: str = "shop:price", source: Any = None, sink: Any = None, **given: Any) -> JobSpec:
    """A job with windows. The other arguments are those of the job, of the time of its input, of its task, and of its windows."""
    job = Job("shop", **given.get("job", {}))
    read = job.input("read", source or kafka("orders", **TOPIC), time=given.get("time", event_time("at", idle="1 min")))
    priced = job.task("price", fn, after=read, **given.get("task", {}))
    window: dict[str, Any] = {"group_by": "user", "aggregate": {"n": Count()}} | given.get("window", {})
    counted = job.window("count", given.get("windows", tumbling("1 min")), after=priced, **window)
    job.output("write", sink or kafka("counts"), after=counted)
    return job.spec()


CHANGE = {
    "functions": {"fn": "shop:other"},
    "`params`": {"task": {"params": {"rate": 2}}},
    "`on_error`": {"task": {"on_error": "skip"}},
    "`schema=`": {"task": {"schema": "user string"}},
    "`batch_size`": {"task": {"batch_size": 5}},
    "`batch_timeout`": {"task": {"batch_timeout": "1 s"}},
    "`min_peers`": {"task": {"min_peers": 2}},
    "`max_peers`": {"task": {"max_peers": 2}},
    "`sequential`": {"task": {"sequential": True}},
    "`tags`": {"task": {"tags": ["gpu"]}},
    "`state_limit`": {"window": {"state_limit": 10}},
    "`standby`": {"window": {"standby": 1}},
    "`ahead`": {"time": event_time("at", idle="1 min", ahead="2 days")},
    "`failure_limit`": {"job": {"failure_limit": 5}},
    "`keep`": {"job": {"keep": "1 h"}},
    "`max_backlog`": {"job": {"max_backlog": 1_000}},
}
"""What the first rows of the table name, and a version in which it differs."""
RESUME = {
    "`partitions`": {"job": {"partitions": 16}},
    "`delay`": {"time": event_time("at", idle="1 min", delay="1 s")},
    "`idle`": {"time": event_time("at", idle="2 min")},
    "`schema`": {"source": kafka("orders", **TOPIC | {"schema": "user string, at timestamp, price double"})},
    "`end`": {"source": kafka("orders", **TOPIC, end="latest")},
    "options of outputs": {"sink": kafka("counts", key="user")},
    "`grace`": {"window": {"grace": "10 s"}},
    "`late`": {"window": {"late": "dead_letter"}},
    "`store`": {"window": {"store": "rocksdb"}},
    "`lineage`": {"job": {"lineage": True}},
    "`checkpoint_every`": {"job": {"checkpoint_every": "1 min"}},
}
LESS, MORE = "inner", "left"
START = {
    "the topic of an input": {"source": kafka("returns", **TOPIC)},
    "`group_by`": {"window": {"group_by": None}},
    "lengths of its windows": {"windows": tumbling("2 min")},
    "what they aggregate": {"window": {"aggregate": {"n": Count(), "last": Max("at")}}},
}


def rows() -> dict[str, tuple[str, str]]:
    """What differs, and what the two columns say of it."""
    table = PAGE.partition("| what differs |")[2].partition("\n\n")[0]
    found = [re.split(r"(?<!\\)\|", line)[1:4] for line in table.splitlines()[2:]]
    return {what: (change.strip(), resume.strip()) for what, change, resume in found}


@pytest.mark.parametrize(
    ("what", "version", "changes", "resumes"),
    [
        *((what, version, True, True) for what, version in CHANGE.items()),
        *((what, version, False, True) for what, version in RESUME.items()),
        *((what, version, False, False) for what, version in START.items()),
    ],
)
def test_what_differs_is_carried_out_as_the_table_says(
    what: str, version: dict[str, Any], changes: bool, resumes: bool
) -> None:
    """In a running job, by one that goes on from it, or only as a new job."""
    ways = job_diff(spec(), spec(**version), code=None).ways
    assert ("change" in ways, "resume" in ways) == (changes, resumes)
    said = [told for row, told in rows().items() if what in row]
    assert any((told[0] == "yes") == changes and told[1].startswith("yes") == resumes for told in said)


@pytest.mark.parametrize("other", [{"emit": "count 3"}, {"emit": "changes", "allowed_lateness": "1 h"}])
def test_windows_of_several_results_take_others_and_those_of_one_result_do_not(other: dict[str, Any]) -> None:
    """What decides whether windows give several results decides about their state."""
    several, one = spec(window={"emit": "changes"}), spec()
    assert any("`emit`" in row and told == ("no", "yes") for row, told in rows().items())
    assert "resume" in job_diff(several, spec(window=other), code=None).ways
    assert "resume" not in job_diff(one, spec(window=other), code=None).ways
    assert "resume" not in job_diff(spec(window=other), one, code=None).ways


@pytest.mark.parametrize("kind", ["join", "lookup"])
def test_a_join_or_a_lookup_may_give_less_than_before_and_a_lookup_more(kind: str) -> None:
    """What a join that was inner keeps does not say which of its left rows have had a partner."""

    def two_sided(how: str) -> JobSpec:
        job = Job("shop")
        time = event_time("at", idle="1 min")
        left, right = (job.input(name, kafka(name, **TOPIC), time=time) for name in ("views", "orders"))
        if kind == "join":
            found = job.join("both", left, right, on="user", within="1 h", how=how)
        else:
            found = job.lookup("both", left, right, on="user", how=how)
        job.output("write", kafka("counts"), after=found)
        return job.spec()

    ways = [job_diff(two_sided(how), two_sided(other), code=None).ways for how, other in ((LESS, MORE), (MORE, LESS))]
    assert ["change" in each for each in ways] == [False, False]
    assert ["resume" in each for each in ways] == [kind == "lookup", True]
    said = {row: told[1].startswith("yes") for row, told in rows().items() if "`how`" in row}
    assert sorted(said.values()) == [False, True]
    assert any("of a lookup, and of a join from `left` to `inner`" in row for row, yes in said.items() if yes)


def test_queues_of_a_job_without_state_take_another_number_of_partitions() -> None:
    """In the running job."""

    def plain(partitions: int) -> JobSpec:
        job = Job("plain", partitions=partitions)
        read = job.task("price", "shop:price", after=job.input("read", kafka("orders", start="earliest")))
        job.output("write", files("out", format="json"), after=read)
        return job.spec()

    assert "change" in job_diff(plain(8), plain(16), code=None).ways
