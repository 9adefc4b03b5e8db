"""Jobs with checkpoints: what is checked before they run, and the command that lists them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from sardonyx import Count, Job, blackhole, calendar, everything, hopping, kafka, ordinal, sql, tumbling
from sardonyx.cli.app import app
from sardonyx.cli.call import Call
from sardonyx.client import going_back as going_back_module
from sardonyx.client.checkpoints import JobCheckpoints, TaskCheckpoints, moment
from sardonyx.client.going_back import GoingBack, Known, going_back, refuse_forgotten
from sardonyx.core.errors import SardonyxError, SetupError
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import graph_of
from sardonyx.core.notes import JobNote, LinksNote
from sardonyx.core.positions import Partition, Position
from sardonyx.core.state_points import CheckpointPoint
from tests.core.window_jobs import only


def a_job(every: str, *, window: Any = None, store: Any = "memory", time: Any = "at", **given: Any) -> Job:
    job = Job("j", checkpoint_every=every)
    read = job.input("read", kafka("t", schema="user string, at timestamp, n bigint", start="earliest"), time=time)
    emit = "final" if window is None else "changes"
    if not given.get("plain"):
        counted = {"hits": Count()}
        read = job.window(
            "count", window or tumbling("1 min"), after=read, group_by="user", aggregate=counted, store=store, emit=emit
        )
    job.output("out", blackhole(), after=read)
    return job


@pytest.mark.parametrize(
    ("job", "code", "cause"),
    [
        (lambda: a_job("soon"), "SX-JOB-UNITS", ""),
        (lambda: a_job("10 ms"), "SX-CHECKPOINT-EVERY", "holds back the deletion"),
        (lambda: a_job("2 days"), "SX-CHECKPOINT-EVERY", "holds back the deletion"),
        (lambda: a_job("1 min", plain=True), "SX-CHECKPOINT-EVERY", "checkpoints are of the state"),
        (lambda: a_job("1 min", store=sql("sqlite:////tmp/s.db")), "SX-CHECKPOINT-STORE", "a database keeps no log"),
        (lambda: a_job("1 min", window=everything(), time=None), "SX-TIME-MISSING", ""),
        (lambda: a_job("1 min", window=everything(), time=ordinal("nr")), "SX-TIME-ORDINAL", "counts rows"),
    ],
)
def test_a_job_that_can_have_no_checkpoints_says_why(job: Callable[[], Job], code: str, cause: str) -> None:
    """Before it is submitted, with the reason."""
    problem = only(job())
    assert problem.code == code
    assert cause in problem.cause
    assert problem.fix


@pytest.mark.parametrize(
    ("window", "combined"),
    [
        (tumbling("1 min"), True),
        (tumbling("30 s"), True),
        (tumbling("90 s"), False),
        (hopping("3 min", "40 s"), True),
        (hopping("3 min", "50 s"), True),
        (hopping("90 s", "45 s"), False),
        (calendar("hour"), False),
        (everything(), False),
    ],
    ids=str,
)
def test_rows_before_and_after_a_checkpoint_are_not_combined(window: Any, combined: bool) -> None:
    """Those of a window whose slices end at each checkpoint are; without checkpoints all of these are."""
    spec = a_job("1 min", window=window).spec()
    assert [link.combined for link in graph_of(spec, "d", "j-1").links if link.window] == [combined]
    without = msgspec.structs.replace(spec, checkpoint_every=None)
    assert [link.combined for link in graph_of(without, "d", "j-1").links if link.window] == [True]


def test_the_command_lists_what_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each time; as JSON also those of each task; and why there is none."""
    ten = datetime(2026, 11, 26, 10, tzinfo=UTC)
    found = JobCheckpoints(every="1 min", times=[ten], tasks=[TaskCheckpoints(task="count", times=[ten])])

    class Client:
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None: ...

        def job(self, name: str) -> Any:
            return self

        def checkpoints(self) -> JobCheckpoints:
            return found

    monkeypatch.setattr(Call, "client", lambda _: Client())
    monkeypatch.setattr(Call, "job", lambda _, client, job: client.job(job))
    monkeypatch.setattr(Call, "patience", lambda *_: Client())
    assert CliRunner().invoke(app, ["job", "checkpoints", "j"]).stdout == "2026-11-26T10:00:00Z\n"
    shown = json.loads(CliRunner().invoke(app, ["job", "checkpoints", "j", "--json"]).stdout)
    assert shown["tasks"] == [{"task": "count", "times": ["2026-11-26T10:00:00Z"]}]
    found = msgspec.structs.replace(found, times=[])
    assert (
        "the last one of task count: 2026-11-26T10:00:00Z"
        in CliRunner().invoke(app, ["job", "checkpoints", "j"]).stdout
    )
    found = JobCheckpoints(every=None, times=[], tasks=[])
    assert "checkpoint_every=" in CliRunner().invoke(app, ["job", "checkpoints", "j"]).stdout


def test_a_time_may_be_written_in_several_ways() -> None:
    """With a zone, or without one for UTC, as text or as a moment; what is no time says so."""
    ten = 1_795_687_200_000_000
    for text in ("2026-11-26T10:00:00Z", "2026-11-26T10:00", "2026-11-26T11:00:00+01:00", datetime(2026, 11, 26, 10)):  # noqa: DTZ001
        assert moment(text) == ten
    with pytest.raises(SardonyxError, match="SX-USAGE"):
        moment("yesterday")


@pytest.mark.parametrize(
    ("every", "size"), [("often", "1 min"), ("1 min", "often"), ("1 min", "0 s"), ("0 s", "1 min")]
)
def test_a_job_that_was_not_validated_has_a_graph(every: str, size: str) -> None:
    """Any client may send one to a coordinator, which lays it out before it is validated."""
    replace, spec = msgspec.structs.replace, a_job("1 min").spec()
    catalog = [
        task if task.window is None else replace(task, window=replace(task.window, size=size)) for task in spec.catalog
    ]
    graph = graph_of(replace(spec, checkpoint_every=every, catalog=catalog), "d", "j")
    assert graph.checkpoint_every in (None, 60_000_000)


def test_going_back_says_what_is_published_again_and_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read and published again stands on stderr. Without a terminal and without `--yes` nothing is done."""
    ten = datetime(2026, 11, 26, 10, tzinfo=UTC)
    back = GoingBack(
        job="j-1", at=ten, reads_again={"orders": 1_200, "none": 0}, publishes_again=["out (kafka totals)"]
    )
    done: list[datetime] = []

    class Client:
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None: ...

        def job(self, name: str) -> Any:
            return SimpleNamespace(going_back=lambda _: back, rollback=self.rollback)

        def rollback(self, to: datetime, _timeout: float | None) -> Any:
            done.append(to)
            return SimpleNamespace(id="j-2")

    monkeypatch.setattr(Call, "client", lambda _: Client())
    monkeypatch.setattr(Call, "job", lambda _, client, job: client.job(job))
    monkeypatch.setattr(Call, "patience", lambda *_: Client())
    asked = CliRunner().invoke(app, ["job", "rollback", "j", "--to", "2026-11-26T10:00:30Z"])
    assert (asked.exit_code != 0, done) == (True, [])
    assert "SX-GO-BACK-ASK" in asked.stderr
    assert asked.stderr.splitlines()[:3] == [
        "goes on from the checkpoint at 2026-11-26T10:00:00Z of job j-1",
        "reads again: 1,200 records of orders, without the rows before that time",
        "publishes again what the job has given for rows of that time or later: out (kafka totals)",
    ]
    agreed = CliRunner().invoke(app, ["job", "rollback", "j", "--yes"])
    assert (agreed.stdout, done) == ("j-2\n", [ten])
    shown = json.loads(CliRunner().invoke(app, ["job", "rollback", "j", "--yes", "--json"]).stdout)
    assert (shown["id"], shown["reads_again"]["orders"]) == ("j-2", 1_200)


class Forgetful:
    """A client of a suspended job, and a Kafka that has forgotten the positions of it, unless ``known``."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        import queues

        self.known, self.reachable = False, True
        self.spec = a_job("1 min").spec()
        self.graph = graph_of(self.spec, "d", "j-1")
        self.facts = {link.name: LinkFacts(2, start=[0, 0]) for link in self.graph.links}
        self.point = CheckpointPoint(TEN, {"read": {"t": [7, 9]}}, {"count": [(1, 0, 0)] * 2})
        self.settings = SimpleNamespace(deployment="d", require=self._require)
        self.zk = None
        self.handle: Any = SimpleNamespace(id="j-1", spec=lambda: self.spec, sought=self.note)
        for name, module in {"admin": {"held_positions": self._held}, "topic_log": {"stable_end": self._end}}.items():
            patch.setitem(sys.modules, f"queues.{name}", SimpleNamespace(**module))  # type: ignore[arg-type]
            patch.setattr(queues, name, SimpleNamespace(**module), raising=False)
        patch.setattr(going_back_module, "links_of", lambda *_: LinksNote(self.facts))
        patch.setattr(going_back_module, "of_log", lambda *_: Known([self.point]))

    def note(self) -> JobNote:
        return JobNote("j", "running", 3, 0.0, links="made", suspended=True, checkpoints=[self.point.at])

    def _require(self, _section: str) -> None:
        if not self.reachable:
            raise SetupError("SX-CONFIG-MISSING", "no address")

    def _held(self, _settings: Any, stages: Any, _job: str, **_: Any) -> Any:
        position = Position(8) if self.known else None
        return {s.name: {Partition(link.topic, n): position for link in s.ingress for n in range(2)} for s in stages}

    def _end(self, _settings: Any, place: Partition) -> int:
        assert place.topic == "t"
        return 100 + place.number


TEN = 1_795_687_200_000_000


def test_a_job_whose_positions_are_gone_is_not_resumed_but_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resuming it would read its inputs from their beginning. The client tells the most records that may be read again."""
    client: Any = Forgetful(monkeypatch)
    with pytest.raises(SardonyxError, match="SX-JOB-POSITIONS-LOST") as caught:
        refuse_forgotten(client, client.handle, client.note())
    assert "`sardonyx job rollback j-1` goes back to its last checkpoint, at 2026-11-26T10:00:00Z" in caught.value.fix
    found = going_back(client, client.handle)
    assert (found.at, found.reads_again) == (datetime(2026, 11, 26, 10, tzinfo=UTC), {"t": 93 + 92})
    for note in (None, msgspec.structs.replace(client.note(), checkpoints=[])):
        refuse_forgotten(client, client.handle, note)
    client.reachable = False
    refuse_forgotten(client, client.handle, client.note())
    client.known = client.reachable = True
    refuse_forgotten(client, client.handle, client.note())
