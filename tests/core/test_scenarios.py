"""The scenario files, each played as written, with every event delivered twice, and with the coordinator replaced."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import msgspec
import pytest
from scenario_runner import World, blocks, run, scenario_files

from coordinator.core.decide import replay
from coordinator.core.stored_state import decode_state, encode_state
from sardonyx.core.events import FORMAT, decode_event, encode_event

each_scenario = pytest.mark.parametrize("path", scenario_files(), ids=lambda path: path.stem)


def without_n(state: bytes) -> dict[str, object]:
    return {key: value for key, value in msgspec.json.decode(state).items() if key != "n"}


@each_scenario
def test_exact_output(path: Path, request: pytest.FixtureRequest) -> None:
    """What the coordinator makes of each sentence is what the file says, to the byte."""
    written = path.read_text()
    played = run(written, World())
    if request.config.getoption("--rewrite"):
        path.write_text(played)
    else:
        assert played == written, (
            "run `pytest tests/core/test_scenarios.py --rewrite` if this is meant, and read the diff"
        )


@each_scenario
def test_every_event_twice(path: Path) -> None:
    """An event that is delivered twice does what it does once."""
    once, twice = World(stride=2), World(stride=2, times=2)
    run(path.read_text(), once)
    run(path.read_text(), twice)
    assert without_n(encode_state(once.state)) == without_n(encode_state(twice.state))
    assert once.zk == twice.zk


@each_scenario
def test_a_new_leader_after_every_event(path: Path) -> None:
    """A leader that starts from a snapshot, at any point, goes on exactly as the old one would have."""
    assert run(path.read_text(), World(snapshots=True)) == run(path.read_text(), World())


@each_scenario
def test_the_log_gives_the_state(path: Path) -> None:
    """The log, read back from its bytes, gives the state byte for byte: whole, and from any snapshot on."""
    world = World()
    run(path.read_text(), world)
    entries = [(n, decode_event(encode_event(event))) for n, event in world.log]
    end = encode_state(world.state)
    assert encode_state(replay(entries, deployment="test")) == end
    for cut in range(len(entries)):
        snapshot = encode_state(replay(entries[:cut], deployment="test"))
        assert encode_state(replay(entries[cut:], decode_state(snapshot))) == end


def test_the_ten_histories_are_there() -> None:
    """Each history of docs/coordination.md has its file, and every file says something."""
    stems = [path.stem for path in scenario_files()]
    assert [
        number for number in range(1, 11) if not any(stem.startswith(f"history_{number:02d}_") for stem in stems)
    ] == []
    assert all(any(sentences for _, sentences, _ in blocks(path.read_text())) for path in scenario_files())


def test_decisions_change_only_with_the_format(request: pytest.FixtureRequest) -> None:
    """Every reader of a log replays it, so other decisions on the same events are another format of the log.

    ``decisions.json`` holds the format and a hash of each scenario's golden output. If this fails the rules have changed: raise
    ``sardonyx.core.events.FORMAT``, then write it anew with ``--rewrite``. New scenarios are added by ``--rewrite`` as well.
    """
    book = Path(__file__).parent.parent / "scenarios" / "decisions.json"
    kept = json.loads(book.read_text())
    found = {path.stem: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in scenario_files()}
    if request.config.getoption("--rewrite"):
        known = kept["scenarios"] if kept["format"] == FORMAT else {}
        book.write_text(json.dumps({"format": FORMAT, "scenarios": found | known}, indent=1, sort_keys=True) + "\n")
        kept = json.loads(book.read_text())
    assert kept == {"format": FORMAT, "scenarios": found}
