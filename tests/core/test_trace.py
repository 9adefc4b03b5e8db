"""Where a record is on its way: what is said of each task is true, and what is through all of them is everywhere."""

from __future__ import annotations

from sardonyx.core.fronts import Held
from sardonyx.core.positions import Partition, Position
from sardonyx.core.progress import Look, source_progress
from sardonyx.core.source_fronts import Sources
from sardonyx.core.trace import TaskTrace, trace
from tests.core.progress_world import World
from tests.core.test_progress import _rows, chain
from tests.sizes import histories

HISTORIES = histories(100, whole=400)


def test_a_record_is_never_called_through_before_it_is(seed: int) -> None:
    """In random jobs, nothing of a record that is through a task is unread or held anywhere between its source and there."""
    states = set()
    for number in range(HISTORIES):
        world = World(f"{seed}/trace/{number}")
        for _ in range(6):
            world.steps(world.rng.randint(1, 60))
            look = world.look(world.rng.choice([0, 5]))
            for said in source_progress(world.graph, world.sources, look):
                source = world.sources.names.index(said.source)
                record = source, said.partition, world.rng.randint(0, (said.read or 0) + 1)
                found = {each.task: each for each in trace(world.graph, world.sources, look, record)}
                states |= {each.state for each in found.values()}
                for task, each in found.items():
                    before = set(world.sources.reach.before(task))
                    if each.state == "through" and each.task not in look.ended:
                        assert record not in world.alive(before), (number, record, each)
                through = all(each.state == "through" for each in found.values())
                below = record[2] < (said.everywhere or 0)
                assert not below or through, (number, record, said, found)
    assert states == {"unread", "waiting", "held", "through"}


def test_each_task_of_a_chain_says_where_the_record_is() -> None:
    """Before a task, in a window, behind, and not yet read; the answer has the window's clock."""
    graph = chain("pass", "time", "pass")
    first: dict[str, dict[Partition, Position | None]] = {
        "a": {Partition("hits", 0): Position(120, told=(100,), front=())},
        "b": {Partition("d.j.a.b", 0): Position(9, _rows(100), front=((110,),), held=Held(60, ((89,),)), told=(7,))},
        "c": {Partition("d.j.b.c", 0): Position(4, _rows(7), front=((80,),))},
    }
    look, sources = Look(first, first), Sources(graph)

    def states(offset: int, *, stated: bool = True) -> list[TaskTrace]:
        return trace(graph, sources, look, (0, 0, offset), holding={"b"}, stated=stated)

    assert states(120) == [
        TaskTrace("a", "unread", "it has read up to 120"),
        TaskTrace("b", "waiting", "it is not through a"),
        TaskTrace("c", "waiting", "it is not through a"),
    ]
    assert states(100) == [
        TaskTrace("a", "through"),
        TaskTrace("b", "held", "it may be in rows that the task holds", 60),
        TaskTrace("c", "waiting", "it is not through b"),
    ]
    assert [each.state for each in states(88)] == ["through", "through", "through"]
    assert [each.state for each in states(88, stated=False)] == ["through", "unknown", "unknown"]
    behind = Look(first | {"b": {Partition("d.j.a.b", 0): Position(9, _rows(99), front=((95,),), told=(7,))}}, first)
    found = trace(graph, sources, behind, (0, 0, 97), holding={"b"})
    assert found[1] == TaskTrace("b", "waiting", "rows that a wrote to it may be unread")
