"""A database as the store of a task, as users write it: the builder, job files, and the graph that follows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from keyed_jobs import a_job as keyed_job
from test_relation_jobs import a_job as relation_job
from window_jobs import a_job as window_job
from window_jobs import found

from sardonyx import Job, files, sql
from sardonyx.core.graph import graph_of
from sardonyx.core.spec import database_of, decode_spec, encode_spec
from sardonyx.core.stores import SqlStore
from sardonyx.job.parse import read

URL = "postgresql://host/state"
JOBS: dict[str, tuple[Callable[..., Job], str]] = {
    "window": (window_job, "per-user"),
    "keyed": (keyed_job, "spend"),
    "relation": (relation_job, "meet"),
}
every_kind = pytest.mark.parametrize("kind", JOBS)


@every_kind
def test_a_task_keeps_its_state_in_a_database(kind: str) -> None:
    """The spec says which, and survives its encoding. There is no log of the state in Kafka."""
    make, name = JOBS[kind]
    job = make(store=sql(URL, user="sx", password_env="SECRET_OF_STATE"))  # noqa: S106 - a name
    assert found(job) == []
    spec = job.spec()
    assert decode_spec(encode_spec(spec)) == spec
    assert database_of(spec.task(name)) == SqlStore(url=URL, user="sx", password_env="SECRET_OF_STATE")  # noqa: S106 - a name
    assert not [link for link in graph_of(spec, "d", "j").links if link.kind == "state"]


@every_kind
def test_a_job_file_says_it_in_short(kind: str) -> None:
    """``store: {sql: address}``."""
    make, name = JOBS[kind]
    job = make()
    data = {**job.data(), "catalog": [dict(entry) for entry in job.data()["catalog"]]}
    (entry,) = [entry for entry in data["catalog"] if entry["name"] == name]
    entry[kind] = {**entry[kind], "store": {"sql": URL}}
    spec, problems = read(data)
    assert not problems
    assert spec == make(store=sql(URL)).spec()


@every_kind
@pytest.mark.parametrize(
    ("store", "words"),
    [
        (sql("postgresql://sx:secret@host/state"), "password"),
        (sql("mysql://host/state"), "postgresql"),
        (files("/data", format="json"), "files() is not a store of state"),
    ],
)
def test_what_is_no_store_is_refused(kind: str, store: object, words: str) -> None:
    """At check, with what to write instead; no password stands in a job."""
    make, _ = JOBS[kind]
    problems = found(make(store=store))
    assert problems
    assert all(problem.fix for problem in problems)
    assert any(words in f"{problem.message} {problem.cause} {problem.fix}" for problem in problems)
    assert "secret" not in " ".join(map(str, problems))
