"""`job diff`: its words, its JSON and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec.structs import replace
from test_job_diff import WINDOW, counts, orders
from typer.testing import CliRunner, Result

import coordinator.history
from coordinator.core.state import Job
from sardonyx.cli.app import app
from sardonyx.cli.call import Call
from sardonyx.cli.diff_text import diff_lines
from sardonyx.client.job_diff import compare, diff
from sardonyx.core.errors import SardonyxError
from sardonyx.core.graph import graph_of
from sardonyx.core.job_diff import CodeChange, JobDiff, job_diff
from sardonyx.core.predecessors import Predecessor
from sardonyx.core.spec import JobSpec, OnError, Route, TaskSpec
from sardonyx.core.stores import SqlStore
from sardonyx.core.timing import AggregateSpec
from sardonyx.job.load import LoadedJob

if TYPE_CHECKING:
    from sardonyx.client.client import Client
    from sardonyx.client.job_handle import JobHandle


def told(old: JobSpec, new: JobSpec, before: Predecessor | None = None) -> str:
    """What the command says, between two lines of its own so that it can be read here."""
    return "\n" + "\n".join(diff_lines(job_diff(old, new, before, job="orders-k3x9qa"), "orders.py")) + "\n"


def more_tasks() -> JobSpec:
    """The job with an input and an output more, and without its task ``tax``."""
    more = [
        TaskSpec(name="refunds", type="input", connector="kafka", options={"topic": "refunds", "start": "latest"}),
        TaskSpec(name="log", type="output", connector="files", options={"path": "/out", "format": "json"}),
    ]
    old = orders()
    return replace(
        old,
        workflow=[("read", "price"), ("refunds", "price"), ("price", "write"), ("price", "log")],
        catalog=[*(task for task in old.catalog if task.name != "tax"), *more],
        routes={"price.log": Route(where="job:large")},
    )


def test_what_differs_and_that_stop_and_resume_takes_it() -> None:
    """A line for each difference, before and after; then the commands, of which some change the running job."""
    new = orders(
        price={"fn": "job:price2", "batch_size": 10_000, "params": {"rates": {"eur": 1.5}}},
        tax={"on_error": OnError(then="dead_letter")},
        write={"options": {"topic": "prices-2"}},
        priority=3,
        keep="1 h",
    )
    assert (
        told(orders(), new)
        == """
orders-k3x9qa becomes orders.py: of 4 tasks 1 kept and 3 changed
job
  settings    keep: none -> 1 h  (`link keep` changes it in the running job)
  share       priority: 0 -> 3  (`job scale` changes it in the running job)
tasks
  ~ price
      function    fn: job:price -> job:price2
      function    params.rates: none -> {"eur": 1.5}
      settings    batch_size: none -> 10000
  ~ tax
      settings    on_error.then: fail -> dead_letter
  ~ write
      output      options.topic: prices -> prices-2  (what it has written stays where it is; `job change` does not take it)
links
  ~ tax.write
      output      topic: prices -> prices-2  (`job change` does not take it)
  + tax.dead  dead letters
how to carry it out
  parts of it in the running job, at once:
    sardonyx job scale orders-k3x9qa --priority 3
    sardonyx link keep orders-k3x9qa '1 h'
  `job change` would refuse it:
    options.topic of task write differs
    the queue tax.write would be another one
  without the differences marked above it would take the other 7
  stop it, and have another job go on from there: no record twice, none left out:
    sardonyx job change orders-k3x9qa orders.py --restart
"""
    )


def test_that_a_resume_would_be_refused_is_said_before_the_job_is_stopped() -> None:
    """With the coordinator's reason, and which differences it is about; what is left is a new job."""
    new = orders(price={"group_by": ["user"], "batch_size": 9})
    assert (
        told(orders(), new)
        == """
orders-k3x9qa becomes orders.py: of 4 tasks 3 kept and 1 changed
tasks
  ~ price
      settings    batch_size: none -> 9
      key         group_by: none -> user  (`job change` does not take it; `--resume` does not take it)
links
  + read.topic  topic orders  (`job change` does not take it; `--resume` does not take it)
  ~ read.price
      carried by  topic orders -> a queue  (`job change` does not take it; `--resume` does not take it)
how to carry it out
  `job change` would refuse it:
    group_by of task price differs
    the queue read.price would be another one
    task read is a topic in place; by the new version it has a queue of its own
  without the differences marked above it would take the other one
  `job submit --resume` would refuse it:
    SX-JOB-RESUME: job orders-k3x9qa cannot be resumed: no task price of the new job reads topic orders
      cause: positions are handed over by the names of task and topic, and none may be lost
      fix:   keep these names; or submit the job without `--resume`, with the `start=` that you want
  without the differences marked above it would take the other one
  as a new job, which begins at its own `start=`; `job show` tells the positions of the old one:
    sardonyx job stop orders-k3x9qa
    sardonyx job show orders-k3x9qa
    sardonyx job submit orders.py
"""
    )


def test_a_job_with_state_that_runs_cannot_be_resumed_but_its_share_can_be_changed() -> None:
    """The shape of its state is a difference of its own; only what `job scale` takes is possible in the running job."""
    window = replace(WINDOW, size="5 min", aggregate={**WINDOW.aggregate, "most": AggregateSpec(of="max", column="ms")})
    assert (
        told(counts(), counts(window, max_peers=4))
        == """
orders-k3x9qa becomes orders.py: of 4 tasks 3 kept and 1 changed
job
  share       max_peers: none -> 4  (`job scale` changes it in the running job)
tasks
  ~ price
      state       window.size: 1 min -> 5 min  (`job change` does not take it)
      state       window.aggregate.most: none -> {"of": "max", "column": "ms"}  (`job change` does not take it)
how to carry it out
  a part of it in the running job, at once:
    sardonyx job scale orders-k3x9qa --max-peers 4
  `job change` would refuse it:
    window.size of task price differs
    window.aggregate.most of task price differs
    the queue read.price would be another one
  without the differences marked above it would take the other one
  `job submit --resume` would refuse it:
    SX-JOB-RESUME: job orders-k3x9qa cannot be resumed: the state of its task price has no place in the new job
      cause: there window.size and window.aggregate.most differ
      fix:   keep what the earlier job has, or submit the job without `--resume`
  as a new job, which begins at its own `start=`; `job show` tells the positions of the old one:
    sardonyx job stop orders-k3x9qa
    sardonyx job show orders-k3x9qa
    sardonyx job submit orders.py
"""
    )


def test_what_can_be_changed_in_the_running_job_is_said_first() -> None:
    """0 takes a limit back, as the commands have it; stopping is the other way."""
    lines = told(orders(max_peers=4, keep="1 h", percentage=5.0), orders(weight=1.2345678))
    assert (
        """
  in the running job, at once:
    sardonyx job scale orders-k3x9qa --weight 1.2345678 --percentage 0 --max-peers 0
    sardonyx link keep orders-k3x9qa 0
  or stop it, and have another job go on from there: no record twice, none left out:
"""
        in lines
    )


def test_a_job_that_ends_by_itself_or_has_ended_is_not_stopped() -> None:
    """A bounded job is awaited. To go on from an ended one takes one command, and nothing can be changed in it."""
    bounded = {"options": {"topic": "orders", "start": "earliest", "end": "latest"}}
    assert """
  wait for its end and resume it: no record twice, none left out; the state of price begins empty:
    sardonyx job await orders-k3x9qa
    sardonyx job submit orders.py --resume orders-k3x9qa
""" in told(counts(read=bounded), counts(read=bounded, partitions=2))
    ended = told(orders(), orders(priority=2), Predecessor(orders(), "stopped", topics={"price": ["orders"]}))
    assert ended.endswith(
        """
  share       priority: 0 -> 2
how to carry it out
  resume it: no record twice, none left out:
    sardonyx job submit orders.py --resume orders-k3x9qa
"""
    )


def test_equal_jobs_and_other_descriptions_need_no_command() -> None:
    """If a resume would be refused all the same, that is said: a user may want to stop the job for another reason."""
    database = SqlStore(url="sqlite:////x")
    assert told(orders(), orders()) == "\norders-k3x9qa and orders.py are equal: 4 tasks, and all links\n"
    assert "would refuse it" in told(counts(replace(WINDOW, store=database)), counts(replace(WINDOW, store=database)))
    assert told(orders(), orders(doc="Prices.")).endswith("only descriptions differ: the next version may carry them\n")


def test_a_restart_of_the_peers_is_offered_for_what_is_installed_there() -> None:
    """Such a package does not travel, so no difference of it is seen: also where the jobs are equal. Sardonyx itself is another
    matter, and of modules that are not known it is not known either, nor of an ended job.
    """
    params = {"each": {"$function": "shop.more:each"}, "how": {"$function": "sardonyx.pipeline.functions:total"}}
    spec = counts(tax={"fn": "shop.rates:tax", "params": params})
    own = CodeChange(frozenset({"job"}), frozenset())
    found = job_diff(spec, spec, job="orders-k3x9qa", code=own)
    assert (found.equal, found.installed) == (True, {"shop": ["tax"]})
    assert """
installed where peers run, so not compared
  shop  of tax
  to go on by a new version of it, with the positions and states that the job has:
    install it on each machine, and restart its peer daemons, one machine after the other
""" in "\n".join([*diff_lines(found, "orders.py"), ""])
    assert job_diff(spec, spec).installed == {}
    ended = Predecessor(spec, "stopped", topics={"price": ["orders"]})
    assert job_diff(spec, spec, ended, code=own).installed == {}


def test_long_values_are_shown_where_they_differ_and_none_breaks_a_line() -> None:
    """A schema of twenty columns, of which the last one has another type; a description of several lines."""
    columns = ", ".join(f"column_{n:02} long" for n in range(20))
    options = [{"topic": "orders", "start": "earliest", "schema": f"{columns}, at {kind}"} for kind in ("date", "long")]
    one, other = (orders(read={"options": each}, doc=f"Prices,\nby {each['schema'][-4:]}") for each in options)
    lines = told(one, other)
    assert "options.schema: ... column_19 long, at date -> ... column_19 long, at long  (`job change`" in lines
    assert "doc: 'Prices,\\nby date' -> 'Prices,\\nby long'\n" in lines
    assert max(map(len, lines.splitlines())) < 130
    keyed = told(orders(), orders(tax={"window": WINDOW}))
    assert "      key         group_by: none -> one key for all rows  (`job change` does not take it)\n" in keyed


def test_of_many_reasons_the_first_ones_are_shown() -> None:
    """Those that count most; the others with --json."""
    files = {f"in{n}": {"type": "input", "connector": "files", "options": {"path": "/in"}} for n in range(5)}
    catalog = [*(TaskSpec(name=name, **values) for name, values in files.items()), *orders().catalog]
    old = orders(workflow=[*orders().workflow, *((name, "price") for name in files)])
    lines = told(replace(old, catalog=catalog), replace(old, catalog=catalog))
    assert lines.count("SX-JOB-RESUME") == 3
    assert "and 2 more reasons; --json gives all" in lines


# The command

SPEC = """
from sardonyx import Job, kafka
import rules

def price(row: dict, token: str) -> dict:
    return row

job = Job("orders", priority={priority})
read = job.input("read", kafka("orders", start="earliest"))
job.output("write", kafka("prices"), after=job.task("price", price, after=read, params={{"token": "{token}"}}))
"""


@pytest.fixture
def versions(tmp_path: Path) -> tuple[str, str]:
    """Two files with two versions of a job; a module beside them differs, too."""
    for version, token in (("one", "open sesame"), ("two", "sesame")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "orders.py").write_text(SPEC.format(priority=len(token), token=token))
        (tmp_path / version / "rules.py").write_text(f"RATE = {len(token)}\n")
    return str(tmp_path / "one/orders.py"), str(tmp_path / "two/orders.py")


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["job", "diff", *arguments])


def test_two_files_are_compared_without_a_cluster(versions: tuple[str, str]) -> None:
    """Which modules differ is known then. Secrets are masked, and a difference between two is shown all the same."""
    old, new = versions
    result = call(old, new)
    assert result.exit_code == 0, result.output
    assert "params.token: ****** -> ******\n" in result.stdout
    assert "(modules orders and rules differ, but not the text of price)\n" in result.stdout
    assert f"sardonyx job change orders {new} --restart\n" in result.stdout
    assert "sesame" not in call(old, new, "--json").output


def test_the_exit_code_says_that_jobs_differ_only_if_it_is_asked_to(versions: tuple[str, str]) -> None:
    """As git has it: a difference is no failure, and --exit-code is for scripts."""
    old, new = versions
    assert [call(old, new).exit_code, call(old, new, "--exit-code").exit_code] == [0, 1]
    assert [call(old, old).exit_code, call(old, old, "--exit-code").exit_code] == [0, 0]
    assert "are equal" in call(old, old).stdout
    assert call("-", "-").exit_code == 2


def test_its_json_has_the_differences_the_reasons_and_the_commands(versions: tuple[str, str]) -> None:
    """The data of `JobDiff`, and for each way that stands the commands to type."""
    old, new = versions
    found = json.loads(call(old, new, "--json").stdout)
    commands = found.pop("commands")
    assert set(found) == set(JobDiff.__struct_fields__)
    assert (found["equal"], found["ways"], found["in_place"]) == (False, ["change", "resume", "start"], True)
    assert [task["status"] for task in found["tasks"]] == ["kept", "changed", "kept"]
    assert found["tasks"][1]["differences"][0]["before"] == "******"
    assert commands["scale"] == ["sardonyx job scale orders --priority 6"]
    assert commands["resume"] == [f"sardonyx job change orders {new} --restart"]


def test_a_job_of_the_deployment_is_the_one_that_would_be_resumed(
    versions: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may be a job's name is one. What is wrong with the new version is reported before a cluster is looked for."""
    asked: list[str] = []

    class Handle:
        def diff(self, loaded: LoadedJob) -> JobDiff:
            return job_diff(orders(), loaded.spec, job="orders-k3x9qa")

    class Client:
        def __enter__(self) -> Client:
            return self

        def __exit__(self, *_: object) -> None: ...

        def job_to_resume(self, job: str) -> Handle:
            asked.append(job)
            return Handle()

    monkeypatch.setattr(Call, "client", lambda _: Client())
    result = call("orders-k3", versions[1])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"orders-k3x9qa becomes {versions[1]}: of 4 tasks")
    assert call("orders-k3", "nowhere.py").exit_code == 1
    assert asked == ["orders-k3"]


# What a client knows of the old job


def job_of(spec: JobSpec, **state: Any) -> Job:
    stages = graph_of(spec, "d", "orders-1").stages
    known = {
        "spec": spec,
        "status": "running",
        "links": "made",
        "resumed_by": "",
        "closes": False,
        "refused": False,
        "retired": [],
        **state,
    }
    known["tasks"] = {stage.name: SimpleNamespace(positions={"orders": [7]}) for stage in stages}
    known |= {"checkpoints": [], "end": None}
    shares = {"priority": spec.priority, "weight": spec.weight, "percentage": None, "max_peers": None}
    return cast("Job", SimpleNamespace(**{**shares, **known}))


def loaded(spec: JobSpec, code: bytes | None = None) -> LoadedJob:
    return LoadedJob(spec, code, Path())


def test_what_job_scale_has_changed_counts() -> None:
    """The new version is compared with what the running job is entitled to now, not with what was submitted."""
    known = job_of(orders(priority=1), priority=5)
    assert compare("orders-1", orders(priority=1), known, None, loaded(orders(priority=5))).equal
    (found,) = compare("orders-1", orders(priority=1), known, None, loaded(orders(priority=1))).differences
    assert (found.before, found.after) == (5, 1)


def test_a_job_is_judged_by_what_the_coordinator_knows_of_it() -> None:
    """One that runs may be stopped and resumed; one that another job has resumed cannot; one that is only submitted runs."""
    new = loaded(orders(lineage=True))
    assert compare("orders-1", orders(), job_of(orders()), None, new).ways == ["resume", "start"]
    resumed = job_of(orders(), status="stopped", links="gone", resumed_by="orders-2")
    (refusal,) = compare("orders-1", orders(), resumed, None, new).refusals
    assert refusal.failure.message == "job orders-1 cannot be resumed: orders-2 has resumed it"
    submitted = compare("orders-1", orders(), None, None, new)
    assert (submitted.running, submitted.ways) == (True, ["resume", "start"])


def test_a_job_that_was_purged_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its handle still holds the spec, but what it has read is no longer known."""
    reader = SimpleNamespace(present=lambda _zk: SimpleNamespace(jobs={}))  # the real one imports kazoo
    monkeypatch.setattr(coordinator.history, "reader", reader, raising=False)
    client = SimpleNamespace(zk=None, loaded=lambda job: job, is_gone=lambda job: job == "orders-1")
    handle = SimpleNamespace(id="orders-1", spec=orders, await_resumable=lambda: False)
    with pytest.raises(SardonyxError) as caught:
        diff(cast("Client", client), cast("JobHandle", handle), loaded(orders()))
    assert caught.value.code == "SX-JOB-GONE"
    handle.id = "orders-2"  # a job that no coordinator has processed yet
    assert diff(cast("Client", client), cast("JobHandle", handle), loaded(orders())).equal


def test_code_that_is_no_longer_there_is_not_taken_for_none() -> None:
    """Then only the hashes are known, and every function may have changed."""
    old, new = orders(code="1" * 64), loaded(orders(code="2" * 64))
    tasks = compare("orders-1", old, job_of(old), None, new).tasks
    assert [task.name for task in tasks if task.status == "changed"] == ["price", "tax"]


def test_a_job_without_a_graph_cannot_be_compared() -> None:
    """A coordinator has refused it, since no client of ours would have submitted it."""
    circle = orders(workflow=[("price", "tax"), ("tax", "price")])
    with pytest.raises(SardonyxError) as caught:
        compare("orders-1", circle, job_of(orders(), refused=True), None, loaded(orders()))
    assert caught.value.code == "SX-JOB-DIFF"
