"""How a state is stored and read again: what is read is all that the state was, and what cannot be read is said."""

from __future__ import annotations

import itertools
import random
from collections import OrderedDict
from typing import Any

import msgspec
import pytest
from history_maker import History

from coordinator.core import stored_state
from coordinator.core.decide import decide
from coordinator.core.indexes import Bounds, Tier
from coordinator.core.plan import Plan
from coordinator.core.state import State
from coordinator.core.stored_state import decode_state, derive, encode_state
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import FORMAT, OLDEST, RULES
from sardonyx.web.shelf import Shelf

EVENTS = 160


def slowly(data: bytes) -> State:
    """A state read in two passes, the first for its format alone, with a graph made for each of its jobs."""
    assert OLDEST <= msgspec.json.decode(data)["format"] <= FORMAT
    stored = msgspec.json.decode(data, type=stored_state._Stored)
    state = State(stored.deployment, stored.rules)
    state.n, state.turn, state.order = stored.n, stored.turn, stored.order
    state.peers, state.scheduler = stored.peers, stored.scheduler
    state.drained = [] if stored.drained is msgspec.UNSET else stored.drained
    state.jobs = dict(sorted(stored.jobs.items(), key=lambda item: item[1].number))
    state.purged = OrderedDict.fromkeys(stored.purged)
    derive(state)
    return state


def plain(value: Any) -> Any:
    """A state with all that follows from it, as values that compare; dicts with their order."""
    if isinstance(value, dict):
        return [(key, plain(each)) for key, each in value.items()]
    if isinstance(value, State | Plan | Tier | Bounds):
        slots = [name for each in type(value).__mro__ for name in getattr(each, "__slots__", ())]
        return {name: plain(getattr(value, name)) for name in getattr(value, "_fields", ()) or slots}
    return [plain(each) for each in value] if type(value) is list else value


@pytest.mark.parametrize("number", range(6))
def test_a_state_that_is_read_in_one_pass_is_that_of_two(seed: int, number: int) -> None:
    """At every moment of random histories, with all that follows from what is stored, also where the graphs of jobs are
    remembered from the states before. What is decided next is the same, too.
    """
    history = History(random.Random(f"stored/{seed}/{number}"))
    history.unkind(EVENTS)
    log, graphs = list(history.world.log), Shelf()._graphs
    live, changed = decode_state(encode_state(State("test", history.rules))), 0
    for at, (n, event) in enumerate(log):
        decide(live, n, event)
        data = encode_state(live)
        found, again, slow = decode_state(data), decode_state(data, graphs.graph), slowly(data)
        assert plain(found) == plain(slow), (seed, number, n)
        assert plain(again) == plain(slow), (seed, number, n)
        assert encode_state(found) == data
        if at + 1 < len(log):
            following = [decide(state, *log[at + 1]) for state in (found, again, slow)]
            assert following[0] == following[1] == following[2], (seed, number, n)
            assert encode_state(found) == encode_state(again) == encode_state(slow)
            changed += encode_state(found) != data
    assert changed > EVENTS // 2
    assert live.jobs


def _last_state(number: int) -> State:
    """What a random history comes to."""
    history = History(random.Random(f"stored/{number}"))
    history.unkind(EVENTS)
    return history.world.state


def test_the_comparison_sees_what_follows_from_a_state() -> None:
    """A plan, the order of peers, and the order of jobs, are compared."""
    state = next(state for number in itertools.count() if len((state := _last_state(number)).jobs) > 1 and state.plans)
    data = encode_state(state)
    for spoil in (
        lambda state: setattr(next(iter(state.plans.values())), "places", -1),
        lambda state: state.by_state["dead"].update({"nobody": None}),
        lambda state: setattr(state, "jobs", dict(reversed(state.jobs.items()))),
    ):
        state = slowly(data)
        assert plain(state) == plain(decode_state(data))
        spoil(state)
        assert plain(state) != plain(decode_state(data))


OTHER = f"it has format {FORMAT + 1}, this version reads formats {OLDEST} to {FORMAT}"


@pytest.mark.parametrize(
    ("change", "code", "cause"),
    [
        ({"format": FORMAT + 1}, "SX-LOG-FORMAT", OTHER),
        ({"format": FORMAT + 1, "moons": 3}, "SX-LOG-FORMAT", OTHER),
        ({"format": FORMAT + 1, "peers": None}, "SX-LOG-FORMAT", OTHER),
        ({"format": OLDEST - 1}, "SX-LOG-FORMAT", f"it has format {OLDEST - 1}"),
        ({"format": None}, "SX-LOG-FORMAT", "format"),
        ({"moons": 3}, "SX-LOG-FORMAT", "moons"),
        ({"peers": []}, "SX-LOG-FORMAT", "peers"),
        ({"rules": RULES + 1}, "SX-VERSION-RULES", "newer release"),
    ],
)
def test_a_state_of_another_release_is_refused(change: dict[str, Any], code: str, cause: str) -> None:
    """Its format is named, whatever else in it is unknown; only of a format that is known it is said what is wrong in it."""
    stored = msgspec.json.decode(encode_state(State("test"))) | change
    with pytest.raises(SardonyxError) as raised:
        decode_state(msgspec.json.encode(stored))
    assert raised.value.code == code
    assert cause in raised.value.cause


@pytest.mark.parametrize("data", [b"", b"no state", b"[]", b'{"format": 7', b"[" * 100_000])
def test_what_is_no_state_is_refused(data: bytes) -> None:
    """Whatever it is."""
    with pytest.raises(SardonyxError, match="SX-LOG-FORMAT"):
        decode_state(data)
