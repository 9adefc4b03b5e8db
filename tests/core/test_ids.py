"""Ids of jobs and peers, and the shorter names by which people find them."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from sardonyx.cli.call import Call
from sardonyx.cli.job_commands import list_jobs
from sardonyx.client.ids import (
    LaterAttempt,
    find_job,
    find_peer,
    later_attempt,
    name_taken,
    new_id,
    superseded_attempts,
)
from sardonyx.client.views import JobView
from sardonyx.core.errors import Failure, SardonyxError
from sardonyx.core.notes import JobNote


def test_a_job_is_found_by_id_prefix_or_name() -> None:
    """A name means the job that runs, or else the latest; one that was submitted just now has no time yet."""
    names = {"flights-bbbbbb": "flights", "flights-aaaaaa": "flights", "rides-cccccc": "rides"}
    since = {"flights-aaaaaa": 2.0, "flights-bbbbbb": 1.0, "rides-cccccc": 3.0}
    assert find_job("flights-aaaaaa", names, set(), since) == "flights-aaaaaa"
    assert find_job("flights-b", names, set(), since) == "flights-bbbbbb"
    assert find_job("rides", names, set(), since) == "rides-cccccc"
    assert find_job("flights", names, {"flights-bbbbbb"}, since) == "flights-bbbbbb"
    assert find_job("flights", names, set(), since) == "flights-aaaaaa"
    assert find_job("flights", names, set(), {"flights-aaaaaa": 2.0}) == "flights-bbbbbb"
    assert find_job("flights", names, set(), since, refused={"flights-aaaaaa"}) == "flights-bbbbbb"
    assert find_job("rides", names, set(), since, refused={"rides-cccccc"}) == "rides-cccccc"


def test_a_name_that_means_an_earlier_job_than_the_last_attempt_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """A refused attempt is told with time and code, and how to see it. Nothing is said of ids, or of attempts that were taken."""
    ran = JobNote("flights", "stopped", 1, submitted_at=1.0, ended_at=2.0, links="gone")
    error = Failure("SX-JOB-RESUME", "it cannot")
    refused = JobNote("flights", "failed", 2, submitted_at=1_796_066_400.0, error=error)
    notes = {
        "flights-aaaaaa": ran,
        "flights-bbbbbb": refused,
        "rides-cccccc": JobNote("rides", "failed", 4, submitted_at=2e9),
    }
    later = LaterAttempt("flights-bbbbbb", 1_796_066_400.0, "SX-JOB-RESUME")
    assert later_attempt("flights", "flights-aaaaaa", notes) == later
    for wanted in ("flights-aaaaaa", "flights-a"):
        assert later_attempt(wanted, "flights-aaaaaa", notes) is None
    assert later_attempt("flights", "flights-bbbbbb", {"flights-bbbbbb": refused}) is None
    failed = JobNote(
        "flights", "failed", 3, submitted_at=1_796_066_500.0, links="gone", error=error
    )  # its topic is missing
    assert later_attempt("flights", "flights-dddddd", {**notes, "flights-dddddd": failed}) is None
    client: Any = SimpleNamespace(
        job=lambda _: SimpleNamespace(id="flights-aaaaaa"),
        later_attempt=lambda wanted, meant: later_attempt(wanted, meant, notes),
    )
    call = Call()
    assert call.job(client, "flights").id == "flights-aaaaaa"
    said = capsys.readouterr().err
    assert said.startswith("flights means job flights-aaaaaa: a later attempt, flights-bbbbbb, was refused 20")
    assert said.endswith("(SX-JOB-RESUME); `sardonyx job show flights-bbbbbb` shows why\n")
    call.job(client, "flights-aaaaaa")
    assert capsys.readouterr().err == ""


def test_failed_attempts_do_not_pile_up_under_a_name() -> None:
    """One that was refused is left out when there was a later attempt of its name, refused or not; the last is not."""
    ran = JobNote("flights", "failed", 1, submitted_at=1.0, links="gone")
    first = JobNote("flights", "failed", 2, submitted_at=2.0)
    last = JobNote("flights", "failed", 3, submitted_at=3.0)
    other = JobNote("rides", "failed", 4, submitted_at=1.0)
    notes = {"a": ran, "b": first, "c": last, "d": other}
    assert superseded_attempts(notes) == {"b"}
    works = JobNote("flights", "running", 5, submitted_at=4.0)
    assert superseded_attempts({**notes, "e": works}) == {"b", "c"}


def test_a_list_of_jobs_says_what_it_leaves_out() -> None:
    """The later attempt may have been refused too. With ``--all`` all are listed; ``--json`` leaves out the same."""
    views = [JobView(id=f"flights-{each}", name="flights", status="failed", tasks=[]) for each in "cba"]
    client = SimpleNamespace(jobs=lambda: views, superseded_attempts=lambda: {"flights-b"}, led=lambda: True)
    said, put = list[str](), list[Any]()
    call: Any = SimpleNamespace(
        client=lambda: contextlib.nullcontext(client),
        console=SimpleNamespace(print=put.append),
        say=said.append,
        json=False,
        put_json=put.append,
    )
    list_jobs(call)
    assert said == ["1 attempt was refused, and a later attempt was made: --all lists it too"]
    list_jobs(call, all_attempts=True)
    assert len(said) == 1
    call.json = True
    list_jobs(call)
    assert [view.id for view in put[-1]] == ["flights-c", "flights-a"]


@pytest.mark.parametrize(
    ("wanted", "code", "hint"),
    [
        ("flihgts-aaaaaa", "SX-JOB-UNKNOWN", "flights-aaaaaa"),
        ("zzz", "SX-JOB-UNKNOWN", "job list"),
        ("", "SX-JOB-UNKNOWN", "job list"),
        ("flights", "SX-JOB-AMBIGUOUS", "flights-bbbbbb"),
        ("fli", "SX-JOB-AMBIGUOUS", "flights-bbbbbb"),
    ],
)
def test_a_job_that_is_not_clear_is_an_error_with_a_hint(wanted: str, code: str, hint: str) -> None:
    """Unknown ones name the nearest known, ambiguous ones all that it may mean."""
    names = {"flights-aaaaaa": "flights", "flights-bbbbbb": "flights"}
    with pytest.raises(SardonyxError) as caught:
        find_job(wanted, names, set(names), {})
    assert caught.value.code == code
    assert hint in str(caught.value)


def test_a_peer_is_found_by_the_beginning_of_its_id() -> None:
    """Whatever is clear is accepted; unknown ones name the nearest known, ambiguous ones some that it may mean."""
    known = {"host-1-a", "host-1-b", "other-2"}
    assert find_peer("host-1-a", known) == "host-1-a"
    assert find_peer("o", known) == "other-2"
    for wanted, code, hint in (
        ("host", "SX-PEER-AMBIGUOUS", "host-1-b"),
        ("", "SX-PEER-UNKNOWN", "peers list"),
        ("othre-2", "SX-PEER-UNKNOWN", "other-2"),
    ):
        with pytest.raises(SardonyxError) as caught:
            find_peer(wanted, known)
        assert (caught.value.code, hint in str(caught.value)) == (code, True)


def test_ids_are_the_name_and_six_characters() -> None:
    """Ids are fit for paths and topics, and fresh every time."""
    made = {new_id("flights") for _ in range(50)}
    assert len(made) == 50
    assert all(each.startswith("flights-") and len(each) == 14 and each.rpartition("-")[2].isalnum() for each in made)


def test_who_submits_a_name_twice_learns_what_fits() -> None:
    """To go on from a job that does not end by itself takes one command."""
    restart = "`sardonyx job change hits-1 SPEC --restart`"
    assert restart in name_taken("hits-1", "hits", "running", follows=True).fix
    assert restart not in name_taken("hits-1", "hits", "running", follows=False).fix
