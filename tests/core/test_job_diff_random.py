"""Random changes of random jobs: a diff finds each of them, and foresees what the coordinator decides."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import cast

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st
from job_changes import enriched, random_change
from msgspec.structs import replace
from test_job_diff import shown

from coordinator.core.admission import predecessor, resume_refusal
from coordinator.core.state import Job
from sardonyx.core.graph import graph_of
from sardonyx.core.job_diff import Difference, JobDiff, Refusal, job_diff
from sardonyx.core.predecessors import Predecessor
from sardonyx.core.resuming import resume_problems
from sardonyx.core.spec import JobSpec
from tests.random_jobs import random_spec, with_loops
from tests.sizes import histories

NUMBERS = st.integers(0, 2**64 - 1)


@given(NUMBERS)
def test_a_job_does_not_differ_from_itself(number: int) -> None:
    """Also if it went through ZooKeeper in between."""
    rng = random.Random(number)
    spec = enriched(rng, random_spec(rng, "j", endless=0.7))
    again = msgspec.json.decode(msgspec.json.encode(spec), type=JobSpec)
    diff = job_diff(spec, again)
    assert diff.equal
    assert shown(diff) == []
    assert {each.status for each in [*diff.tasks, *diff.links]} <= {"kept"}


def resume_refusals(diff: JobDiff) -> list[Refusal]:
    """Why the new job cannot go on from where the old one ends."""
    return [refusal for refusal in diff.refusals if refusal.way == "resume"]


@settings(max_examples=histories(150, whole=600))
@given(NUMBERS)
@example(942412)  # a parameter of a condition was true, and is 1
def test_every_change_of_a_job_is_found(number: int) -> None:
    """At the task, the link or the field that was changed, and taken back it is found as well."""
    rng = random.Random(number)
    spec = enriched(rng, random_spec(rng, "j", endless=0.7))
    changed, where = random_change(rng, spec)
    for one, other in ((spec, changed), (changed, spec)):
        diff = job_diff(one, other)
        assert not diff.equal
        assert any(found_at(where, each) for each in shown(diff)), f"{where}: {shown(diff)}"


def found_at(where: str, shown: str) -> bool:
    """Whether a line of :func:`shown` is about the place of a change. Of a struct that came or went, the whole is shown."""
    part, name, field = where.split(" ", 2) if not where.startswith("job") else ("job", "", where.split(" ")[1])
    words = shown.removesuffix(":").split(" ")
    begins = ["job"] if part == "job" else [part, name]
    at = words[len(begins) + 1].rstrip(":") if len(words) > len(begins) + 1 else ""
    return words[: len(begins)] == begins and (not field or at.startswith(field) or field.startswith(f"{at}."))


def job_of(rng: random.Random, spec: JobSpec) -> Job:
    """A job that has ended somehow, with what is known of its positions: mostly as its user wanted, with all of them."""
    wanted = "completed" if graph_of(spec, "d", "j-1").bounded else "stopped"
    tasks = {}
    for stage in graph_of(spec, "d", "j-1").stages:
        topics = [link.topic for link in stage.ingress if link.kind == "input" and rng.random() > 0.03]
        tasks[stage.name] = SimpleNamespace(positions={topic: [7] for topic in topics})
    state = {
        "spec": spec,
        "tasks": tasks,
        "status": wanted if rng.random() < 0.8 else rng.choice(["completed", "stopped", "failed", "killed"]),
        "links": "gone" if rng.random() < 0.95 else "made",
        "retired": [],
        "resumed_by": "j-9" if rng.random() < 0.05 else "",
        "refused": rng.random() < 0.02,
        "checkpoints": [],
        "closes": False,
        "end": Predecessor(spec, "running").once_ended().end if rng.random() < 0.8 else None,
    }
    return cast("Job", SimpleNamespace(**state))


@settings(max_examples=histories(150, whole=600))
@given(NUMBERS)
def test_the_diff_says_that_a_job_can_be_resumed_exactly_if_the_coordinator_takes_it(number: int) -> None:
    """With the coordinator's own reason if not; and a way carries out all differences exactly if each of them has it."""
    rng = random.Random(number)
    old = enriched(rng, random_spec(rng, "j", endless=0.7))
    new = old
    for _ in range(rng.randint(0, 3)):
        new, _ = random_change(rng, new)
    job = job_of(rng, old)
    refused = resume_refusal("j-2", new, "j-1", {"j-1": job})
    diff = job_diff(old, new, predecessor(job, {"j-1": job}), job="j-1")
    assert ("resume" in diff.ways) == (refused is None)
    assert ("resume" in diff.ways) == (not resume_refusals(diff))
    if refused is not None:
        first = resume_refusals(diff)[0].failure
        assert (first.code, first.message, first.cause, first.fix) == (
            refused.code,
            refused.message,
            refused.cause,
            refused.fix,
        )
    assert ("resume" in diff.ways) == (
        not resume_refusals(diff) and all("resume" in each.ways for each in diff.differences)
    )
    assert diff.equal or ("resume" in diff.ways) == all("resume" in each.ways for each in diff.differences)
    links = {each.name for each in diff.links if each.differences}
    assert {each.link for each in resume_refusals(diff)} - {""} <= links


@settings(max_examples=histories(80, whole=300))
@given(NUMBERS)
def test_what_is_said_of_a_running_job_holds_once_it_has_ended_as_its_user_wants(number: int) -> None:
    """No user stops a job in vain: the coordinator then decides as the diff has said."""
    rng = random.Random(number)
    old = enriched(rng, random_spec(rng, "j", endless=0.9))
    new, _ = random_change(rng, old)
    before = job_diff(old, new, Predecessor(old, "running", links_gone=False), job="j-1")
    bounded = graph_of(old, "d", "j-1").bounded
    stages = graph_of(old, "d", "j-1").stages
    positions = {
        stage.name: SimpleNamespace(positions={link.topic: [7] for link in stage.ingress if link.kind == "input"})
        for stage in stages
    }
    status = "completed" if bounded else "stopped"
    end = Predecessor(old, "running", links_gone=False).once_ended().end
    job = SimpleNamespace(
        spec=old,
        tasks=positions,
        status=status,
        links="gone",
        resumed_by="",
        refused=False,
        retired=[],
        checkpoints=[],
        closes=False,
        end=end,
    )
    refused = resume_refusal("j-2", new, "j-1", {"j-1": cast("Job", job)})
    assert ("resume" in before.ways) == (refused is None)
    if refused is not None:
        assert resume_refusals(before)[0].failure.message == refused.message


def with_marked_taken_back(old: JobSpec, new: JobSpec, diff: JobDiff) -> JobSpec:
    """The new job in which all that `--resume` does not take is as it was."""

    def marked(differences: list[Difference]) -> list[Difference]:
        return [each for each in differences if "resume" not in each.ways]

    before, after = ({task.name: task for task in spec.catalog} for spec in (old, new))
    for task in diff.tasks:
        for each in marked(task.differences):
            if each.kind == "added":
                del after[task.name]
            elif each.kind == "removed":
                after[task.name] = before[task.name]
            else:
                field = each.field.split(".")[0]
                after[task.name] = replace(after[task.name], **{field: getattr(before[task.name], field)})
    edges, routes = dict.fromkeys(new.workflow), dict(new.routes)
    for name in (link.name for link in diff.links if marked(link.differences)):
        source, target = name.split(".")
        edges.pop((source, target), None)
        routes.pop(name, None)
        edges |= dict.fromkeys(edge for edge in old.workflow if edge == (source, target))
        if name in old.routes:
            routes[name] = old.routes[name]
    workflow = [edge for edge in edges if after.keys() >= set(edge)]
    rest = replace(new, catalog=list(after.values()), workflow=workflow, routes=routes, cycles=[])
    return with_loops(rest, new.cycles)


def fused_after_one(spec: JobSpec) -> bool:
    """Whether each fused task comes after at most one task. Others are not valid, and then the order of edges counts."""
    ways_in = Counter(target for _, target in spec.workflow)
    return all(ways_in[task.name] <= 1 for task in spec.catalog if task.fuse)


@settings(max_examples=histories(150, whole=600))
@given(NUMBERS)
def test_without_what_a_resume_does_not_take_it_takes_the_rest(number: int) -> None:
    """A user who takes the marked differences back, and only these, gets a job that goes on."""
    rng = random.Random(number)
    old = enriched(rng, random_spec(rng, "j", endless=0.9))
    new = old
    for _ in range(rng.randint(1, 4)):
        new, _ = random_change(rng, new)
    before = Predecessor(old, "running", links_gone=False)
    diff = job_diff(old, new, before)
    if not all(refusal.link for refusal in resume_refusals(diff)):
        return  # it is not about what differs
    rest = with_marked_taken_back(old, new, diff)
    if all(map(fused_after_one, (old, new, rest))):
        assert [each.problem for each in resume_problems("j-1", before.once_ended(), rest)] == []
