"""What takes a safeguard out still fits the code that it replaces. A patch that does not raises by itself, and shows nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

import coordinator.core.job_events
from peer.shards import Shards
from tests.simulation.plan import Plan
from tests.simulation.safeguards import SAFEGUARDS
from tests.simulation.simulate import noticed
from tests.simulation.test_simulation import MUTATIONS
from tests.simulation.timed_plans import timed_plan
from tests.simulation.verdict import Unforeseen

TAKEN_OUT = [each.take_out for each in SAFEGUARDS] + [
    each.values[0] if hasattr(each, "values") else each for each in MUTATIONS
]


class Recorder:
    """Patches as ``pytest.MonkeyPatch`` does, and keeps what is replaced: its name, and what stood and stands there."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.replaced: list[tuple[str, Any, Any]] = []

    def setattr(self, target: Any, name: str, value: Any) -> None:
        self.replaced.append((f"{target.__name__}.{name}", inspect.getattr_static(target, name), value))
        self._patch.setattr(target, name, value)

    def setitem(self, target: Mapping[Any, Any], name: Any, value: Any) -> None:
        self.replaced.append((str(name), target[name], value))
        self._patch.setitem(target, name, value)


def misfit(before: Any, after: Any) -> str:
    """Why callers of the one cannot use the other; empty: they can."""
    if isinstance(before, property | classmethod | staticmethod):
        if type(after) is not type(before):
            return f"{after} is not a {type(before).__name__}"
        wrapped = "fget" if isinstance(before, property) else "__func__"
        return misfit(getattr(before, wrapped), getattr(after, wrapped))
    if not callable(before):
        return f"{before} is not called" if callable(after) else ""
    if not callable(after):
        return f"{after} cannot be called"
    given = inspect.signature(before).parameters.values()
    by_place = [p for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_name = [p for p in given if p.kind == p.KEYWORD_ONLY]
    for fewest in (True, False):
        places = [None for p in by_place if not fewest or p.default is p.empty]
        names = {p.name: None for p in by_name if not fewest or p.default is p.empty}
        try:
            inspect.signature(after).bind(*places, **names)
        except TypeError as error:
            return f"{inspect.signature(after)} is called as {inspect.signature(before)}: {error}"
    return ""


@pytest.mark.parametrize("take_out", TAKEN_OUT, ids=lambda each: each.__name__.strip("_"))
def test_what_replaces_a_safeguard_takes_what_callers_give(
    take_out: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each replacement takes the arguments of what it replaces: a change of the product cannot leave a stale patch behind."""
    recorder = Recorder(monkeypatch)
    take_out(recorder)
    assert recorder.replaced
    for name, before, after in recorder.replaced:
        assert not misfit(before, after), f"{name}: {misfit(before, after)}"


def test_a_stale_patch_is_found() -> None:
    """One argument too few, a keyword that is not known, or a method in the place of a property: `misfit` names each."""
    assert "too many positional" in misfit(
        lambda shards, batch, counts, failed: None, lambda shards, batch, counts: None
    )
    assert "unexpected keyword" in misfit(lambda zk, *, first=None: None, lambda zk: None)
    assert misfit(property(lambda found: found), lambda found: found)
    assert misfit(1.0, lambda: 1.0)
    assert not misfit(lambda one, two=2, *, three: None, lambda *_, **__: None)


def test_an_error_of_a_patch_is_not_the_simulations_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a peer it fails the job, and in the coordinator its event is set aside: the oracles find both, and neither shows
    anything.
    """
    with monkeypatch.context() as patch:
        patch.setattr(Shards, "_reads", lambda shards, batch: None)
        with pytest.raises(Unforeseen, match="TypeError"):
            noticed(timed_plan("0"))
    changed = Path(__file__).parent / "histories/changed_while_a_peer_stands_still.json"
    monkeypatch.setattr(coordinator.core.job_events, "untouched", lambda old: [])
    with pytest.raises(Unforeseen, match=r"Undecided.*TypeError"):
        noticed(msgspec.json.decode(changed.read_bytes(), type=Plan))
