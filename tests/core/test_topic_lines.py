"""``sardonyx topic write``: what it makes of lines before Kafka is asked for anything."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sardonyx.cli.app import app
from sardonyx.cli.files import opened
from sardonyx.cli.topic_lines import records
from sardonyx.core.errors import SardonyxError


def test_a_line_of_json_is_a_record_with_the_bytes_of_the_line() -> None:
    """Its end does not count, of Windows neither, nor do empty lines; the last line needs no end."""
    lines = [b'{"id": 1}\n', b"\n", b' {"id":  2}\r\n', b"  \n", b'{"id": 3}']
    assert [*records(lines)] == [(None, b'{"id": 1}'), (None, b' {"id":  2}'), (None, b'{"id": 3}')]


def test_text_is_taken_as_it_is() -> None:
    """Also what is not JSON, not UTF-8, or empty."""
    lines = [b"a b\n", b"\n", b"\xff\t{\r\n", b"1"]
    assert [*records(lines, text=True)] == [(None, b"a b"), (None, b""), (None, b"\xff\t{"), (None, b"1")]


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ('"ann"', b"ann"),
        ('"\\u00e9"', "é".encode()),
        ('""', b""),
        ("7", b"7"),
        ("9007199254740993", b"9007199254740993"),
        ("12.50", b"12.5"),
        ("1e3", b"1000"),
        ("true", b"true"),
        ("null", None),
    ],
)
def test_a_field_becomes_the_key_as_an_output_of_a_job_writes_it(value: str, key: bytes | None) -> None:
    """So records of the command and of a job with the same key meet in a partition."""
    assert [*records([f'{{"who": {value}}}\n'.encode()], key="who")] == [(key, f'{{"who": {value}}}'.encode())]


def test_the_key_of_a_number_is_the_one_that_an_output_writes() -> None:
    """Compared with the format itself."""
    import pyarrow as pa

    from sardonyx.connectors.topics.formats import JsonFormat

    for value in ("ann", 7, -0.0, 1e21, 0.1, 1e-7, True):
        (made,) = JsonFormat(key="who").encode(pa.table({"who": [value]}))
        ((key, _),) = records([json.dumps({"who": value}).encode()], key="who")
        assert key == made[0]


@pytest.mark.parametrize(
    ("line", "key", "said"),
    [
        (b"{", None, "is not JSON"),
        (b"ann", None, "is not JSON"),
        (b'{"a": "\xff"}', None, "is not JSON"),
        (b"[" * 100_000, None, "is not JSON"),
        (b"[1]", None, "holds no JSON object"),
        (b"7", None, "holds no JSON object"),
        (b'{"id": 1}', "who", "has no field 'who' for the key"),
        (b'{"who": [1]}', "who", "has no key"),
        (b'{"who": {}}', "who", "has no key"),
    ],
)
def test_a_line_that_makes_no_record_is_named(line: bytes, key: str | None, said: str) -> None:
    """The error says which line, and what is wrong with it; the records before it have been handed out."""
    made = records([b'{"who": 1}\n', b"\n", line], key=key)
    next(made)
    with pytest.raises(SardonyxError, match=f"line 3 {said}") as caught:
        next(made)
    assert caught.value.code == "SX-LINE-INVALID"
    assert caught.value.where == {"line": "3"}


def test_standard_input_is_a_file_like_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """``-`` names it; another name is a file that must be there."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"x\n")))
    with opened("-", "SX-LINES-FILE", "name one") as lines:
        assert [*lines] == [b"x\n"]
    with (
        pytest.raises(SardonyxError, match="SX-LINES-FILE"),
        opened(str(tmp_path / "none"), "SX-LINES-FILE", "name one"),
    ):
        pass


@pytest.mark.parametrize(
    ("text", "arguments", "said", "code"),
    [
        ('{"id": 1}\n{"id"\n', [], "line 2 is not JSON", 1),
        ('{"id": 1}\n', ["--key", "who"], "line 1 has no field 'who'", 1),
        ("a\n", ["--text", "--key", "who"], "--key names a field of JSON objects", 2),
    ],
)
def test_a_file_is_checked_before_kafka_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, arguments: list[str], said: str, code: int
) -> None:
    """So nothing of a file with a mistake is written: here no Kafka answers, and the mistake is said at once."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text(text)
    result = CliRunner().invoke(app, ["topic", "write", "orders", "in.jsonl", "--kafka", "127.0.0.1:1", *arguments])
    assert result.exit_code == code
    assert said in result.stderr
    assert "Traceback" not in result.stderr
