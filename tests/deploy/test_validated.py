"""What systemd and Kubernetes themselves say of the files in ``deploy``: ``make test-deploy``. Nothing is started or asked."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.deploy

DEPLOY = Path(__file__).parents[2] / "deploy"
OLDEST, NEWEST = "1.29", "1.37"
"""Releases of Kubernetes whose schemas the manifests must fit."""


@pytest.mark.parametrize("path", sorted((DEPLOY / "systemd").glob("*.service")), ids=lambda path: path.stem)
def test_systemd_can_read_the_unit(path: Path, tmp_path: Path) -> None:
    """``systemd-analyze verify`` has nothing to say, if the program is there."""
    verify = shutil.which("systemd-analyze")
    assert verify, "systemd-analyze is missing; Debian and Ubuntu: sudo apt-get install systemd"
    copy = tmp_path / path.name
    copy.write_text(path.read_text().replace("/opt/sardonyx/bin/sardonyx", "/bin/true"))
    done = subprocess.run([verify, "verify", copy], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def manifests() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{path.stem}-{each['kind']}", each)
        for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
        if path.stem != "kustomization"
        for each in yaml.safe_load_all(path.read_text())
    ]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize(("name", "manifest"), manifests(), ids=[name for name, _ in manifests()])
def test_a_manifest_fits_the_schema_of_kubernetes(name: str, manifest: dict[str, Any], version: str) -> None:
    """Strictly: no field that Kubernetes does not know."""
    import kubernetes_validate

    kubernetes_validate.validate(manifest, version, strict=True)
