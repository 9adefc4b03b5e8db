"""Who has changed a job, when and what, as the log says."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from scenario_runner import World, spec_of

from coordinator.core.projection import project
from coordinator.core.state import State, new_state
from coordinator.history.revisions import RevisionMade, revisions_of
from sardonyx.cli.history_text import revision_lines
from sardonyx.client import change as client_change
from sardonyx.client.change import Making
from sardonyx.core.errors import Failure, SardonyxError
from sardonyx.core.events import AnyEvent, JobChanged, LinksFailed

TEXT = "read -> write, read -> keep -> log; read never ends; 2 partitions"
WIDER = "read -> write, read -> keep -> log, keep -> more; read never ends; 2 partitions"


def begun() -> World:
    world = World()
    for sentence in (
        f"copy is submitted: {TEXT}",
        "the links of copy are made",
        "4 peers are born",
        "the offers are acked",
    ):
        world.say(sentence)
    return world


TRIED = (
    "copy is submitted: read -> write; read is a topic; outlives 1 failure",
    "the links of copy are made",
    "P1 is born",
    "P1 acks",
)


def made(world: World) -> list[RevisionMade]:
    return revisions_of("copy", new_state("test"), world.log)


def lines(world: World) -> list[str]:
    """Without the time of the day."""
    return [re.sub(r"  \d\d\S*( \d\S*)?  ", "  ", line) for each in made(world) for line in revision_lines(each)]


def test_a_job_that_was_never_changed_has_no_changes() -> None:
    """Nor has one that is not there."""
    assert made(begun()) == []
    assert revisions_of("other", new_state("test"), begun().log) == []


def test_each_change_says_what_it_was_and_when_it_took_over() -> None:
    """Tasks that came, went and were changed, those that went on, and the offsets from which it works. What is not taken in is no
    change.
    """
    world = begun()
    known = world.state.jobs["copy"]
    wider = JobChanged(at=1.0, job="copy", spec=spec_of("copy", WIDER), revision=1, same=["write", "keep"], by="ada")
    world.deliver(wider)
    world.deliver(wider)  # it is being changed
    assert [each.done for each in made(world)] == [None]
    assert lines(world)[-1] == "  not made yet"
    for sentence in ("3 s pass", "the peers that are to give their tasks up do", "the new links of copy are made"):
        world.say(sentence)
    (found,) = made(world)
    assert (found.revision, found.by, found.added, found.went_on) == (2, "ada", ["more"], ["write"])
    assert (found.removed, found.changed, found.code, found.given_up) == ([], ["keep"], False, False)
    assert found.done == world.now
    world.say("the offers are acked")
    world.say(f"copy becomes: {TEXT}, without more")
    found = made(world)[1]
    assert (found.revision, found.removed, found.went_on) == (3, ["more"], [])
    assert known.revision == 2
    assert lines(world)[0] == "revision 2  entry 11 by ada: added more; changed keep"
    assert "write went on meanwhile" in lines(world)[1]


def test_a_change_that_makes_no_queue_says_where_it_took_over() -> None:
    """Only a function or a setting differs: the tasks that did not go on stand at an offset on record."""
    world = begun()
    known = world.state.jobs["copy"].spec
    catalog = [replace(task, doc="changed") if task.name == "keep" else task for task in known.catalog]
    world.deliver(
        JobChanged(at=1.0, job="copy", spec=replace(known, catalog=catalog), revision=1, same=["write", "log"])
    )
    for sentence in ("3 s pass", "the peers that are to give their tasks up do"):
        world.say(sentence)
    assert world.state.jobs["copy"].revision == 1
    world.say("the new links of copy are made")
    (found,) = made(world)
    assert (found.done, found.went_on, found.since) == (world.now, ["write", "log"], {"keep": {"read": [7, 7]}})
    assert lines(world)[-1] == "  task keep works by it from offsets {0: 7, 1: 7} of topic read"


def test_a_change_that_is_given_up_says_why() -> None:
    """Kafka has refused it, or its job has ended."""
    world = begun()
    world.say(f"copy becomes: {WIDER}")
    for sentence in ("1 s pass", "the peers that are to give their tasks up do"):
        world.say(sentence)
    world.deliver(LinksFailed(at=5.0, job="copy", error=Failure("SX-TEST", "no such topic"), revision=2))
    world.say(f"copy becomes: {WIDER}")
    world.say("copy is killed")
    first, second = made(world)
    assert (first.given_up, first.error, second.given_up, second.error) == (
        True,
        Failure("SX-TEST", "no such topic"),
        True,
        None,
    )
    assert "no such topic" in lines(world)[1]
    assert lines(world)[3] == "  given up"


def test_offsets_from_which_a_version_works() -> None:
    """By task and topic; a partition of which nothing was read has none. A task that is removed works no more from there on."""
    since: dict[str, dict[str, list[int | None]]] = {"work": {"orders": [4711, None, 0]}, "old": {"given": [3]}}
    found = RevisionMade(revision=2, n=7, at=0.0, done=1.5, removed=["old"], since=since, code=True)
    assert revision_lines(found)[0].endswith("entry 7: removed old; other code")
    assert revision_lines(found)[-2:] == [
        "  task work works by it from offsets {0: 4711, 2: 0} of topic orders",
        "  task old that is removed had read up to offsets {0: 3} of topic given",
    ]


def test_a_change_that_was_taken_back_says_why() -> None:
    """No peer could begin with it: the job goes on by the version before, which makes a revision."""
    world = World()
    left = ("1 s pass", "the peers that are to give their tasks up do", "the new links of copy are made")
    for sentence in (*TRIED, "copy is changed", *left, "P1 declines: no module", "P1 acks", "copy is changed"):
        world.say(sentence)
    first, second = made(world)
    assert (first.revision, first.done, first.taken_back) == (2, 1.0, 1.0)
    assert first.error is not None
    assert first.error.code == "SX-JOB-TAKEN-BACK"
    assert lines(world)[2].endswith(", as revision 3: SX-TEST: no module")
    assert (second.revision, second.taken_back, second.error) == (4, None, None)
    assert world.state.jobs["copy"].revision == 3


@pytest.mark.parametrize(
    ("then", "gives"),
    [
        (["P1 acks"], 2),
        (["P1 declines: no module"], "SX-JOB-TAKEN-BACK: revision 2 of job copy was taken back"),
        (["P1 dies"], 2),
        (["copy is suspended"], 2),
    ],
    ids=str,
)
def test_who_changes_a_job_hears_whether_a_peer_could_begin(then: list[str], gives: int | str) -> None:
    """It hears so as soon as a peer has begun, or none is about to begin; it does not wait where there is no peer. The log has
    that before the nodes: then it looks again.
    """
    world = World()
    for sentence in TRIED:
        world.say(sentence)
    known = world.state.jobs["copy"].spec
    spec = replace(known, failure_limit=0, catalog=[replace(task, batch_size=7) for task in known.catalog])
    left = ["1 s pass", "the peers that are to give their tasks up do", "the new links of copy are made"]
    sentences = [*left, *then, "1 s pass"] if isinstance(gives, int) else [*left, *then]
    before = project(world.state)

    def read(path: str) -> bytes | None:
        return (before if sentences else project(world.state)).get(path)

    def advance(_zk: object, state: State) -> list[AnyEvent]:
        assert state is world.state
        begun = len(world.log)
        world.say(sentences.pop(0))
        return [event for _, event in world.log[begun:]]

    making = Making.__new__(Making)
    client: Any = SimpleNamespace(zk=SimpleNamespace(request=world.deliver, read=read))
    making.__dict__ |= {"_client": client, "_job": "copy", "_state": world.state, "_deadline": None}
    making._reader = SimpleNamespace(advance=advance)  # type: ignore[assignment]
    if isinstance(gives, int):
        assert making.make(spec, [], None) == gives
    else:
        with pytest.raises(SardonyxError, match=gives):
            making.make(spec, [], None)
    assert sentences == []


@pytest.mark.parametrize("at", [None, "2026-11-27T12:00:00Z"])
def test_a_change_that_is_given_again_returns_when_the_nodes_are_those_of_it(
    at: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has it before they do, and a caller shows the job at once."""
    world = World()
    for sentence in TRIED:
        world.say(sentence)
    state = world.state
    known = state.jobs["copy"]
    known.revision += 1
    notes = [replace(known.note(), revision=revision) for revision in (1, 1, 2)]

    def read(_path: str) -> bytes:
        return msgspec.json.encode(notes.pop(0))

    client: Any = SimpleNamespace(
        zk=SimpleNamespace(read=read),
        loaded=lambda _: SimpleNamespace(spec=known.spec, code=None),
        settings=SimpleNamespace(require=lambda _: None),
    )
    making = Making.__new__(Making)
    making.__dict__ |= {"_client": client, "_job": "copy", "_state": state, "_deadline": None}
    monkeypatch.setattr(client_change, "Making", lambda *_: making)
    monkeypatch.setattr(client_change, "LOOK_EVERY", 0.0)
    handle: Any = SimpleNamespace(id="copy")
    assert client_change.change(client, handle, "job.py", None, at=at) == 2
    assert notes == []
    notes.append(known.note())
    assert making.make(known.spec, [], None) == 2, "nothing differs"
    assert notes == []
