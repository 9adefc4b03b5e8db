"""How a soak (``make soak``) finds what is lost, doubled, strange, growing or standing still."""

from __future__ import annotations

import math
import random

import pytest

from tests.faults.shapes import PARTITIONS
from tests.faults.soak_judge import SAW, STEPS, Figure, disk_bound, figures, judge, standing, unsure
from tests.faults.soak_records import RETENTION, Numbers, Sight, Tally, record

HOUR = 3600


def seen(*records: tuple[int, int]) -> Sight:
    sight = Sight()
    for source, number in records:
        sight.record(record(source, number)[1])
    return sight


def test_what_comes_once_is_right_in_any_order() -> None:
    """All records of all sources, shuffled: nothing is wrong, and full blocks take no memory."""
    records = [(source, number) for source in range(PARTITIONS) for number in range(Numbers.BLOCK // 4)]
    random.Random(7).shuffle(records)
    sight = seen(*records)
    ends = [Numbers.BLOCK // 4] * PARTITIONS
    assert (sight.count, sight.doubled, sight.strange) == (len(records), 0, 0)
    assert (sight.lost(ends), sight.beyond(ends), sight.wrong) == (0, 0, [])


def test_numbers_keep_only_blocks_with_gaps() -> None:
    """However many have come, only blocks in which one is missing are held; a number that comes again is known in any block."""
    numbers = Numbers()
    gap = 3 * Numbers.BLOCK + 5
    for number in range(6 * Numbers.BLOCK):
        assert number == gap or numbers.add(number)
    assert numbers.open == 1
    assert list(numbers.missing(6 * Numbers.BLOCK)) == [gap]
    assert not any(numbers.add(number) for number in (0, gap - 1, gap + 1, 5 * Numbers.BLOCK))
    assert numbers.add(gap)
    assert (numbers.open, numbers.count) == (0, 6 * Numbers.BLOCK)


def test_what_is_lost_doubled_or_strange_is_counted_and_named() -> None:
    """One record missing, one twice, one that did not go in, one whose text is another's, and one past the end."""
    sight = seen((0, 0), (0, 2), (0, 2), (1, 0))
    sight.record(b'{"id": 5, "key": "9-9", "text": ""}')
    sight.record(record(1, 1)[1].replace(b'"id":100000001', b'"id":100000003'))
    sight.record(b"nonsense")
    ends = [3, 0, 0, 0]
    assert (sight.lost(ends), sight.doubled, sight.strange, sight.beyond(ends)) == (1, 1, 3, 1)
    assert "record 1 of source 0 is lost" in sight.wrong
    assert "record 2 of source 0 came twice" in sight.wrong


def test_tallies_compare_counts_and_bytes_of_each_key() -> None:
    """The order does not matter; a missing record and another byte do."""
    ours, theirs = Tally(), Tally()
    for value in (b"a", b"b"):
        ours.add("k", value)
    for value in (b"b", b"a"):
        theirs.add("k", value)
    assert ours.differs(theirs) == []
    theirs.add("other", b"c")
    ours.add("k", b"d")
    theirs.add("k", b"e")
    assert ours.differs(theirs) == ["k", "other"]


def samples(value, seconds: float = HOUR, every: float = 10) -> list[dict]:
    return [{"at": at, "value": value(at)} for at in (every * n for n in range(1, int(seconds / every)))]


FIGURE = Figure("value", lambda sample: sample["value"], lambda mean: 0.1 * mean)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        pytest.param(lambda _at: 300.0, "flat", id="constant"),
        pytest.param(lambda at: 300 - 20 * at / HOUR, "flat", id="falls"),
        pytest.param(lambda at: 300 if at > HOUR / 4 else 100 + at, "flat", id="grows in the beginning only"),
        pytest.param(lambda at: 300 + 60 * (at % 120) / 120, "flat", id="a saw of two minutes"),
        pytest.param(lambda at: 300 + 20 * at / HOUR, "flat", id="grows by less than the limit"),
        pytest.param(lambda at: 300 + 60 * at / HOUR, "grows", id="grows by a fifth an hour"),
        pytest.param(lambda at: 300 + 60 * at / HOUR + 60 * (at % 120) / 120, "grows", id="a growing saw"),
        pytest.param(lambda at: 300 + 150 * math.sin(at / 300), "cannot tell", id="swings slowly"),
    ],
)
def test_a_figure_is_flat_only_if_it_is_shown_to_be(value, says: str) -> None:
    """What grows at the beginning and then stays is flat, and so is a saw; what grows all the time is not."""
    noise = random.Random(3)
    (verdict,) = judge(samples(lambda at: value(at) + noise.uniform(-5, 5)), [FIGURE])
    assert verdict.says == says, verdict


def test_a_run_goes_on_while_a_figure_cannot_be_told() -> None:
    """The figures that swing too much are named, and a longer run can tell. What grows, or is flat, needs none; a short run
    judges nothing.
    """

    def swings(at: float) -> float:
        return 300 + 20 * math.sin(at / 300)

    def grows(at: float) -> float:
        return 300 + 100 * at / HOUR

    assert unsure(samples(swings), [FIGURE]) == ["value"]
    assert unsure(samples(swings, 2 * HOUR), [FIGURE]) == []
    assert unsure(samples(grows), [FIGURE]) == []
    assert unsure(samples(swings, 1800), [FIGURE]) == []


@pytest.mark.parametrize(
    ("value", "says"),
    [
        pytest.param(lambda at: 60 + 20 * (int(at / 400) % 2), "flat", id="up and down in steps"),
        pytest.param(lambda at: 60 + 20 * (int(at / 400) % 2) + 45 * at / HOUR, "grows", id="steps that rise"),
        pytest.param(lambda at: 60.0 if at < HOUR * 0.97 else 100.0, "flat", id="one step at the very end"),
        pytest.param(lambda at: 60.0 if at < HOUR * 0.7 else 100.0, "grows", id="a step that stays"),
    ],
)
def test_what_moves_in_steps_is_judged_by_what_it_reaches(value, says: str) -> None:
    """Threads rise and fall with the tasks in hand: that is flat. If each step ends higher than the one before it, they grow."""
    (verdict,) = judge(samples(value), [FIGURE._replace(percentile=STEPS)])
    assert verdict.says == says, verdict


@pytest.mark.parametrize(
    ("value", "says"),
    [
        pytest.param(lambda at: 600 + 300 * (at % 700) / 700, "flat", id="a saw of twelve minutes"),
        pytest.param(lambda at: 600 + 300 * (at % 700) / 700 * (at > HOUR * 0.7), "flat", id="teeth that begin later"),
        pytest.param(lambda at: 600 + 300 * (at % 700) / 700 + 300 * at / HOUR, "grows", id="a saw that rises"),
    ],
)
def test_a_long_saw_is_judged_by_what_it_falls_back_to(value, says: str) -> None:
    """A JVM holds more until it collects its garbage: that is flat. If it holds more after it, it grows."""
    (verdict,) = judge(samples(value), [FIGURE._replace(percentile=SAW)])
    assert verdict.says == says, verdict


def test_what_was_not_sampled_gets_no_verdict() -> None:
    """A daemon that was gone for a while is not judged by the rest; the run is red then."""
    gone = samples(lambda at: None if 2000 < at < 2600 else 1.0)
    assert judge(gone, [FIGURE]) == []
    names = [figure.name for figure in figures("peer", "coordinator")]
    assert len(names) == len(set(names))


def test_a_queue_that_is_not_trimmed_is_found() -> None:
    """Its first offset stands still while records are written; a queue without records may stand still."""
    moving = [{"at": at, "low": [at * 5, 0], "high": [at * 6, 0]} for at in range(10, 600, 10)]
    assert standing(moving, 180) == []
    stuck = [{**each, "low": [min(each["low"][0], 1500), 0]} for each in moving]
    assert standing(stuck, 180)
    assert standing([{"at": 1.0}], 180) == []


def test_the_bound_of_the_disk_does_not_depend_on_the_length_of_the_run() -> None:
    """It depends on the rate, and holds at least what Kafka is set to keep."""
    short, long = ([{"at": at, "in": 20_000 * at} for at in range(10, seconds, 10)] for seconds in (HOUR, 10 * HOUR))
    assert disk_bound(short, 1) == disk_bound(long, 1) > 2 * PARTITIONS * RETENTION / 2**20
    assert disk_bound(short, 3) == 3 * disk_bound(short, 1)
