"""docs/settings.md against the settings: each one stands there, with its default."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from sardonyx.runtime.settings import Settings, is_known

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "settings.md").read_text("utf-8")
PACKAGES = ("sardonyx", "coordinator", "peer", "queues", "sentinel", "spark_tasks")
NAMED = re.compile(r"(?<![\w./-])(?:coordinator|kafka|metrics|peer|zookeeper)(?:\.[a-z][a-z_]*)+\b(?!\.?\w)")
MAPPINGS = {"zookeeper.auth.sasl"}
"""Settings whose keys are the user's."""


def told() -> dict[str, str]:
    """The settings of the page, each with its default. ``a.b``, ``.c`` in one cell are ``a.b`` and ``a.c``."""
    found: dict[str, str] = {}
    for line in PAGE.splitlines():
        if line.startswith("| `"):
            names, default = re.split(r"(?<!\\)\|", line)[1:3]
            section = ""
            for name in re.findall(r"`([a-z_.*]+)`", names):
                section = section if name.startswith(".") else name.rpartition(".")[0]
                found[f"{section}{name}" if name.startswith(".") else name] = default.strip().strip("`")
    return found


def test_the_page_has_every_setting_with_its_default() -> None:
    """As ``sardonyx config`` shows it; those of logins have none worth telling."""
    shown = {key: value for key, value, _ in Settings.model_construct().shown()}
    known = told()
    assert not [key for key in shown if key not in known]
    assert {key: known[key] for key in shown if known[key]} == {
        key: shown[key] or "none" for key in shown if known[key]
    }


def test_the_page_has_no_setting_that_does_not_exist() -> None:
    """Except for names that stand for all below them."""
    assert not [key for key in told() if "*" not in key and not is_known(key)]


def named(text: str) -> Iterator[str]:
    """What a text names that may be a setting. Modules and files are not."""
    for name in NAMED.findall(text):
        parts = name.split(".")
        places = ["/".join(parts[:n]) for n in range(2, len(parts) + 1)]
        is_file = parts[-1] in ("py", "log", "md") or any(
            (ROOT / place).exists() or (ROOT / f"{place}.py").exists() for place in places
        )
        if not is_file:
            yield name


def texts() -> Iterator[tuple[Path, str]]:
    for path in (
        *(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")),
        *(ROOT / "docs").glob("*.md"),
    ):
        text = path.read_text("utf-8")
        if path.suffix == ".md":
            yield path, text
        else:
            strings = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
            yield path, "\n".join(each for each in strings if isinstance(each, str))


def test_every_setting_that_a_text_names_exists() -> None:
    """In errors, docstrings and pages. ``zookeeper.acl`` stands for all settings below it."""
    known = {key for key, _, _ in Settings.model_construct().shown()}
    found = {(name, path) for path, text in texts() for name in named(text)}
    assert len({name for name, _ in found}) > 50
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for name, path in sorted(found)
        if name not in MAPPINGS and not is_known(name) and not any(key.startswith(f"{name}.") for key in known)
    ]
    assert wrong == []


def test_a_setting_that_does_not_exist_is_seen() -> None:
    """An error named this one once."""
    assert list(named("give another folder by peer.state_dir, not peer.task_loop")) == ["peer.state_dir"]
    assert not is_known("peer.state_dir")
