"""What users see of an error in their code: their own frames, and nothing of ours."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from sardonyx.core.tracebacks import user_traceback
from sardonyx.core.units import seconds


def shown_for(call: Callable[[], object]) -> str:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - whatever the call raises
        call()
    return user_traceback(raised.value)


def test_frames_of_sardonyx_are_left_out_wherever_they_lie() -> None:
    """Also those below the user's: a user cannot do anything about them."""
    shown = shown_for(lambda: seconds("soon"))
    assert "test_tracebacks.py" in shown
    assert "units.py" not in shown


def test_the_errors_that_led_to_it_are_shown_with_their_frames() -> None:
    """An explicit cause always, and what the user's own code was handling."""

    def explicit() -> None:
        try:
            json.loads("{")
        except ValueError as error:
            raise RuntimeError("no settings") from error

    def implicit() -> None:
        try:
            json.loads("{")
        except ValueError:
            raise RuntimeError("no settings")  # noqa: B904 - this is the case

    for call in (explicit, implicit):
        shown = shown_for(call)
        assert "JSONDecodeError" in shown
        assert "RuntimeError: no settings" in shown
    assert "direct cause" in shown_for(explicit)
    assert "During handling" in shown_for(implicit)
