"""The hooks around a task: what they are given, and that what was started is stopped."""

from __future__ import annotations

from typing import Any

import pytest

from peer.lifecycle import Context, Hooks
from sardonyx.core.errors import FunctionError

CONTEXT = Context("test", "job-abcdef", "task", "peer-1", 2)


class Whole:
    """Has every hook, and notes their calls."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.gives: Any = {"more": 1}
        self.raises = ""

    def __call__(self) -> Whole:
        return self

    def _note(self, hook: str, *arguments: object) -> None:
        self.calls.append((hook, *arguments))
        if self.raises == hook:
            raise OSError("no")

    def start(self, context: Context) -> Any:
        self._note("start", context)
        return self.gives

    def before_batch(self, rows: int) -> None:
        self._note("before_batch", rows)

    def after_batch(self, rows_out: int) -> None:
        self._note("after_batch", rows_out)

    def stop(self) -> None:
        self._note("stop")


def hooks_of(made: Any) -> Hooks:
    return Hooks("module:Class", lambda _reference: made, CONTEXT)


def test_hooks_are_called_in_their_order() -> None:
    """With what each is for; start gives further arguments, stop comes once."""
    life = Whole()
    hooks = hooks_of(life)
    assert hooks.start() == {"more": 1}
    assert hooks.hears_of_commits
    hooks.before_batch(5)
    hooks.after_batch(4)
    hooks.stop()
    hooks.stop()
    assert life.calls == [("start", CONTEXT), ("before_batch", 5), ("after_batch", 4), ("stop",)]


def test_all_hooks_are_optional() -> None:
    """A class without any is no error, and gives nothing."""
    hooks = hooks_of(object)
    assert hooks.start() == {}
    assert not hooks.hears_of_commits
    hooks.before_batch(1)
    hooks.stop()


def test_what_broke_while_it_started_is_stopped() -> None:
    """Half of it may be open; the error has the user's traceback."""
    life = Whole()
    life.raises = "start"
    hooks = hooks_of(life)
    with pytest.raises(FunctionError) as raised:
        hooks.start()
    assert raised.value.code == "SX-FN-LIFECYCLE"
    assert raised.value.message == "start of lifecycle Class raised OSError: no"
    assert "test_lifecycle.py" in raised.value.traceback
    assert "peer/lifecycle.py" not in raised.value.traceback
    hooks.stop()
    assert life.calls[-1] == ("stop",)


def test_what_never_began_is_not_stopped() -> None:
    """A task that was taken away before its lifecycle was made has nothing to close."""
    life = Whole()
    hooks_of(life).stop()
    assert life.calls == []


def test_stopping_cannot_fail() -> None:
    """It is too late for that: what it raises is logged."""
    life = Whole()
    life.raises = "stop"
    hooks = hooks_of(life)
    hooks.start()
    hooks.stop()
    assert life.calls[-1] == ("stop",)


@pytest.mark.parametrize("given", [7, [("a", 1)], {1: "a"}])
def test_start_gives_a_dict_or_nothing(given: object) -> None:
    """Its keys are the names of keyword arguments."""
    life = Whole()
    life.gives = given
    with pytest.raises(FunctionError) as raised:
        hooks_of(life).start()
    assert raised.value.code == "SX-FN-LIFECYCLE"
