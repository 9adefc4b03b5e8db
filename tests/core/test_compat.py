"""Every stored format that a release wrote is read by this one: the golden corpus in ``tests/compat``."""

from __future__ import annotations

import json
import lzma
from io import BytesIO
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
from coordinator.history.export import Header, LogFile
from coordinator.history.replay import Verifier
from coordinator.loop import event_log
from queues import block, dead_letters
from sardonyx.client.upgrade import daemons, problems
from sardonyx.core.errors import Failure, SardonyxError
from sardonyx.core.events import (
    FORMAT,
    OLDEST,
    OLDEST_RULES,
    RULES,
    Acked,
    AnyEvent,
    Completed,
    Declined,
    JobSubmitted,
    LinkFacts,
    LinksCreated,
    PeerBorn,
    RulesRaised,
    TaskFailed,
    decode_event,
    decode_request,
)
from sardonyx.core.graph import graph_of
from sardonyx.core.notes import CandidateNote, PeerNote, PulseNote
from sardonyx.core.positions import Position
from sardonyx.core.spec import JobSpec, decode_spec
from sardonyx.core.version import VERSION
from sardonyx.graphs.compute import Graph, compute
from sardonyx.state import graph_supersteps
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
    return msgspec.json.decode(lines[0])["rules"], found


def test_each_format_has_a_corpus() -> None:
    """If the format or the rules are raised, a corpus must be written: ``python -m tests.compat.make``."""
    known = {f"format_{FORMAT}_rules_{rules}" for rules in range(OLDEST_RULES, RULES + 1)}
    assert {corpus.name for corpus in CORPORA} >= known, "run `python -m tests.compat.make`"
    assert {log_of(corpus)[0] for corpus in CORPORA} == set(range(OLDEST_RULES, RULES + 1))


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


def test_a_candidate_that_says_nothing_is_named() -> None:
    """What is no note, as any program may write it, keeps no coordinator from leading."""
    assert CandidateNote.read(b"host:12") == CandidateNote("host:12", "", 0, 0)


def test_notes_of_a_newer_release_are_read() -> None:
    """What it says beyond what this release knows is left out, as the release before leaves out where metrics are served."""
    assert CandidateNote.read(b'{"name":"h:1","format":7,"rules":4,"later":1}') == CandidateNote("h:1", "", 7, 4)
    assert msgspec.json.decode(b'{"daemon":"d","later":[1]}', type=PulseNote) == PulseNote("d")


def older(data: bytes, name: str, value: int) -> bytes:
    """The same, with a field of its first object changed."""
    return msgspec.json.encode(msgspec.json.decode(data) | {name: value})


@pytest.mark.parametrize(("name", "value"), [("format", OLDEST - 1), ("rules", OLDEST_RULES - 1)])
def test_a_log_from_before_the_release_before_is_refused(name: str, value: int) -> None:
    """Its format, or the rules that made it: a batch, a snapshot and a file of it are refused, with a cause and a fix."""
    corpus = CORPORA[0]
    log, end = (
        older((corpus / "log.jsonl").read_bytes().splitlines()[0], name, value),
        (corpus / "end.json").read_bytes(),
    )
    header = msgspec.json.encode(Header(FORMAT, "test", 1, 1, 1, VERSION, RULES))
    for reads in (
        lambda: event_log.decode_batch(1, log),
        lambda: decode_state(older(end, name, value)),
        lambda: LogFile(BytesIO(older(header, name, value) + b"\n"), "the file"),
    ):
        with pytest.raises(SardonyxError, match=f"{name} {value}") as caught:
            reads()
        assert caught.value.code == "SX-LOG-FORMAT"
        assert caught.value.cause
        assert caught.value.fix.startswith(("run the version", "replay it with the version"))
    force = {"format": FORMAT, "rules": RULES} | {name: value}
    (found,) = problems(force["format"], force["rules"], [CandidateNote("h:1", VERSION, FORMAT, RULES)], [])
    assert "start a new deployment" in found


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


def test_an_upgrade_is_told_what_stands_in_its_way() -> None:
    """Each daemon of an older release is named; nothing is in the way when all are of this one."""
    new = CandidateNote("h:1", VERSION, FORMAT, RULES)
    peers = daemons([PulseNote("d", "h", 1, VERSION, FORMAT), PulseNote("d", "h", 1, VERSION, FORMAT)])
    assert (peers[0].daemons, peers[0].peers) == (1, 2)
    assert problems(FORMAT, RULES, [new], peers) == []
    (old,) = problems(FORMAT, RULES, [new, CandidateNote.read(b"h:2")], peers)
    assert "h:2" in old
    assert "1 peer daemon is of release ?: upgrade it" in problems(FORMAT, RULES, [new], daemons([PulseNote("d")]))[0]
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
