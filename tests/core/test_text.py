"""The helpers for texts that people read."""

from __future__ import annotations

import pytest

from sardonyx.core.text import counted, listed, near, nearest, plural, shorten


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
