"""The helpers for texts that people read."""

from __future__ import annotations

import random
import unicodedata
from datetime import UTC, datetime, timedelta

import pytest

from sardonyx.cli.call import Call
from sardonyx.cli.tables import plain
from sardonyx.core.errors import SardonyxError
from sardonyx.core.text import counted, listed, near, nearest, plural, printable, shorten, time_text


def test_a_mistyped_name_gets_the_nearest_known_one():
    """A hint names the known name that is most similar, and is empty if none is similar enough."""
    assert nearest("strat", ["start", "end", None]) == "start"
    assert near("strat", ["start", "end"]) == "; did you mean 'start'?"
    assert near("topic", ["start", "end"]) == ""
    assert near("borm", ["born"], cutoff=0.9) == ""


@pytest.mark.parametrize("most", [3, 10, 80])
def test_a_shortened_text_is_never_longer_than_asked_for(most: int):
    """A text that fits stays as it is; a longer one is cut so that the ellipsis still fits."""
    assert shorten("a" * most, most) == "a" * most
    assert shorten("a" * (most + 1), most) == "a" * (most - 3) + "..."
    assert shorten("a" * (most + 1), most, ellipsis="…") == "a" * (most - 1) + "…"


def test_numbers_agree_with_their_nouns():
    """One is singular, every other number is plural, and thousands are separated."""
    assert [counted(number, "task") for number in (0, 1, 2, 1200)] == ["0 tasks", "1 task", "2 tasks", "1,200 tasks"]
    assert (plural(1, "is", "are"), plural(2, "is", "are")) == ("is", "are")


def test_names_are_listed_as_in_a_sentence():
    """Commas between all but the last two."""
    assert [listed(names) for names in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]
    assert listed(["a", "b"], last="or") == "a or b"


@pytest.mark.parametrize("seed_", range(3))
def test_a_time_reads_as_the_calendar_has_it(seed: int, seed_: int):
    """In UTC, to the microsecond. A time that no calendar has is a number."""
    rng, first = random.Random(f"{seed}/{seed_}"), datetime(1, 1, 1, tzinfo=UTC)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    for _ in range(2_000):
        at = first + timedelta(
            days=rng.randrange(3_652_059), seconds=rng.randrange(86_400), microseconds=rng.choice([0, 7])
        )
        assert datetime.fromisoformat(time_text((at - epoch) // timedelta(microseconds=1))) == at
    assert time_text(1_795_687_200_000_000) == "2026-11-26T10:00:00Z"
    assert time_text(10**18) == "1,000,000,000,000,000,000 us"


def test_no_control_character_reaches_a_terminal(capsys):
    """Neither in a line nor in a cell, nor in an error: it is written out. Newlines and tabs stay."""
    call, evil = Call(), "a\x1b]0;owned\x07\x1b[2J\x9b1A\rb\tc"
    table = plain("id")
    table.add_row(evil)
    call.put(f"{evil}\n")
    call.console.print(table)
    call.console.print(evil, markup=False)
    call.tell(SardonyxError("SX-TEST", evil, cause=evil, traceback=evil))
    found = capsys.readouterr()
    told = found.out + found.err
    assert told.count("a\\x1b]0;owned\\x07\\x1b[2J\\x9b1A\\x0db") == 6
    assert not any(unicodedata.category(each) == "Cc" and each not in "\n\t" for each in told)
    assert printable("tab\tand\nline") == "tab\tand\nline"
