"""``state get``, ``state export`` and ``handle.state``: keys as texts, values as JSON, and positions of a job that may end."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from queues import key_values as key_module
from queues.key_values import key_readings, key_values
from queues.keys import canonical, coded
from queues.messages import Logged
from sardonyx import Job, State, Timer, Timers, blackhole, event_time, kafka
from sardonyx.cli.app import app
from sardonyx.cli.call import Call
from sardonyx.client.task_state import StateRow, state_of, task_state
from sardonyx.core.clocks import END, NEVER, SourceClock
from sardonyx.core.errors import InputError, SardonyxError, SetupError
from sardonyx.core.graph import graph_of
from sardonyx.core.keyed import KeyedSpec
from sardonyx.core.notes import JobNote
from sardonyx.core.positions import Partition, Position
from sardonyx.runtime.settings import Settings
from sardonyx.state.keyed_run import KeyedFunction
from sardonyx.state.keyed_work import KeyedPiece
from sardonyx.state.log import ShardLog
from sardonyx.state.look import KeyState, TimerSet, json_form, printable
from sardonyx.state.memory import MemoryStore
from sardonyx.state.signature import signature_of
from sardonyx.testing.memory import SetTime, StateLog, Topics
from tests.core.keyed_machine import Machine

SECOND = 1_000_000
Positions = Mapping[Partition, Position | None]

# Keys

DAY = dt.date(2026, 11, 26)
NOON = 1_764_158_400_000_000_000 + 1
"""With a nanosecond."""
COLUMNS: list[pa.Array] = [
    pa.array(["a", "", "4711", "null", "täxt", None]),
    pa.array([0, -12, 2**63 - 1, None]),
    pa.array([2**64 - 1], pa.uint64()),
    pa.array([0.5, -0.1, 5e-324, 1.7e308, float("inf"), float("-inf"), float("nan"), 3.0]),
    pa.array([0.1], pa.float32()),
    pa.array([Decimal("0.10"), Decimal("-12345678901234567890.123456789012345678")], pa.decimal128(38, 18)),
    pa.array([Decimal(10) ** 75 - 1], pa.decimal256(76, 0)),
    pa.array([True, False, None]),
    pa.array([b"", b"\0\xff", b"abc"]),
    pa.array([b"0123456789abcdef"], pa.binary(16)),
    pa.array([DAY, dt.date(1, 1, 1)]),
    pa.array([2_932_897, -719_163, 2**31 - 1, -(2**31)], pa.int32()).cast(pa.date32()),
    *(pa.array([253_402_300_800, -62_135_596_801, 2**62, -(2**62)], pa.timestamp("s", zone)) for zone in ("UTC", None)),
    pa.array([2**62, -(2**62)], pa.duration("s")),
    pa.array([dt.time(0), dt.time(1, 2, 3, 4), dt.time(23, 59)]),
    pa.array([43_200_000_000_001], pa.time64("ns")),
    pa.array([NOON, -1, 0, 1_000], pa.timestamp("ns", "Europe/Berlin")),
    pa.array([NOON, -1, 0, 1_000], pa.timestamp("ns")),
    pa.array([dt.datetime(9999, 1, 1), dt.datetime(1960, 1, 1)], pa.timestamp("us")),  # noqa: DTZ001
    pa.array([0, 1, -1, 1_500_000_000, -3 * 86_400_000_000_000 + 7_000, 10**15 + 3], pa.duration("ns")),
]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type))
def test_each_key_that_export_prints_is_found_by_get(column: pa.Array) -> None:
    """Whatever type its column has: the text that stands in JSON for the key finds it."""
    for key in coded([column])[1]:
        (printed,) = map(json_form, key_values(key))
        text = msgspec.json.encode(printed).decode()
        assert key in key_readings(json.loads(text) if text.startswith('"') else text), (key, text)


def test_those_are_all_kinds_of_keys() -> None:
    """Each tag of canonical bytes is among the keys above."""
    assert {key[:1] for column in COLUMNS for key in coded([column])[1]} == set(key_module._VALUE_OF)


def test_a_key_may_be_written_in_several_ways() -> None:
    """A UUID, a moment of another zone, a duration in other units, a number with zeros; and what no reading takes is a text."""
    assert canonical(b"0123456789abcdef") in key_readings("30313233-3435-3637-3839-616263646566")
    assert canonical(dt.datetime(2026, 11, 26, 9, tzinfo=dt.UTC)) in key_readings("2026-11-26T10:00:00+01:00")
    assert canonical(dt.timedelta(minutes=90)) in key_readings("PT1H30M")
    assert canonical(1) in key_readings("1.00")
    assert list(key_readings("hello there").values()) == ["a text"]
    for nothing_else in ("P", "PT", "1e999999999", "10:00:00+01:00", "sNaN"):
        assert set(key_readings(nothing_else).values()) <= {"a text", "a float", "bytes in base64"}


# Values as JSON


class Place(msgspec.Struct, frozen=True):
    x: int


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        ({"a": 1}, {"a": 1}),
        ({(1, "a"): 2}, [[[1, "a"], 2]]),
        ({True: 1, None: {2: 3}}, [[True, 1], [None, [[2, 3]]]]),
        ({1: "n", "1": "t"}, [[1, "n"], ["1", "t"]]),
        ({dt.date(2026, 11, 26): b"\0"}, [["2026-11-26", "AA=="]]),
        ([float("nan"), float("inf"), float("-inf"), 0.5], ["nan", "inf", "-inf", 0.5]),
        (pd.Timestamp("2026-11-26T10:00:00Z"), "2026-11-26T10:00:00Z"),
        (pd.Timestamp("2026-11-26T10:00:00.000000001Z"), "2026-11-26T10:00:00.000000001Z"),
        ([{"at": pd.Timestamp(1)}], [{"at": "1970-01-01T00:00:00.000000001"}]),
        (pd.Timedelta(-1), "-PT0.000000001S"),
        (dt.timedelta(seconds=90), "PT90S"),
        (10**30, 10**30),
    ],
    ids=repr,
)
def test_each_value_has_a_form_in_json(value: Any, printed: Any) -> None:
    """Keys that are no texts keep their type, and no value ends the output."""
    assert json.loads(msgspec.json.encode(json_form(value))) == printed
    shown = printable(KeyState(key=[], states={"each": value}))
    assert json.loads(msgspec.json.encode(shown))["states"] == {"each": printed}
    assert json.loads(msgspec.json.encode(printable({"each": value}))) == {"each": printed}


# One shard, its log and its positions


def add(row: dict, total: State[int], timers: Timers) -> None:
    total.value += row["n"]
    for at in row["due"]:
        timers.set(dt.datetime.fromtimestamp(at, dt.UTC), str(at))


def due(timer: Timer) -> None: ...


def places(row: dict, visits: State[dict[Place, int]]) -> None:
    visits.value[Place(row["n"])] = 1


class Shard(Machine):
    """The only shard of task ``keep``, whose commits stand in a log in memory. The task reads two links."""

    def __init__(self, fn: Callable[..., None] = add, limit: int = 1_000, ttl: str = "10 s") -> None:
        made = Job("kept", partitions=1)
        schema = "user string, n long, at timestamp"
        both = [
            made.input(name, kafka(name, schema=schema, start="earliest"), time=event_time("at")) for name in ("a", "b")
        ]
        timed = due if fn is add else None
        kept = made.keyed("keep", fn, after=both, group_by="user", on_timer=timed, ttl=ttl)
        made.output("out", blackhole(), after=kept)
        self.spec = made.spec()
        self.stage = next(stage for stage in graph_of(self.spec, "d", "j").stages if stage.name == "keep")
        self.link = next(link for link in self.stage.egress if link.kind == "state")
        self.topics = Topics(SetTime(0.0))
        self.place = Partition(self.link.topic, 0)
        self.writer = ShardLog(lambda: self.topics.end(self.place))
        signature = signature_of(KeyedSpec(on_timer="x:y" if timed else None, ttl={"*": ttl}), fn, timed)
        super().__init__(signature, KeyedFunction(signature, fn, timed), ["user"], MemoryStore, limit)

    def commit(self, planned: Any) -> None:
        for message in self.writer.messages({"keyed": planned.changes}, {"keyed": self.store}):
            self.topics.append(self.place, message.value, headers=list(message.headers))
        super().commit(planned)
        self.writer.committed()

    def give(self, clock: int, *rows: tuple[str, int, int, list[int]]) -> None:
        """Rows of a user, each with a number, a time and when timers are due, in seconds; and the clock after them."""
        users, numbers, times, dues = zip(*rows, strict=True)
        ats = np.array(times, np.int64) * SECOND
        table = pa.table({"user": list(users), "n": list(numbers), "due": pa.array(dues, pa.list_(pa.int64()))})
        self.batch([KeyedPiece(table, self.clock, ats)], clock * SECOND)

    def at(self, *clocks: int | None) -> Positions:
        """The positions after the last commit, with the clock of each link in seconds. None: it has no position."""
        mark = tuple(self.writer.mark)
        return {
            Partition(link.topic, 0): None
            if clock is None
            else Position(1, clock=SourceClock(value=clock if clock == END else clock * SECOND), state=mark)
            for link, clock in zip(self.stage.ingress, clocks, strict=True)
        }

    def shows(
        self,
        *positions: Positions,
        check: Callable[[], None] = lambda: None,
        log: StateLog | None = None,
        wanted: set[bytes] | None = None,
    ) -> dict[str, Any]:
        """What is shown, given the positions that are there when they are asked for."""
        asked = iter(positions)
        log = log or StateLog(self.topics, self.link)
        found = list(state_of(self.stage, self.link, log, lambda: next(asked), check, wanted).rows())
        assert all(isinstance(row, KeyState) for row in found)
        return {row.key[0]: row.states for row in found}


def test_state_is_read_as_of_the_position_and_not_beyond() -> None:
    """The log goes on behind an older position, and that does not count."""
    shard = Shard()
    shard.give(0, ("u", 1, 0, []))
    older = shard.at(0, 0)
    shard.give(0, ("u", 2, 0, []), ("v", 5, 0, []))
    assert shard.shows(older) == {"u": {"total": 1}}
    assert shard.shows(shard.at(0, 0)) == {"u": {"total": 3}, "v": {"total": 5}}
    assert shard.shows(shard.at(0, 0), wanted={canonical("v")}) == {"v": {"total": 5}}
    assert shard.shows(shard.at(None, None)) == {}


def test_what_has_expired_by_the_least_clock_of_a_shard_is_left_out() -> None:
    """A link that is behind, or has no position yet, holds the clock back."""
    shard = Shard()
    shard.give(0, ("u", 1, 0, []))
    shard.give(0, ("v", 1, 8, []))
    both, later = {"u": {"total": 1}, "v": {"total": 1}}, {"v": {"total": 1}}
    assert shard.shows(shard.at(9, 9)) == both
    assert shard.shows(shard.at(12, 9)) == both
    assert shard.shows(shard.at(9, 12)) == both
    assert shard.shows(shard.at(12, 12)) == later
    assert shard.shows({**shard.at(12, 12), Partition(shard.stage.ingress[1].topic, 0): None}) == both
    assert shard.shows(shard.at(18, 18)) == {}


@pytest.mark.parametrize("limit", [1, 1_000])
def test_at_the_end_of_the_input_the_clock_before_it_counts(limit: int) -> None:
    """What had not expired by the last clock is shown: between the batches in which the last timers fire, and after them."""
    shard = Shard(limit=limit)
    shard.give(0, ("u", 1, 0, []), ("v", 1, 8, [100, 200, 300]))
    shard.give(9, ("w", 1, 9, []))
    shown: list[dict[str, Any]] = []
    note = shard.note

    def look(*each: Any) -> None:
        note(*each)
        shown.append(shard.shows(shard.at(END, END)))

    shard.note = look  # type: ignore[method-assign]
    shard.batch([], END, before=12 * SECOND)
    assert len(shown) == (3 if limit == 1 else 1)
    assert shown == [{"v": {"total": 1}, "w": {"total": 1}}] * len(shown)


class Trimmed(StateLog):
    """A log whose beginning is deleted, the first times that it is read."""

    def __init__(self, shard: Shard, times: int) -> None:
        super().__init__(shard.topics, shard.link)
        self.left = times

    def read(self, partition: int, start: int, end: int) -> Iterator[Logged]:
        messages = list(super().read(partition, start, end))
        self.left -= 1
        return iter(messages[1:] if self.left >= 0 else messages)


def test_a_log_that_was_trimmed_meanwhile_is_read_again_by_new_positions() -> None:
    """The newer position says up to which commit, and by which clock."""
    shard = Shard()
    shard.give(0, ("u", 1, 0, []), ("v", 1, 8, []))
    older = shard.at(9, 9)
    shard.give(0, ("v", 2, 9, []))
    assert shard.shows(older, shard.at(12, 12), log=Trimmed(shard, 1)) == {"v": {"total": 3}}
    with pytest.raises(InputError) as raised:
        shard.shows(*[older] * 5, log=Trimmed(shard, 5))
    assert raised.value.code == "SX-STATE-TORN"


# A job that ends


def ends_after(looks: int) -> Callable[[], None]:
    left = [looks]

    def check() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise SardonyxError("SX-STATE-GONE", "it has ended", cause="it is completed", fix="none")

    return check


def refused() -> Positions:
    raise SetupError("SX-KAFKA-REFUSED", "the group is gone", cause="it was deleted", fix="none")


def test_a_job_that_ends_while_its_positions_are_asked_for_is_gone() -> None:
    """Its group and its topics are deleted one after the other: positions may lack, and Kafka may refuse."""
    shard = Shard()
    shard.give(0, ("u", 1, 0, []))
    going = shard.at(0, 0)
    for positions in ({}, shard.at(None, None), going):
        with pytest.raises(SardonyxError, match="SX-STATE-GONE"):
            shard.shows(positions, check=ends_after(0), wanted={canonical("u")})
    for check, code in ((ends_after(0), "SX-STATE-GONE"), (ends_after(1), "SX-KAFKA-REFUSED")):
        with pytest.raises(SardonyxError, match=code):
            list(state_of(shard.stage, shard.link, StateLog(shard.topics, shard.link), refused, check).rows())
    for second in ({}, going):
        with pytest.raises(SardonyxError, match="SX-STATE-GONE"):
            shard.shows(going, second, check=ends_after(1), log=Trimmed(shard, 1))


def test_topics_that_kafka_does_not_show_are_no_empty_state() -> None:
    """Also if the job is said to run: no number of partitions is made up, and nothing is shown as if it were all."""
    shard = Shard()
    for wanted in (None, {canonical("u")}):
        with pytest.raises(SardonyxError, match="SX-STATE-GONE") as raised:
            shard.shows({}, wanted=wanted)
        assert "Kafka does not show topic" in raised.value.cause


# Arguments

GOING = JobNote(name="kept", status="running", n=1, submitted_at=0.0, links="made")


@pytest.mark.parametrize(
    ("task", "key", "code"),
    [
        ("a", None, "SX-STATE-NONE"),
        ("keep", "u", "SX-STATE-KEY"),
        ("keep", b"u", "SX-STATE-KEY"),
        ("keep", 7, "SX-STATE-KEY"),
        ("keep", ["u", "v"], "SX-STATE-KEY"),
        ("keep", [["u"]], "SX-KEY-TYPE"),
    ],
)
def test_arguments_are_checked_before_anything_is_read(task: str, key: Any, code: str) -> None:
    """By the call itself, and not when the first row is taken. A text is not taken for the list of its letters."""
    with pytest.raises(SardonyxError) as raised:
        task_state(Settings(), "j-1", Shard().spec, lambda: GOING, task, key)
    assert raised.value.code == code
    assert raised.value.fix


def test_values_of_keys_may_be_given_as_they_are() -> None:
    """A number is a number, and a tuple is as good as a list. After the key, the settings are checked: they name no Kafka."""
    for key in ([7], ("u",), [DAY], [None]):
        with pytest.raises(SetupError, match="SX-CONFIG-MISSING"):
            task_state(Settings(), "j-1", Shard().spec, lambda: GOING, "keep", key)


# The commands


def call(monkeypatch: pytest.MonkeyPatch, rows: Sequence[StateRow], *arguments: str) -> Result:
    """The command, for a job whose task keeps these rows."""

    class Client:
        def __enter__(self) -> Client:
            return self

        def __exit__(self, *_: object) -> None: ...

        def job(self, _: str) -> Client:
            return self

        def state(self, *_: object, at: str | None) -> Iterator[StateRow]:
            assert at is None
            return iter(rows)

    monkeypatch.setattr(Call, "client", lambda _: Client())
    monkeypatch.setattr(Call, "job", lambda _, client, job: client.job(job))
    return CliRunner().invoke(app, ["state", *arguments])


KEPT = KeyState(
    key=["4711", 2],
    states={"total": 5, "by": {(1, "a"): pd.Timestamp(0, tz="UTC")}},
    timers=[TimerSet(name="review", at=7, by="event")],
)


def test_what_is_kept_is_printed_with_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text and a number that look alike are different keys, and both may be found."""
    shown = call(monkeypatch, [KEPT, {"user": "u", "by": {1: 2}}], "get", "kept", "keep", "4711", "2")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.splitlines() == [
        'key ["4711",2]',
        "total             5",
        'by                [[[1,"a"],"1970-01-01T00:00:00Z"]]',
        "timer 'review' at 7 by the event clock",
        "user u  by [[1,2]]",
    ]


def test_export_and_json_print_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """One object a line, or a list of them."""
    lines = call(monkeypatch, [KEPT, KEPT], "export", "kept", "keep").stdout.splitlines()
    row = json.loads(lines[0])
    assert row["states"] == {"total": 5, "by": [[[1, "a"], "1970-01-01T00:00:00Z"]]}
    assert json.loads(call(monkeypatch, [KEPT], "get", "kept", "keep", "4711", "2", "--json").stdout) == [row]


def test_a_key_that_is_not_kept_is_an_error_that_says_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script sees it from the exit code; a user learns as what the text was read."""
    missing = call(monkeypatch, [], "get", "kept", "keep", "4711", "u", "--json")
    assert missing.exit_code == 1
    error = json.loads(missing.stdout or missing.stderr)
    error = error.get("error", error)
    assert error["code"] == "SX-STATE-EMPTY"
    assert error["cause"].startswith("'4711' was read as a text, a number")
    assert error["cause"].endswith("; 'u' was read as a text")


def test_a_dict_whose_keys_are_structs_does_not_end_the_output() -> None:
    """Without its type it cannot be read; it is shown as its bytes."""
    shard = Shard(places)
    shard.give(0, ("u", 1, 0, []))
    (state,) = shard.shows(shard.at(NEVER // SECOND, NEVER // SECOND)).values()
    assert msgspec.msgpack.decode(state["visits"], type=dict[Place, int]) == {Place(1): 1}
