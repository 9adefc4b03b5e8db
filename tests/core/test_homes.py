"""A slot goes back to the process that had it last, and no other job gets less for it."""

from __future__ import annotations

import random
from collections import Counter

from scenario_runner import World

from coordinator.core.decide import decide
from coordinator.core.homes import Standby, peers_for
from coordinator.core.indexes import Kind
from coordinator.core.state import State, new_state
from coordinator.core.stored_state import decode_state, encode_state
from sardonyx.core.events import FORMAT, PeerBorn
from sardonyx.core.standby import ranked

ANY = Kind(0, frozenset())


def played(*sentences: str) -> World:
    world = World()
    for sentence in (
        "work is submitted: read -> write; write takes at most 2",
        "the links of work are made",
        *sentences,
    ):
        world.say(sentence)
    return world


def slots(world: World, task: str) -> dict[str, int]:
    return world.state.jobs["work"].tasks[task].peers


BEGUN = ("P1 is born in east", "P2 is born in west", "P1 acks", "P2 acks")


def test_a_slot_goes_back_to_its_process() -> None:
    """Not to the peer that has been idle longest; also after the state was stored and read."""
    for stored in (False, True):
        world = played(*BEGUN, "8 peers are born", "P3, P4 are born in north", "P5 is born in west")
        if stored:
            world.state = decode_state(encode_state(world.state))
        idle = list(world.state.by_state["idle"])
        assert idle[-1] == "P5", "the others have been idle longer"
        world.say("P2 dies")
        assert slots(world, "write")["P5"] == 0


def born(state: State, name: str, host: str, tags: tuple[str, ...] = (), pid: int = 1) -> None:
    decide(state, state.n + 1, PeerBorn(peer=name, host=host, pid=pid, tags=tags, format=FORMAT))


def test_each_slot_of_an_offer_has_its_process() -> None:
    """A slot without one does not take the peer that belongs to the next slot."""
    state = new_state()
    for name, host in (("b", "beta"), ("c", "gamma"), ("d", "delta")):
        born(state, name, host)
    assert peers_for(state, ANY, [0, 1, 2], ["gone:1", "beta:1", "gamma:1"]) == {0: "d", 1: "b", 2: "c"}
    assert peers_for(state, ANY, [0, 2], ["gone:1"]) == {0: "b", 2: "c"}
    assert peers_for(state, ANY, [1, 2], ["", "gamma:1", "beta:2"]) == {1: "c", 2: "b"}, "another process of that host"


def test_a_peer_with_tags_is_spared() -> None:
    """It is not taken where one without them would do, although the slot was its own before."""
    state = new_state()
    born(state, "gpu", "east", ("gpu",))
    born(state, "plain", "west")
    assert peers_for(state, ANY, [0], ["east:1"]) == {0: "plain"}
    assert peers_for(state, Kind(0, frozenset({"gpu"})), [0], ["west:1"]) == {0: "gpu"}
    assert peers_for(state, ANY, [0, 1], ["east:1", "west:1"]) == {0: "gpu", 1: "plain"}


def test_peers_without_a_process_have_no_home() -> None:
    """Births of old logs do not name one."""
    state = new_state()
    born(state, "old", "", pid=0)
    born(state, "new", "east")
    assert not state.peers["old"].home
    assert peers_for(state, ANY, [0], [""]) == {0: "old"}


def test_an_offer_takes_the_kinds_that_it_would_take_without_homes(seed: int) -> None:
    """Of random idle peers each offer takes as many of each kind, each peer once; and a peer stays away from its slot only if
    its kind is needed for other slots, or is not taken at all.
    """
    rng = random.Random(seed)
    for _ in range(500):
        state = new_state()
        for number in range(rng.randint(1, 9)):
            tags = tuple(tag for tag in ("gpu", "ssd") if rng.random() < 0.3)
            born(state, f"p{number}", rng.choice("abc"), tags)
        asked = Kind(0, frozenset({"gpu"} if rng.random() < 0.2 else ()))
        fitting = [peer for peer in state.by_state["idle"] if state.fits(peer, asked)]
        if not fitting:
            continue
        wanted = sorted(rng.sample(range(12), rng.randint(1, len(fitting))))
        last = [rng.choice(["", "a:1", "b:1", "c:1", "gone:1"]) for _ in range(rng.randint(0, 12))]
        plain = peers_for(state, asked, wanted, [])
        found = peers_for(state, asked, wanted, last)
        assert list(found) == wanted
        assert len(set(found.values())) == len(wanted)
        kinds = Counter(state.peers[name].kind for name in found.values())
        assert kinds == Counter(state.peers[name].kind for name in plain.values())
        assert set(plain.values()) <= set(fitting)
        homes = {slot: last[slot] for slot in wanted if slot < len(last) and last[slot]}
        left = [name for name in fitting if name not in found.values()]
        for slot, home in homes.items():
            if state.peers[found[slot]].home != home:
                assert not any(
                    state.peers[name].home == home and state.peers[name].kind == state.peers[found[slot]].kind
                    for name in left
                ), (slot, found, last)


def test_a_standby_is_the_next_choice() -> None:
    """A slot without an idle peer in its own process goes to the first process of the task's order that has one, and the numbers
    of each kind stay. A task without a standby does as before.
    """
    state = new_state()
    homes = ["alpha:1", "beta:1", "gamma:1", "delta:1"]
    order = ranked("work", "count", homes)
    for number, home in enumerate(reversed(order)):  # the first of the order has been idle for the shortest time
        born(state, f"p{number}", home.partition(":")[0])
    at = {state.peers[name].home: name for name in state.by_state["idle"]}
    assert peers_for(state, ANY, [0], [], None, Standby("work", "count", [])) == {0: at[order[0]]}
    assert peers_for(state, ANY, [0], ["gone:1"], None, Standby("work", "count", [])) == {0: at[order[0]]}
    assert peers_for(state, ANY, [0], [order[2]], None, Standby("work", "count", [])) == {0: at[order[2]]}
    assert peers_for(state, ANY, [0, 1], ["gone:1", order[0]], None, Standby("work", "count", [])) == {
        0: at[order[1]],
        1: at[order[0]],
    }
    assert peers_for(state, ANY, [0], [], None, Standby("work", "count", [order[0]])) == {0: at[order[1]]}
    assert peers_for(state, ANY, [0], ["gone:1"]) == {0: at[order[3]]}
    born(state, "gpu", order[0].partition(":")[0], ("gpu",))
    assert peers_for(state, Kind(0, frozenset({"gpu"})), [0], [], None, Standby("work", "count", [])) == {0: "gpu"}


def test_where_a_peer_failed_it_is_not_preferred() -> None:
    """The cause may lie in its process, and the slot would return to it for as long as that lasts."""
    for ends in ("P3 fails: disk", "P3 is evicted"):
        world = World()
        for sentence in (
            "work is submitted: read -> write; write takes at most 1; read takes at most 1",
            "the links of work are made",
            *(*BEGUN, "P3 is born in west", "P2 dies"),
        ):
            world.say(sentence)
        assert world.state.jobs["work"].tasks["write"].last == ["west:1"]
        world.say("P3 acks")
        world.say(ends)
        assert world.state.jobs["work"].tasks["write"].last == [""], ends
