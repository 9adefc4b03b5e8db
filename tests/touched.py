"""Which tests on services show a change, by the folders that it touches: what ``make test-touched`` runs beside the core."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

SERVICES = Path(__file__).parent / "services"

TESTS: dict[str, tuple[str, ...]] = {
    "coordinator/history": ("history", "snapshots", "backup"),
    "coordinator/kafka": ("loss", "trim", "change_of_graph", "resize", "left_behind"),
    "coordinator": ("coordinator*", "leadership", "takeover", "intake", "log", "histories", "node_gc"),
    "peer/graph_operator": ("graph*",),
    "peer/superstep_operator": ("graphs_of_several_peers",),
    "peer/loop": ("cycles", "rounds"),
    "peer/standby": ("standby", "kept_state"),
    "peer": ("task_loop", "peer_daemon", "work", "windows", "keyed", "records", "kafka_to_kafka", "shapes"),
    "queues": (
        "queue",
        "transactions",
        "membership",
        "fencing",
        "client_hangs",
        "kafka_to_kafka",
        "loss",
        "lag",
        "peek",
    ),
    "sentinel": ("queue", "end_markers", "shapes"),
    "spark_tasks/graphs": ("graph*",),
    "spark_tasks": ("spark_*", "read_and_apply", "multiread", "bad_input", "records"),
    "sardonyx/cli": ("cli", "front_door", "tutorial", "topic_commands"),
    "sardonyx/client": ("client*", "cli", "stop_and_resume", "going_back", "replay", "change_*", "try", "trace"),
    "sardonyx/connectors": ("connector_positions", "databases", "schema_registry", "rolling", "full_disk", "flights"),
    "sardonyx/core": ("kafka_to_kafka", "shapes", "coordinator"),
    "sardonyx/dev": ("embedded", "secured", "own_user", "front_door"),
    "sardonyx/graphs": ("graph*",),
    "sardonyx/job": ("shapes", "examples"),
    "sardonyx/pipeline": ("streams",),
    "sardonyx/runtime": ("peer_daemon", "coordinator_processes", "metrics", "secret_values"),
    "sardonyx/state": ("windows", "keyed", "state_*", "sql_state", "joins", "checkpoints", "kept_state", "clock"),
    "sardonyx/testing": ("testing*",),
    "sardonyx/web": ("web*", "telemetry"),
    "sardonyx/zookeeper": ("zookeeper_session", "wire", "leadership", "secured"),
    "examples": ("examples", "fraud", "flights", "tutorial"),
}
"""For the beginning of a path: names of files in tests/services, without ``test_``. The longest beginning that fits counts."""


def services_for(changed: Iterable[str]) -> list[str]:
    """The files of tests on services that show changes of these files, from the root of the repository."""
    found: set[str] = set()
    for path in changed:
        if path.startswith("tests/services/test_") and (SERVICES / Path(path).name).exists():
            found.add(Path(path).name)
        fitting = [start for start in TESTS if path.startswith(start)]
        for name in TESTS[max(fitting, key=len)] if fitting else ():
            found |= {each.name for each in SERVICES.glob(f"test_{name}.py")}
    return [f"tests/services/{name}" for name in sorted(found)]
