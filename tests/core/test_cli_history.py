"""A log as a list: a check finds damage at its number, and decisions are shown in words."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import cast

import msgspec
import pytest
from history_maker import History

from coordinator.core.decide import decide
from coordinator.core.projection import project
from coordinator.core.state import State, new_state
from coordinator.core.stored_state import decode_state, encode_state
from coordinator.history import replay
from coordinator.history.replay import Decided, Replay, Stand, Verdict, Verifier, concerned_jobs
from sardonyx.cli.call import Call
from sardonyx.cli.event_text import clock
from sardonyx.cli.history_text import change_lines, effect_data, eviction, life
from sardonyx.cli.log_commands import _asked, _put_cluster, wanted
from sardonyx.client.cluster_views import cluster_view
from sardonyx.client.reasons import Outside, Why
from sardonyx.core import node_paths
from sardonyx.core.errors import Failure, InternalError
from sardonyx.core.events import (
    Acked,
    AckTimedOut,
    AnyEvent,
    Completed,
    Counts,
    Drained,
    Evicted,
    Exhausted,
    JobKilled,
    JobSubmitted,
    LinkFacts,
    LinksCreated,
    PeerBorn,
    PeerDied,
    TaskFailed,
    Yielded,
)
from sardonyx.core.notes import Assignment
from sardonyx.core.spec import JobSpec, TaskSpec
from tests.random_jobs import random_spec

SPEC = JobSpec(
    name="j",
    workflow=[("read", "write")],
    catalog=[
        TaskSpec(name="read", type="input", connector="generator", options={"count": 10}),
        TaskSpec(name="write", type="output", connector="blackhole"),
    ],
)
LINKS = {"read.splits": LinkFacts(2), "read.write": LinkFacts(2)}
BEGIN: list[AnyEvent] = [
    PeerBorn(at=10.0, peer="a", host="h", pid=7, daemon="d"),
    JobSubmitted(at=11.0, job="j-1", spec=SPEC),
    LinksCreated(at=12.0, job="j-1", links=LINKS),  # entry 3 offers read to a
    Acked(at=13.0, peer="a", assignment=3),
]


def log_of(*events: AnyEvent) -> list[tuple[int, AnyEvent]]:
    return list(enumerate(events, 1))


def played(*events: AnyEvent) -> list[Decided]:
    return list(Replay(new_state("test")).steps(log_of(*events)))


def state_of(*events: AnyEvent) -> State:
    state = new_state("test")
    for n, event in log_of(*events):
        decide(state, n, event)
    return state


def verdict_of(
    events: list[tuple[int, AnyEvent]],
    stand: Stand | None = None,
    snapshots: Callable[[int], bytes | None] | None = None,
    *,
    thorough: bool = False,
) -> Verdict:
    verifier = Verifier(new_state("test"), stand, snapshots, thorough=thorough)
    for _ in verifier.run(events):
        pass
    return verifier.end()


def random_log(seed: str, events: int = 60) -> list[tuple[int, AnyEvent]]:
    history = History(random.Random(seed))
    history.unkind(events)
    return history.world.log


# Verifying


@pytest.mark.parametrize("number", range(20))
def test_random_histories_are_sound_however_the_tree_was_read(number: int, seed: int) -> None:
    """Whichever of the nodes that move are found as they were at whichever moment: no false alarm."""
    name = f"{seed}/verify/{number}"
    rng = random.Random(name)
    log = random_log(name)
    low = rng.randint(0, len(log))
    replayed = Replay(new_state("test"))
    trees = [dict(replayed.zk), *(dict(replayed.zk) for _ in replayed.steps(log))]
    paths = {path for zk in trees for path in zk}
    read = {path: rng.choice(trees[low:]).get(path) for path in paths}
    stand = Stand(low, len(log), {path: data for path, data in read.items() if data is not None})
    snapshots = {n: encode_state(state_of(*(event for _, event in log[:n]))) for n in rng.sample(range(1, len(log)), 3)}
    verdict = verdict_of(log, stand, snapshots.get)
    assert verdict.findings == [], f"{name}: {verdict}"
    assert (verdict.last, verdict.events, verdict.snapshots) == (len(log), len(log), 3)


def test_nodes_that_cannot_be_are_found() -> None:
    """Missing, extra and differing, each with its path; also a value that the node had before the tree was read."""
    nodes = project(state_of(*BEGIN))
    stale = project(state_of(*BEGIN[:3]))[node_paths.peer_state("a")]
    log = log_of(*BEGIN)
    missing = {path: data for path, data in nodes.items() if path != "/job/j-1/task/write"}
    for found, told in (
        (missing, "/job/j-1/task/write is missing in ZooKeeper"),
        (nodes | {"/peer-state/b": b"{}"}, "/peer-state/b exists in ZooKeeper, but no decision created it"),
        (nodes | {node_paths.peer_state("a"): stale}, "/peer-state/a differs from what was decided"),
    ):
        verdict = verdict_of(log, Stand(4, 4, found))
        assert [(finding.n, finding.kind, finding.message) for finding in verdict.findings] == [(4, "tree", told)]
    assert verdict_of(log, Stand(3, 4, nodes | {node_paths.peer_state("a"): stale})).ok, (
        "it may have been read before entry 4"
    )


def test_a_snapshot_that_differs_is_found_and_the_rest_is_looked_at_too() -> None:
    """The report names the snapshot, and verification goes on after it."""
    other = encode_state(state_of(*BEGIN[:1], PeerBorn(at=11.0, peer="x")))
    verdict = verdict_of(log_of(*BEGIN), None, {2: other, 4: encode_state(state_of(*BEGIN))}.get)
    assert [(found.n, found.kind) for found in verdict.findings] == [(2, "snapshot")]
    assert (verdict.snapshots, verdict.last) == (2, 4)


def test_a_hole_is_found() -> None:
    """Entries that do not follow each other end the replay, with the number that is missing."""
    log = log_of(*BEGIN)
    verdict = verdict_of([log[0], *log[2:]])
    assert [found.kind for found in verdict.findings] == ["log"]
    assert "no entry 2" in verdict.findings[0].message


def test_a_log_that_ends_before_the_tree_is_found() -> None:
    """The tree is newer than the last entry: something is missing."""
    verdict = verdict_of(log_of(*BEGIN[:3]), Stand(4, 4, project(state_of(*BEGIN))))
    assert [found.kind for found in verdict.findings] == ["log"]


@pytest.mark.parametrize("thorough", [True, False])
def test_the_event_that_broke_a_rule_is_named_also_in_a_large_state(
    thorough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a large state rules are checked only every few events; the first one that broke one is found all the same."""
    log = log_of(*(PeerBorn(at=float(n), peer=f"p{n}") for n in range(1, 1000)))

    def broken(state: State, n: int, event: AnyEvent) -> list[object]:
        effects = decide(state, n, event)
        if n == 907:
            state.peers["p5"].assignment = Assignment(1, "nobody", "knows", 0)
        return effects

    monkeypatch.setattr(replay, "decide", broken)
    verdict = verdict_of(log, thorough=thorough)
    assert [(found.n, found.kind) for found in verdict.findings] == [(907, "rule")]
    assert "SX-INVARIANT" in verdict.findings[0].message
    assert verdict.last < 920


def test_a_decision_that_raises_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a decision raises, the report shows it with its number."""

    def raising(state: State, n: int, event: AnyEvent) -> list[object]:
        if n == 3:
            raise KeyError("lost")
        return decide(state, n, event)

    monkeypatch.setattr(replay, "decide", raising)
    verdict = verdict_of(log_of(*BEGIN))
    assert (verdict.last, verdict.findings[0].message) == (2, "KeyError: 'lost'")


def test_a_state_that_breaks_a_rule_from_the_beginning_is_found() -> None:
    """A snapshot may be broken before the first entry behind it."""
    state = state_of(*BEGIN)
    state.peers["a"].assignment = None
    verifier = Verifier(state)
    assert [(found.n, found.kind) for found in verifier.end().findings] == [(4, "rule")]


def test_a_replay_goes_on_from_a_snapshot() -> None:
    """What comes out is the same as from the beginning; an entry that does not follow is refused."""
    rest = Replay(decode_state(encode_state(state_of(*BEGIN[:2]))))
    assert [decided.n for decided in rest.steps(log_of(*BEGIN)[2:])] == [3, 4]
    assert encode_state(rest.state) == encode_state(state_of(*BEGIN))
    with pytest.raises(InternalError, match="no entry 5"):
        rest.step(6, PeerDied(peer="a"))


# In words


def test_what_an_entry_changed_is_told() -> None:
    """A line a peer, job and task, before and after, and what is to be done outside the tree."""
    decided = played(*BEGIN, JobKilled(at=14.0, job="j-1"))
    assert change_lines(decided[1]) == [
        "job j-1: planning",
        "task j-1/read: pending",
        "task j-1/write: pending",
        "then: make the links of job j-1",
    ]
    assert "peer a: idle -> acking on j-1/read, slot 0 (assignment 3)" in change_lines(decided[2])
    assert change_lines(decided[3])[-1] == "task j-1/read: pending, peers a -> running, peers a"
    killed = change_lines(decided[4])
    assert "peer a: active on j-1/read, slot 0 (assignment 3) -> idle" in killed
    assert "job j-1: running, links made -> killed, links made" in killed
    assert killed[-1] == "then: remove the links of job j-1"
    assert [effect_data(effect)["do"] for effect in decided[4].effects][-1] == "delete-links"


def test_a_peer_tells_its_life() -> None:
    """Birth, offers, work, what ended each, what came too late, and its death with the reason."""
    error = Failure("SX-TEST", "something broke\nand more")
    moments = list(
        life(
            "a",
            played(
                *BEGIN,
                TaskFailed(at=14.0, peer="a", assignment=3, error=error),
                Acked(at=15.0, peer="a", assignment=3),
                PeerBorn(at=16.0, peer="b"),
                Evicted(at=17.0, peer="a"),
            ),
        )
    )
    assert [(moment.n, moment.kind, moment.state) for moment in moments] == [
        (1, "born", "idle"),
        (3, "links-created", "acking"),
        (4, "ack", "active"),
        (5, "failed", "idle"),
        (6, "ack", None),
        (8, "evict", "dead"),
    ]
    assert [moment.text for moment in moments] == [
        "born, on h, process 7, daemon d",
        "offered j-1/read, slot 0 (assignment 3)",
        "takes j-1/read",
        "leaves j-1/read: gives it up: SX-TEST: something broke",
        "peer a accepts assignment 3: changes nothing",
        "dead: a user evicted it",
    ]


def test_a_life_with_sealing_waiting_and_being_revoked() -> None:
    """The words for the states that come late in a task's life."""
    events = [PeerBorn(at=9.0, peer="b"), *BEGIN[:3]]  # entry 4 offers read to b
    events += [
        Acked(at=13.0, peer="b", assignment=4),
        Acked(at=13.0, peer="a", assignment=4),
        Exhausted(at=14.0, peer="b", assignment=4),
        Exhausted(at=14.0, peer="a", assignment=4),
    ]
    texts = {peer: [moment.text for moment in life(peer, played(*events))] for peer in ("a", "b")}
    assert "takes j-1/read" in texts["b"]
    last = [texts["a"][-1], texts["b"][-1]]
    assert any("seals" in text or "waits for the others" in text for text in last)
    unanswered = list(life("a", played(*BEGIN[:3], AckTimedOut(at=30.0, peer="a", assignment=3))))
    assert unanswered[-1].text == ("revoked: it did not answer the offer in time; had j-1/read, slot 0 (assignment 3)")
    sealed = [*BEGIN, Exhausted(at=14.0, peer="a", assignment=3)]
    sealed.append(Completed(at=15.0, peer="a", assignment=3, counts=Counts(10, 10)))
    done = list(life("a", played(*sealed)))
    assert done[-2].text == "the last to have read all of j-1/read: seals"
    assert done[-1].text == "leaves j-1/read: the task is complete; offered j-1/write, slot 0 (assignment 6)"


@pytest.mark.parametrize("number", range(10))
def test_there_are_words_for_whatever_happens(number: int, seed: int) -> None:
    """Over random histories every peer's life and every change can be told."""
    past = list(Replay(new_state("test")).steps(random_log(f"{seed}/words/{number}", 150)))
    for decided in past:
        assert all(change_lines(decided))
    for peer in {decided.event.peer for decided in past if isinstance(decided.event, PeerBorn)}:
        moments = list(life(peer, past))
        assert moments
        assert all(moment.text for moment in moments)


def test_what_became_of_an_evicted_peers_task() -> None:
    """The task has no peer; a peer goes on with it; it is offered to another."""
    alone = eviction(played(*BEGIN, Evicted(at=14.0, peer="a"))[-1])
    assert (alone.state, alone.task) == ("revoked", "j-1/read")
    back = "its daemon brings it back under a new id; `sardonyx peers drain` takes peers out for good"
    assert alone.lines[-2:] == ["no peer works on its task j-1/read until one is free", back]
    free = [PeerBorn(at=9.0, peer="a"), JobSubmitted(at=11.0, job="j-1", spec=_sequential())]
    free += [LinksCreated(at=12.0, job="j-1", links=LINKS), Acked(at=13.0, peer="a", assignment=3)]
    free += [PeerBorn(at=14.0, peer="b"), PeerBorn(at=14.0, peer="c"), Evicted(at=15.0, peer="a")]
    assert eviction(played(*free)[-1]).lines[-2] == "its task j-1/read is offered to c"
    idle = eviction(played(PeerBorn(at=9.0, peer="a"), Evicted(at=10.0, peer="a"))[-1])
    assert (idle.state, idle.lines[0]) == ("dead", "peer a is dead")
    assert idle.lines[1] == f"it had no task; {back}"


def test_the_life_of_a_drained_peer() -> None:
    """It is drained at work, leaves after its batch, and is taken in again; one that joins its host is drained, too."""
    born = [PeerBorn(at=9.0, peer="a", host="h"), *BEGIN[1:]]
    events = [
        *born,
        Drained(at=14.0, host="h"),
        Yielded(at=15.0, peer="a", assignment=3),
        PeerBorn(at=16.0, peer="b", host="h"),
    ]
    past = played(*events, Drained(at=17.0, peer="a", back=True))
    assert [moment.text for moment in life("a", past)][-3:] == [
        "drained: gets no further task",
        "leaves j-1/read: preempted, since peer a gives up assignment 3 after its batch",
        "taken in again; offered j-1/read, slot 0 (assignment 8)",
    ]
    assert [moment.text for moment in life("b", past)] == ["born, on h; its host is drained"]


def _sequential() -> JobSpec:
    return msgspec.structs.replace(
        SPEC, catalog=[msgspec.structs.replace(task, consumption="sequential") for task in SPEC.catalog]
    )


def test_lists_hold_what_concerns_somebody() -> None:
    """By job, also what its peers said; by peer, also what happened to it; by kind; ids may be cut short."""
    past = played(*BEGIN, PeerBorn(at=14.0, peer="b"))
    assert [decided.n for decided in past if wanted("j", None, None)(decided)] == [2, 3, 4, 5]
    assert [decided.n for decided in past if wanted(None, "a", None)(decided)] == [1, 3, 4]
    assert [decided.n for decided in past if wanted(None, "a", "ack")(decided)] == [4]
    assert concerned_jobs(past[3]) == {"j-1"}
    late = played(*BEGIN, Acked(at=15.0, peer="a", assignment=3))[-1]
    assert (late.changes, concerned_jobs(late)) == ([], {"j-1"})


# As it was


def test_the_cluster_as_it_was() -> None:
    """Peers with their places and since when, jobs with their tasks."""
    view = cluster_view(state_of(*BEGIN), 13.0)
    assert (view.n, view.at, view.deployment) == (4, 13.0, "test")
    (peer,) = view.peers
    assert (peer.id, peer.state, peer.job, peer.task, peer.since, peer.host) == (
        "a",
        "active",
        "j-1",
        "read",
        13.0,
        "h",
    )
    (job,) = view.jobs
    assert [(task.name, task.state, task.peer_ids) for task in job.tasks] == [
        ("read", "running", ["a"]),
        ("write", "pending", []),
    ]
    assert cluster_view(state_of(*BEGIN, PeerDied(at=20.0, peer="a"))).peers == []


def test_a_peer_is_told_as_of_the_moment_that_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """The last entry before it may be the one that made the peer active, and long ago. Of an entry it is told as of that."""
    state = state_of(*BEGIN)
    _put_cluster(Call(), state, 13.0, 613.0)
    told = capsys.readouterr().out
    assert "active  10 min 0 s" in told
    assert f"as of {clock(613.0)[:-4]}" in told
    _put_cluster(Call(), state, 13.0)
    assert "active  0.0 s" in capsys.readouterr().out
    assert _asked(7) is None
    assert _asked(613.0) == 613.0
    assert cast("float", _asked(9e9)) <= time.time()


@pytest.mark.parametrize("number", range(10))
def test_every_moment_of_a_random_history_can_be_shown(number: int, seed: int) -> None:
    """Whatever jobs were handed in, refused ones too."""
    for decided_n in (10, 40, 80):
        log = random_log(f"{seed}/views/{number}", 80)[:decided_n]
        state = state_of(*(event for _, event in log))
        view = cluster_view(state)
        assert {job.id for job in view.jobs} == set(state.jobs)


def test_the_weightiest_reason_comes_first() -> None:
    """What lies outside the log weighs more; a job that runs, or has ended, has none."""
    from coordinator.core.explain import explain

    waiting = explain(state_of(*BEGIN[1:3]), "j-1")
    assert Why(waiting).in_short == waiting.reasons[0].text
    assert Why(waiting, [Outside("not-led", "no coordinator leads")]).in_short == "no coordinator leads"
    assert Why(explain(state_of(*BEGIN), "j-1")).in_short is None
    assert Why(explain(state_of(*BEGIN, JobKilled(at=14.0, job="j-1")), "j-1")).in_short is None


def test_random_specs_are_fit_for_these_tests(rng: random.Random) -> None:
    """The maker gives jobs of several tasks, or the tests above would show little."""
    assert max(len(random_spec(rng, name="one").catalog) for _ in range(20)) > 2
