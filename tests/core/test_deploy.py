"""The units for systemd and the manifests for Kubernetes, read as text: names that fit, commands and settings that exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from sardonyx.cli.app import app
from sardonyx.core.version import VERSION
from sardonyx.runtime.settings import ENV_PREFIX, Settings, is_known

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
KUBERNETES = ROOT / "deploy/kubernetes"
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
MANIFESTS: list[dict[str, Any]] = [
    each for name in KUSTOMIZATION["resources"] for each in yaml.safe_load_all((KUBERNETES / name).read_text())
]
PODS = {each["metadata"]["name"]: each for each in MANIFESTS if each["kind"] == "Deployment"}
EXAMPLE: dict[str, Any] = tomllib.loads((KUBERNETES / "sardonyx.example.toml").read_text())
LAST_STEPS = re.search(r"^_LAST_STEPS = ([\d.]+)$", (ROOT / "peer/daemon.py").read_text(), re.MULTILINE)
assert LAST_STEPS
DRAIN = Settings().peer.transaction_timeout + float(LAST_STEPS[1])
"""Seconds after which a peer daemon that drains has ended by itself."""


def unit_of(path: Path) -> ConfigParser:
    unit = ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[method-assign,assignment]
    unit.read_string(path.read_text())
    return unit


def parses(words: list[str], name: str) -> None:
    """The real CLI takes this command line, whose command is the one that the file is named after."""
    program, *arguments = words
    assert program.endswith("sardonyx")
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    with group.make_context("sardonyx", list(arguments), resilient_parsing=True) as context:
        command_name, command, rest = group.resolve_command(context, list(arguments))
        assert (command_name, name) == (name, command_name)
        assert command is not None
        command.make_context(command_name, rest, parent=context)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_ends_its_daemon_as_it_must(path: Path) -> None:
    """SIGTERM goes to the daemon alone, because a peer that drains needs its Spark; and it has the time to drain."""
    service = unit_of(path)["Service"]
    parses(shlex.split(service["ExecStart"]), path.stem.removeprefix("sardonyx-"))
    assert service["KillMode"] == "mixed"
    if path.stem == "sardonyx-peer":
        assert int(service["TimeoutStopSec"]) > DRAIN
    assert service["Restart"] == "on-failure"
    assert service["User"] == "sardonyx"
    assert unit_of(path)["Unit"]["StartLimitIntervalSec"] == "0", "it goes on trying while ZooKeeper is away"
    assert not any("PASSWORD" in value.upper() for value in service.values()), "the command line is seen by every user"


def test_the_example_of_an_environment_holds_settings() -> None:
    """Each variable is a setting, and its value one that it can have."""
    lines = (ROOT / "deploy/systemd/environment.example").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    for name in given:
        assert is_known(name.removeprefix(ENV_PREFIX).lower().replace("__", ".")), name
    (file,) = {unit_of(path)["Service"]["EnvironmentFile"] for path in UNITS}
    assert f"# {file}," in lines[0]


def test_the_example_of_settings_can_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the real settings, from the file in the working directory, as in a pod."""
    (tmp_path / "sardonyx.toml").write_text((KUBERNETES / "sardonyx.example.toml").read_text())
    monkeypatch.chdir(tmp_path)
    settings = Settings()
    settings.require("zookeeper", "kafka")
    assert settings.deployment == EXAMPLE["deployment"]


@pytest.mark.parametrize("name", sorted(PODS))
def test_a_pod_runs_a_command_with_settings_and_time_to_end(name: str) -> None:
    """It reads the settings where it works; it is no root and writes only to volumes of its own; it has a limit of memory; a
    peer has the time to drain.
    """
    pod = PODS[name]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    parses(container["command"], name.removeprefix("sardonyx-"))
    assert container["image"] in {each["name"] for each in KUSTOMIZATION["images"]}
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert f"USER {pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" in dockerfile
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert pod["automountServiceAccountToken"] is False
    assert "memory" in container["resources"]["limits"]
    mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
    assert {each["name"] for each in pod["volumes"]} == {each["name"] for each in container["volumeMounts"]}
    assert mounts[f"{container['workingDir']}/sardonyx.toml"]["readOnly"] is True
    given = {variable["name"]: variable for variable in container["env"]}
    assert given["TMPDIR"]["value"] in mounts
    if name != "sardonyx-web":  # the name of a pod leads nowhere: Prometheus needs its address
        advertised = given["SARDONYX__METRICS__ADVERTISE"]["valueFrom"]
        assert advertised == {"fieldRef": {"fieldPath": "status.podIP"}}
    if name == "sardonyx-peer":
        assert pod["terminationGracePeriodSeconds"] > DRAIN


@pytest.mark.parametrize("name", ["sardonyx-coordinator", "sardonyx-peer"])
def test_the_probes_of_a_daemon_ask_what_it_serves(name: str) -> None:
    """At the port of ``metrics.listen`` in the example. No probe that restarts a daemon depends on ZooKeeper."""
    template = PODS[name]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    (port,) = container["ports"]
    listens = EXAMPLE["metrics"]["listen"].rpartition(":")[2]
    assert str(port["containerPort"]) == listens == template["metadata"]["annotations"]["prometheus.io/port"]
    paths = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "startup", "readiness")}
    assert paths == {"liveness": "/livez", "startup": "/livez", "readiness": "/readyz"}


def test_all_names_and_labels_fit() -> None:
    """Each selector finds the pods of one deployment; each daemon of which there are several has a budget for disruptions."""
    labels = {name: each["spec"]["template"]["metadata"]["labels"] for name, each in PODS.items()}
    for each in MANIFESTS:
        spec = each["spec"]
        selector = spec.get("selector") or spec.get("podSelector")
        wanted = selector.get("matchLabels", selector)
        found = [name for name, having in labels.items() if wanted.items() <= having.items()]
        assert found == [each["metadata"]["name"]], each["kind"]
    budgets = {each["metadata"]["name"] for each in MANIFESTS if each["kind"] == "PodDisruptionBudget"}
    assert budgets == {name for name, each in PODS.items() if each["spec"]["replicas"] > 1}


def test_the_image_is_this_release() -> None:
    """The tag in the kustomization is the version."""
    assert {each["newTag"] for each in KUSTOMIZATION["images"]} == {VERSION}


def test_only_a_proxy_with_a_login_reaches_the_pages() -> None:
    """They listen for others, so a policy lets in only what carries the label that the comment speaks of."""
    (policy,) = [each for each in MANIFESTS if each["kind"] == "NetworkPolicy"]
    (rule,) = policy["spec"]["ingress"]
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert all("podSelector" in source for source in rule["from"])
    assert re.search("login-proxy", str(rule["from"]))
