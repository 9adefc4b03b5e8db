"""Lists of the API go on where they were, whatever has come and gone meanwhile. On logs, without services."""

from __future__ import annotations

import msgspec
from web_site import SPEC, Running, Site, book_of

from sardonyx.core.events import AnyEvent, JobPurged, JobSubmitted, PeerBorn, PeerDied

REFUSED: list[AnyEvent] = [
    JobSubmitted(at=float(n), job=f"j-{n}", spec=msgspec.structs.replace(SPEC, name=f"j{n % 2}"), resumes="unknown")
    for n in range(1, 7)
]
"""Jobs that are refused, so that a purge lets them go at once."""
PEERS: list[AnyEvent] = [PeerBorn(at=float(n), peer=f"p-{n}") for n in range(1, 7)]


def ids(site: Site, address: str) -> tuple[list[str], str]:
    """What a page holds, and the address of the next one."""
    answer = site.get(address)
    assert answer.status == 200, answer.body
    page = answer.json()
    return [item["id"] for item in page["items"]], page["next"]


def test_a_list_of_jobs_goes_on_after_a_job_that_was_purged() -> None:
    """And so it does after one that has come to another status than is asked for; new jobs come at the top, and not again."""
    running = Running(REFUSED)
    site = Site(running)
    assert [line.status for line in running.book.state.jobs.values()] == ["failed"] * 6
    found, following = ids(site, "/api/v1/jobs?status=failed&limit=2")
    assert found == ["j-6", "j-5"]
    running.book.take(7, JobPurged(job="j-5", at=10.0))
    running.book.take(8, JobSubmitted(job="j-7", spec=SPEC, resumes="unknown", at=11.0))
    assert "j-5" not in running.book.state.jobs
    found, following = ids(site, following)
    assert found == ["j-4", "j-3"]
    assert ids(site, following) == (["j-2", "j-1"], None)
    assert ids(site, "/api/v1/jobs?after=j-5&status=planning") == ([], None)
    assert ids(site, "/api/v1/jobs?after=j-5&name=j0") == (["j-4", "j-2"], None)
    assert ids(site, "/api/v1/jobs?after=j-6&at=3") == (["j-3", "j-2", "j-1"], None), "it came later"


def test_a_list_of_jobs_after_a_job_of_which_nothing_is_known_is_refused() -> None:
    """It does not begin again: a script would take jobs twice."""
    running = Running([])
    running.book = book_of([*REFUSED, JobPurged(job="j-2", at=10.0), *PEERS, *PEERS, *PEERS], keep=8, every=2)
    assert running.book.first > 7
    for job in ("j-2", "nonsense"):
        answer = Site(running).get(f"/api/v1/jobs?after={job}")
        assert (answer.status, answer.headers["content-type"]) == (410, "application/problem+json")
        assert answer.json()["code"] == "SX-WEB-CURSOR"
    assert ids(Site(running), "/api/v1/jobs?after=j-4") == (["j-3", "j-1"], None)


def test_a_list_of_peers_goes_on_after_a_peer_that_has_died() -> None:
    """They are listed by id."""
    running = Running(PEERS)
    site = Site(running)
    found, following = ids(site, "/api/v1/peers?state=idle&limit=2")
    assert found == ["p-1", "p-2"]
    running.book.take(7, PeerDied(at=10.0, peer="p-2"))
    found, following = ids(site, following)
    assert found == ["p-3", "p-4"]
    running.book.take(8, PeerDied(at=12.0, peer="p-4"))
    assert ids(site, following) == (["p-5", "p-6"], None)
