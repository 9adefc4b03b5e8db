"""Every stored format that a release wrote is read by this one: the golden corpus in ``tests/compat``."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable
from itertools import count
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from coordinator.core.decide import decide, replay
from coordinator.core.explain import explain
from coordinator.core.invariants import check
from coordinator.core.state import State, new_state
from coordinator.core.stored_state import decode_state, encode_state
from coordinator.history.replay import Verifier
from coordinator.loop import event_log
from queues import block, dead_letters
from sardonyx.client.upgrade import daemons, problems
from sardonyx.core.errors import Failure, SardonyxError
from sardonyx.core.events import (
    FORMAT,
    OLDEST,
    RULES,
    Acked,
    AnyEvent,
    Completed,
    Declined,
    JobKilled,
    JobStopped,
    JobSubmitted,
    LinkFacts,
    LinksCreated,
    LinksKept,
    PeerBorn,
    RulesRaised,
    TaskFailed,
    decode_event,
    decode_request,
)
from sardonyx.core.formats import encode_request
from sardonyx.core.graph import graph_of
from sardonyx.core.notes import CandidateNote, PeerNote, PulseNote
from sardonyx.core.positions import Position
from sardonyx.core.spec import JobSpec, decode_spec
from sardonyx.core.version import VERSION
from sardonyx.graphs.compute import Graph, compute
from sardonyx.state import graph_supersteps
from sardonyx.zookeeper.releases import Understood, understood
from tests.compat import make_supersteps
from tests.compat.make import COUNTS, LETTER, ROWS, SPEC

HERE = Path(__file__).parents[1] / "compat"
CORPORA = sorted(HERE.glob("format_*"))


def log_of(corpus: Path) -> tuple[int, list[tuple[int, AnyEvent]]]:
    """The rules under which a corpus' log begins, and its entries."""
    lines = (corpus / "log.jsonl").read_bytes().splitlines()
    number, found = count(1), []
    for line in lines:
        found += [(next(number), entry.event) for entry in event_log.decode_batch(1, line)]
    return msgspec.json.decode(lines[0]).get("rules", 1), found


def test_each_format_has_a_corpus() -> None:
    """If the format or the rules are raised, a corpus must be written: ``python -m tests.compat.make``."""
    assert max(log_of(corpus)[0] for corpus in CORPORA) == RULES, "run `python -m tests.compat.make`"
    assert (HERE / f"format_{FORMAT}").is_dir(), f"format {FORMAT} has no corpus: run `python -m tests.compat.make`"
    assert (HERE / f"format_{OLDEST}").is_dir()


def stored(state: State) -> object:
    """What is stored of a state. A default that an old snapshot leaves out equals one that is written."""
    names = ("n", "turn", "order", "peers", "jobs", "purged", "scheduler", "rules")
    return {name: getattr(state, name) for name in names}


@pytest.mark.parametrize("corpus", CORPORA, ids=lambda path: path.name)
def test_a_log_is_replayed_by_the_rules_that_made_it(corpus: Path) -> None:
    """The state that follows from an old log is the one that the old release had, from the beginning and from a snapshot."""
    rules, entries = log_of(corpus)
    end = stored(decode_state((corpus / "end.json").read_bytes()))
    assert stored(replay(entries, new_state("test", rules))) == end
    middle = decode_state((corpus / "snapshot.json").read_bytes())
    assert 0 < middle.n < entries[-1][0]
    assert stored(replay(entries[middle.n :], middle)) == end


@pytest.mark.parametrize("corpus", CORPORA, ids=lambda path: path.name)
def test_an_old_snapshot_is_what_its_log_gives(corpus: Path) -> None:
    """`log verify` finds nothing wrong with it, although it lacks fields that the state has by now; and it finds what is."""
    rules, entries = log_of(corpus)
    snapshot = (corpus / "end.json").read_bytes()
    for written, findings in (
        (snapshot, []),
        (snapshot.replace(b'"deployment":"test"', b'"deployment":"other"'), ["snapshot"]),
    ):
        found = {entries[-1][0]: written}
        verifier = Verifier(new_state("test", rules), snapshots=found.get)
        assert len(list(verifier.run(entries))) == len(entries)
        verdict = verifier.end()
        assert (verdict.snapshots, [finding.kind for finding in verdict.findings]) == (1, findings)


@pytest.mark.parametrize("path", sorted(HERE.glob("*/histories.json.xz")), ids=lambda path: path.parent.name)
def test_old_rules_decide_what_the_old_release_decided(path: Path) -> None:
    """Random histories, in which peers die, requests come late and twice, and jobs are killed: each ends in the state that it had
    there. ``python -m tests.compat.make histories`` made them, from the sources of that release.
    """
    histories = json.loads(lzma.decompress(path.read_bytes()))
    assert sum(len(history["log"]) for history in histories) > 5000
    for history in histories:
        end = decode_state(json.dumps(history["end"]).encode())
        log = [(n, decode_event(json.dumps(event).encode())) for n, event in history["log"]]
        assert stored(replay(log, new_state("test", end.rules))) == stored(end)


@pytest.mark.parametrize("corpus", CORPORA, ids=lambda path: path.name)
def test_an_old_state_goes_on_by_the_newest_rules(corpus: Path) -> None:
    """The rules are raised on it, and every invariant holds."""
    state = decode_state((corpus / "end.json").read_bytes())
    decide(state, state.n + 1, RulesRaised(rules=RULES))
    assert state.rules == RULES
    check(state)
    assert encode_state(decode_state(encode_state(state))) == encode_state(state)


@pytest.mark.parametrize("corpus", CORPORA, ids=lambda path: path.name)
def test_each_stored_text_is_read(corpus: Path) -> None:
    """Specs, positions, requests, pulses, states of peers, blocks and dead letters mean what they meant."""
    assert decode_spec((corpus / "spec.json").read_bytes()) == SPEC
    assert Position.read(42, (corpus / "position.txt").read_text()) == Position(42, COUNTS, "0123")
    assert decode_request((corpus / "request.json").read_bytes()) == Completed(peer="p", assignment=3, counts=COUNTS)
    pulse = msgspec.json.decode((corpus / "pulse.json").read_bytes(), type=PulseNote)
    assert (pulse.daemon, pulse.host, pulse.pid, pulse.metrics) == ("d", "h", 1, "")
    peer = msgspec.json.decode((corpus / "peer_state.json").read_bytes(), type=PeerNote)
    assert peer.state == "active"
    assert peer.assignment is not None
    assert peer.assignment.task == "in"
    assert block.decode([(corpus / "block.arrow").read_bytes()]).to_pylist() == ROWS
    headers = [("sx-letter", (corpus / "letter.json").read_bytes())]
    assert dead_letters.told(_Message(headers)) == LETTER
    assert dead_letters.row_of((corpus / "letter.arrow").read_bytes()).to_pylist() == ROWS[:1]


class _Message:
    def __init__(self, headers: list[tuple[str, bytes | None]]) -> None:
        self._headers = headers

    def headers(self) -> list[tuple[str, bytes | None]]:
        return self._headers

    def value(self) -> bytes | None:
        return None


def test_a_candidate_of_the_release_before_is_known() -> None:
    """It wrote its name as text, and said nothing of what it knows."""
    assert CandidateNote.read(b"host:12") == CandidateNote("host:12", "", OLDEST, 1)


def test_notes_of_a_newer_release_are_read() -> None:
    """What it says beyond what this release knows is left out, as the release before leaves out where metrics are served."""
    assert CandidateNote.read(b'{"name":"h:1","format":7,"rules":4,"later":1}') == CandidateNote("h:1", "", 7, 4)
    assert msgspec.json.decode(b'{"daemon":"d","later":[1]}', type=PulseNote) == PulseNote("d")


def test_newer_rules_are_refused() -> None:
    """A state or an event of rules that this release does not know changes nothing, and the error says so."""
    state = new_state()
    with pytest.raises(SardonyxError, match="SX-VERSION-RULES"):
        decide(state, 1, RulesRaised(rules=RULES + 1))
    later = encode_state(new_state("test", RULES + 1))
    with pytest.raises(SardonyxError, match="SX-VERSION-RULES"):
        decode_state(later)
    assert state.n == 0


def started(*peers: PeerBorn, spec: JobSpec = SPEC) -> State:
    """A state in which a job has just got its links. Entries 1 to ``len(peers) + 2``."""
    facts = {link.name: LinkFacts(1) for link in graph_of(spec, "test", "copy-1").links}
    events = [*peers, JobSubmitted(job="copy-1", spec=spec), LinksCreated(job="copy-1", links=facts)]
    return replay(enumerate(events, 1), new_state("test"))


@pytest.mark.parametrize("code", ["SX-VERSION-PEER", "SX-BLOCK-FORMAT", "SX-POSITION-UNREADABLE"])
def test_what_an_older_peer_cannot_read_is_no_failure_of_the_task(code: str) -> None:
    """It is not counted, the peer is not offered the job again, and a newer peer gets it: when it declines the task, and when it
    meets a block or a position of a newer release at work.
    """
    state = started(PeerBorn(peer="old", format=FORMAT))
    (offered,) = [peer for peer in state.peers.values() if peer.assignment is not None]
    assert offered.assignment is not None
    task = state.jobs["copy-1"].tasks[offered.assignment.task]
    failure, place = Failure(code, "too old"), offered.assignment.id
    if code == "SX-VERSION-PEER":
        decide(state, state.n + 1, Declined(peer="old", assignment=place, error=failure))
    else:
        decide(state, state.n + 1, Acked(peer="old", assignment=place))
        decide(state, state.n + 1, TaskFailed(peer="old", assignment=place, error=failure))
    assert (task.failures, task.backing_off, state.peers["old"].state) == (0, False, "idle")
    assert "SX-VERSION-PEER" in " ".join(reason.text for reason in explain(state, "copy-1").reasons)
    decide(state, state.n + 1, PeerBorn(peer="new", format=FORMAT + 1))
    assert (state.peers["old"].state, state.peers["new"].state) == ("idle", "acking")


def test_a_job_that_uses_something_new_gets_only_peers_that_read_it() -> None:
    """A peer of the release before would decline it, and each time that would count as a failure of the task."""
    state = started(PeerBorn(peer="old"), spec=msgspec.structs.replace(SPEC, keep="1 h"))
    assert state.peers["old"].state == "idle"
    decide(state, state.n + 1, PeerBorn(peer="new", format=FORMAT))
    assert state.peers["new"].state == "acking"


def test_peers_that_an_older_coordinator_logged_are_known_by_their_pulses() -> None:
    """They were upgraded before the coordinators, so their births lack what they read and their tags. The next leader adds it."""
    spec = msgspec.structs.replace(SPEC, keep="1 h", tags=["gpu"])
    state = started(PeerBorn(peer="new"), PeerBorn(peer="old"), spec=spec)
    again = PeerBorn(peer="new", version=VERSION, format=FORMAT, tags=("gpu",))
    for event in (PeerBorn(peer="old"), again):
        decide(state, state.n + 1, event)
        check(state)
    new = state.peers["new"]
    assert (new.state, new.version, new.format, new.tags) == ("acking", VERSION, FORMAT, {"gpu"})
    assert state.peers["old"].state == "idle"
    assert decide(state, state.n + 1, msgspec.structs.replace(again, tags=())) == [], "it is known"
    assert new.tags == {"gpu"}
    before = replay([(1, PeerBorn(peer="new"))], new_state("test", rules=1))
    assert decide(before, 2, again) == []
    assert before.peers["new"].format == 0, "the release before takes it for a repetition, and one log has one meaning"


def test_what_older_peers_cannot_read_is_taken_from_them_when_the_rules_are_raised() -> None:
    """Under the rules of the release before it was offered to them: a job that is being stopped, or that uses something new."""
    facts = {link.name: LinkFacts(1) for link in graph_of(SPEC, "test", "copy-1").links}
    topic = msgspec.structs.replace(SPEC.catalog[0], options={"topic": "a", "format": "json"})
    endless = msgspec.structs.replace(SPEC, catalog=[topic, *SPEC.catalog[1:]])
    for spec, more in ((endless, [JobStopped(job="copy-1")]), (msgspec.structs.replace(SPEC, keep="1 h"), [])):
        begin = [PeerBorn(peer="old"), JobSubmitted(job="copy-1", spec=spec), LinksCreated(job="copy-1", links=facts)]
        state = replay(enumerate([*begin, *more], 1), new_state("test", rules=1))
        assert state.peers["old"].state == "acking"
        decide(state, state.n + 1, RulesRaised(rules=2))
        check(state)
        assert (state.peers["old"].state, state.jobs["copy-1"].needs) == ("idle", FORMAT)
        decide(state, state.n + 1, PeerBorn(peer="new", format=FORMAT))
        assert state.peers["new"].state == "acking"


def test_a_job_whose_links_are_to_be_kept_goes_only_to_peers_that_read_that() -> None:
    """Peers of the release before do not read such a spec."""
    state = started(PeerBorn(peer="old"))
    assert (state.peers["old"].state, state.jobs["copy-1"].needs) == ("acking", 0)
    decide(state, state.n + 1, LinksKept(job="copy-1", seconds=60))
    check(state)
    assert (state.peers["old"].state, state.jobs["copy-1"].needs) == ("acking", FORMAT)


def test_requests_to_a_leader_of_the_release_before_hold_only_what_it_knows() -> None:
    """What can be spared is left out; what would mean something else without it is refused."""
    done = Completed(peer="p", assignment=3, counts=COUNTS, positions={"t": [1, None]})
    assert encode_request(done, OLDEST) == encode_request(Completed(peer="p", assignment=3, counts=COUNTS))
    assert encode_request(JobKilled(job="j", by="me"), OLDEST) == encode_request(JobKilled(job="j"))
    assert b"me" in encode_request(JobKilled(job="j", by="me"))
    for event in (
        JobStopped(job="j"),
        JobSubmitted(job="j", spec=SPEC, resumes="other"),
        JobSubmitted(job="j", spec=msgspec.structs.replace(SPEC, keep="1 h")),
    ):
        with pytest.raises(SardonyxError, match="SX-VERSION-REQUEST"):
            encode_request(event, OLDEST)


class Coordinators:
    """The nodes of a deployment that say of which releases its coordinators are and were."""

    def __init__(self, logged: tuple[int, int] | None, *standing: CandidateNote | bytes) -> None:
        notes = [note if isinstance(note, bytes) else msgspec.json.encode(note) for note in standing]
        self.nodes = {f"/election/{n}": note for n, note in enumerate(notes)}
        if logged is not None:
            self.nodes["/log/0000000/0000000001"] = b'{"format":%d,"rules":%d,"entries":[]}' % logged

    def children(self, path: str) -> list[str]:
        below = {other.removeprefix(f"{path}/").split("/")[0] for other in self.nodes if other.startswith(f"{path}/")}
        return sorted(below)

    def read(self, path: str) -> bytes | None:
        return self.nodes.get(path)

    def read_many(self, paths: Iterable[str]) -> dict[str, bytes]:
        return {path: self.nodes[path] for path in paths if path in self.nodes}


NEW = CandidateNote("n:1", VERSION, FORMAT, RULES)
OLD = b"o:2"


@pytest.mark.parametrize(
    ("logged", "standing", "expected"),
    [
        (None, (), Understood()),
        (None, (NEW, OLD), Understood(OLDEST, OLDEST)),
        ((OLDEST, 1), (OLD, NEW), Understood(OLDEST, OLDEST)),
        ((OLDEST, 1), (NEW, OLD), Understood(OLDEST, OLDEST)),  # the first in line is about to give way
        ((OLDEST, 1), (NEW, NEW), Understood()),
        ((OLDEST, 1), (), Understood(OLDEST, OLDEST)),
        ((FORMAT, 1), (NEW, OLD), Understood(FORMAT, OLDEST)),
        ((FORMAT, 1), (NEW,), Understood()),
        ((FORMAT, RULES), (NEW, OLD), Understood(lasting=True)),
        ((FORMAT + 1, RULES + 1), (), Understood(lasting=True)),
    ],
)
def test_requests_are_made_for_each_coordinator_that_may_read_them(
    logged: tuple[int, int] | None, standing: tuple[CandidateNote | bytes, ...], expected: Understood
) -> None:
    """The first in line may give way to an older one. It lasts only once the log is one that no older one can lead."""
    assert understood(Coordinators(logged, *standing)) == expected  # type: ignore[arg-type]


def test_users_cannot_ask_for_what_an_older_coordinator_would_not_decide() -> None:
    """While one stands, the leader of this release keeps to the rules of the release before, and so do the peers."""
    done = Completed(peer="p", assignment=3, counts=COUNTS, positions={"t": [1, None]})
    assert encode_request(done, FORMAT, OLDEST) == encode_request(done)
    killed = JobKilled(job="j", by="me")
    assert encode_request(killed, FORMAT, OLDEST) == encode_request(killed)
    for event in (JobStopped(job="j"), JobSubmitted(job="j", spec=msgspec.structs.replace(SPEC, keep="1 h"))):
        with pytest.raises(SardonyxError, match="SX-VERSION-REQUEST"):
            encode_request(event, FORMAT, OLDEST)


def test_an_upgrade_is_told_what_stands_in_its_way() -> None:
    """Each daemon of an older release is named; nothing is in the way when all are of this one."""
    new = CandidateNote("h:1", VERSION, FORMAT, RULES)
    peers = daemons([PulseNote("d", "h", 1, VERSION, FORMAT), PulseNote("d", "h", 1, VERSION, FORMAT)])
    assert (peers[0].daemons, peers[0].peers) == (1, 2)
    assert problems(FORMAT, RULES, [new], peers) == []
    (old,) = problems(FORMAT, RULES, [new, CandidateNote.read(b"h:2")], peers)
    assert "h:2" in old
    assert "peer daemons" in problems(FORMAT, RULES, [new], daemons([PulseNote("d")]))[0]
    assert problems(FORMAT + 1, RULES, [new], peers)
    assert problems(FORMAT, RULES - 1, [new], peers)
    assert problems(0, 0, [], []) == ["no coordinator stands for election"]


@pytest.mark.parametrize("corpus", sorted(HERE.glob("supersteps_*")), ids=lambda path: path.name)
def test_shards_go_on_with_the_supersteps_of_an_older_release(corpus: Path) -> None:
    """From its entries, those that say how far each shard is and its inbox among them, and its messages that were on their way:
    the ranks are those of one peer that computes everything, bit by bit.
    """
    assert (HERE / f"supersteps_{graph_supersteps.FORMAT}").is_dir(), "run `python -m tests.compat.make_supersteps`"
    shards = range(make_supersteps.SHARDS)
    entries = [block.decode([(corpus / f"entries_{shard}.arrow").read_bytes()]) for shard in shards]
    waiting = [[block.decode([(corpus / f"waiting_{shard}.arrow").read_bytes()])] for shard in shards]
    kinds = {key[:1] for table in entries for key in table["k"].to_pylist()}
    assert kinds == {b"m", b"g", b"i", b"x", b"\xff"}
    steps = [rows["step"].to_pylist() for (rows,) in waiting]
    assert {len(set(each)) for each in steps} == {1, 2}, "one shard is ahead"
    middle = make_supersteps.Middle(entries, waiting)
    for shard in [*shards] * 9:
        middle.plan(shard)
    spec, edges = make_supersteps.SPEC, make_supersteps.EDGE_ROWS.rename_columns(["source", "target"])
    assert pa.concat_tables(middle.results).sort_by("v").equals(compute(spec, Graph(edges)).rows)
