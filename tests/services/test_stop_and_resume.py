"""An unbounded job is stopped, and another one goes on where it ended: nothing twice, nothing left out, also under kills."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from sardonyx import Count, Job, State, Sum, event_time, kafka, tumbling
from sardonyx.client.job_handle import JobHandle
from sardonyx.core.errors import JobFailed, SardonyxError
from sardonyx.testing import Cluster, Fault, kill_at, pause_at
from tests.services.house import House, written
from tests.waiting import until


def add(row: dict, seen: State[int]) -> dict:
    seen.value += 1
    return {**row, "seen": seen.value}


def test_a_suspended_job_goes_on_with_its_state(sardonyx_clusters: Callable[..., Cluster]) -> None:
    """Its peers leave, and nothing comes out although records come in. Resumed, it goes on in its queues and with its states,
    also where peers die: each record comes out once, and counts up by one.
    """
    quick = {"zookeeper.session_timeout": "2 s", "peer.session_timeout": "3 s"}
    with sardonyx_clusters(**quick) as cluster:
        given, out = cluster.topic("given", ({"n": n} for n in range(300))), cluster.topic("out")
        job = Job("suspended", partitions=2)
        read = job.input("read", kafka(given, schema="n long", start="earliest"))
        job.output("out", kafka(out), after=job.keyed("count", add, after=read, batch_size=20))
        cluster.peers(2, faults=[kill_at("committed", 3), kill_at("written", 9)])
        handle = cluster.submit(job)
        until(lambda: len(cluster.records(out)) > 40, what="the first results")
        handle.suspend()
        until(lambda: not any(task.peers for task in handle.status().tasks), what="its peers to leave")
        assert {reason.code for reason in handle.explain(look=False).explanation.reasons} == {"suspended"}
        known = len(cluster.records(out))
        cluster.fill(given, ({"n": n} for n in range(300, 400)))
        handle.scale(weight=2.0)
        view = handle.status()
        assert (view.status, view.suspended, view.waits_for) == ("running", True, 0)
        assert len(cluster.records(out)) == known
        handle.resume()
        until(lambda: len(cluster.records(out)) >= 400, what="all results")
        found = cluster.records(out)
        assert sorted(row["n"] for row in found) == list(range(400))
        assert sorted(row["seen"] for row in found) == list(range(1, 401))
        handle.suspend()
        handle.stop()
        assert handle.await_completion(300).status == "stopped"
        with pytest.raises(SardonyxError, match="SX-JOB-ENDED"):
            handle.resume()


def test_a_job_that_is_stopped_may_have_its_windows_close(sardonyx_clusters: Callable[..., Cluster]) -> None:
    """Each row that was read is in one result, as of a job whose input has an end, also where peers die while it ends. No job can
    go on with its states then, which is said before it is tried.
    """
    quick = {"zookeeper.session_timeout": "2 s", "peer.session_timeout": "3 s"}
    with sardonyx_clusters(**quick) as cluster:
        rows = [{"n": n, "at": 1_700_000_000 + n} for n in range(300)]
        given, out = cluster.topic("given", rows, partitions=2), cluster.topic("out")

        def counting() -> Job:
            job = Job("closing", partitions=2)
            read = job.input(
                "read", kafka(given, schema="n long, at long", start="earliest"), time=event_time("at", unit="s")
            )
            counted = job.window("count", tumbling("1 h"), after=read, aggregate={"rows": Count(), "sum": Sum("n")})
            job.output("out", kafka(out), after=counted)
            return job

        cluster.peers(4, faults=[kill_at("seal"), kill_at("sealed")])
        handle = cluster.submit(counting())
        until(
            lambda: sum(task.rows_in or 0 for task in handle.status().tasks if task.name == "count") == 300,
            what="all rows",
        )
        assert cluster.records(out) == []
        handle.stop(close_windows=True)
        assert handle.await_completion(300).status == "stopped"
        found = cluster.records(out)
        assert (sum(row["rows"] for row in found), sum(row["sum"] for row in found)) == (300, sum(range(300)))
        with pytest.raises(JobFailed, match="its windows were closed"):
            cluster.client.submit(counting(), resume=handle.id)


def test_a_stopped_job_goes_on_with_another_number_of_partitions(sardonyx_clusters: Callable[..., Cluster]) -> None:
    """Each key finds its count in its new partition, and the windows that were open close with the rows of both jobs. Peers die
    while the states move.
    """
    quick = {"zookeeper.session_timeout": "2 s", "peer.session_timeout": "3 s"}
    with sardonyx_clusters(**quick) as cluster:

        def rows(*span: int) -> list[dict[str, int]]:
            return [{"n": n, "user": n % 20, "at": 1_700_000_000 + n} for n in range(*span)]

        given, out, windows = cluster.topic("given", rows(200)), cluster.topic("out"), cluster.topic("windows")

        def outgrown(partitions: int) -> Job:
            job = Job("outgrown", partitions=partitions)
            schema = "n long, user long, at long"
            read = job.input("read", kafka(given, schema=schema, start="earliest"), time=event_time("at", unit="s"))
            job.output("out", kafka(out), after=job.keyed("count", add, after=read, group_by="user", batch_size=20))
            hours = job.window("hours", tumbling("1 h"), after=read, group_by="user", aggregate={"rows": Count()})
            job.output("windows", kafka(windows), after=hours)
            return job

        before = cluster.peers(4)
        first = cluster.submit(outgrown(2))
        until(lambda: len(cluster.records(out)) == 200, what="the first results")
        first.stop()
        assert first.await_completion(300).status == "stopped"
        cluster.fill(given, rows(200, 400))
        before.stop()
        cluster.peers(4, faults=[kill_at("applied", 1), kill_at("committed", 2), kill_at("written", 3)])
        second = cluster.client.submit(outgrown(5), resume=first.id)
        until(lambda: len(cluster.records(out)) >= 400, what="all results")
        found = cluster.records(out)
        assert sorted((row["user"], row["seen"]) for row in found) == [(u, n) for u in range(20) for n in range(1, 21)]
        assert {tuple(row.key): row.states for row in second.state("count")} == {(u,): {"seen": 20} for u in range(20)}
        assert [row.states for row in second.state("count", [7])] == [{"seen": 20}]
        assert cluster.records(windows) == []
        second.stop(close_windows=True)
        assert second.await_completion(300).status == "stopped"
        assert sorted((row["user"], row["rows"]) for row in cluster.records(windows)) == [(u, 20) for u in range(20)]


CHANGING = """
from sardonyx import Job, State, kafka

def add(row: dict, seen: State[int]) -> dict:
    seen.value += 1
    {line}
    return {{**row, "seen": seen.value, "version": {version}}}

job = Job("changing", partitions=2, failure_limit=1)
read = job.input("read", kafka("{topic}", schema="n long", start="earliest"))
job.output("out", kafka("{topic}-out"), after=job.keyed("count", add, after=read, batch_size={batch}))
"""


def test_a_running_job_goes_on_by_another_version(house: House, tmp_path: Path) -> None:
    """Each record is worked by one version, and the state counts on. A version that fails is kept, suspended, until it is
    changed again. What cannot be changed is refused, and two users cannot change the same revision.
    """

    def version(number: int, line: str = "pass", batch: int = 20) -> str:
        text = CHANGING.format(topic=topic, version=number, line=line, batch=batch)
        return written(tmp_path / f"version{number}{batch}", text)

    def found() -> list[dict]:
        return house.records(f"{topic}-out")

    topic = house.make_topic("changing")
    house.fill(topic, *numbers(600))
    handle = house.client.submit(version(1))
    until(lambda: len(found()) > 40, what="the first results")
    changed = house.call("job", "change", handle.id, version(2, batch=50))
    assert changed.exit_code == 0, changed.output
    assert changed.stdout == f"job {handle.id} goes on by revision 2\n"
    assert handle.change(version(2, batch=50)) == 2, "nothing differs"
    until(lambda: len(found()) >= 600, what="the results of both")

    with pytest.raises(SardonyxError, match="SX-JOB-CHANGE") as refused:
        handle.change(written(tmp_path / "other", version_text(topic).replace("partitions=2", "partitions=3")))
    assert "with 3 partitions its keys would be in other ones" in refused.value.message
    handle.change(version(3, line="raise ValueError('no')"), timeout=300)
    house.fill(topic, *numbers(600, 700))
    until(lambda: handle.status(live=False).suspended, what="the job to be suspended")
    view = handle.status()
    assert (view.status, view.revision) == ("running", 3)
    assert view.error is not None
    assert view.error.code.startswith("SX-FN-")
    handle.change(version(4), timeout=300)
    handle.resume()
    until(lambda: len(found()) >= 700, what="all results")
    handle.stop()
    assert handle.await_completion(300).status == "stopped"
    rows = found()
    assert sorted(row["n"] for row in rows) == list(range(700))
    assert sorted(row["seen"] for row in rows) == list(range(1, 701))
    assert {row["version"] for row in rows} == {1, 2, 4}
    with pytest.raises(SardonyxError, match="SX-JOB-ENDED"):
        handle.change(version(5))


def version_text(topic: str) -> str:
    return CHANGING.format(topic=topic, version=9, line="pass", batch=20)


JOB = """
from sardonyx import Job, kafka

def marked(row: dict) -> dict:
    return {{**row, "version": {version}}}

def same(row: dict) -> dict:
    return row

job = Job("deployed", partitions=2)
read = job.input("read", kafka("{topic}", schema="n long", start="{start}", end={end}))
marks = job.task("{name}", marked, after=read, batch_size=50)
job.output("out", kafka("{topic}-out"), after=job.task("passes", same, after=marks, batch_size=50))
"""


def text(topic: str, version: int = 1, start: str = "earliest", end: str | None = None, name: str = "marks") -> str:
    return JOB.format(topic=topic, version=version, start=start, end=end and repr(end), name=name)


def numbers(*span: int) -> list[bytes]:
    return [b'{"n": %d}' % n for n in range(*span)]


def read_by(handle: JobHandle, records: int) -> list[int]:
    """The numbers that a job has read: in turn from two partitions, up to its positions."""
    ((reached,),) = (task.values() for task in handle.positions().values())
    return [n for n in range(records) if n // 2 < reached[n % 2]]


@pytest.mark.gate
def test_a_deployment_goes_on_where_the_last_one_stood(house: House, tmp_path: Path) -> None:
    """Stop, change the function, submit with --resume: each record is processed once, by one version or by the other. Only one
    job goes on from a stopped one. A job that is submitted without --resume is warned.
    """
    topic = house.make_topic("deployed")
    house.fill(topic, *numbers(3_000))
    first = house.submit(tmp_path / "first", text(topic))
    until(lambda: len(house.records(f"{topic}-out")) > 100, what="the first results")
    next_one = written(tmp_path / "next", text(topic, version=2, start="latest"))
    compared = house.call("job", "diff", "deployed", next_one, "--exit-code")
    assert compared.exit_code == 1, compared.output
    assert f"sardonyx job change {first.id} {next_one} --restart\n" in compared.stdout
    assert "(module job differs)" in compared.stdout
    assert "(module job differs, but not the text of same)" in compared.stdout
    assert house.call("job", "diff", first.id, str(tmp_path / "first/job.py"), "--exit-code").exit_code == 0
    stopped = house.call("job", "stop", "deployed", "--timeout", "5 min")
    assert (stopped.exit_code, first.status().status) == (0, "stopped"), stopped.output
    assert f"job {first.id} is stopped" in stopped.stdout
    assert f"--resume {first.id}" in stopped.stderr
    assert "SX-" not in stopped.stderr
    done = read_by(first, 3_000)
    assert sorted(record["n"] for record in house.records(f"{topic}-out")) == done

    warned = house.call("job", "submit", written(tmp_path / "warned", text(topic, start="latest")))
    assert f"submit with `--resume {first.id}`" in " ".join(warned.stderr.split())
    house.clear()
    house.fill(topic, *numbers(3_000, 4_000))
    second = written(tmp_path / "second", text(topic, version=2, start="latest"))
    submitted = house.call("job", "submit", second, "--resume", first.id)
    assert submitted.exit_code == 0, submitted.output
    resumed = house.client.job(submitted.stdout.strip())

    def all_done() -> bool:
        return len(house.records(f"{topic}-out")) >= 4_000

    until(all_done, what="all records")
    resumed.stop()
    assert resumed.await_completion(300).status == "stopped"
    found = sorted((record["n"], record["version"]) for record in house.records(f"{topic}-out"))
    assert found == [(n, 1 if n in set(done) else 2) for n in range(4_000)]

    again = house.call("job", "submit", second, "--resume", first.id)
    assert again.exit_code == 1
    assert f"{resumed.id} has resumed it" in again.stderr
    assert f"{resumed.id} has resumed it" in house.call("job", "diff", first.id, second).stdout
    assert f"resumed by {resumed.id}" in house.call("job", "show", first.id).stdout


@pytest.mark.parametrize("way", ["stopped", "suspended"])
def test_a_topic_that_was_made_anew_is_not_read_on(house: House, tmp_path: Path, way: str) -> None:
    """It has more records than the former one, so that the positions look as if they were its own."""
    topic = house.make_topic(f"anew-{way}")
    house.fill(topic, *numbers(100))
    again = first = house.submit(tmp_path / "first", text(topic))
    until(lambda: len(house.records(f"{topic}-out")) == 100, what="the results")
    if way == "stopped":
        first.stop()
        assert first.await_completion(300).status == "stopped"
    else:
        first.suspend()
        until(lambda: not any(task.peers for task in first.status().tasks), what="its peers to leave")
    house.forget(topic)
    house.make_topic(f"anew-{way}")
    house.fill(topic, *numbers(250))
    if way == "stopped":
        again = house.client.submit(written(tmp_path / "next", text(topic, version=2)), resume=first.id)
    else:
        first.resume()
    with pytest.raises(JobFailed, match="SX-INPUT-RECREATED") as caught:
        again.await_completion(300)
    assert caught.value.where["topic"] == topic
    assert len(house.records(f"{topic}-out")) == 100


def test_what_cannot_be_resumed_is_refused_with_the_reason(house: House, tmp_path: Path) -> None:
    """A job that runs, one that was killed with records between its tasks, and one whose task has another name. A bounded job
    cannot be stopped; what one that has completed left can be read by the next. A name means the last job that has read
    something, not an attempt that was refused.
    """
    topic = house.make_topic("refused")
    house.fill(topic, *numbers(100))

    def refusal(handle: JobHandle, spec: str) -> str:
        with pytest.raises(JobFailed) as caught:
            house.client.submit(spec, resume=handle.id)
        assert caught.value.code == "SX-JOB-RESUME"
        return caught.value.message

    other = written(tmp_path / "other", text(topic, name="renamed").replace('"deployed"', '"other"'))
    running = house.submit(tmp_path / "running", text(topic))
    until(lambda: running.status(live=False).status == "running", what="the job to run")
    assert "it is running" in refusal(running, other)
    (foreseen,) = [found for found in running.diff(other).refusals if found.way == "resume"]
    assert "no task marks of the new job reads topic" in foreseen.failure.message
    house.clear()
    running.await_resumable(300)
    assert "it was killed" in refusal(running, other)
    assert running.diff(other).refusals[0].failure.message == refusal(running, other)

    day = house.submit(tmp_path / "day", text(topic, end="latest"))
    with pytest.raises(SardonyxError, match="SX-JOB-BOUNDED"):
        day.stop()
    house.completed(day)
    assert "no task marks of the new job reads topic" in refusal(day, other)
    same_name = written(tmp_path / "same", text(topic, end="latest", name="renamed"))
    assert "no task marks of the new job reads topic" in refusal(day, same_name)
    before = house.records(f"{topic}-out")
    house.fill(topic, *numbers(100, 140))
    house.completed(house.client.submit(written(tmp_path / "next", text(topic, end="latest")), resume="deployed"))
    found = sorted(record["n"] for record in house.records(f"{topic}-out"))
    assert found == sorted([*(record["n"] for record in before), *range(100, 140)])
    told_of = " ".join(house.call("job", "submit", same_name).stderr.split())
    assert "it cannot be resumed: " in told_of
    assert "no task marks of the new job reads topic" in told_of
    assert "--resume" not in told_of


def test_partitions_that_were_added_are_not_read_twice(house: House, tmp_path: Path) -> None:
    """What an unbounded job has read of a partition that was added while it ran is not read again by the job that resumes it."""
    topic = house.make_topic("wider")
    house.fill(topic, *numbers(10))
    admin = AdminClient({**house.settings.kafka.client(), "log_level": 0})
    first = house.submit(tmp_path / "first", text(topic))
    until(lambda: len(house.records(f"{topic}-out")) == 10, what="the first results")
    for future in admin.create_partitions([NewPartitions(topic, 3)]).values():
        future.result(30)
    house.put(topic, 2, *numbers(10, 20))
    first.stop()
    first.await_completion(300)
    second = house.client.submit(written(tmp_path / "second", text(topic)), resume=first.id)
    until(lambda: len(house.records(f"{topic}-out")) >= 20, what="all results")
    second.stop()
    second.await_completion(300)
    assert sorted(record["n"] for record in house.records(f"{topic}-out")) == list(range(20))


def same(row: dict) -> dict:
    return row


@pytest.mark.parametrize(
    "scripts",
    [
        pytest.param([[kill_at("seal"), kill_at("sealed"), kill_at("complete")]], id="kills"),
        pytest.param([[pause_at("begin", 6, 8)], []], id="a pause", marks=pytest.mark.long),
        pytest.param([[kill_at("committed", 9), kill_at("exhausted")]], id="other kills", marks=pytest.mark.long),
    ],
)
def test_a_stop_under_kills_leaves_nothing_out(
    scripts: list[list[Fault]], sardonyx_clusters: Callable[..., Cluster]
) -> None:
    """Peers die or sleep through the stop, and so does the leader. The job that resumes gives the rest, and every record once."""
    quick = {"zookeeper.session_timeout": "2 s", "peer.session_timeout": "3 s"}
    with sardonyx_clusters(**quick) as cluster:
        topic = cluster.topic("in", ({"n": n} for n in range(2_000)))
        sent = cluster.topic("sent")
        (leader,) = cluster.daemons
        cluster.coordinator()

        def deployed() -> Job:
            job = Job("deployed", partitions=2)
            read = job.input("read", kafka(topic, start="earliest"))
            passed = job.task("pass", same, after=read, batch_size=50)
            job.output("sent", kafka(sent), after=job.task("again", same, after=passed, batch_size=50), batch_size=50)
            return job

        for script in scripts:
            cluster.peers(4 // len(scripts), faults=script)
        first = cluster.submit(deployed())
        until(lambda: len(cluster.records(sent)) > 200, what="the first results")
        first.stop()
        leader.process.kill()
        assert first.await_completion(300).status == "stopped"
        reached = first.positions()["pass"][topic]
        done = sorted(row["n"] for row in cluster.records(sent))
        assert done == [n for n in range(2_000) if n // 2 < reached[n % 2]]
        cluster.fill(topic, ({"n": n} for n in range(2_000, 2_500)))
        second = cluster.client.submit(deployed(), resume=first.id)
        until(lambda: len(cluster.records(sent)) >= 2_500, what="all records")
        second.stop()
        assert second.await_completion(300).status == "stopped"
        assert sorted(row["n"] for row in cluster.records(sent)) == list(range(2_500))
