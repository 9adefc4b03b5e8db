"""Kafka outputs that run by themselves, so that a topic does not stop the outputs beside it."""

from __future__ import annotations

from typing import Any

import pytest

from sardonyx import Job, JobInvalid, generator, kafka
from sardonyx.core.graph import graph_of
from sardonyx.job.validate import validate
from sardonyx.testing import run_job


def same(row: dict) -> dict:
    return row


def stages(**options: Any) -> dict[str, list[tuple[str, str]]]:
    """What each stage of a task with two outputs writes."""
    job = Job("fan")
    work = job.task("work", same, after=job.input("read", kafka("in", start="earliest")))
    job.output("one", kafka("one"), after=work)
    on_error = options.pop("on_error", "fail")
    job.output("two", kafka("two", **options), after=work, on_error=on_error)
    validate(job.spec())
    graph = graph_of(job.spec(), "d", "j")
    return {stage.name: [(link.kind, link.topic) for link in stage.egress] for stage in graph.stages}


def test_an_independent_output_has_a_queue_and_a_transaction_of_its_own() -> None:
    """A topic that refuses it does not stop the outputs beside it. One that leaves out records is independent by itself."""
    both = {"work": [("output", "one"), ("output", "two")]}
    apart = {"work": [("output", "one"), ("internal", "d.j.work.two")], "two": [("output", "two")]}
    assert stages() == stages(independent=False) == both
    assert stages(independent=True) == stages(on_error="skip") == apart
    assert stages(on_error="dead_letter")["two"] == [("output", "two"), ("dead", "d.j.two.dead")]


def test_all_rows_go_to_an_independent_output_too() -> None:
    """Over its queue, in batches of its own."""
    job = Job("fan")
    made = job.input("make", generator(count=3, columns={"id": "sequence"}))
    job.output("one", kafka("one", key="id"), after=made)
    job.output("two", kafka("two", key="id"), after=made, on_error="dead_letter")
    rows = [{"id": number} for number in range(10)]
    result = run_job(job, {"make": rows}, batch_size=4)
    assert result.rows("one") == result.rows("two") == rows


def test_a_spec_says_that_an_output_is_independent() -> None:
    """So a job that an older release has submitted goes on as it was planned there."""
    job = Job("copies")
    read = job.input("read", kafka("in", start="earliest"))
    job.output("one", kafka("one"), after=read, on_error="skip")
    job.output("two", kafka("two"), after=read)
    spec = job.spec()
    assert spec.task("one").options["independent"] is True
    assert "independent" not in spec.task("two").options


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ({"independent": "yes"}, "SX-JOB-CONNECTOR", "independent cannot be 'yes'"),
        ({"independent": False, "on_error": "skip"}, "SX-JOB-ON-ERROR", "independent is false"),
    ],
)
def test_what_an_independent_output_cannot_be(options: dict[str, Any], code: str, said: str) -> None:
    with pytest.raises(JobInvalid) as caught:
        stages(**options)
    assert [problem.code for problem in caught.value.problems] == [code]
    assert said in str(caught.value)


def test_an_independent_output_is_not_fused() -> None:
    """It would share the batches of the task before it."""
    job = Job("fan")
    work = job.task("work", same, after=job.input("read", kafka("in", start="earliest")))
    job.output("out", kafka("out", independent=True), after=work, fuse=True)
    with pytest.raises(JobInvalid) as caught:
        validate(job.spec())
    assert [problem.code for problem in caught.value.problems] == ["SX-JOB-FUSE"]
