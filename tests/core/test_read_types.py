"""What a record without ``schema=`` becomes depends on the records before it, and never on where batches are cut."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from sardonyx import Job, Max, everything, kafka
from sardonyx.connectors.records import to_records
from sardonyx.connectors.registry import topic_format
from sardonyx.connectors.topics.written import tables_in
from sardonyx.core import settled_types
from sardonyx.core.errors import SardonyxError
from sardonyx.testing import ClockedRun
from tests.sizes import histories

Begin = Callable[..., ClockedRun]
BIG = 2**53 + 1


def copying(on_error: str = "fail") -> Job:
    job = Job("copy", partitions=1)
    rows = job.input("rows", kafka("rows", start="earliest"), on_error=on_error)
    job.output("out", kafka("out"), after=rows)
    return job


def pieces(items: Sequence[Any], cuts: Sequence[int]) -> Iterator[Sequence[Any]]:
    for start, end in itertools.pairwise([0, *cuts, len(items)]):
        yield items[start:end]


def copied(begin: Begin, texts: Sequence[str], cuts: Sequence[int]) -> tuple[list[Any], int]:
    """The values on the output, and how many records were skipped."""
    run = begin(copying("skip"))
    for piece in pieces([f'{{"v":{text}}}'.encode() for text in texts], cuts):
        run.give("rows", piece)
    return [json.loads(value or b"")["v"] for _, value in run.messages("out")], run.counts("rows").skipped


@pytest.mark.parametrize(
    ("texts", "values", "skipped"),
    [
        (["9", '"x"', "10"], [9, 10], 1),
        (['"x"', "9", '"y"'], ["x", "y"], 1),
        (["true", "9", "false"], [True, False], 1),
        ([str(BIG), "0.5", "7"], [BIG, 7], 1),
        (["0.5", str(BIG), "7"], [0.5, 7], 1),
        (["null", str(BIG), "[1]"], [None, BIG], 1),
        (["1", "18446744073709551615", "2"], [1, 2], 1),
        (["18446744073709551615", "0.5"], [0.5], 1),
        (["null", "9", "null", "2.5"], [None, 9, None, 2.5], 0),
        (['{"a":1}', '{"a":null}', '{"a":"x"}'], [{"a": 1}, {"a": None}], 1),
        (['{"a":null}', '{"a":1}', '{"a":0.5}'], [{"a": None}, {"a": 1}, {"a": 0.5}], 0),
        ([f'{{"a":{BIG}}}', '{"a":0.5}'], [{"a": BIG}], 1),
        (["[]", "[null,1]", "[0.5]", '["x"]'], [[], [None, 1], [0.5]], 1),
        (['[1,"a"]', "[1]"], [[1]], 1),
        (["[0.5]", f"[1,{BIG}]"], [[0.5]], 1),
        (['"2026-01-01"', "1", '"2026-01-01T00:00:00Z"'], ["2026-01-01", "2026-01-01T00:00:00Z"], 1),
    ],
)
def test_a_copy_keeps_each_value_or_calls_the_record_bad(
    texts: list[str], values: list[Any], skipped: int, sardonyx_clocked: Begin
) -> None:
    """In one batch, and one by one: the value is the one that came, or the record is skipped by ``on_error``."""
    for cuts in ([], list(range(1, len(texts)))):
        assert copied(sardonyx_clocked, texts, cuts) == (values, skipped), cuts


def test_a_state_holds_numbers_where_the_records_are_numbers(sardonyx_clocked: Begin) -> None:
    """A text beside numbers makes no texts of them, after which 9 would be more than 10."""
    job = Job("top", partitions=1)
    rows = job.input("rows", kafka("rows", start="earliest"), on_error="skip")
    top = job.window("w", everything(), emit="changes", after=rows, aggregate={"top": Max("v")})
    job.output("out", kafka("out"), after=top)
    records = [b'{"v":9}', b'{"v":10}', b'{"v":"x"}', b'{"v":true}', b'{"v":8}']
    for cuts in ([], [1, 2, 3, 4]):
        run = sardonyx_clocked(job)
        for piece in pieces(records, cuts):
            run.give("rows", piece)
        assert run.rows("w")[-1]["top"] == 10
        assert run.counts("rows").skipped == 2


def test_the_error_names_the_column_both_types_and_a_cure(sardonyx_clocked: Begin) -> None:
    """By default it fails the job, at the record: its place in the topic, its value, and how to declare the column."""
    run = sardonyx_clocked(copying())
    with pytest.raises(SardonyxError) as raised:
        run.give("rows", [b'{"v":9}', b'{"v":"x"}'])
    assert raised.value.code == "SX-COLUMN-TYPE"
    said = str(raised.value)
    for part in ("column 'v' of topic rows", "bigint and string", "offset 1", '"x"', 'schema="v bigint"', "on_error"):
        assert part in said, said


def test_a_number_that_no_type_of_json_holds_is_named(sardonyx_clocked: Begin) -> None:
    """Whole numbers beyond bigint are not rounded to a double: the error says the column, the number and the cure."""
    run = sardonyx_clocked(copying())
    with pytest.raises(SardonyxError) as raised:
        run.give("rows", [b'{"v":18446744073709551615}'])
    assert raised.value.code == "SX-RECORD-UNDECODABLE"
    for part in ("column 'v'", "18446744073709551615", "schema="):
        assert part in str(raised.value)


# --- Any records, cut anywhere ----------------------------------------------------------------------------------------

SCALARS = [
    "null",
    "true",
    "1",
    "-7",
    "-0",
    str(2**53),
    str(BIG),
    str(-(2**63)),
    str(2**63),
    "0.5",
    "1e3",
    "1e20",
    "-0.0",
]
SCALARS += [
    '"a"',
    '""',
    '"2026-01-01"',
    '"9"',
    '"\\u00e9"',
    '"\\ud800"',
    "NaN",
    "-Infinity",
    "Inf",
    "-NaN",
    "1e400",
    "1" * 5000,
]
SCALARS += ["9007199254740993.0", '": 18446744073709551615,"', "9007199254740992e0"]
RECORDS = [
    "{}",
    "[]",
    "",
    "x",
    '{"v":1,"v":2}',
    '{"v":{"a":1,"a":2}}',
    '{"w":1}',
    '{"\\u0076":1}',
    ' {"v":1}\n',
    '{"v":\n1}',
]


def drawn(chance: random.Random, kinds: Sequence[str]) -> bytes:
    if chance.random() < 0.05:
        return chance.choice(RECORDS).encode()

    def fields(names: str, depth: int, least: int) -> str:
        picked = chance.sample(names, chance.randrange(least, 3))
        return f"{{{','.join(f'{json.dumps(name)}:{value(depth)}' for name in picked)}}}"

    def value(depth: int) -> str:
        kind = chance.random()
        if depth < 2 and kind < 0.15:
            return f"[{','.join(value(depth + 1) for _ in range(chance.randrange(3)))}]"
        return fields("abc", depth + 1, 0) if depth < 2 and kind < 0.3 else chance.choice(kinds)

    return fields("vwx", 0, 1).encode()


def same(one: object, other: object) -> bool:
    """Whether two values are the same one. A field that is missing is null, and 9.0 is 9."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(same(one.get(name), other.get(name)) for name in {*one, *other})
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, float) and math.isnan(one):
        return isinstance(other, float) and math.isnan(other)
    return one == other


def read(records: Sequence[bytes], cuts: Sequence[int]) -> list[Any]:
    """What becomes of each record: its row, or the error."""
    form, found = topic_format({"topic": "t"}), list[Any]()
    for piece in pieces(records, cuts):
        decoded = form.decode(piece)
        bad = dict(decoded.bad)
        rows = iter(to_records(decoded.table))
        found += [(bad[n].code, bad[n].message, bad[n].cause) if n in bad else next(rows) for n in range(len(piece))]
        assert next(rows, None) is None
    return found


@pytest.mark.parametrize("seed", range(histories(12, whole=30)))
def test_what_becomes_of_a_record_does_not_depend_on_where_batches_are_cut(seed: int) -> None:
    """Of any JSON: the same rows and the same errors, and each row is what Python reads in the record."""
    chance = random.Random(seed)
    for _ in range(12):
        kinds = chance.sample(SCALARS, chance.randrange(1, 5))
        records = [drawn(chance, kinds) for _ in range(chance.randrange(2, 9))]
        whole = read(records, [])
        for cuts in (range(1, len(records)), sorted(chance.sample(range(1, len(records)), len(records) // 2))):
            found = read(records, cuts)
            assert len(found) == len(whole)
            assert all(map(same, found, whole)), (records, cuts, found, whole)
        for record, row in zip(records, whole, strict=True):
            if isinstance(row, dict) and b"NaN" not in record and b"Inf" not in record:
                assert same(json.loads(record), row), (record, row)


@pytest.mark.parametrize("seed", range(2))
def test_a_large_batch_with_few_records_that_do_not_fit_is_what_small_ones_are(seed: int) -> None:
    """It is halved, and Arrow infers the types of most pieces."""
    chance = random.Random(seed)
    records = [b'{"v":%d,"w":{"a":"x"}}' % number for number in range(2000)]
    for text in ('{"v":"x"}', '{"v":0.5}', f'{{"v":{BIG}}}', "{}", "x", '{"w":{"b":1}}', '{"w":{"a":2}}'):
        records[chance.randrange(2000)] = text.encode()
    whole = read(records, [])
    found = read(records, sorted(chance.sample(range(1, 2000), 40)))
    assert len(found) == len(whole) == 2000
    assert all(map(same, found, whole))
    assert 3 <= sum(isinstance(each, tuple) for each in whole) <= 7


def test_fields_whose_names_are_data_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader remembers so many. A record with a further one is bad, and the error says to declare a map; others are read on."""
    monkeypatch.setattr(settled_types, "MOST_PLACES", 3)
    records = [b'{"v":{"a":1,"b":2}}', b'{"v":{"b":0.5}}', b'{"v":{"c":3}}', b'{"v":{"a":9}}']
    for cuts in ([], [1, 2, 3]):
        found = read(records, cuts)
        good = [{"v": {"a": 1, "b": 2}}, {"v": {"b": 0.5}}, {"v": {"a": 9}}]
        assert all(map(same, [*found[:2], found[3]], good))
        assert found[2][0] == "SX-RECORD-UNDECODABLE"
        assert "column 'v.c' of topic t is one too many" in found[2][1]


def test_what_an_output_has_written_is_shown_whatever_its_types_are() -> None:
    """To a test, and by `collect`: a table ends where the types change."""
    records = [b'{"v":9}', b'{"v":0.5}', b'{"v":"x"}', b'{"v":[1,"a"]}', b'{"v":"y"}', b'{"v":8}']
    tables = tables_in({"topic": "t"}, [(None, record) for record in records])
    assert [row["v"] for table in tables for row in to_records(table)] == [9, 0.5, "x", "y", 8]
    assert tables_in({"topic": "t"}, []) == []


def test_empty_objects_are_rows_without_values() -> None:
    """Also where nothing but bad records is beside them."""
    for count in (1, 600):
        decoded = topic_format({"topic": "t"}).decode([b"{}"] * count + [b"x"])
        assert decoded.table.num_rows == count
        assert [index for index, _ in decoded.bad] == [count]
