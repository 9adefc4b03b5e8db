"""The wheel: installed into an empty environment, it runs jobs without the repository."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PACKAGES = ("coordinator", "peer", "queues", "sentinel", "spark_tasks", "sardonyx")

JOB = """
import importlib

from helpers import PACKAGES
from sardonyx import Job, files, generator


def where(row: dict) -> dict:
    return {**row, "files": " ".join(importlib.import_module(name).__file__ for name in PACKAGES)}


job = Job("installed")
rows = job.input("read", generator(1000, columns={"id": "sequence"}))
job.output("write", files("out", format="json"), where, after=rows)
"""


TYPED = """
from sardonyx import Job, files, generator


def double(row: dict[str, int]) -> dict[str, int]:
    return {**row, "double": 2 * row["id"]}


job = Job("typed", partitions=2)
rows = job.input("read", generator(10, columns={"id": "sequence"}))
job.output("write", files("out", format="json"), after=job.task("double", double, after=rows))
"""
MISTAKES = {
    'job.task("double", double, after=rows, btach_size=3)': "call-arg",
    "Job(7)": "arg-type",
    "from sardonyx import Jop": "attr-defined",
    "from sardonyx.pipeline import Steam": "attr-defined",
    "from sardonyx.testing import run_jop": "attr-defined",
    "job.inputs": "attr-defined",
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is installed: a build directory in the repository could hold modules that are gone."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `pip wheel .` does it."""
    built = tmp_path_factory.mktemp("wheel")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", built)
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, source], check=True)
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment that holds the wheel and what it requires, and nothing else.

    What it requires is linked from the environment of the tests, so that no network is needed.
    """
    return _environment(tmp_path_factory.mktemp("environment"), wheel, wheel)


@pytest.fixture(scope="module")
def editable(source: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for an editable install, by the options with which the Makefile makes one."""
    (options,) = re.findall(r"^EDITABLE := (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    return _environment(tmp_path_factory.mktemp("editable"), wheel, *options.split(), source)


def _environment(folder: Path, wheel: Path, *what: str | Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    # The wheel needs no setuptools, an editable install builds one.
    linked = _required(wheel) | (_files_of("setuptools") if "--editable" in what else {})
    for name, path in linked.items():
        (site / name).symlink_to(path)
    python = folder / "bin" / "python"
    install = ("--python", python, "install", "--no-deps", "--no-index", "--quiet", *what)
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    return folder / "bin"


def _files_of(package: str) -> dict[str, Path]:
    """The files and folders of a package of this environment, by name."""
    found = distribution(package)
    names = {file.parts[0] for file in found.files or [] if file.parts[0] not in {"..", "__pycache__"}}
    return {name: Path(str(found.locate_file(name))) for name in names}


def _required(wheel: Path) -> dict[str, Path]:
    """What the wheel requires without extras, and what that requires: files and folders of this environment by name."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    waiting = [(requirement, "") for requirement in re.findall(r"^Requires-Dist: (.*)$", text, re.MULTILINE)]
    found: dict[str, Path] = {}
    seen: set[tuple[str, str]] = set()
    while waiting:
        text, extra = waiting.pop()
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        package = distribution(requirement.name)
        wanted = {(canonicalize_name(requirement.name), extra) for extra in ("", *requirement.extras)} - seen
        seen |= wanted
        waiting += [(text, extra) for _, extra in wanted for text in package.requires or []]
        found |= _files_of(requirement.name)
    return found


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    """Each package with its marker for type checkers, the license, and the digests of Kafka's jars."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0] for name in names} == {*PACKAGES, "sardonyx-0.1.0.dist-info"}
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    modules = {path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules


def test_an_installed_sardonyx_runs_a_job_in_another_folder(environment: Path, tmp_path: Path) -> None:
    """`sardonyx run` with embedded services: every module, in the workers too, comes from the environment."""
    folder, elsewhere = tmp_path / "jobs", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (folder / "job.py").write_text(JOB)
    (folder / "helpers.py").write_text(f"PACKAGES = {PACKAGES!r}\n")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    env["PATH"] = f"{environment}:{env['PATH']}"

    absent = (
        "import importlib.util as u; print([m for m in ('pytest', 'mypy', 'hypothesis', 'tests') if u.find_spec(m)])"
    )
    found = subprocess.run(["python", "-c", absent], cwd=elsewhere, env=env, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"

    command = ["sardonyx", "run", str(folder / "job.py"), "--peers", "2"]
    done = subprocess.run(command, cwd=elsewhere, env=env, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [
        json.loads(line) for path in (folder / "out").glob("*.json") for line in path.read_text("utf-8").splitlines()
    ]
    assert sorted(row["id"] for row in rows) == list(range(1000))
    used = {Path(path) for row in rows for path in row["files"].split()}
    assert len(used) == len(PACKAGES)
    assert all(path.is_relative_to(environment.parent) for path in used), used


@pytest.mark.parametrize("installed", ["environment", "editable"])
def test_mypy_knows_the_public_names_in_a_job_outside_of_the_checkout(
    installed: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """With `--strict`: a job that is right is right, and each mistake in the use of a public name is found, in its line."""
    python = request.getfixturevalue(installed) / "python"
    (tmp_path / "job.py").write_text(TYPED)
    (tmp_path / "wrong.py").write_text(f"{TYPED}\n" + "\n".join(MISTAKES) + "\n")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MYPY"))}
    options = ("--strict", "--python-executable", python, "--cache-dir", tmp_path / "cache", "--no-error-summary")
    command = [sys.executable, "-m", "mypy", *options, "job.py", "wrong.py"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=600)
    found = re.findall(r"^(\w+\.py):(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    first = len(TYPED.splitlines()) + 2
    wanted = [("wrong.py", str(line), code) for line, code in enumerate(MISTAKES.values(), first)]
    assert found == wanted, done.stdout + done.stderr
