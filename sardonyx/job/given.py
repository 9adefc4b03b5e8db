"""Arguments of the builder's methods, as the catalog of a job has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from sardonyx.core.spec import FUNCTION, OnError
from sardonyx.job.windowing import store_data, window_data

_WITH_STATE = ("on_timer", "ttl", "state", "state_limit", "store", "time")
"""Arguments of ``job.keyed`` that stand in the entry ``keyed`` of a task."""


def given_settings(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A task's settings, from the arguments of the method that adds it; those that were not given are left out."""
    found = {key: arguments[key] for key in ("min_peers", "max_peers", "batch_size", "batch_timeout", "doc")}
    if arguments["params"] is not None:
        found["params"] = arguments["params"]
    on_error = arguments["on_error"]
    found["on_error"] = msgspec.to_builtins(on_error) if isinstance(on_error, OnError) else on_error
    for key in ("group_by", "lifecycle", "schema"):
        if arguments.get(key) is not None:
            found[key] = arguments[key]
    if arguments.get("fuse"):
        found["fuse"] = arguments["fuse"]
    if arguments.get("standby"):
        found["standby"] = arguments["standby"]
    if arguments["tags"] != ():
        found["tags"] = listed_tags(arguments["tags"])
    found["consumption"] = "sequential" if arguments.get("sequential") else "concurrent"
    if "windows" in arguments:
        found["window"] = window_data(arguments)
    elif "on_timer" in arguments:
        keyed = {name: arguments[name] for name in _WITH_STATE if arguments[name] is not None}
        found["keyed"] = {**keyed, "store": store_data(keyed["store"])}
    elif arguments.get("time") is not None:
        found["time"] = arguments["time"]
    return found


def listed_tags(tags: Sequence[str]) -> object:
    """Tags as data. A single text stays one, so that validation can say that a list is wanted."""
    return tags if isinstance(tags, str) else list(tags)


def with_references(params: Mapping[str, Any], named: Callable[[object], str]) -> dict[str, Any]:
    """Params with a reference in place of each function. ``named``: gives the name of one."""
    return {
        key: {FUNCTION: named(value)} if callable(value) and not isinstance(value, type) else value
        for key, value in params.items()
    }


def require(value: object, kind: Any, message: str) -> None:
    """Raise ``TypeError`` if a value is of another kind."""
    if not isinstance(value, kind):
        raise TypeError(f"{message}, not {type(value).__name__} ({value!r})")
