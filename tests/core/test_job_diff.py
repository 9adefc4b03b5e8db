"""In what two versions of a job differ, and how each difference can be carried out."""

from __future__ import annotations

import random
from typing import Any, get_args

import pytest
from job_changes import fields_of, other_value
from msgspec.structs import replace

from sardonyx.core.graphing import GraphSpec
from sardonyx.core.iterating import IterateSpec
from sardonyx.core.job_diff import CodeChange, Difference, JobDiff, Refusal, job_diff
from sardonyx.core.joining import RelationSpec
from sardonyx.core.keyed import KeyedSpec
from sardonyx.core.predecessors import Predecessor
from sardonyx.core.spec import JobSpec, OnError, Route, TaskSpec
from sardonyx.core.spec_fields import JOB_FIELDS, TASK_FIELDS, DifferenceKind, kind_of_field, same
from sardonyx.core.stores import SqlStore
from sardonyx.core.timing import AggregateSpec, TimeSpec, WindowSpec


def orders(**values: Any) -> JobSpec:
    """Kafka to Kafka over two functions: ``read`` is bound in place to ``price``, ``write`` to ``tax``."""
    job: dict[str, Any] = {"workflow": [("read", "price"), ("price", "tax"), ("tax", "write")], "routes": {}}
    job |= {name: values.pop(name) for name in JobSpec.__struct_fields__ if name in values}
    tasks: dict[str, dict[str, Any]] = {
        "read": {"type": "input", "connector": "kafka", "options": {"topic": "orders", "start": "earliest"}},
        "price": {"type": "function", "fn": "job:price"},
        "tax": {"type": "function", "fn": "job:tax"},
        "write": {"type": "output", "connector": "kafka", "options": {"topic": "prices"}},
    }
    catalog = [TaskSpec(name=name, **(given | values.get(name, {}))) for name, given in tasks.items()]
    return JobSpec(**{"name": "orders", "catalog": catalog, **job})


WINDOW = WindowSpec(kind="tumbling", size="1 min", aggregate={"hits": AggregateSpec(of="count")})


def counts(window: WindowSpec = WINDOW, **job: Any) -> JobSpec:
    """A job with a window that may be stopped, or, with an ``end`` of its input, ends by itself."""
    return orders(price={"fn": None, "window": window, "group_by": ["user"]}, **job)


def resume_refusals(diff: JobDiff) -> list[Refusal]:
    """Why the new job cannot go on from where the old one ends."""
    return [refusal for refusal in diff.refusals if refusal.way == "resume"]


def shown(diff: JobDiff) -> list[str]:
    """Each difference in a line: where, kind, field, and in which ways it can be carried out."""
    parts = [("job", diff.job), *((f"task {each.name}", each.differences) for each in diff.tasks)]
    parts += [(f"link {each.name}", each.differences) for each in diff.links]
    return [f"{where} {line(each)}" for where, found in parts for each in found]


def line(each: Difference) -> str:
    return f"{each.kind} {each.field}: {' '.join(each.ways)}" if each.field else f"{each.kind}: {' '.join(each.ways)}"


CHANGE, RESUME, START = "change resume start", "resume start", "start"
SCALE, KEEP = f"scale {CHANGE}", f"keep {CHANGE}"
ON_TOPIC = {"type": "input", "connector": "kafka", "options": {"topic": "refunds", "start": "latest"}}
KINDS = [
    # the new job, what it differs in
    (orders(price={"fn": "job:price2"}), [f"task price function fn: {CHANGE}"]),
    (orders(price={"params": {"rate": 2}}), [f"task price function params.rate: {CHANGE}"]),
    (orders(tax={"lifecycle": "job:Rates"}), [f"task tax function lifecycle: {CHANGE}"]),
    (orders(price={"batch_size": 10}), [f"task price settings batch_size: {CHANGE}"]),
    (
        orders(price={"max_peers": 2, "min_peers": 2}),
        [f"task price settings {x}_peers: {CHANGE}" for x in ("min", "max")],
    ),
    (orders(tax={"on_error": OnError(retries=2)}), [f"task tax settings on_error.retries: {CHANGE}"]),
    (
        orders(tax={"on_error": OnError(then="dead_letter")}),
        [f"task tax settings on_error.then: {CHANGE}", f"link tax.dead added: {CHANGE}"],
    ),
    (orders(tax={"fuse": True}), [f"task tax settings fuse: {RESUME}", f"link price.tax link kind: {RESUME}"]),
    (orders(tax={"tags": ["gpu"]}), [f"task tax settings tags: {CHANGE}"]),
    (orders(tax={"doc": "adds the tax"}), [f"task tax doc doc: {CHANGE}"]),
    (
        orders(tax={"group_by": ["user"]}),
        [f"task tax key group_by: {RESUME}", f"link price.tax key group_by: {RESUME}"],
    ),
    (
        orders(tax={"keyed": KeyedSpec(), "group_by": ["user"]}),
        [
            f"task tax key group_by: {RESUME}",
            f"task tax state keyed: {RESUME}",
            f"link price.tax key group_by: {RESUME}",
            f"link tax.state added: {RESUME}",
        ],
    ),
    (
        orders(write={"options": {"topic": "prices-2"}}),
        [f"task write output options.topic: {RESUME}", f"link tax.write output topic: {RESUME}"],
    ),
    (
        orders(write={"connector": "files", "options": {"path": "/out"}}),
        [
            f"task write output connector: {RESUME}",
            f"task write output options.topic: {RESUME}",
            f"task write output options.path: {RESUME}",
            f"link tax.write link kind: {RESUME}",
            f"link write.parts added: {RESUME}",
        ],
    ),
    (
        orders(routes={"price.tax": Route(where="job:taxed", of="results")}),
        [f"link price.tax route where: {CHANGE}"],
    ),
    (orders(read={"options": {"topic": "orders", "start": "latest"}}), [f"task read input options.start: {RESUME}"]),
    (orders(read={"time": TimeSpec(column="at")}), [f"task read input time: {RESUME}"]),
    (orders(priority=2), [f"job share priority: {SCALE}"]),
    (orders(weight=2.0, max_peers=4), [f"job share weight: {SCALE}", f"job share max_peers: {SCALE}"]),
    (orders(percentage=20.0), [f"job share percentage: {SCALE}"]),
    (orders(keep="1 h"), [f"job settings keep: {KEEP}"]),
    (orders(keep="100 ms"), [f"job settings keep: {CHANGE}"]),  # `link keep` would round it up to a second
    (orders(partitions=4), [f"job settings partitions: change {RESUME}"]),
    (orders(lineage=True), [f"job settings lineage: {RESUME}"]),
    (orders(name="orders-2", doc="new"), [f"job settings name: {RESUME}", f"job doc doc: {CHANGE}"]),
    (
        orders(code="abc"),
        [f"job function code: {CHANGE}", f"task price function code: {CHANGE}", f"task tax function code: {CHANGE}"],
    ),
    # what moves the reading of a topic, or ends it, cannot be resumed; what else differs could be
    (
        orders(read={"options": {"topic": "orders-2", "start": "earliest"}}, tax={"batch_size": 9}),
        [
            f"task read input options.topic: {START}",
            f"task tax settings batch_size: {CHANGE}",
            f"link read.price input topic: {START}",
        ],
    ),
    (
        orders(read={"fn": "job:parse"}, price={"fn": "job:price2"}),
        [
            f"task read function fn: {START}",
            f"task price function fn: {CHANGE}",
            f"link read.topic added: {START}",
            f"link read.price link kind: {START}",
        ],
    ),
    (
        orders(price={"group_by": ["user"], "batch_size": 9, "on_error": OnError(retries=2)}),
        [
            f"task price settings batch_size: {CHANGE}",
            f"task price settings on_error.retries: {CHANGE}",
            f"task price key group_by: {START}",
            f"link read.topic added: {START}",
            f"link read.price link kind: {START}",
        ],
    ),
]


@pytest.mark.parametrize(("new", "found"), KINDS, ids=lambda value: "" if isinstance(value, JobSpec) else value[0])
def test_each_kind_of_difference_is_told_from_the_others(new: JobSpec, found: list[str]) -> None:
    """A difference has a kind, a field, and the ways in which it can be carried out in an unbounded job that runs."""
    assert shown(job_diff(orders(), new)) == found


def test_tasks_and_links_are_kept_changed_added_or_removed() -> None:
    """By their names: in the order of the new job, then what is gone."""
    new = orders(
        workflow=[("read", "price"), ("price", "tax"), ("tax", "write"), ("more", "price"), ("tax", "log")],
        tax={"batch_size": 5},
    )
    more = TaskSpec(name="more", **ON_TOPIC)
    log = TaskSpec(name="log", type="output", connector="blackhole")
    new = replace(new, catalog=[*new.catalog, more, log])
    forth, back = job_diff(orders(), new), job_diff(new, orders())
    assert {each.name: each.status for each in forth.tasks} == {
        "read": "kept",
        "more": "added",
        "price": "kept",
        "tax": "changed",
        "write": "kept",
        "log": "added",
    }
    assert [each.name for each in back.tasks if each.status == "removed"] == ["more", "log"]
    assert {each.name: (each.before, each.after) for each in forth.links if each.status != "kept"} == {
        "more.price": (None, "input"),
        "tax.log": (None, "internal"),
    }
    assert "resume" in forth.ways
    assert back.ways == ["change", "start"]  # no task would read on in `refunds`
    assert [(each.task, each.link) for each in resume_refusals(back)] == [("price", "more.price")]
    assert "resume" in next(each for each in back.tasks if each.name == "log").differences[0].ways


def test_a_task_under_another_name_is_another_task_and_is_pointed_out() -> None:
    """Nothing is guessed, but a user who renamed a task sees what came of it."""
    old = orders()
    renamed = replace(old.task("tax"), name="vat")
    new = replace(
        old,
        workflow=[("read", "price"), ("price", "vat"), ("vat", "write")],
        catalog=[*(task for task in old.catalog if task.name != "tax"), renamed],
    )
    added = next(each for each in job_diff(old, new).tasks if each.name == "vat")
    assert added.status == "added"
    assert added.differences[0].note.startswith("like tax, which is removed")


def notes(old: JobSpec, new: JobSpec, before: Predecessor | None = None) -> dict[str, str]:
    """What a diff says besides, by task or link, and by field."""
    diff = job_diff(old, new, before)
    parts = [*diff.tasks, *diff.links]
    return {f"{part.name} {each.field}".strip(): each.note for part in parts for each in part.differences if each.note}


def with_tasks(old: JobSpec, workflow: list[tuple[str, str]], *tasks: TaskSpec) -> JobSpec:
    """The job with these tasks besides, or in place of those of their names, and without tasks that have no edge."""
    catalog = {task.name: task for task in [*old.catalog, *tasks]}
    used = {name for edge in workflow for name in edge}
    return replace(old, workflow=workflow, catalog=[task for name, task in catalog.items() if name in used])


def test_it_says_where_a_topic_is_read_from() -> None:
    """Not the name of an input without a function counts, but that of the task that reads its topic: it has the positions."""
    old, latest = orders(), {"topic": "orders", "start": "latest"}
    rest, ended = old.workflow[1:], "with `--resume` it is read on from where the old job ended, whatever `start=` says"
    source = replace(old.task("read"), name="source")
    renamed = [("source", "price"), *rest]
    assert notes(old, with_tasks(old, renamed, source)) == {"source": f"like read, which is removed; {ended}"}
    assert notes(old, with_tasks(old, renamed, replace(source, options=latest))) == {"source": ended}
    killed = Predecessor(old, "killed", topics={"price": {"orders"}})  # what stood between its tasks is lost
    assert notes(old, with_tasks(old, renamed, replace(source, options=latest)), killed) == {
        "source": "it begins at its start='latest'"
    }
    assert notes(old, orders(read={"options": latest})) == {"read options.start": ended}

    audit = TaskSpec(name="audit", type="output", connector="blackhole")
    wider = [("read", "price"), ("read", "audit"), *rest]
    assert notes(old, with_tasks(old, wider, audit)) == {"read.audit": "audit begins there at start='earliest'"}
    assert notes(old, with_tasks(old, wider, audit, replace(old.task("read"), options=latest))) == {
        "read options.start": "with `--resume` price reads on from where the old job ended; audit begins at start='latest'",
        "read.audit": "audit begins there at start='latest'",
    }


def test_rows_of_one_key_are_told_from_rows_without_a_key() -> None:
    """A window without ``group_by`` takes all rows under one key, so the queue before it has another order."""
    link = next(each for each in job_diff(orders(), orders(tax={"window": WINDOW})).links if each.name == "price.tax")
    assert [(each.field, each.before, each.after) for each in link.differences] == [("group_by", None, [])]


def test_the_order_of_tasks_and_how_a_duration_is_written_do_not_count() -> None:
    """Equal jobs are equal, however they are written; but 1 and 1.0 are two values to a user's function."""
    old = counts(keep="60 min", tags=["a", "b"])
    window = replace(WINDOW, size="60 s")
    new = counts(window, keep="1 h", tags=["b", "a"])
    new = replace(new, catalog=new.catalog[::-1], workflow=new.workflow[::-1])
    assert job_diff(old, new).equal
    assert not job_diff(counts(replace(WINDOW, size=60)), old).equal  # rows, not seconds
    emits = [counts(replace(WINDOW, emit=emit)) for emit in ("every 10 s", "every 10000 ms", "every 11 s", "count 10")]
    assert [job_diff(emits[0], new).equal for new in emits] == [True, True, False, False]
    within = [["-1 min", "60 s"], ["-60 s", "1 min"], ["1 min", "1 min"]]
    assert [same("relation.within", within[0], each) for each in within] == [True, True, False]
    assert not job_diff(orders(tax={"params": {"rate": 1}}), orders(tax={"params": {"rate": 1.0}})).equal


STATES: list[tuple[str, WindowSpec | KeyedSpec | RelationSpec, list[str]]] = [
    (
        "another kind",
        replace(WINDOW, kind="session", size=None, gap="1 min"),
        ["state kind", "state size", "state gap"],
    ),
    ("another length", replace(WINDOW, size="2 min"), ["state size"]),
    (
        "an aggregate more",
        replace(WINDOW, aggregate={**WINDOW.aggregate, "most": AggregateSpec(of="max", column="ms")}),
        ["state aggregate.most"],
    ),
    ("an aggregate less", replace(WINDOW, aggregate={}), ["state aggregate.hits"]),
    (
        "another aggregate",
        replace(WINDOW, aggregate={"hits": AggregateSpec(of="count", column="ms")}),
        ["state aggregate.hits"],
    ),
    ("another store", replace(WINDOW, store="rocksdb"), ["state store"]),
    ("in a database", replace(WINDOW, store=SqlStore(url="sqlite:////x")), ["state store"]),
    ("when results come", replace(WINDOW, emit="changes"), ["settings emit"]),
    ("late rows", replace(WINDOW, late="drop", grace="5 s"), ["settings grace"]),
]


@pytest.mark.parametrize(("what", "window", "found"), STATES, ids=[each[0] for each in STATES])
def test_the_shape_of_a_window_is_told_from_its_settings(what: str, window: WindowSpec, found: list[str]) -> None:
    """Of windows: their kind and lengths, what they aggregate, where they are kept. When their results come is a setting."""
    task = next(each for each in job_diff(counts(), counts(window)).tasks if each.name == "price")
    assert [f"{each.kind} {each.field.removeprefix('window.')}" for each in task.differences] == found


def test_the_state_of_keys_and_of_relations_has_a_shape_too() -> None:
    """Its columns, how long it is kept, what is joined within which time; and functions are functions."""
    keyed = KeyedSpec(ttl={"*": "1 day"}, state="total double")
    relation = RelationSpec(kind="join", left="price", right="other", within="10 min")
    ranks = GraphSpec(algorithm="pagerank", edges="price", source="a", target="b")
    rounds = IterateSpec(state="n bigint")
    pairs: list[tuple[str, Any, Any, list[str]]] = [
        ("keyed", keyed, replace(keyed, state="total double, n int"), ["state keyed.state"]),
        ("keyed", keyed, replace(keyed, ttl={"*": "2 days"}), ["state keyed.ttl.*"]),
        ("keyed", keyed, replace(keyed, ttl={"*": "24 h"}), []),
        ("keyed", keyed, replace(keyed, on_timer="job:due"), ["function keyed.on_timer"]),
        ("keyed", keyed, None, ["state keyed"]),
        ("relation", relation, replace(relation, within="5 min"), ["state relation.within"]),
        ("relation", relation, replace(relation, within="600 s"), []),
        ("relation", relation, replace(relation, right_on=["id"]), ["key relation.right_on"]),
        ("relation", relation, replace(relation, how="left"), ["settings relation.how"]),
        ("graph", ranks, replace(ranks, damping=0.9), ["settings graph.damping"]),
        ("graph", ranks, replace(ranks, source="from"), ["state graph.source"]),
        ("iterate", rounds, replace(rounds, max_rounds=9), ["settings iterate.max_rounds"]),
        ("iterate", rounds, replace(rounds, store="rocksdb"), ["state iterate.store"]),
        ("iterate", rounds, None, ["state iterate"]),
    ]
    for field, one, other, found in pairs:
        old, new = (orders(tax={"group_by": ["user"], field: value}) for value in (one, other))
        task = next(each for each in job_diff(old, new).tasks if each.name == "tax")
        assert [f"{each.kind} {each.field}" for each in task.differences] == found


def structs() -> list[tuple[str, type]]:
    return [
        ("", TaskSpec),
        ("on_error.", OnError),
        ("time.", TimeSpec),
        ("window.", WindowSpec),
        ("keyed.", KeyedSpec),
        ("relation.", RelationSpec),
        ("graph.", GraphSpec),
        ("iterate.", IterateSpec),
    ]


def test_every_field_of_a_spec_has_a_kind() -> None:
    """A field that is added to a spec gets a place in the tables, or is of the kind of the field around it."""
    tasks = {f"{prefix}{field}" for prefix, cls in structs() for field in cls.__struct_fields__}
    assert set(TASK_FIELDS) <= tasks
    assert {field for field in TaskSpec.__struct_fields__ if field not in TASK_FIELDS} == {"name"}
    assert set(JobSpec.__struct_fields__) - set(JOB_FIELDS) == {"workflow", "catalog", "routes", "code"}
    used = {*TASK_FIELDS.values(), *JOB_FIELDS.values(), "output", "added", "removed", "link", "route"}
    assert used == set(get_args(DifferenceKind))
    assert kind_of_field("options.topic", orders().task("write")) == "output"


def other_field(rng: random.Random, struct: Any, field: str) -> Any:
    return replace(struct, **{field: other_value(rng, fields_of(type(struct))[field], getattr(struct, field))})


@pytest.mark.parametrize(
    ("prefix", "field"),
    [(prefix, field) for prefix, cls in structs() for field in cls.__struct_fields__ if field != "name"],
)
def test_every_field_of_a_task_is_compared(prefix: str, field: str, rng: random.Random) -> None:
    """A change of any one field is found, under its name."""
    cls = dict(structs())[prefix]
    old = orders().task("tax")
    if prefix:
        needed = {
            WindowSpec: {"kind": "tumbling"},
            RelationSpec: {"kind": "join"},
            TimeSpec: {"column": "at"},
            GraphSpec: {"algorithm": "degrees", "edges": "price", "source": "a", "target": "b"},
        }
        inner = cls(**needed.get(cls, {}))
        old = replace(old, **{prefix[:-1]: inner})
        new = replace(old, **{prefix[:-1]: other_field(rng, inner, field)})
    else:
        new = other_field(rng, old, field)
    specs = [
        replace(orders(), catalog=[task if each.name == "tax" else each for each in orders().catalog])
        for task in (old, new)
    ]
    found = next(each for each in job_diff(*specs).tasks if each.name == "tax").differences
    assert found, f"{old} and {new}"
    assert all(each.field.startswith(f"{prefix}{field}") for each in found)


# What is known of the old job


def test_state_and_what_is_read_whole_refuse_every_change_and_say_why() -> None:
    """The reasons of `job submit --resume`, before the job is stopped. What can be changed in the running job still can. A state
    that has its place goes on, also in another number of partitions, which needs a stop.
    """
    diff = job_diff(counts(), counts(priority=3, partitions=2), job="orders-k3x9qa")
    assert shown(diff) == ["job settings partitions: resume start", "job share priority: scale change resume start"]
    assert diff.ways == ["resume", "start"]
    assert not diff.in_place
    assert [refusal.failure.message for refusal in diff.refusals if refusal.way == "change"] == [
        (
            "job orders-k3x9qa cannot be changed like that: "
            "task price keeps a state, and with 2 partitions its keys would be in other ones; "
            "say `--restart`: the job is stopped, another one goes on from there, and keys move with their state"
        )
    ]
    assert resume_refusals(diff) == []
    kept = job_diff(counts(), counts(tax={"batch_size": 7}), job="orders-k3x9qa")
    assert (kept.ways, kept.begins_empty) == (["change", "resume", "start"], [])
    assert job_diff(counts(), counts(priority=3)).in_place
    files = orders(read={"connector": "files", "options": {"path": "/in"}})
    assert "would be read a second time" in resume_refusals(job_diff(files, files))[0].failure.message


def test_a_bounded_job_completes_and_its_windows_close_so_it_can_be_resumed() -> None:
    """It is not stopped: the next version goes on where it ended, and its own state begins empty."""
    bounded = {"options": {"topic": "orders", "start": "earliest", "end": "latest"}}
    old, new = counts(read=bounded), counts(replace(WINDOW, size="2 min"), read=bounded)
    diff = job_diff(old, new)
    assert diff.ways == ["resume", "start"]
    size = next(each for each in diff.differences if each.field == "window.size")
    assert size.note == "its state begins empty"
    assert diff.begins_empty == ["price"]
    assert job_diff(old, replace(old, partitions=2)).begins_empty == ["price"]
    assert job_diff(old, orders(read=bounded)).begins_empty == []  # it has none
    assert job_diff(counts(), counts()).begins_empty == []  # it is not resumed


def test_an_ended_job_is_judged_as_it_ended_and_nothing_is_changed_in_it() -> None:
    """How it ended, whether another job has resumed it, and which positions are known."""
    new = orders(priority=4)
    topics = {"price": {"orders"}}
    stopped = Predecessor(orders(), "stopped", topics=topics)
    assert job_diff(orders(), new, stopped).ways == ["resume", "start"]
    assert not job_diff(orders(), new, stopped).in_place
    for before, reason in [
        (stopped._replace(resumed_by="orders-2"), "orders-2 has resumed it"),
        (stopped._replace(topics={}), "it has no positions in topic orders"),
        (stopped._replace(status="killed"), "it was killed"),
        (stopped._replace(refused=True), "it was refused"),
        (stopped._replace(links_gone=False), "it is stopped"),
    ]:
        diff = job_diff(orders(), new, before)
        assert diff.ways == ["start"]
        assert reason in resume_refusals(diff)[0].failure.message


def test_with_the_modules_at_hand_only_tasks_that_may_be_changed_are_named() -> None:
    """Of the tasks with functions in the job's own modules. Of a module that did not change, what it uses may have."""
    old = orders(
        code="one", tax={"fn": "installed:tax"}, price={"fn": "shop.rules:price"}, read={"lifecycle": "job:Open"}
    )
    new = replace(old, code="two")

    def notes(code: CodeChange | None) -> dict[str, str]:
        diff = job_diff(old, new, code=code)
        found = {"job": diff.job} | {each.name: each.differences for each in diff.tasks}
        return {name: each.note for name, differences in found.items() for each in differences if each.field == "code"}

    unknown = "the job's own modules differ, if it is in one of them"
    assert notes(None) == {"job": "the job's own modules differ"} | dict.fromkeys(["read", "price", "tax"], unknown)
    own = frozenset({"shop", "job"})
    assert notes(CodeChange(own, frozenset({"shop.rules"}))) == {
        "job": "module shop.rules differs",
        "read": "module shop.rules differs, if it is used there",
        "price": "module shop.rules differs",
    }
    same = frozenset({"shop.rules:price", "job:Close"})
    assert notes(CodeChange(own, frozenset({"shop.rules", "job"}), same)) == {
        "job": "modules job and shop.rules differ",
        "read": "module job differs",
        "price": "modules job and shop.rules differ, but not the text of price",
    }
    assert notes(CodeChange(own, frozenset())) == {}  # the same modules in another zip
    assert job_diff(old, new, code=CodeChange(own, frozenset())).equal
