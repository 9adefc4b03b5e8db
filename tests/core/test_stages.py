"""What ``make test`` makes of the results of its stages: the verdict, what is run again, and which tests show a change."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import stages
from tests.services.plain import PLAIN, why_plain
from tests.stages import MOST_AGAIN, Outcome, Stage, verdict
from tests.touched import SERVICES, TESTS, services_for

ROOT = Path(__file__).parents[2]
LATE = Stage("services", 1, [], services=True)


def outcome(*failed: str, stage: Stage = LATE, seconds: float = 1.0) -> Outcome:
    tests = {name: {"seconds": 1.0, "error": f"{name} is wrong", "output": f"{name}\nis wrong"} for name in failed}
    return Outcome(stage, seconds, int(bool(failed)), {"good": {"seconds": 2.0}, **tests})


def test_what_passes_when_run_again_changes_no_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    """It is named, and so is what took longer than its share."""
    assert verdict("test", [outcome("late", seconds=61.0)], ["late"], 0) == 0
    said = capsys.readouterr().out
    assert "passed when run again: late\n" in said
    assert "more than its share" in said
    assert "FAILED" not in said


def test_failed_tests_are_the_last_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Each with the first line of its error; a stage that ended without a result of a test is a failure, too."""
    died = Outcome(Stage("core", 1, []), 1.0, 3, {})
    assert verdict("test", [outcome("late", "wrong"), died], ["late"], 0) == 1
    assert capsys.readouterr().out.splitlines()[-3:-1] == [
        "FAILED wrong - wrong is wrong",
        "FAILED core: exit code 3",
    ]


def test_only_a_few_tests_on_services_are_run_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A failure in the core is a failure, and so are more than three on services."""
    monkeypatch.setattr(stages, "RESULTS", tmp_path)
    monkeypatch.setattr(stages, "pytest_of", lambda *_, **__: ["true"])
    core = outcome("core", stage=Stage("core", 1, []))
    few = [f"late {number}" for number in range(MOST_AGAIN)]
    assert stages.again([core, outcome(*few)]) == few
    told = [(tmp_path / f"run-again/{number}.txt").read_text() for number in range(MOST_AGAIN)]
    assert all("=== first run\nlate" in each and "=== second run\n" in each for each in told)
    assert stages.again([core, outcome(*few, "one more")]) == []
    assert stages.again([core]) == []


def test_the_shares_are_the_budget() -> None:
    """``make test`` may take 12 minutes on two idle cores, ``make test-all`` 60. CONTRIBUTING.md says so."""
    assert sum(stage.minutes for stage in stages.stages(whole=False)) == 12
    assert sum(stage.minutes for stage in stages.stages(whole=True)) == 60
    told = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert re.search(r"make test +#.*12 minutes", told)
    assert re.search(r"make test-all +#.*60 minutes", told)


def test_every_folder_of_the_product_has_tests_on_services() -> None:
    """``make test-touched`` finds tests for each; each name in its table is that of a file."""
    for names in TESTS.values():
        for name in names:
            assert list(SERVICES.glob(f"test_{name}.py")), name
    for folder in ("coordinator", "peer", "queues", "sentinel", "spark_tasks"):
        assert services_for([f"{folder}/module.py"])
    for folder in (ROOT / "sardonyx").iterdir():
        assert not (folder / "__init__.py").exists() or services_for([f"sardonyx/{folder.name}/module.py"]), folder.name
    assert services_for(["tests/services/test_keyed.py", "docs/state.md"]) == ["tests/services/test_keyed.py"]
    assert services_for(["peer/standby.py"]) == ["tests/services/test_kept_state.py", "tests/services/test_standby.py"]


def test_the_tests_that_speak_plain_are_there() -> None:
    """Each file or test that `make test-secured` leaves out, by name; and a name means itself and no other."""
    for name, why in PLAIN.items():
        file, _, test = name.partition("::")
        assert f"def {test}" in (ROOT / "tests/services" / file).read_text("utf-8"), name
        assert why_plain(f"{name}[1-x]") == why_plain(name) == why
    assert why_plain("test_embedded.py::test_any") == PLAIN["test_embedded.py"]
    assert why_plain("test_cli.py::test_the_log_is_followed_as_it_grows") is None
    assert why_plain("test_queue.py::test_any") is None
