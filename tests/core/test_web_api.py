"""The API on logs, without services: what it answers, and that its contract only grows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer.main
from explain_cases import CASES
from scenario_runner import World
from test_explain import explained
from web_site import EVENTS, REPORT, Running, Site, file_like, of_report

from coordinator.core.explain import explain
from coordinator.core.explanation import FIXES
from coordinator.history.export import LogFile
from coordinator.history.timeline import TimelineEvent
from sardonyx.cli.app import app
from sardonyx.cli.web_commands import words
from sardonyx.client.lags import LinkLag
from sardonyx.client.policy import policy_of
from sardonyx.client.reasons import Why
from sardonyx.client.views import JobView, TaskView
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import (
    Acked,
    AnyEvent,
    Drained,
    Evicted,
    JobSubmitted,
    LinkFacts,
    LinksCreated,
    PeerBorn,
    TaskFailed,
)
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.web.api import ADDRESSES, Api, LogQuery
from sardonyx.web.capacity import Capacity
from sardonyx.web.graph_view import GraphView, graph_view
from sardonyx.web.openapi import document
from sardonyx.web.overview import HELP, ClusterOverview, JobOverview, view_of
from sardonyx.web.sight import Sample
from sardonyx.web.source import FileSource

CONTRACT = Path(__file__).parent / "openapi.v1.json"


@pytest.fixture(scope="module")
def report() -> Site:
    return of_report()


# What it answers


def test_every_address_answers_with_what_the_contract_says(report: Site) -> None:
    """On a user's report, without services; a job may be named by its name."""
    needed = {"/log/find": "?at=1795270080", "/log/diff": "?from=3&to=20", "/log/film": "?from=3&to=20"}
    for address in ADDRESSES:
        path = address.path.replace("{job}", "doubles").replace("{n}", "12")
        answer = report.get(f"/api/v1{path}" + needed.get(path, ""))
        if path.endswith(("/batches", "/partitions")):
            assert report.get(f"/api/v1{path.replace('{task}', 'double')}").json(address.answer).problem
            continue
        if address.asks and path != "/log/film":  # a file holds no rows, and says so
            assert (answer.status, answer.json()["code"]) == (403, "SX-WEB-ROWS")
            continue
        assert answer.status == 200, (path, answer.body)
        answer.json(address.answer)


def test_a_job_is_what_job_show_prints(report: Site) -> None:
    """The same object, field by field, and the same reasons and timeline as in the past that it stands for."""
    book = report_book()
    view = report.get("/api/v1/jobs/doubles-sof2db").json(JobView)
    assert view.status == "completed"
    assert [task.rows_in for task in view.tasks] == [2_000_000] * 4
    why = report.get("/api/v1/jobs/doubles-sof2db/explain?at=20").json(Why)
    assert why.explanation == explain(book.at(20), "doubles-sof2db")
    assert why.explanation.reasons[0].code == "task-full"
    timeline = report.get("/api/v1/jobs/doubles-sof2db/timeline").json(list[TimelineEvent])
    assert [item.n for item in timeline] == [7, 8]


def report_book() -> Any:
    with REPORT.open("rb") as file:
        return FileSource(LogFile(file, REPORT.name), str(REPORT), words()).book


def test_any_page_can_be_asked_for_at_any_entry(report: Site) -> None:
    """What was not recorded then is unknown, never what it became later."""
    for n in range(43):
        report.get(f"/api/v1/cluster?at={n}").json(ClusterOverview)
        found = report.get(f"/api/v1/jobs/doubles/overview?at={n}")
        if n == 0:
            assert found.status == 404
            continue
        view = found.json(JobOverview)
        assert view.n == n
        assert view.lags is None
        assert all(edge.records is None and edge.seconds is None for edge in view.graph.edges)
        complete = {task.name for task in view.job.tasks if task.state == "complete"}
        assert all(task.rows_in is None or task.rows_in == 0 or task.name in complete for task in view.job.tasks)
    at_work = report.get("/api/v1/jobs/doubles/overview?at=6").json(JobOverview)
    assert at_work.job.status == "running"
    assert at_work.timeline == []


def test_the_log_comes_in_pages_whose_cursors_are_entries(report: Site) -> None:
    """Following `next` gives each entry once, in either order, and with filters."""
    for first in ("/api/v1/log?limit=5", "/api/v1/log?limit=5&order=asc", "/api/v1/log?limit=2&job=bad-wg2vme"):
        address, seen = first, []
        while address:
            page = report.get(address).json()
            seen += [line["n"] for line in page["items"]]
            address = page["next"]
        assert len(seen) == len(set(seen))
        assert sorted(seen, reverse="asc" not in first) == seen
        assert seen == list(range(1, 43)) if "asc" in first else seen
    deaths = report.get("/api/v1/log?kind=died").json()["items"]
    assert {line["kind"] for line in deaths} == {"died"}
    assert report.get("/api/v1/log?mark=incident").json()["items"][-1]["n"] == 7


def test_an_entry_tells_what_it_changed(report: Site) -> None:
    """As `log show N --json`, and in words."""
    entry = report.get("/api/v1/log/7").json()
    assert entry["kind"] == "died"
    assert entry["lines"][0] == "peer host-e368-0: active on doubles-sof2db/make, slot 0 (assignment 3) -> not there"
    assert entry["changes"][0]["path"] == "/peer-state/host-e368-0"


def test_a_time_is_turned_into_an_entry_and_the_scale_shows_all(report: Site) -> None:
    """The scale holds each entry in a bucket, and what stands out."""
    assert report.get("/api/v1/log/find?at=1795270080").json()["n"] == 6
    scale = report.get("/api/v1/log/scale?buckets=10").json()
    assert sum(scale["buckets"]) == 42
    assert {"n": 7, "what": "incident"}.items() <= next(mark for mark in scale["marks"] if mark["n"] == 7).items()
    only = report.get("/api/v1/log/scale?job=bad-wg2vme").json()["marks"]
    assert {mark["n"] for mark in only} < {mark["n"] for mark in scale["marks"]}


def test_the_scale_is_that_of_the_log_as_it_is_now() -> None:
    """It is made once for all who ask, and again when the log has grown."""
    source = file_like(EVENTS[:4])
    site = Site(source)
    assert site.get("/api/v1/log/scale").json()["last"] == 4
    source.book.take(5, EVENTS[4])
    assert site.get("/api/v1/log/scale").json()["last"] == 5


def test_a_page_of_a_long_log_says_where_to_go_on_though_nothing_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter that fits nothing does not make one question read everything."""
    monkeypatch.setattr("sardonyx.web.api.SCANNED", 3)
    api = Api(file_like(EVENTS))
    page = api.log(LogQuery(peer="nix"), {})
    assert (page.items, page.next) == ([], "/api/v1/log?order=desc&peer=nix&limit=100&before=6")
    page = api.log(LogQuery(kind="leave"), {})  # known to be nowhere
    assert (page.items, page.next) == ([], None)


def test_an_answer_that_has_not_changed_is_not_sent_again(report: Site) -> None:
    """The tag is made from the answer itself: a deployment that begins anew has the same numbers for other entries."""
    first = report.get("/api/v1/cluster?at=7")
    again = report.get("/api/v1/cluster?at=7", {"if-none-match": first.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    assert report.get("/api/v1/cluster?at=8").headers["etag"] != first.headers["etag"]


def test_two_moments_are_compared_in_words_and_as_data() -> None:
    """Peers by state, jobs, tasks with their slots, and queues; of one job only what concerns it; without secrets."""
    api = Api(file_like(EVENTS))
    address = next(each for each in ADDRESSES if each.path == "/log/diff")
    found = json.loads(api.answer(address, {"from": "1", "to": "4"}, {}))
    assert (found["from"], found["to"], found["left_out"]) == (1, 4, 0)
    assert (found["from_at"], found["to_at"]) == (10.0, 13.0)
    assert (found["peers_before"], found["peers_after"]) == ({"idle": 1}, {"active": 1})
    texts = [each["text"] for each in found["changes"] if each["text"]]
    assert texts == [
        "job j-1: running, links made",
        "task j-1/read: running, peers a",
        "task j-1/write: pending",
        "peer a: idle -> active on j-1/read, slot 0 (assignment 3)",
    ]
    assert "hunter22" not in json.dumps(found)
    by_path = {each["path"]: each for each in found["changes"]}
    assert by_path["/peer-state/a"]["before"]["state"] == "idle"
    back = json.loads(api.answer(address, {"from": "4", "to": "1"}, {}))
    assert {each["path"]: each["after"] for each in back["changes"]} == {
        path: each["before"] for path, each in by_path.items()
    }
    two = json.loads(api.answer(address, {"from": "4", "to": "6", "job": "j-1", "limit": "1"}, {}))
    assert [len(two["changes"]), two["left_out"]] == [1, 3]
    other = json.loads(api.answer(address, {"from": "4", "to": "6", "job": "k"}, {}))
    assert other["changes"] == []


# What runs now


def test_rows_and_lags_of_now_are_those_that_kafka_told_last() -> None:
    """And Kafka is asked about a job only because its page was asked for, and never for a past moment."""
    source = Running(EVENTS[:4])
    site = Site(source)
    view = site.get("/api/v1/jobs/j/overview").json(JobOverview)
    assert (view.lags, view.sampled_at, view.every) == (None, None, 2.0)
    counted = [msgspec.structs.replace(task, rows_in=70, rows_out=60) for task in view.job.tasks]
    source.said.add(Sample(at=14.0, view=msgspec.structs.replace(view.job, tasks=counted), lags=[]))
    again = site.get("/api/v1/jobs/j/overview").json(JobOverview)
    assert (again.job.task("read").rows_in, again.graph.nodes[0].rows_in, again.sampled_at) == (70, 70, 14.0)
    source.asked.clear()
    past = site.get("/api/v1/jobs/j/overview?at=3").json(JobOverview)
    assert past.job.task("read").rows_in in (None, 0)
    site.get("/api/v1/cluster?at=3")
    assert source.asked == source.glanced == []
    site.get("/api/v1/cluster")
    assert (source.asked, source.glanced) == ([], ["j-1"])


def test_a_graph_is_drawn_for_a_task_that_fails() -> None:
    """The verdict of the task and of the edge into it says so."""
    failed = TaskFailed(
        at=14.0, peer="a", assignment=3, error=SardonyxError("SX-TEST", "broke").to_failure(), fatal=False
    )
    graph = Site(Running([*EVENTS[:4], failed])).get("/api/v1/jobs/j/graph").json(GraphView)
    assert [node.verdict.word for node in graph.nodes] == ["backs off", "waits"]
    assert graph.nodes[0].failures == 1


def test_a_graph_says_that_a_busy_task_cannot_follow() -> None:
    """It may take more peers than it has; what its peers tell of their batches says that the work is too much for these."""
    source = Running(EVENTS[:4])
    for at, unread in ((30.0, 100), (40.0, 300)):
        lag = LinkLag(link="read.splits", reader="read", kind="splits", topic="t", records=unread, seconds=20.0)
        source.said.add(Sample(at=at, view=JobView(id="j-1", name="j", status="running", tasks=[]), lags=[lag]))
    words = []
    for worked in (None, {"read": 0.9}):
        source.said.worked = worked
        words.append(Site(source).get("/api/v1/jobs/j/graph").json(GraphView).nodes[0].verdict.word)
    assert words == ["behind", "bottleneck"]


BOUNDED = JobSpec(
    name="b",
    workflow=[("read", "work"), ("work", "write")],
    catalog=[
        TaskSpec(name="read", type="input", connector="kafka", options={"topic": "t"}),
        TaskSpec(name="work", type="function", fn="f:f"),
        TaskSpec(name="write", type="output", connector="blackhole"),
    ],
)


def bounded_job() -> Running:
    """An endless job whose queue ``work.write`` may hold ten unread rows; a peer is on each task that a peer runs."""
    links = {"read.work": LinkFacts(1), "work.write": LinkFacts(1, max_backlog=10)}
    born: list[AnyEvent] = [PeerBorn(at=10.0, peer=peer, host="h", pid=7, daemon="d") for peer in ("a", "b")]
    begun: list[AnyEvent] = [
        JobSubmitted(at=11.0, job="b-1", spec=BOUNDED),
        LinksCreated(at=12.0, job="b-1", links=links),
        *(Acked(at=13.0, peer=peer, assignment=4) for peer in ("a", "b")),
    ]
    return Running([*born, *begun])


def look(at: float, read: int, unread: int) -> Sample:
    """What Kafka says: how many rows ``work`` has read, and how many of them wait before ``write``."""
    tasks = [
        TaskView(name="work", type="function", state="running", peers=1, rows_in=read, rows_out=read),
        TaskView(name="write", type="output", state="running", peers=1, rows_in=read - unread, rows_out=None),
    ]
    lags = [
        LinkLag(link=link, reader=reader, kind=kind, topic=link, records=records, seconds=at, precision="exact")
        for link, reader, kind, records in (
            ("read.work", "work", "input", 9_000),
            ("work.write", "write", "internal", unread),
        )
    ]
    return Sample(at=at, view=JobView(id="b-1", name="b", status="running", tasks=tasks), lags=lags)


def test_a_task_that_a_full_queue_holds_is_shown_as_held() -> None:
    """Not as stuck, late or a bottleneck: it says by whom it is held. So do the reasons, which do not say that the job stands.
    After that, only the time in which nothing held it can make it look stuck.
    """
    source = bounded_job()
    site = Site(source)
    for at in (20.0, 55.0):
        source.said.add(look(at, 100, 12))
    shown = site.get("/api/v1/jobs/b/overview").json(JobOverview)
    words = {node.name: (node.verdict.word, node.verdict.level) for node in shown.graph.nodes}
    assert words == {"read": ("bound", "rest"), "work": ("held", "info"), "write": ("stuck", "bad")}
    text = "work.write is full, with 12 unread rows of at most 10, and waits for task write"
    assert shown.graph.nodes[1].verdict.text == f"it pauses: {text}"
    assert [(each.code, each.text, each.holds) for each in shown.reasons if each.code == "held"] == [
        ("held", f"task work pauses: {text}", False)
    ]
    assert shown.graph.slowest is not None
    assert (shown.graph.slowest.worst, shown.graph.slowest.waits_for) == ("work", "write")
    for at, word in ((60.0, "behind"), (84.0, "behind"), (86.0, "stuck")):
        source.said.add(look(at, 100, 9))
        graph = site.get("/api/v1/jobs/b/graph").json(GraphView)
        assert (graph.held, graph.nodes[1].verdict.word) == ([], word)


def test_a_task_that_had_nothing_to_read_is_not_stuck_when_a_row_comes() -> None:
    """A topic that gets a row each minute: its reader could commit nothing meanwhile. Neither can a task without a peer."""
    source = bounded_job()
    site = Site(source)

    def word(at: float, read: int, unread: int, peers: int = 1) -> str:
        sample = look(at, read, unread)
        tasks = [msgspec.structs.replace(task, peers=peers) for task in sample.view.tasks]
        source.said.add(msgspec.structs.replace(sample, view=msgspec.structs.replace(sample.view, tasks=tasks)))
        return site.get("/api/v1/jobs/b/graph").json(GraphView).nodes[2].verdict.word

    assert [word(20.0, 100, 0), word(60.0, 100, 0)] == ["waits", "waits"]
    assert word(62.0, 103, 3) == "bottleneck"
    assert word(93.0, 103, 3) == "stuck", "it has had time enough by now"
    assert word(95.0, 103, 3, peers=0) != "stuck"
    assert word(97.0, 103, 3) == "behind"


def test_a_job_that_failed_after_a_change_is_not_suspended_by_a_user() -> None:
    """To resume it as it is brings the same error again: the page says what helps."""
    world = World()
    for sentence in next(sentences for name, sentences, _ in CASES if name == "failed after a change"):
        world.say(sentence)
    job = world.state.jobs["copy"]
    graph = graph_view(world.state, "copy", job, view_of(world.state, "copy", job), None, None)
    assert {(node.verdict.word, node.verdict.text) for node in graph.nodes if not node.bound} == {
        ("suspended", "its job failed after a change, and is suspended: change it again, and then resume it")
    }
    job.error = None
    graph = graph_view(world.state, "copy", job, view_of(world.state, "copy", job), None, None)
    assert {node.verdict.text for node in graph.nodes if not node.bound} == {
        "a user suspended its job: it goes on from here when that is resumed"
    }


def test_capacity_is_what_cluster_policy_prints() -> None:
    """Shares of each running job, who waits for how many peers and why, and the peers by their tags; also in the past."""
    born: list[AnyEvent] = [PeerBorn(at=9.0, peer=f"p{n}", host="h2", tags=frozenset({"gpu"})) for n in range(2)]
    source = Running([*EVENTS[:5], *born])
    found = Site(source).get("/api/v1/capacity").json(Capacity)
    policy = policy_of(source.book.state)
    assert (found.scheduler, found.peers, found.idle) == (policy.scheduler, 2, 0)  # both were offered the task at once
    assert [(kind.tags, kind.peers, kind.idle) for kind in found.kinds] == [(["gpu"], 2, 0)]
    (line,) = found.jobs
    (share,) = policy.jobs
    assert {name: getattr(line, name) for name in share.__struct_fields__} == msgspec.structs.asdict(share)
    assert (line.name, line.most) == ("j", 4)
    without = Site(source).get("/api/v1/capacity?at=5").json(Capacity)
    assert (without.jobs[0].waits_for, without.jobs[0].why) == (
        1,
        "there is no virtual peer at all; is a peer daemon running?",
    )
    assert without.kinds == []


def test_drained_peers_are_no_capacity() -> None:
    """They get no task: of those that are counted, no more can be idle than there are."""
    born: list[AnyEvent] = [PeerBorn(at=9.0, peer=f"p{n}", host=f"h{n % 2}") for n in range(4)]
    source = Running([*born, Drained(at=10.0, host="h1"), Evicted(at=11.0, peer="p2")])
    found = Site(source).get("/api/v1/capacity").json(Capacity)
    assert (found.peers, found.idle) == (1, 1)
    assert [(kind.peers, kind.idle) for kind in found.kinds] == [(1, 1)]
    all_out = Site(Running([*born, *(Drained(at=10.0, host=host) for host in ("h0", "h1"))]))
    nothing = all_out.get("/api/v1/capacity").json(Capacity)
    assert (nothing.peers, nothing.idle, nothing.kinds) == (0, 0, [])


def test_the_commands_that_help_are_commands() -> None:
    """Of each reason, here and in `job explain`."""
    group = typer.main.get_command(app)
    fixes = [*FIXES.values(), *(reason.fix for case in CASES for reason in explained(case[1]).reasons)]
    told = {*HELP.values(), *(text for fix in fixes for text in re.findall(r"`(sardonyx [^`]+)`", fix))}
    assert "sardonyx peer --tag gpu" in told
    for text in told:
        words, command = text.split()[1:], group
        while isinstance(command, typer.core.TyperGroup):
            assert words, text
            assert words[0] in command.commands, text
            command = command.commands[words.pop(0)]


# The contract


def test_the_contract_only_grows() -> None:
    """Within v1 no address, parameter, field or value goes, and no parameter becomes required.

    What was added is written down with `pytest tests/core/test_web_api.py --rewrite`; read the difference before you commit it.
    """
    kept, now = json.loads(CONTRACT.read_text("utf-8")), json.loads(json.dumps(document()))
    assert missing(kept["paths"], now["paths"], "paths") == []
    assert missing(kept["components"], now["components"], "components") == []
    for path, found in now["paths"].items():
        for method, operation in found.items():
            known = {each["name"]: each for each in kept["paths"].get(path, {}).get(method, {}).get("parameters", ())}
            for each in operation["parameters"]:
                assert (
                    not each.get("required")
                    or each["in"] == "path"
                    or not known
                    or known.get(each["name"], {}).get("required")
                )


def test_the_contract_is_written_down(request: pytest.FixtureRequest) -> None:
    """The file in the repository is the document that is served."""
    text = json.dumps(document(), indent=1, sort_keys=True) + "\n"
    if request.config.getoption("--rewrite"):
        CONTRACT.write_text(text, "utf-8")
    assert CONTRACT.read_text("utf-8") == text


NAMED = {"description", "summary", "title", "version", "default"}
"""What may change."""


def missing(old: Any, new: Any, where: str) -> list[str]:
    """What stands in ``old`` and not in ``new``. Lists are compared as sets: they hold names, enum values and alternatives."""
    if isinstance(old, dict):
        if not isinstance(new, dict):
            return [where]
        return [
            gone
            for key, value in old.items()
            if key not in NAMED
            for gone in ([f"{where}.{key}"] if key not in new else missing(value, new[key], f"{where}.{key}"))
        ]
    if isinstance(old, list):
        return [f"{where}: {each}" for each in old if not any(missing(each, other, "") == [] for other in new)]
    return [] if old == new else [f"{where}: {old} is {new}"]


def test_a_change_of_the_contract_is_seen() -> None:
    """The comparison finds what goes and what changes, and lets pass what comes."""
    old = {"a": {"enum": ["x", "y"], "type": "string", "description": "one"}}
    assert missing(old, {"a": {"enum": ["y", "x", "z"], "type": "string", "description": "two"}, "b": 1}, "") == []
    assert missing(old, {"a": {"enum": ["x"], "type": "string"}}, "") == [".a.enum: y"]
    assert missing(old, {"a": {"enum": ["x", "y"], "type": "integer"}}, "") == [".a.type: string is integer"]
    assert missing(old, {}, "") == [".a"]
