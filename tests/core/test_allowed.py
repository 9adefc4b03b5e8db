"""Which modules and files a peer daemon takes: whatever way a job names them, and nothing by default."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peer.allowed import check_allowed, is_allowed, takes_all_modules
from sardonyx.core.errors import FunctionError, SetupError
from sardonyx.core.graph import Stage, graph_of
from sardonyx.core.graphing import GraphSpec
from sardonyx.core.keyed import KeyedSpec
from sardonyx.core.spec import FUNCTION, JobSpec, Route, TaskSpec
from sardonyx.core.stores import SqlStore
from sardonyx.core.timing import WindowSpec
from sardonyx.runtime.settings import load_settings
from sardonyx.runtime.settings_sections import PeerSettings

INSTALLED = """
from os import system
from os.path import join

def fine(row):
    return row

class Lifecycle:
    def start(self, context): ...

made = fine
wrapped = type("Wrapped", (), {"__call__": lambda self, row: row})()
"""


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module ``planted_shop``, and a package ``planted_lib`` with a module."""
    (tmp_path / "modules" / "planted_lib").mkdir(parents=True)
    (tmp_path / "modules" / "planted_shop.py").write_text(INSTALLED)
    (tmp_path / "modules" / "planted_lib" / "__init__.py").write_text("")
    (tmp_path / "modules" / "planted_lib" / "deep.py").write_text(INSTALLED)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    yield
    for name in [name for name in sys.modules if name.startswith("planted_")]:
        del sys.modules[name]


def limited(**settings: Any) -> PeerSettings:
    return load_settings(peer=settings).peer


def stage_with(name: str = "work", route: str | None = None, **task: Any) -> Stage:
    """The stage of a task with these fields, between an input and an output."""
    catalog = {
        "read": TaskSpec(name="read", type="input", connector="generator", options={"count": 1}),
        "work": TaskSpec(name="work", type="function", fn="planted_shop:fine"),
        "drop": TaskSpec(name="drop", type="output", connector="blackhole"),
    }
    kind = catalog[name].type
    catalog[name] = TaskSpec(name=name, type=kind, **{"connector": catalog[name].connector, **task})
    routes = {} if route is None else {f"{name}.drop": Route(where=route)}
    spec = JobSpec(name="j", workflow=[("read", "work"), ("work", "drop")], catalog=[*catalog.values()], routes=routes)
    return graph_of(spec, "d", "j-1").stage(name)


def refusal(settings: PeerSettings, stage: Stage) -> SetupError:
    with pytest.raises(SetupError) as caught:
        check_allowed(settings, stage)
    return caught.value


def test_everything_is_allowed_unless_a_setting_says_otherwise() -> None:
    """Modules that are not even there are not looked for, and every path may be opened."""
    assert takes_all_modules(PeerSettings())
    check_allowed(PeerSettings(), stage_with(fn="not_there:call"))
    check_allowed(PeerSettings(), stage_with("read", connector="files", options={"path": "/etc/passwd"}))


FN = {"fn": "planted_shop:fine"}
WAYS: dict[str, dict[str, Any]] = {
    "function": {"fn": "evil:call"},
    "params": {**FN, "params": {"how": {FUNCTION: "evil:call"}}},
    "lifecycle": {**FN, "lifecycle": "evil:call"},
    "key": {**FN, "group_by": "evil:call"},
    "condition": {**FN, "route": "evil:call"},
    "timer": {**FN, "group_by": ["k"], "keyed": KeyedSpec(on_timer="evil:call")},
    "store": {**FN, "group_by": ["k"], "keyed": KeyedSpec(store="evil:call")},
    "graph": {
        "fn": "planted_shop:fine",
        "graph": GraphSpec(algorithm="program", edges="read", source="a", target="b", send="evil:call"),
    },
    "master": {
        "fn": "planted_shop:fine",
        "graph": GraphSpec(algorithm="program", edges="read", source="a", target="b", master="evil:call"),
    },
    "input": {"name": "read", "connector": "evil:call"},
    "output": {"name": "drop", "connector": "evil:call"},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_module_that_is_not_allowed_is_refused_however_a_job_names_it(way: str) -> None:
    """With the function, the setting and what it allows."""
    error = refusal(limited(allow=["planted_shop", "planted_lib"]), stage_with(**WAYS[way]))
    assert error.code == "SX-PEER-MODULE"
    assert "evil:call" in error.message
    assert "peer.allow allows planted_shop and planted_lib" in error.cause
    check_allowed(limited(allow=["*"]), stage_with(**WAYS[way]))


def test_functions_of_allowed_modules_run() -> None:
    """Those that are defined there, also below an allowed package."""
    for allow in (["planted_shop"], ["planted_*"], "planted_shop, other"):
        check_allowed(limited(allow=allow), stage_with(fn="planted_shop:fine", lifecycle="planted_shop:Lifecycle"))
        check_allowed(limited(allow=allow), stage_with(fn="planted_shop:made"))
        check_allowed(limited(allow=allow), stage_with(fn="planted_shop:wrapped"))
    check_allowed(limited(allow=["planted_lib"]), stage_with(fn="planted_lib.deep:fine"))


@pytest.mark.parametrize(("function", "module"), [("system", "posix"), ("join", "posixpath")])
def test_what_an_allowed_module_has_only_imported_is_not_allowed(function: str, module: str) -> None:
    """Otherwise a job could have the daemon start programs by an import of a module that is harmless itself."""
    stage = stage_with(fn=f"planted_shop:{function}")
    assert f"imported it from the module {module}" in refusal(limited(allow=["planted_shop"]), stage).cause
    check_allowed(limited(allow=["planted_shop", module]), stage)


def test_an_allowed_module_that_is_missing_is_said_to_be_missing() -> None:
    """It is not installed here, even if the job brings one of this name."""
    with pytest.raises(FunctionError, match="planted_else") as caught:
        check_allowed(limited(allow=["planted_*"]), stage_with(fn="planted_else:call"))
    assert caught.value.code == "SX-FN-IMPORT"


@pytest.mark.parametrize(
    ("pattern", "module", "expected"),
    [
        ("shop", "shop", True),
        ("shop", "shop.tasks", True),
        ("shop", "shopping", False),
        ("shop.tasks", "shop", False),
        ("shop_*", "shop_a.b", True),
        ("shop.*", "shop", False),
        ("Shop", "shop", False),
    ],
)
def test_a_pattern_is_a_module_with_all_below_it(pattern: str, module: str, expected: bool) -> None:
    """And no other that begins with the same letters."""
    assert is_allowed([pattern], module) is expected


def places(root: Path) -> dict[str, tuple[bool, dict[str, Any]]]:
    """What tasks would open, by what it is, and whether it is below the root."""

    def files(path: Any, name: str = "read") -> dict[str, Any]:
        return {"name": name, "connector": "files", "options": {"path": path}}

    def database(url: str, name: str = "read") -> dict[str, Any]:
        return {"name": name, "connector": "sql", "options": {"url": url}}

    def state(url: str) -> dict[str, Any]:
        window = WindowSpec(kind="tumbling", size="1 s", aggregate={}, store=SqlStore(url=url))
        return {**FN, "group_by": ["k"], "window": window}

    return {
        "a file": (True, files(f"{root}/in.csv")),
        "the root": (True, files(str(root), "drop")),
        "a pattern": (True, files(f"{root}/*/in-[0-9].csv")),
        "a file that climbs and stays": (True, files(f"{root}/a/../in.csv")),
        "a database in a file": (True, database(f"sqlite:///{root}/shop.db")),
        "a database on a server": (True, database("postgresql://db:5432/shop")),
        "a state in a file": (True, state(f"sqlite:///{root}/state.db")),
        "another file": (False, files("/etc/passwd")),
        "another folder": (False, files(f"{root}-other", "drop")),
        "one of several": (False, files([f"{root}/in.csv", "/etc/passwd"])),
        "a file that climbs": (False, files(f"{root}/../in.csv")),
        "a link": (False, files(f"{root}/link/passwd")),
        "a pattern of everything": (False, files("/*/passwd")),
        "a pattern that climbs": (False, files(f"{root}/*/../../in.csv")),
        "a path from here": (False, files("in.csv")),
        "another database": (False, database("sqlite:////var/lib/shop.db")),
        "another database, for results": (False, database("sqlite:////var/lib/shop.db", "drop")),
        "a database by another name of its file": (False, database(f"sqlite:///file:{root}/x?uri=true")),
        "a database of a kind that is not known": (False, database(f"duckdb:///{root}/x")),
        "another state": (False, state("sqlite:////var/lib/state.db")),
    }


@pytest.mark.parametrize("what", places(Path("/")))
def test_files_lie_below_the_roots(what: str, tmp_path: Path) -> None:
    """Of connectors and of states, when links are followed. A server's database is no file."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to("/etc")
    inside, task = places(root)[what]
    settings = limited(files=[str(tmp_path / "empty"), str(root)])
    if inside:
        check_allowed(settings, stage_with(**task))
        return
    error = refusal(settings, stage_with(**task))
    assert error.code == "SX-PEER-FILES"
    assert f"peer.files allows {tmp_path}/empty and {root}" in error.cause


def test_a_root_that_is_a_link_is_what_it_leads_to(tmp_path: Path) -> None:
    """As ``/srv`` may be."""
    (tmp_path / "real").mkdir()
    (tmp_path / "srv").symlink_to(tmp_path / "real")
    for folder in ("real", "srv"):
        check_allowed(
            limited(files=[str(tmp_path / "srv")]),
            stage_with("read", connector="files", options={"path": f"{tmp_path}/{folder}/in.csv"}),
        )


def test_a_task_without_functions_and_files_runs_everywhere() -> None:
    """Whatever is allowed."""
    check_allowed(limited(allow=["none"], files=["/none"]), stage_with("read", connector="generator"))
    check_allowed(limited(allow=["none"], files=["/none"]), stage_with("drop"))


def test_a_password_in_an_address_is_not_quoted() -> None:
    """A spec should hold none; an error is shown to more people than a spec."""
    error = refusal(limited(files=["/srv"]), stage_with("read", connector="sql", options={"url": "mysql://u:hush@h/x"}))
    assert "hush" not in str(error)
    assert "hush" not in str(error.where)


@pytest.mark.parametrize(
    "setting", [{"allow": ["shop:call"]}, {"allow": ["a b"]}, {"allow": []}, {"files": ""}, {"files": ["srv"]}]
)
def test_a_setting_that_is_no_list_of_modules_or_folders_is_refused(setting: dict[str, Any]) -> None:
    """A function in place of a module; a path that is not absolute; an empty list, which a variable cannot hold."""
    with pytest.raises(SetupError, match=r"peer\.(allow|files)") as caught:
        load_settings(peer=setting)
    assert caught.value.code == "SX-CONFIG-VALUE"


def test_they_are_set_by_variables_and_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names with commas between them; a child process has the same."""
    monkeypatch.setenv("SARDONYX__PEER__ALLOW", "shop.tasks, shop_*")
    monkeypatch.setenv("SARDONYX__PEER__FILES", "/srv/a,/srv/b")
    settings = load_settings()
    assert (settings.peer.allow, settings.peer.files) == (["shop.tasks", "shop_*"], ["/srv/a", "/srv/b"])
    assert settings.environment()["SARDONYX__PEER__FILES"] == "/srv/a,/srv/b"
