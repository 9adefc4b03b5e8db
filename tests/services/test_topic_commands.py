"""``sardonyx topic``: enough to try a job against the Kafka of ``sardonyx dev``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from queues import topics
from sardonyx.runtime.settings import Settings
from tests.services.conftest import Sardonyx


def test_topics_are_created_listed_and_looked_into(sardonyx: Sardonyx, settings: Settings) -> None:
    """A topic is created once, shows how much it holds and what; the error for a mistyped one names the nearest."""
    name = f"{settings.deployment}-orders"
    assert f"created topic {name} with 2 partitions" in sardonyx("topic", "create", name, "--partitions", "2").stdout
    assert "SX-KAFKA-TOPIC-EXISTS" in sardonyx("topic", "create", name, code=1).stderr
    topics.write(settings, name, (b'{"n": %d}' % n for n in range(3)), 2)
    listed = {each["topic"]: each for each in json.loads(sardonyx("topic", "list", "--json").stdout)}
    assert listed[name] == {"topic": name, "partitions": 2, "offsets": [2, 1]}
    assert name in sardonyx("topic", "list").stdout
    assert sorted(sardonyx("topic", "peek", name).stdout.splitlines()) == ['{"n": 0}', '{"n": 1}', '{"n": 2}']
    missing = sardonyx("topic", "peek", name[:-1], code=1).stderr
    assert "SX-KAFKA-TOPIC-MISSING" in missing
    assert f"did you mean '{name}'?" in missing


def test_lines_of_a_file_are_records_of_a_topic(sardonyx: Sardonyx, settings: Settings, tmp_path: Path) -> None:
    """In their order for each key; a file with a mistake writes nothing, and no topic is created."""
    name, file = f"{settings.deployment}-lines", tmp_path / "in.jsonl"
    file.write_text("".join(f'{{"who": {n % 3}, "n": {n}}}\n' for n in range(9)))
    assert "SX-KAFKA-TOPIC-MISSING" in sardonyx("topic", "write", name, str(file), code=1).stderr
    topics.create(settings, name, 4)
    written = sardonyx("topic", "write", name, str(file), "--key", "who", "--json").stdout
    assert json.loads(written) == {"topic": name, "records": 9}
    found = topics.read_committed(settings, name)
    assert {key for key, _ in found} == {b"0", b"1", b"2"}
    for who in range(3):
        values = [json.loads(value or b"")["n"] for key, value in found if key == b"%d" % who]
        assert values == [who, who + 3, who + 6]
    file.write_text('{"n": 1}\nn\n')
    assert "SX-LINE-INVALID" in sardonyx("topic", "write", name, str(file), code=1).stderr
    assert "wrote 2 records" in sardonyx("topic", "write", name, str(file), "--text").stdout
    assert len(topics.read_committed(settings, name)) == 11


def test_a_topic_is_peeked_into_until_its_end(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that holds fewer records than asked for is read to its end, and no longer: an empty one is answered at once."""
    name = f"{settings.deployment}-few"
    topics.create(settings, name, 2)
    # The test's own time limit is shorter: a peek that waits for this deadline fails.
    monkeypatch.setattr(topics, "PEEK", 3600.0)
    assert topics.peek(settings, name, 5) == []
    topics.write(settings, name, (b"%d" % n for n in range(3)), 2)
    assert sorted(topics.peek(settings, name, 5)) == ["0", "1", "2"]
