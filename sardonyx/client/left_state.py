"""What a stopped job leaves for the one that goes on, in words: each kind of state, and whether it is in results already."""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.core.spec import JobSpec, TaskSpec, stateful
from sardonyx.core.text import listed, plural
from sardonyx.core.timing import panes

_Words = Callable[[str, int], str]
"""From the names of tasks, and how many they are."""


def left_in_words(spec: JobSpec) -> str:
    """Say what all tasks of a job keep; empty if none keeps anything."""
    found: dict[_Words, list[str]] = {}
    for task in spec.catalog:
        if stateful(task):
            found.setdefault(_words_of(task), []).append(task.name)
    return "; ".join(words(listed(names), len(names)) for words, names in found.items())


def _words_of(task: TaskSpec) -> _Words:
    if task.window is not None:
        return _early_windows if panes(task.window) else _windows
    if task.relation is not None:
        if task.relation.kind == "join" and task.relation.keeps_unmatched:
            return _left_join
        if task.relation.kind == "latest" and task.relation.emit != "changes":
            return _latest_later
        return _RELATIONS[task.relation.kind]
    return _states if task.keyed is not None else _whole


def _windows(names: str, _: int) -> str:
    return f"the open windows of {names} (their rows are in no result yet)"


def _early_windows(names: str, _: int) -> str:
    return f"the open windows of {names} (their last results are yet to come)"


def _states(names: str, _: int) -> str:
    return f"the states of the keys of {names}, with their timers (the results of the rows read are out)"


def _whole(names: str, many: int) -> str:
    return f"the rows that {names} {plural(many, 'has', 'have')} collected (they may be in no result yet)"


def _join(names: str, _: int) -> str:
    return f"the rows of {names} that may still find partners (pairs found are out)"


def _left_join(names: str, _: int) -> str:
    return f"the rows of {names} that may still find partners (pairs found are out; rows without a partner are in no result yet)"


def _lookup(names: str, many: int) -> str:
    table = plural(many, "the table", "the tables")
    return f"{table} of {names} (results so far are out), and rows that wait there, if any (they are in no result yet)"


def _distinct(names: str, many: int) -> str:
    return f"the keys that {names} {plural(many, 'has', 'have')} seen (the first row of each is out)"


def _latest(names: str, _: int) -> str:
    return f"the latest rows of {names} (they are out)"


def _latest_later(names: str, _: int) -> str:
    return f"the latest rows of {names} (some are in no result yet)"


_RELATIONS: dict[str, _Words] = {"join": _join, "lookup": _lookup, "distinct": _distinct, "latest": _latest}

__all__ = ["left_in_words"]
