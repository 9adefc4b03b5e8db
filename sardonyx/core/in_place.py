"""Which topics of users are links in place, so that the tasks that name them do not run. Pure.

A Kafka input without a function is bound in place, unless Sardonyx must look at its rows before it distributes them. That is so
if a later task groups them, puts them into windows or keeps a state for their keys, if an edge out of the input has a condition,
or if the input itself has ``on_error`` or a lifecycle.

A Kafka output without a function is bound in place, unless it groups, has a lifecycle or is ``independent``, as is one with
``on_error``. An output with ``end_marker`` that several tasks write to runs, too, because only then one task knows the end of
all rows. So does one of two with different ``key_partitioner`` after the same task, because its client can have only one.
Directly after a bound input the output runs and copies the rows, because no other task would. Conditions on edges into an output
do not affect it: the task that writes evaluates them.
"""

from __future__ import annotations

from msgspec.structs import replace

from sardonyx.core.spec import JobSpec, OnError, Route, TaskSpec, stateful


def bound_in_place(spec: JobSpec, ins: dict[str, list[str]], outs: dict[str, list[str]]) -> tuple[set[str], set[str]]:
    """The inputs and the outputs that are bound in place.

    Args:
        spec: a valid job.
        ins: by task, the tasks before it.
        outs: by task, those after it.
    """
    tasks = {task.name: task for task in spec.catalog}

    def stands_still(task: TaskSpec) -> bool:
        return task.connector == "kafka" and task.fn is None and task.lifecycle is None

    def looked_at(task: TaskSpec) -> bool:
        readers = outs[task.name]
        routed = any(replace(spec.route(task.name, reader), bounds=None) != Route() for reader in readers)
        keyed = any(tasks[reader].group_by or stateful(tasks[reader]) for reader in readers)
        return routed or task.on_error != OnError() or keyed

    inputs = {n for n, t in tasks.items() if t.type == "input" and stands_still(t) and not looked_at(t)}
    outputs = {
        n
        for n, t in tasks.items()
        if t.type == "output"
        and stands_still(t)
        and not t.group_by
        and not t.options.get("independent")
        and not inputs.intersection(ins[n])
        and not (t.options.get("end_marker") and len(ins[n]) > 1)
    }

    def partitioner(name: str) -> object:
        return tasks[name].options.get("key_partitioner", "crc32")

    mixed = {
        n
        for n in outputs
        if partitioner(n) != "crc32"
        and any(m in outputs and partitioner(m) != partitioner(n) for source in ins[n] for m in outs[source])
    }
    return inputs, outputs - mixed


__all__ = ["bound_in_place"]
