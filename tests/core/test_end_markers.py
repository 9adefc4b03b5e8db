"""End markers: which messages they are, who writes them, and how a job ends at them."""

from __future__ import annotations

import pytest

from peer.sinks import TopicSink
from queues.backlog import unscanned
from queues.batch import HeldPartition, StartingPoint
from queues.messages import END_HEADER, JOB_HEADER, Outgoing, without_markers
from sardonyx import Job, JobInvalid, kafka
from sardonyx.connectors.declarations import problems_of
from sardonyx.connectors.registry import topic_format
from sardonyx.core.events import Counts, LinkFacts
from sardonyx.core.graph import Link, graph_of, has_end, is_bounded, is_endless
from sardonyx.core.positions import Position
from sardonyx.job.validate import validate
from sardonyx.runtime.functions import import_function


class Message:
    """As much of a message as tells an end marker from a record."""

    def __init__(self, offset: int, value: bytes | None, headers: list[tuple[str, bytes]] | None = None) -> None:
        self._offset, self._value, self._headers = offset, value, headers

    def offset(self) -> int:
        return self._offset

    def headers(self) -> list[tuple[str, bytes]] | None:
        return self._headers

    def __len__(self) -> int:
        return len(self._value or b"")


def same(row: dict) -> dict:
    return row


def a_job(*, end: object = "marker", **output: object) -> Job:
    job = Job("b")
    read = job.input("read", kafka("in", start="earliest", end=end))
    job.output("out", kafka("out", **output), after=job.task("work", same, after=read))
    return job


def test_only_a_message_with_the_header_and_without_a_value_is_a_marker():
    """Users' own messages without a value, or with headers, are records."""
    header = [(END_HEADER, b"u")]
    marker, tombstone, record = Message(4, None, header), Message(5, None, [("other", b"")]), Message(6, b"1", header)
    assert without_markers([tombstone, record]) == (None, [tombstone, record])
    assert without_markers([tombstone, marker, record, Message(7, None, header)]) == (4, [tombstone, record])


def test_a_marker_goes_to_each_partition_that_the_topic_has_by_then():
    """With the job's id; without ``end_marker`` there is none."""
    form = topic_format({"format": "json"})
    link = Link("work.out", "out", "output", "work", "out", {"end_marker": True})
    sink = TopicSink(link, form, import_function, "a-1", lambda: 3)
    assert list(sink.sentinels("u")) == []
    assert list(sink.end_markers("u")) == [
        Outgoing("out", None, number, headers=[(END_HEADER, b"u"), (JOB_HEADER, b"a-1")]) for number in range(3)
    ]
    plain = Link("work.out", "out", "output", "work", "out", {})
    assert list(TopicSink(plain, form, import_function, "a-1", lambda: 3).end_markers("u")) == []


def test_a_position_says_whether_markers_were_written():
    """A second sealer reads it. Positions of releases without markers read as before."""
    position = Position(9, Counts(3, 2), "end", marked=True)
    assert Position.read(9, position.metadata()) == position
    assert Position.read(9, '{"in":3,"out":2,"drained":"end"}') == position._replace(marked=False)
    assert "marked" not in position._replace(marked=False).metadata()


def test_a_job_that_waits_for_markers_has_an_end_that_is_not_known():
    """It is scheduled and can be stopped like one that never ends. It may overwrite, as its folder is sealed at the end."""
    graph = graph_of(a_job().spec(), "d", "j")
    (link,) = (link for link in graph.links if link.kind == "input")
    task = graph.stages[0].task
    assert (link.ends_at_marker, is_endless(link), graph.bounded) == (True, True, False)
    read = a_job().spec().task("read")
    assert (is_bounded(read), has_end(read), has_end(task)) == (False, True, True)
    assert graph_of(a_job(end="latest").spec(), "d", "j").bounded


def test_an_output_with_markers_that_several_tasks_write_to_runs_itself():
    """Only one task knows the end of all rows. With one task before it, the output is bound in place as ever."""
    job = a_job(end_marker=True)
    assert [stage.name for stage in graph_of(job.spec(), "d", "j").stages] == ["work"]
    several = Job("b")
    read = several.input("read", kafka("in", start="earliest", end="latest"))
    one, two = several.task("one", same, after=read), several.task("two", same, after=read)
    several.output("out", kafka("out", end_marker=True), after=[one, two])
    assert [stage.name for stage in graph_of(several.spec(), "d", "j").stages] == ["one", "two", "out"]


def test_outputs_with_different_partitioners_do_not_share_a_client():
    """The client of a task has one partitioner, so one of them runs itself. Those that agree are bound in place."""

    def stages(**partitioners: str | None) -> dict[str, str | None]:
        job = Job("b")
        work = job.task("work", same, after=job.input("read", kafka("in", start="earliest", end="latest")))
        for name, partitioner in partitioners.items():
            job.output(name, kafka(name, format="raw", key_partitioner=partitioner), after=work)
        return {stage.name: stage.partitioner for stage in graph_of(job.spec(), "d", "j").stages}

    assert stages(one=None) == {"work": None}
    assert stages(one="murmur2", two="murmur2") == {"work": "murmur2"}
    assert stages(one=None, two="crc32") == {"work": "crc32"}
    assert stages(one="crc32", two="murmur2") == {"work": "crc32", "two": "murmur2"}
    assert stages(one="murmur2", two=None) == {"work": None, "one": "murmur2"}


def test_two_outputs_cannot_share_a_topic_with_markers():
    """Its readers would end at the first marker, before the rows of the other output."""
    job = a_job(end="latest", end_marker=True)
    job.output("too", kafka("out"), after=job.input("read2", kafka("in2", start="earliest", end="latest")))
    with pytest.raises(JobInvalid) as caught:
        validate(job.spec())
    (problem,) = caught.value.problems
    assert problem.code == "SX-JOB-END-MARKER"
    assert "'too' writes to topic 'out', too" in problem.message


@pytest.mark.parametrize(
    ("use", "options", "wrong"),
    [
        ("input", {"start": "marker"}, "start cannot be 'marker'"),
        ("input", {"start": "earliest", "end": "markers"}, "end cannot be 'markers'"),
        ("input", {"start": "earliest", "end_marker": True}, "kafka takes end_marker only as an output"),
        ("output", {"end_marker": "yes"}, "end_marker cannot be 'yes'"),
        ("output", {"end": "marker"}, "kafka takes end only as an input"),
        ("output", {"key_partitioner": "murmur3"}, "key_partitioner cannot be 'murmur3'"),
    ],
)
def test_wrong_options_are_told(use, options, wrong):
    """The input's word and the output's are two."""
    (problem,) = problems_of("kafka", use, {"topic": "t", "format": "json", **options})
    assert wrong in problem.message


def test_a_partition_that_ended_at_its_marker_stays_ended():
    """A dropped batch makes the reader read again from what is committed, but nothing after the marker."""
    held = HeldPartition(StartingPoint(None), 1, 0, None)
    held.view.end, held.view.bound = 5, "marker"
    assert held.view.record(3)
    held.view.end_of_partition(5)
    assert held.view.drained == "marker"
    held.rewind()
    assert (held.view.end, held.view.position) == (None, 0)
    for proof in ("marker", "end"):
        held.start = StartingPoint(Position(5, drained=proof))
        held.rewind()
        assert (held.view.end, held.view.drained, held.view.record(6)) == (5, proof, False)
        assert not held.to_commit
    stopping = HeldPartition(StartingPoint(Position(5, drained="marker")), 1, 0, 5)
    assert (stopping.view.drained, stopping.to_commit) == ("marker", False)


def test_what_comes_after_the_marker_is_no_backlog():
    """A partition that has ended waits for nothing."""
    facts = LinkFacts(1, start=[0])
    assert unscanned(0, facts, Position(5, drained="marker"), 9).left == 0
    assert unscanned(0, facts, Position(5, drained="end"), 9).left == 0
    assert unscanned(0, facts, Position(5), 9).left == 4
