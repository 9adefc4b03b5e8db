"""docker-compose.yml and the Dockerfile, read as text: Docker runs in few places, but these mistakes can be found anywhere."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from sardonyx.cli.app import app
from sardonyx.client.health import KINDS
from sardonyx.runtime.settings import ENV_PREFIX, Settings, is_known

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DAEMONS = [name for name in SERVICES if name.startswith(("coordinator", "peer"))]
EXACT = re.compile(r"[\w./-]+:\d+\.\d+\.\d+[\w.-]*")
REPLACEABLE = re.compile(r"\$\{[A-Z_]+:-(.+)\}")
"""A value that a variable may replace, with its default."""


def default_of(value: str) -> str:
    """What stands for ``${NAME:-default}`` if the variable is not set."""
    found = REPLACEABLE.fullmatch(value)
    assert found, f"{value} cannot be replaced by a variable"
    return found[1]


def test_one_daemon_of_each_kind_may_die() -> None:
    """Another coordinator takes over, and another peer on another host: the cluster shows what Sardonyx is for."""
    hosts = {kind: {SERVICES[name]["hostname"] for name in DAEMONS if name.startswith(kind)} for kind in KINDS}
    assert all(len(names) >= 2 for names in hosts.values()), hosts


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_each_service_is_pinned_watched_and_restarted(name: str) -> None:
    """An exact image, which may be replaced by one with a digest, a health check that gives up, a restart policy, a limit of
    memory.
    """
    service = SERVICES[name]
    assert EXACT.fullmatch(default_of(service["image"])), service["image"]
    assert service["healthcheck"]["test"][0] in {"CMD", "CMD-SHELL"}
    assert {"interval", "timeout", "retries"} <= service["healthcheck"].keys()
    assert service["restart"] == "unless-stopped"
    assert re.search(r"\d+[mg]\}?$", service["mem_limit"])


def test_all_daemons_see_the_shared_folder() -> None:
    """Peers write files there, and coordinators tidy up what killed jobs leave. The path is the same inside and outside."""
    (shared,) = {volume for name in DAEMONS for volume in SERVICES[name]["volumes"]}
    outside, _, inside = shared.partition("}:")
    assert f"{outside}}}" == inside
    assert all(shared in SERVICES[name]["volumes"] for name in DAEMONS)


def test_the_versions_are_ones_that_we_support() -> None:
    """ZooKeeper 3.9 from 3.9.5 on, Kafka 4."""
    version = tuple(int(part) for part in default_of(SERVICES["zookeeper"]["image"]).rpartition(":")[2].split("."))
    assert (3, 9, 5) <= version < (3, 10)
    assert default_of(SERVICES["kafka"]["image"]).rpartition(":")[2].startswith("4.")


@pytest.mark.parametrize("name", DAEMONS)
def test_each_daemon_runs_a_command_that_exists(name: str) -> None:
    """The real CLI parses the command line, and the service has the name of the command."""
    program, *arguments = SERVICES[name]["command"]
    assert program == "sardonyx"
    group = typer.main.get_command(app)
    with group.make_context("sardonyx", list(arguments), resilient_parsing=True) as context:
        assert isinstance(group, typer.core.TyperGroup)
        command_name, command, rest = group.resolve_command(context, list(arguments))
        assert command_name == name.partition("-")[0]
        assert command is not None
        command.make_context(command_name, rest, parent=context)


@pytest.mark.parametrize("name", DAEMONS)
def test_each_daemon_is_given_settings_that_exist(name: str) -> None:
    """Every variable is a setting, and the other services listen at these addresses."""
    environment = SERVICES[name]["environment"]
    for variable in environment:
        assert variable.startswith(ENV_PREFIX)
        assert is_known(variable.removeprefix(ENV_PREFIX).lower().replace("__", ".")), variable
    assert environment["SARDONYX__ZOOKEEPER__HOSTS"] == "zookeeper:2181"
    inside = environment["SARDONYX__KAFKA__BOOTSTRAP_SERVERS"]
    assert f"://{inside}" in SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]


@pytest.mark.parametrize("name", DAEMONS)
def test_each_daemon_waits_for_healthy_services_and_proves_its_own_health(name: str) -> None:
    """It starts when ZooKeeper and Kafka answer, and is healthy when its own node is in ZooKeeper."""
    service = SERVICES[name]
    for other in ("zookeeper", "kafka"):
        assert service["depends_on"][other] == {"condition": "service_healthy"}
    assert all(needed in SERVICES for needed in service["depends_on"])
    *asks, kind = service["healthcheck"]["test"]
    assert asks == ["CMD", "python", "-m", "sardonyx.client.health"]
    assert kind in KINDS
    assert name.startswith(kind)
    assert service["hostname"] == name


def test_make_gives_the_daemons_a_job() -> None:
    """``make test-compose`` submits to the deployment, at the ports and with the shared folder that the daemons have, by a module
    that ``tests/services/test_cluster_job.py`` runs without Docker.
    """
    steps = subprocess.run(["make", "-n", "test-compose"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (shared,) = {
        default_of(volume.partition("}:")[0] + "}") for name in DAEMONS for volume in SERVICES[name]["volumes"]
    }
    up, job, suite = (steps.index(step) for step in ("compose up", "-m tests.services.cluster_job", "pytest"))
    assert up < job < suite
    assert (ROOT / "tests/services/cluster_job.py").exists()
    assert steps.count(f"${{SARDONYX_SHARED:-{shared}}}") >= 2
    for service in ("zookeeper", "kafka"):
        (port,) = SERVICES[service]["ports"]
        outside = port.removeprefix("127.0.0.1:").rpartition(":")[0]
        assert f"{service}=127.0.0.1:{outside};" in steps
    assert "SARDONYX__ZOOKEEPER__HOSTS=$zookeeper SARDONYX__KAFKA__BOOTSTRAP_SERVERS=$kafka" in steps


def test_nothing_is_published_beyond_loopback() -> None:
    """This ZooKeeper and this Kafka need no password."""
    for service in SERVICES.values():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:")


def test_zookeeper_grants_the_sessions_that_we_ask_for() -> None:
    """The default session timeout lies within 2 to 20 ticks."""
    tick = int(SERVICES["zookeeper"]["environment"]["ZOO_TICK_TIME"]) / 1000
    assert 2 * tick <= Settings().zookeeper.session_timeout <= 20 * tick


def test_volumes_and_files_that_are_named_exist() -> None:
    """Named volumes are declared. What the Dockerfile copies exists, and .dockerignore lets it in."""
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert source.startswith(("/", "${")) or source in COMPOSE["volumes"]
    dockerfile = (ROOT / "Dockerfile").read_text("utf-8")
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")}
    for copied in re.findall(r"^COPY (.+) \S+$", dockerfile, re.MULTILINE):
        for source in copied.split():
            assert (ROOT / source).exists(), source
            assert source in let_in, source


def test_the_image_has_the_python_and_java_that_we_need() -> None:
    """An exact Python image of 3.11 or newer, Java 17 or newer."""
    dockerfile = (ROOT / "Dockerfile").read_text("utf-8")
    base = re.search(r"^FROM python:(\d+)\.(\d+)\.\d+-slim-\w+$", dockerfile, re.MULTILINE)
    assert base
    assert (int(base[1]), int(base[2])) >= (3, 11)
    java = re.search(r"openjdk-(\d+)-jre-headless", dockerfile)
    assert java
    assert int(java[1]) >= 17
