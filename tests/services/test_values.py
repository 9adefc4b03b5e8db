"""The tables of ``docs/values.md`` that need a registry's client or a database; see ``tests/core/test_values_page.py``."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from queues import schema_registry
from sardonyx.connectors.registry import split_input
from sardonyx.core.errors import InputError
from sardonyx.core.spec import TaskSpec
from tests.core.edge_values import REGISTRY, check, database, values_table
from tests.postgres import PASSWORD_ENV, postgres


def test_avro_and_protobuf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """By the real serializers, and a registry in memory."""
    registry = SchemaRegistryClient.new_client({"url": "mock://registry"})
    monkeypatch.setattr(schema_registry, "client", lambda *_: registry)
    check({"registry": values_table(REGISTRY, tmp_path)}, rewrite=request.config.getoption("--rewrite"))


READ = {
    """'{"a": 1.00000000000000000000000001}'::json""": """{"a": 1.00000000000000000000000001}""",
    "'9999-12-31T23:59:59.999999Z'::timestamptz::text": "9999-12-31 23:59:59.999999+00",
}
"""What other programs wrote, and how it is read as a string."""
BAD = (
    "'infinity'::date",
    "'-infinity'::timestamptz",
    "'10000-01-01'::timestamp",
    "'0044-03-15 BC'::date",
    "'24:00'::time",
    "'1 month'::interval",
)


def _read(options: dict[str, str], query: str) -> str:
    more = {"query": f"select 1 as k, {query} as v1", "schema": "k int, v1 string"}
    made = split_input(TaskSpec(name="in", type="input", connector="sql", options={**options, **more}))
    try:
        return str(made.read(next(iter(made.splits())).data)["v1"][0].as_py())
    except InputError as error:
        return str(error)


def test_postgresql(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """By both modes of the output, on a real server; and what only other programs write there."""
    with postgres() as server:
        options = {"url": server.url, "user": "sx", "password_env": PASSWORD_ENV}
        modes = {"append": {}, "upsert": {"mode": "upsert", "key": ["k"]}}
        ways = {name: database(lambda _: options, **mode) for name, mode in modes.items()}
        check({"postgres": values_table(ways, tmp_path)}, rewrite=request.config.getoption("--rewrite"))
        read = {query: _read(options, query) for query in (*READ, *BAD)}
    assert {query: read[query] for query in READ} == READ
    assert {query for query in BAD if read[query].startswith("SX-INPUT-TYPE") and "'v1' holds" in read[query]} == set(
        BAD
    )
