"""What the leader reads of its two lists, on a real ZooKeeper."""

from __future__ import annotations

import threading
from typing import get_args

import pytest

from coordinator.core.decide import replay
from coordinator.core.state import State, new_state
from coordinator.loop.election import Leadership
from coordinator.loop.intake import OF_PEERS, Intake, fair_share, numbered
from coordinator.loop.limits import Limits
from coordinator.loop.log_writer import PendingEntry, append
from sardonyx.core import node_paths
from sardonyx.core.events import Acked, JobKilled, Left, PeerBorn, PeerDied, Request
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.waiting import until


def collected(intake: Intake, state: State, at: float) -> list[PendingEntry]:
    """All that happened."""
    scan = intake.begin(state, at)
    found: list[PendingEntry] = []
    while entries := scan.read(state):
        found += entries
    return found


def test_kinds_of_requests_that_peers_make() -> None:
    """They are those about an assignment, and the one with which a peer leaves: no other waits for what clients send."""
    kinds = {kind.__struct_config__.tag for kind in get_args(Request) if "assignment" in kind.__struct_fields__}
    assert kinds | {"leave"} == OF_PEERS


def test_a_request_that_would_grow_too_large_is_left_out(leader: Leadership, zk: ZooKeeperSession) -> None:
    """Numbers that other writers encode shorter than we do must not end one leadership after the other."""
    numbers = b",".join([b"1e15"] * 12_000)
    spec = b'{"name":"j","workflow":[],"catalog":[{"name":"a","type":"input","params":{"x":[%s]}}]}' % numbers
    zk.create_sequential(f"{node_paths.INBOX}/submit-0f1e-", b'{"kind":"submit","job":"j","spec":%s}' % spec)
    intake = Intake(leader, wake=lambda: None)
    assert collected(intake, new_state(), 1.0) == []
    assert zk.children(node_paths.INBOX) == []


def test_a_long_list_of_pulses_is_left_alone_for_a_while(leader: Leadership, zk: ZooKeeperSession) -> None:
    """However often peers come and go. But a peer is born before what it asks for, and in the end all is seen."""
    woken = threading.Event()
    intake = Intake(leader, wake=woken.set, limits=Limits(pulse_pause=1e6, longest_pulse_pause=1e6))
    zk.create(node_paths.pulse("a"), b"{}")
    assert [entry.event for entry in collected(intake, new_state(), 1.0)] == [PeerBorn(at=1.0, peer="a")]
    assert intake.due() is None
    state = replay([(1, PeerBorn(at=1.0, peer="a"))])
    zk.delete(node_paths.pulse("a"))
    assert woken.wait(180)
    assert collected(intake, state, 2.0) == []
    assert intake.due() > zk.runtime.now()
    woken.clear()
    zk.create(node_paths.pulse("b"), b"{}")
    zk.request(Left(peer="b"))
    assert woken.wait(180)
    found = collected(intake, state, 3.0)
    assert [entry.event for entry in found] == [PeerBorn(at=3.0, peer="b"), Left(at=3.0, peer="b")]
    intake._pulses_not_before = 0.0  # it is over
    append(leader, 1, found)
    state = replay([(2, PeerBorn(at=3.0, peer="b"))], state)
    died = until(lambda: collected(intake, state, 4.0), what="the death to be looked for")
    assert [entry.event for entry in died] == [PeerDied(at=4.0, peer="a")]


def test_a_flood_of_one_client_delays_no_peer(leader: Leadership, zk: ZooKeeperSession) -> None:
    """A turn takes all requests of peers, and of clients only some, in their order. The rest comes in the next turns."""
    woken = threading.Event()
    intake = Intake(leader, wake=woken.set, limits=Limits(client_requests=10))
    for n in range(25):
        zk.request(JobKilled(job=f"j{n}"))
    zk.create(node_paths.pulse("a"), b"{}")
    zk.request(Acked(peer="a", assignment=1))
    first = 1
    turns: list[list[str]] = []
    for _ in range(3):
        woken.clear()
        found = collected(intake, new_state(), 1.0)
        turns.append([getattr(entry.event, "job", type(entry.event).__name__) for entry in found])
        append(leader, first, found)
        first += len(found)
        assert woken.is_set() or len(turns) == 3, "more is left, and the loop is woken for it"
    kills = [f"j{n}" for n in range(25)]
    assert [[name for name in turn if name in kills] for turn in turns] == [kills[:10], kills[10:20], kills[20:]]
    assert turns[0][0] == "PeerBorn"
    assert turns[0][-1] == "Acked"


def test_each_author_gets_its_share() -> None:
    """A turn takes one request of each author before it takes a second one of any, and keeps the order of each."""
    names = [f"kill-aaaaaaaa{n:02d}-{n:010d}" for n in range(30)] + [
        f"submit-bbbbbbbb{n}-{n:010d}" for n in range(30, 32)
    ]
    names += ["ack-cccccccc1-0000000032", "kill-dddddddd1-0000000033"]
    taken = sorted(fair_share(names, 6), key=numbered)
    assert taken == [*names[:3], *names[30:]]
    assert sorted(fair_share(names, 100), key=numbered) == names


def test_a_purge_has_the_whole_inbox_read(leader: Leadership, zk: ZooKeeperSession) -> None:
    """What was asked of a purged job before its nodes were gone is decided before its dead letters are removed."""
    intake = Intake(leader, wake=lambda: None, limits=Limits(client_requests=3))
    for n in range(8):
        zk.request(JobKilled(job=f"j{n}"))
    intake.read_requests_again()
    assert len(collected(intake, new_state(), 1.0)) == 8


def test_a_pulse_that_stays_behind_is_looked_for(leader: Leadership, zk: ZooKeeperSession) -> None:
    """A request said in a peer's name that it leaves: its pulse is removed, though nothing in the list has changed."""
    intake = Intake(leader, wake=lambda: None)
    zk.create(node_paths.pulse("a"), b"{}")
    (born,) = collected(intake, new_state(), 1.0)
    state = replay([(1, born.event), (2, Left(at=2.0, peer="a"))])
    assert collected(intake, state, 2.0) == []
    assert zk.children(node_paths.PULSE) == ["a"]
    soon = zk.runtime.now() + 0.1
    intake.read_pulses_by(soon + 10)
    intake.read_pulses_by(soon)
    assert intake.due() == soon
    until(lambda: collected(intake, state, 3.0) == [] and not zk.children(node_paths.PULSE), what="the pulse to go")
    assert intake.due() is None or intake.due() < soon + 10


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("kill-0f1e-0000000012", (12, "0f1e")),
        ("kill-0f1e--2147483647", (2**31 + 1, "0f1e")),
        ("kill", (-1, "")),
        ("kill-0f1e", (-1, "")),
        ("0000000012", (-1, "")),
        ("kill-0f1e-", (-1, "")),
        ("-0000000012", (12, "")),
    ],
)
def test_requests_stand_in_the_order_that_zookeeper_gave_them(name: str, place: tuple[int, str]) -> None:
    """After the largest number comes the smallest. A name without a number comes first, and is found unreadable."""
    assert numbered(name) == place
