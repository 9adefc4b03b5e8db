"""What the values of a job file's fields are, in words."""

from __future__ import annotations

from collections.abc import Mapping

WANTED: Mapping[str, str] = {
    "batch_size": "a number of rows (not a size in bytes), such as 50000",
    "batch_timeout": 'a duration, such as "100 ms"',
    "backoff": 'a duration, such as "100 ms"',
    "ahead": 'a duration, such as "1 day"',
    "aggregate": "a mapping from columns to how they are aggregated, such as {hits: count} or, for windows, {slowest: {max: ms}}",
    "allowed_lateness": 'a duration, such as "1 h" (over an ordinal time a number of rows)',
    "delay": 'a duration, such as "5 s"',
    "emit": 'final, changes, "every 10 s", "every 10 s by wall" or "count 100"',
    "every": 'a duration, such as "10 s" (over an ordinal time, and for counted, a number of rows)',
    "gap": 'a duration, such as "30 min" (over an ordinal time a number of rows)',
    "grace": 'a duration, such as "10 s" (over an ordinal time a number of rows)',
    "idle": 'a duration, such as "1 min"',
    "most": 'a duration, such as "12 h" (over an ordinal time a number of rows)',
    **dict.fromkeys(("since", "until"), "microseconds since 1970"),
    "size": 'a duration, such as "1 min" (over an ordinal time, and for counted, a number of rows)',
    "state_limit": "a number of entries",
    "store": 'memory, rocksdb, a database: {sql: "postgresql://host/name"}, or your own class: module:Class',
    "schema": 'columns with their types, such as "total double, n bigint"',
    "state": 'columns with their types, such as "total double, n bigint"',
    "on_timer": "a function, as module:function",
    "ttl": 'a duration, such as "30 days", or a mapping from the names of states to durations',
    "how": "inner or left",
    "kind": "one of the kinds that docs/time.md and docs/joins.md list",
    "prefix": "a text",
    "right_on": "a column, or a list of columns",
    "wait": 'a duration, such as "10 s" (over an ordinal time a number of rows)',
    "within": 'a duration, such as "10 min", or for a join a list of two, such as ["-1 min", "10 min"]',
    "zone": "the name of a time zone, such as Europe/Berlin",
    "group_by": "a column, a list of columns, or a function (module:function)",
    "retries": "a number of times",
    "standby": "0 or 1",
    "failure_limit": "a number of failures",
    "max_backlog": "a number of rows (not a size in bytes), such as 1000000, or a mapping from links to numbers, such as "
    "{clean.label: 50000}",
    **dict.fromkeys(("keep", "checkpoint_every"), 'a duration, such as "1 h"'),
    "params": "a mapping from the function's parameters to values",
    "options": "a mapping from the connector's options to values",
    "fn": "a function, as module:function",
    "where": 'a function as module:function, or one of {fn: "module:function", params: {...}}, {all_of: [...]}, {any_of: [...]} '
    "and {not: ...}",
    "lifecycle": "a class, as module:Class",
    "connector": "the name of a connector, such as kafka, or a class, as module:Class",
    "start": "for a graph a vertex, a list of vertices, or a mapping from vertices to how much each is preferred; "
    "for rounds a list of rows, such as [{cluster: 0, x: 1.5}]",
    "results": "rows or aggregates",
    "preferences": "a list of numbers, one for each vertex in start",
    "damping": "a number from 0 to 1",
    "tolerance": "a number, such as 1e-8",
    "send": "a function, as module:function",
    "master": "a function, as module:function",
    "until": 'an aggregate and a number, such as "moved <= 1e-8"',
    "combine": "a mapping from the columns of messages to how they are combined, such as {via: min double}",
    "first": "a mapping from the columns of the state to values, such as {distance: .inf}",
    "columns": "the names of columns",
    "back": "a list of edges, such as [[fresh, fetch]]",
    "name": "a text",
    "doc": "a text",
    **dict.fromkeys(("accumulate", "always", "directed", "fuse", "lineage"), "true or false"),
    **dict.fromkeys(("max_supersteps", "max_hops", "max_rounds", "hops", "partitions"), "a number"),
    **dict.fromkeys(("min_peers", "max_peers"), "a number of peers"),
    **dict.fromkeys(("edges", "left", "pairs", "right", "vertices"), "the name of a task"),
    **dict.fromkeys(("column", "id", "remove", "source", "target", "time"), "the name of a column"),
}
"""What the value of a field is, for the message about one of a wrong type."""

__all__ = ["WANTED"]
