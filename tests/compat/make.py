"""Writes the golden corpus of this release's stored formats: ``python -m tests.compat.make``.

Run it once when the format or the rules are raised, and commit what it writes: ``tests/compat/format_N_rules_M``. An older corpus
is never written again: it was made by what had that format and rules. It goes when no release reads it any more. It runs from the
sources of any commit: ``PYTHONPATH=SOURCES:SOURCES/tests/core``.

``histories FOLDER`` writes random histories with the state at the end of each: once for the release whose rules the next one
knows, too, from the sources of that release.
"""

from __future__ import annotations

import json
import lzma
import random
import sys
from pathlib import Path

import msgspec
import pyarrow as pa
from history_maker import History

from coordinator.core.decide import replay
from coordinator.core.stored_state import encode_state
from queues import block, dead_letters
from sardonyx.core import events
from sardonyx.core.errors import Failure
from sardonyx.core.events import Completed, Counts, encode_event
from sardonyx.core.notes import Assignment, PeerNote, PulseNote
from sardonyx.core.positions import Position
from sardonyx.core.spec import JobSpec, TaskSpec, encode_spec

SEED = "golden 204"
"""With it both stored states remember which process declined a task, and the last one which process had a slot."""
EVENTS = 250
HISTORIES = 25
ENTRIES = 10
"""Entries in each batch."""

ROWS = [{"n": 1, "word": "one"}, {"n": 2, "word": None}]
COUNTS = Counts(rows_in=10, rows_out=9, skipped=1, dead=1)
LETTER = dead_letters.Letter(
    task="t",
    kind="row",
    error="ValueError",
    attempts=2,
    failure=Failure("SX-TEST", "it broke", cause="a test"),
    origin=dead_letters.Origin("topic", 3, 7),
)
SPEC = JobSpec(
    name="copy",
    workflow=[("in", "out")],
    catalog=[
        TaskSpec(name="in", type="input", connector="kafka", options={"topic": "a", "end": "latest", "format": "json"}),
        TaskSpec(name="out", type="output", connector="kafka", options={"topic": "b", "format": "json"}),
    ],
)


def write(folder: Path) -> None:
    """Write the corpus of the release that this runs from."""
    folder.mkdir(parents=True, exist_ok=True)
    history = History(random.Random(SEED), doubled=0.3)
    history.unkind(EVENTS)
    log = history.world.log
    middle = log[len(log) // 2][0]
    batches = []
    for start in range(0, len(log), ENTRIES):
        entries = [{"event": json.loads(encode_event(event))} for _, event in log[start : start + ENTRIES]]
        batches.append(json.dumps({"format": events.FORMAT, "rules": events.RULES, "entries": entries}))
    (folder / "log.jsonl").write_text("\n".join(batches) + "\n")
    (folder / "snapshot.json").write_bytes(encode_state(replay(log[:middle], deployment="test")))
    (folder / "end.json").write_bytes(encode_state(replay(log, deployment="test")))
    (folder / "spec.json").write_bytes(encode_spec(SPEC))
    (folder / "position.txt").write_text(Position(42, COUNTS, "0123").metadata())
    (folder / "request.json").write_bytes(encode_event(Completed(peer="p", assignment=3, counts=COUNTS)))
    (folder / "pulse.json").write_bytes(msgspec.json.encode(PulseNote("d", "h", 1)))
    (folder / "peer_state.json").write_bytes(
        msgspec.json.encode(PeerNote("active", 4, Assignment(3, "copy-aaaaaa", "in", 0)))
    )
    (folder / "block.arrow").write_bytes(block.encode(pa.Table.from_pylist(ROWS))[0].value)
    packed = dead_letters.packed(LETTER, pa.Table.from_pylist(ROWS[:1]), b"key")
    (folder / "letter.json").write_bytes(packed.headers[0][1])
    (folder / "letter.arrow").write_bytes(packed.value or b"")


def write_histories(folder: Path) -> None:
    """Write ``histories.json.xz``: the log of each history, and the state at its end."""
    found = []
    for seed in range(HISTORIES):
        history = History(random.Random(f"{SEED}/{seed}"), doubled=0.3)
        history.unkind(EVENTS)
        log = history.world.log
        end = json.loads(encode_state(replay(log, deployment="test")))
        found.append({"log": [[n, json.loads(encode_event(event))] for n, event in log], "end": end})
    (folder / "histories.json.xz").write_bytes(lzma.compress(json.dumps(found, sort_keys=True).encode()))


if __name__ == "__main__":
    here = Path(__file__).parent / f"format_{events.FORMAT}_rules_{events.RULES}"
    if sys.argv[1:2] == ["histories"]:
        write_histories(Path(sys.argv[2]) if len(sys.argv) > 2 else here)
    else:
        write(Path(sys.argv[1]) if len(sys.argv) > 1 else here)
