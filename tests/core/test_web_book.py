"""The log as the pages hold it: the state after any entry, and what was known by then."""

from __future__ import annotations

import random

import pytest
from history_maker import History
from web_site import EVENTS, book_of

from coordinator.core.decide import decide
from coordinator.core.projection import project
from coordinator.core.state import new_state
from coordinator.core.stored_state import decode_state, encode_state
from coordinator.history.replay import Replay
from coordinator.history.timeline import Past, timeline_of
from sardonyx.cli.web_commands import words
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import (
    AnyEvent,
    JobSubmitted,
    PeerBorn,
)
from sardonyx.web.book import Book
from tests.sizes import histories


@pytest.mark.parametrize("seed", range(8))
def test_the_state_after_any_entry_is_that_of_a_replay(seed: int) -> None:
    """Whichever moments are asked for before, in whichever order."""
    history = History(random.Random(f"book/{seed}"))
    history.unkind(160)
    log = list(history.world.log)
    state = decode_state(encode_state(new_state("test")))
    states = {0: encode_state(state)}
    for n, event in log:
        decide(state, n, event)
        states[n] = encode_state(state)
    book = book_of([event for _, event in log], every=25)
    asked = list(states) * 2
    random.Random(seed).shuffle(asked)
    for n in asked:
        assert encode_state(book.at(n)) == states[n], n


def test_entries_that_are_let_go_are_gone_and_the_others_stay() -> None:
    """A book holds so many entries at most, and says which; the states of those that it holds stay right."""
    events: list[AnyEvent] = [PeerBorn(at=float(n), peer=f"p{n}") for n in range(1, 101)]
    book = book_of(events, keep=30, every=10)
    assert book.first > 60
    assert len(book.at(book.first).peers) == book.first
    assert [line.n for line in book.lines(0, 200)] == list(range(book.first, 101))
    with pytest.raises(SardonyxError) as error:
        book.at(book.first - 2)
    assert error.value.code == "SX-LOG-RANGE"


@pytest.mark.parametrize("seed", range(4))
def test_what_is_told_of_a_long_log_does_not_depend_on_what_was_let_go(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists, timelines and marks of a book with room for few entries are the ends of those of a book with room for all."""
    monkeypatch.setattr("sardonyx.web.book.TOLD", 5)
    history = History(random.Random(f"short/{seed}"))
    history.unkind(400)
    log = [event for _, event in history.world.log]
    short, whole = book_of(log, keep=60, every=10), book_of(log, every=50)
    assert short.first > whole.first
    assert list(short.lines(0, 999)) == list(whole.lines(short.first, 999))
    assert short.marked() == [n for n in whole.marked() if n >= short.first]
    for line in short.lines(short.first, short.last):
        assert encode_state(short.at(line.n)) == encode_state(whole.at(line.n))
        assert short.decided(line.n) == whole.decided(line.n)
        assert short.time_of(line.n) == whole.time_of(line.n)
        for job in line.jobs:
            assert short.about(job, line.n, 1) == [line] == whole.about(job, line.n, 1)
    for job in short.state.jobs:
        told = whole.timeline(job, whole.last)
        assert len(told) <= 5
        assert [item for item in short.timeline(job, short.last) if item.n >= short.first] == [
            item for item in told if item.n >= short.first
        ]
    with pytest.raises(SardonyxError):
        short.decided(short.first - 1)


def test_a_timeline_is_that_of_the_log_also_where_its_beginning_has_been_put_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each job's last event, by any entry, is that which reading its whole log tells."""
    monkeypatch.setattr("sardonyx.web.book.TOLD", 1)
    longest = 0
    for seed in range(histories(2, whole=4)):
        history = History(random.Random(f"timeline/{seed}"))
        history.unkind(600)
        log = list(history.world.log)
        book = book_of([event for _, event in log])
        past = [Past(decided) for decided in Replay(new_state("test")).steps(log)]
        for job in {event.job for _, event in log if isinstance(event, JobSubmitted)}:
            found = timeline_of(job, past)
            longest = max(longest, len(found))
            assert book.timeline(job, book.last) == found[-1:]
            for item in found:
                by_then = [each.n for each in found if each.n <= item.n][-1:]
                assert [each.n for each in book.timeline(job, item.n)] == by_then
    assert longest > 2


def test_a_request_leads_to_the_entry_that_took_it_in() -> None:
    """An action that is sent twice finds what became of the first; what peers ask for is not kept."""
    book = Book(new_state("test"), words())
    for n, (event, request) in enumerate(zip(EVENTS[:4], ["p", "u", "", "a"], strict=True), 1):
        book.take(n, event, request)
    assert (book.of_request("u"), book.of_request("p"), book.of_request("x")) == (2, None, None)
    assert (book.submitted("j-1"), book.submitted("j-2")) == (2, None)


def test_a_full_disk_is_an_error_and_nothing_is_lost_by_it() -> None:
    """The log is read on meanwhile. As soon as there is room, everything is there."""
    book = Book(new_state("test"), words(), every=50)
    disk = book._shelf._db
    disk.execute("pragma max_page_count = 20")
    codes = []
    for n in range(1, 1001):
        try:
            book.take(n, PeerBorn(at=float(n), peer=f"p{n}"))
        except SardonyxError as error:
            codes.append(error.code)
    assert set(codes) == {"SX-WEB-DISK"}
    assert len(book.state.peers) == 1000
    with pytest.raises(SardonyxError) as raised:
        book.at(500)
    assert raised.value.code == "SX-WEB-DISK"
    disk.execute("pragma max_page_count = 100000")
    assert len(book.at(500).peers) == 500
    assert [line.n for line in book.lines(1, 1000)] == list(range(1, 1001))


@pytest.mark.parametrize("seed", range(4))
def test_what_differs_between_two_moments_leads_from_one_to_the_other(seed: int) -> None:
    """Put upon the nodes after one entry, the differences give the nodes after the other one, forth and back."""
    history = History(random.Random(f"diff/{seed}"))
    history.unkind(120)
    book = book_of([event for _, event in history.world.log], every=25)
    rng = random.Random(seed)
    for first, last in [(rng.randint(0, book.last), rng.randint(0, book.last)) for _ in range(40)]:
        nodes = dict(project(book.at(first)))
        for change in book.changed(first, last):
            assert nodes.pop(change.path, None) == change.before != change.after
            if change.after is not None:
                nodes[change.path] = change.after
        assert nodes == project(book.at(last))


def test_an_entry_tells_whom_it_concerns_and_whether_it_stands_out() -> None:
    """A death is an incident; the news of one that is known already is not."""
    lines = {line.n: line for line in book_of(EVENTS).lines(1, 8)}
    assert lines[2].jobs == ["j-1"]
    assert lines[2].mark == "user"
    assert lines[5].jobs == ["j-1"]
    assert lines[5].peers == ["a"]
    assert lines[5].mark == "incident"
    assert lines[8].mark == ""


def test_the_past_does_not_know_what_came_later() -> None:
    """By entry 6 no peer had taken the place of the one that died at entry 5; by entry 7 another had, after six seconds."""
    book = book_of(EVENTS)
    assert [item.by for item in book.timeline("j-1", 6)] == [""]
    assert [(item.by, item.after) for item in book.timeline("j-1", 7)] == [("b", 6.0)]
    assert book.timeline("j-1", 4) == []


def test_the_last_entries_about_a_job_are_those_up_to_a_moment() -> None:
    """The newest first, also after the oldest entries have been let go."""
    book = book_of(EVENTS)
    assert [line.n for line in book.about("j-1", 8, 3)] == [7, 6, 5]
    assert [line.n for line in book.about("j-1", 4, 9)] == [4, 3, 2]
    assert book.about("nix", 8, 3) == []
    short = book_of(EVENTS, keep=4, every=2)
    assert [line.n for line in short.about("j-1", 8, 9)] == [line.n for line in short.lines(8, 1) if "j-1" in line.jobs]


def test_a_time_leads_to_the_last_entry_before_it() -> None:
    """Also between two entries, before all and after all."""
    book = book_of(EVENTS)
    assert [book.find(at) for at in (9.0, 10.0, 12.5, 25.0, 99.0)] == [0, 1, 3, 6, 8]


def test_lines_come_in_either_order_and_only_those_that_there_are() -> None:
    """Numbers outside of the log are no error."""
    book = book_of(EVENTS)
    assert [line.n for line in book.lines(6, 4)] == [6, 5, 4]
    assert [line.n for line in book.lines(-3, 2)] == [1, 2]
    assert list(book.lines(50, 60)) == []


def test_the_decision_on_an_entry_leaves_the_past_as_it_was() -> None:
    """What is replayed for it is a copy."""
    book = book_of(EVENTS)
    before = encode_state(book.at(4))
    decided, _ = book.decided(5)
    assert decided.changes
    assert encode_state(book.at(4)) == before
