"""Why a job does not run: every reason in a history that brings it about, told as data and in words."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from explain_cases import CASES, COPY, MADE
from history_maker import History
from scenario_runner import World

from coordinator.core.explain import explain
from coordinator.core.explanation import SHOWN, Code, Explanation, as_lines
from coordinator.core.plan import Plan
from coordinator.core.scheduling import deserted
from coordinator.core.state import Job
from coordinator.core.stored_state import decode_state, encode_state
from tests.sizes import histories

DOCS = Path(__file__).parents[2] / "docs" / "coordination.md"
WAITING = {"no-live-peers", "queued-behind", "peers-missing", "takes-turns", "no-tag", "over-share", "peers-too-old"}
WAITING |= {"peers-drained", "tag-busy"}
"""One of these comes first if a job waits for peers."""


def flat(explanation: Explanation) -> list[str]:
    """Each reason in a line, with all that it holds."""
    lines = []
    for reason in explanation.reasons:
        facts = [("at", reason.task), ("since", reason.since), ("needed", reason.needed), ("free", reason.free)]
        facts += [("held by", reason.held_by), ("failure", reason.failures), ("limit", reason.limit)]
        head = "".join(
            f" {word} {value if isinstance(value, str) else int(value)}" for word, value in facts if value is not None
        )
        error = f" ({reason.error.code})" if reason.error else ""
        held = ", ".join(
            f"{peer.peer} {peer.state}{f' {peer.job}/{peer.task}' if peer.job else ''} {peer.since:.0f}"
            for peer in reason.peers
        )
        lines.append(f"{reason.code}{head}: {reason.text}{error}" + (f" [{held}]" if held else ""))
    return lines


def explained(sentences: list[str]) -> Explanation:
    world = World()
    for sentence in sentences:
        world.say(sentence)
    return explain(world.state, "copy")


@pytest.mark.parametrize(("sentences", "reasons"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_each_reason(sentences: list[str], reasons: list[str]) -> None:
    """After this history the job gives exactly these reasons, in this order."""
    assert flat(explained(sentences)) == reasons


def test_a_loop_that_goes_on_is_told_when_the_tasks_before_it_are_complete() -> None:
    """Not while more may come, not of a job that never ends, and not when the loop has ended."""
    history = ["copy is submitted: read -> fetch -> fresh -> write; fresh feeds back to fetch", MADE, "P1 is born"]

    def told(*more: str) -> list[str]:
        return [reason.text for reason in explained([*history, *more]).reasons if reason.code == "loop-goes-on"]

    assert told("P1 acks") == []
    through = ("P1 acks", "P1 is exhausted", "P1 completes", "P1 acks")
    assert told(*through) == [
        (
            "loop loop (fetch -> fresh) goes on: the tasks before it are complete; "
            "it ends when no row goes round any more (no max_hops)"
        )
    ]
    assert len(told(*through, "P1 is exhausted", "P1 completes", "P1 acks")) == 1  # fresh is still at work
    history[0] += "; read never ends"
    assert told("P1 acks") == []


def test_every_reason_has_its_history() -> None:
    """No reason is left out of the table above."""
    told = {line.split(" ")[0].rstrip(":") for _, _, reasons in CASES for line in reasons}
    assert told | {"peers-too-old"} == set(get_args(Code)), "peers of two releases: tests/core/test_compat.py"


def test_the_docs_tell_each_reason() -> None:
    """Every code stands in the table of docs/coordination.md, and nothing else does."""
    page = DOCS.read_text(encoding="utf-8").partition("## Why does it not run")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", page, flags=re.MULTILINE)
    assert sorted(re.findall(r"`([^`]+)`", " ".join(cells))) == sorted(get_args(Code))


def test_words_for_people() -> None:
    """The reasons in order, how long each has lasted, who holds what, and what to do about an error."""
    sentences = [
        "live is submitted: read -> write; read never ends; 12 partitions; write begins with 12",
        "the links of live are made",
    ]
    sentences += [", ".join(f"P{n}" for n in range(1, 13)) + " are born", "2 s pass", COPY, MADE]
    lines = as_lines(explained(sentences), 187.0)
    assert lines[:4] == [
        "copy is running",
        "  it waits for 1 more virtual peer: task write asks for 1, 0 are free, for 3 min 5 s",
        "    fix: start `sardonyx peer` on another machine, or give a daemon more with `--virtual-peers N`",
        "    P1 acking on live/write, for 3 min 7 s",
    ]
    assert lines[3 + SHOWN] == "    and 2 more"
    refused = explained(["copy is submitted: read -> write; write names no topic"])
    assert as_lines(refused, 3.0) == [
        "copy is failed",
        "  it was refused: SX-JOB-STRUCTURE: write names no topic, 3.0 s ago",
        "    fix: run `sardonyx check` on the job; it names every problem and what to do about it",
    ]
    assert as_lines(explained([]), 3.0)[0] == "copy is not known"


GPU = "copy is submitted: read -> write; read never ends; write asks for gpu"
SEVERAL = [f"P{n} is {then}" for n in range(2, 6) for then in ("born", "drained")]
UNDRAIN = "in again; or start `sardonyx peer` on another host"


@pytest.mark.parametrize(
    ("sentences", "fixes"),
    [
        (
            [GPU, MADE, "P1 is born"],
            [
                "start a daemon that has it: `sardonyx peer --tag gpu`",
                "start peers that can run it, or allow it more: `sardonyx job scale copy --max-peers N`",
            ],
        ),
        (
            [
                "copy is submitted: read -> see -> write; read never ends; see asks for gpu; write asks for gpu",
                MADE,
                "P1 is born with gpu",
                "P2 is born",
                "P1 acks",
            ],
            ["start one more daemon that has it: `sardonyx peer --tag gpu`", ""],
        ),
        (
            ["P1 is born in a", "P2 is born in a", "host a is drained", COPY, MADE],
            [f"`sardonyx peers undrain a` takes them {UNDRAIN}"],
        ),
        (["P1 is born", "P1 is drained", COPY, MADE], [f"`sardonyx peers undrain P1` takes it {UNDRAIN}"]),
        (
            ["P1 is born in a", "host a is drained", *SEVERAL, COPY, MADE],
            [
                "`sardonyx peers undrain a`, `sardonyx peers undrain P2`, `sardonyx peers undrain P3` and 2 more take them "
                + UNDRAIN
            ],
        ),
        (
            [
                "live is submitted: read -> write; read never ends",
                "the links of live are made",
                "P1 is born",
                COPY,
                MADE,
            ],
            [
                "start `sardonyx peer` on another machine, or give a daemon more with `--virtual-peers N`",
                "start more peers, end a job, or run `sardonyx job scale copy --priority N`",
                "take the peers off one: `sardonyx job suspend live`; `sardonyx job resume live` lets it go on",
            ],
        ),
        (
            [COPY, MADE, "copy is killed"],
            ["", "wait; if it lasts, the log of the coordinator says why (`links_not_deleted`)"],
        ),
    ],
)
def test_the_fix_of_a_reason_names_what_is_known(sentences: list[str], fixes: list[str]) -> None:
    """So the command can be copied as it stands."""
    assert [reason.fix for reason in explained(sentences).reasons] == fixes


def test_what_holds_a_blocked_task_up_is_the_nearest_that_does(seed: int) -> None:
    """In random histories ``held_by`` is what a walk from the task back over tasks without peers finds first."""
    further = 0
    for number in range(150):
        history = History(random.Random(f"{seed}/held/{number}"))
        for _ in range(30):
            history.unkind(1)
            state = history.world.state
            for name, job in state.jobs.items():
                for reason in explain(state, name).reasons:
                    if reason.code == "task-blocked":
                        levels = _walked_back(job, state.plans[name], str(reason.task))
                        assert reason.held_by in levels[-1], f"{seed}/held/{number}: {history.world.picture()}"
                        further += len(levels) > 1
    assert further, "no history has a task that waits for one further away"


def _walked_back(job: Job, plan: Plan, task: str) -> list[list[str]]:
    """The tasks without peers before this one, by distance, up to the first distance at which one lacks them by itself."""
    levels, level = [], [task]
    while True:
        level = [before for each in level for before in plan.upstream[each] if deserted(job.tasks[before])]
        own = [
            each
            for each in level
            if job.tasks[each].backing_off or not any(deserted(job.tasks[before]) for before in plan.upstream[each])
        ]
        levels.append(own or level)
        if own:
            return levels


def test_whatever_happens_there_is_a_reason(seed: int) -> None:
    """In random histories every job has one after every event: the same from a stored state, and as JSON and back."""
    for number in range(histories(25, whole=60)):
        history = History(random.Random(f"{seed}/explain/{number}"))
        for _ in range(40):
            history.unkind(1)
            state = history.world.state
            for job in [*state.jobs, *state.purged]:
                found = explain(state, job)
                assert found.reasons, f"{seed}/explain/{number}: {job}: {history.world.picture()}"
                assert len(as_lines(found, history.world.now)) > len(found.reasons)
                if job in state.jobs and state.jobs[job].waits_for:
                    assert found.reasons[0].code in WAITING
                assert explain(decode_state(encode_state(state)), job) == found
                assert msgspec.json.decode(msgspec.json.encode(found), type=Explanation) == found
