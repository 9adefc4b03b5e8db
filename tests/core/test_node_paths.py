"""``zk_layout.md`` and ``sardonyx/core/node_paths.py`` name the same nodes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from sardonyx.core import node_paths
from sardonyx.core.events import FORMAT, OLDEST, OLDEST_RULES, RULES, Request
from sardonyx.core.zk_rights import RIGHTS, rights_of

PAGE = Path(__file__).parents[2] / "zk_layout.md"
SAMPLES: dict[str, object] = {
    "n": 12_345,
    "part": 3,
    "kind": "ack",
    "uuid": "0f1e2d3c",
    "token": "4b5a",
    "peer": "host-7",
    "job": "flights-abc234",
    "task": "clean",
    "link": "read.clean",
    "sha256": "9d2f",
}
DOCUMENTED = re.findall(r"^\| `(/[^`]*)` \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
CONSTANTS = {name: value for name, value in vars(node_paths).items() if name.isupper() and isinstance(value, str)}
FUNCTIONS = {
    name: function
    for name, function in vars(node_paths).items()
    if inspect.isfunction(function) and function.__module__ == node_paths.__name__ and name != "root"
}


def sample(function: Callable[..., str]) -> str:
    """A path that the function makes; a prefix ends in the number that ZooKeeper appends."""
    path = function(**{name: SAMPLES[name] for name in inspect.signature(function).parameters})
    return path + "0000000042" if path.endswith("-") else path


def matching(path: str) -> list[str]:
    """The documented paths that a path is one of; where one of them has a name, a placeholder elsewhere is not meant."""
    found = [
        pattern for pattern in DOCUMENTED if re.fullmatch(re.sub(r"<\w+>", "[^/]+", pattern.replace(".", r"\.")), path)
    ]
    return found if len(found) < 2 else [min(found, key=lambda pattern: pattern.count("<"))]


@pytest.mark.parametrize("name", sorted(CONSTANTS))
def test_every_top_node_is_on_the_page(name: str) -> None:
    """Each constant stands there as it is."""
    assert CONSTANTS[name] in DOCUMENTED


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_every_path_is_on_the_page(name: str) -> None:
    """What each function makes is described there."""
    assert matching(sample(FUNCTIONS[name])), f"{name}: {sample(FUNCTIONS[name])} is not in {PAGE.name}"


def test_every_kind_of_request_is_on_the_page() -> None:
    """The row of ``/inbox`` lists what peers and users ask for."""
    row = re.search(r"\| a request: ([\w, ;-]+)\. Removed", PAGE.read_text(encoding="utf-8"))
    assert row
    assert sorted(re.split("[,;] ", row[1])) == sorted(kind.__struct_config__.tag for kind in get_args(Request))


def test_nothing_else_is_on_the_page() -> None:
    """What is described there is made by the code, and described once."""
    made = set(CONSTANTS.values()) | {found for f in FUNCTIONS.values() for found in matching(sample(f))}
    assert sorted(DOCUMENTED) == sorted(made)


def test_the_top_is_all_constants() -> None:
    """A constant that is missing in TOP would be a node that is never created. Only a restore makes its own."""
    assert {*node_paths.TOP, node_paths.RESTORE} == set(CONSTANTS.values())


@pytest.mark.parametrize("path", DOCUMENTED)
def test_the_rights_of_every_node_are_on_the_page(path: str) -> None:
    """What peers, clients and viewers may do, as `sardonyx.core.zk_rights` gives it."""
    row = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{path}` |"))
    cells = [cell.strip() for cell in row.split("|")]
    found = rights_of(re.sub(r"<\w+>", "x", path))
    assert cells[5] == " / ".join(letters or "-" for letters in found)


def test_every_right_is_of_a_node_on_the_page() -> None:
    """The table has no row for a node that does not exist."""
    kinds = {re.sub(r"(?<=/)[^/]*<\w+>[^/]*", "*", path) for path in DOCUMENTED}
    assert set(RIGHTS) <= kinds | {""}


def test_the_root_is_on_the_page() -> None:
    """The page says below which node everything stands."""
    assert f"`{node_paths.root('<deployment>')}`" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("what", "newest", "oldest", "verb"),
    [
        ("log, snapshots, requests, notes of nodes", FORMAT, OLDEST, "reads"),
        ("rules of decisions", RULES, OLDEST_RULES, "knows"),
    ],
)
def test_the_numbers_of_the_log_are_on_the_page(what: str, newest: int, oldest: int, verb: str) -> None:
    """Which format and rules this release writes, and which it reads beside."""
    row = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {what} |"))
    known = " and ".join(map(str, range(oldest, newest + 1))) if oldest < newest else "no other"
    assert row.split("|")[2].strip() == f"{newest} ({verb} {known})"
