"""``make test`` and ``make test-all``: stages one after the other, one verdict.

Every stage runs, also after one that failed, so that one run shows all that is wrong. A failure in the checks, the core or the
simulation is a failure. A test on services that fails is run once more, alone, after all others: real services and a busy
machine can be late in ways that say nothing about the change. If it passes then, its name is printed, both outputs are kept,
and the verdict does not change; more than `MOST_AGAIN` such tests are a failure. Nothing else is ever run again.

The end of the output says what each stage took and what it may take, which tests were slowest, and, if the run failed, which
tests failed and why, as the last lines.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.touched import services_for  # noqa: E402

RESULTS = ROOT / "build" / "test-results"
"""What a run leaves for a reader: a JSON file for each stage, and the outputs of tests that were run again."""
DURATIONS = ROOT / "tests" / "durations.json"
"""Seconds that each file of tests took in the last ``make test-all``: the longest are begun first."""
MOST_AGAIN = 3
"""So many tests on services may fail and pass when run again."""
HUNG = 10
"""A stage that takes so many times its share is ended. A single test that hangs ends before, by its own timeout."""
SLOWEST = 20
WORTH_KEEPING = 0.5
"""Seconds: a file of tests below that is not kept in `DURATIONS`."""


@dataclass(frozen=True)
class Stage:
    """A part of a run.

    Args:
        name: as it is printed.
        minutes: the share of the budget, on two idle cores.
        command: what is run from the root of the repository.
        env: what is added to its environment.
        services: whether it runs on ZooKeeper and Kafka that all its processes share, and what fails is run again.
        pytest: whether it is a run of pytest.
    """

    name: str
    minutes: float
    command: Sequence[str]
    env: dict[str, str] = field(default_factory=dict)
    services: bool = False
    pytest: bool = True


@dataclass
class Outcome:
    """How a stage ended."""

    stage: Stage
    seconds: float
    code: int
    tests: dict[str, dict[str, Any]]

    @property
    def failed(self) -> dict[str, str]:
        """The first line of what was wrong, by node id."""
        return {name: told["error"] for name, told in self.tests.items() if "error" in told}


def pytest_of(processes: int, *arguments: str) -> list[str]:
    """A run of pytest in so many processes; each takes a file of tests at a time."""
    shared = ["-n", str(processes), "--dist", "loadfile", "--no-loadscope-reorder"] if processes > 1 else []
    return [sys.executable, "-m", "pytest", "-q", "-p", "tests.results", *shared, *arguments]


CHECK = Stage("check", 0.5, ["make", "--no-print-directory", "check"], pytest=False)
CORE = ["-p", "tests.without_services", "tests/core"]
EXTRAS = "not long and not prometheus and not browser"
"""What runs for minutes, or needs what a machine may not have, has targets of its own."""


def seeded() -> dict[str, str]:
    """What gives all random choices the same seed in each run."""
    return {"SARDONYX_SEED": os.environ.get("SARDONYX_SEED") or "1"}


def stages(whole: bool) -> list[Stage]:
    """The stages of ``make test``, or of ``make test-all``. The minutes of the first add up to 12, those of the second to 60.

    The first has one seed, so that its verdict is the same for the same code. The second draws one, and prints it.
    """
    everything = {"SARDONYX_ALL_HISTORIES": "1"}
    if whole:
        return [
            CHECK,
            Stage("core", 9, pytest_of(2, *CORE), everything),
            Stage("simulation", 7.5, pytest_of(2, "--dist", "worksteal", "tests/simulation"), everything),
            Stage("services", 33, pytest_of(3, "-m", EXTRAS, *BUT_FAULTS, "tests/services"), services=True),
            Stage("faults", 10, pytest_of(1, "-m", EXTRAS, FAULTS), services=True),
        ]
    return [
        CHECK,
        Stage("core", 4.25, pytest_of(2, *CORE), seeded()),
        Stage("simulation", 1.75, pytest_of(2, "--dist", "worksteal", "tests/simulation"), seeded()),
        Stage("services", 3.75, pytest_of(3, "-m", "gate", *BUT_FAULTS, "tests/services"), seeded(), services=True),
        Stage("faults", 1.75, pytest_of(1, "-m", "gate", FAULTS), seeded(), services=True),
    ]


FAULTS = "tests/services/test_faults.py"
"""Alone, because it starts a dozen processes, which would slow down other tests."""
BUT_FAULTS = ["--ignore", FAULTS]


def run(stage: Stage) -> Outcome:
    """Run a stage; its output goes where ours goes."""
    print(f"\n=== {stage.name}", flush=True)
    began = time.monotonic()
    path = RESULTS / f"{stage.name.replace(' ', '-')}.json"
    path.unlink(missing_ok=True)
    command = [*stage.command, *(["--results", str(path)] if stage.pytest else [])]
    try:
        limit = HUNG * 60 * stage.minutes
        code = subprocess.run(command, cwd=ROOT, env={**os.environ, **stage.env}, check=False, timeout=limit).returncode
    except subprocess.TimeoutExpired:
        print(f"{stage.name} was ended after {clock(limit)}")
        code = 124
    tests = json.loads(path.read_text()) if path.exists() else {}
    outcome = Outcome(stage, time.monotonic() - began, code, tests)
    if outcome.seconds > 60 * stage.minutes:
        print(f"{stage.name} took {clock(outcome.seconds)}: more than its share of {clock(60 * stage.minutes)}")
    return outcome


def share_services(stack: ExitStack) -> None:
    """Start one ZooKeeper and one Kafka for all processes of the tests on services, unless the environment names others."""
    from sardonyx.testing.plugin import KAFKA, ZOOKEEPER, services

    if os.environ.get("SECURED") == "1":  # then the tests start services that ask for a login
        return
    shared = stack.enter_context(services(private=False))
    os.environ |= {ZOOKEEPER: shared.zookeeper, KAFKA: shared.kafka}


def again(outcomes: list[Outcome]) -> list[str]:
    """Run the tests on services that failed once more, alone; gives the names of those that pass now."""
    failed = [name for outcome in outcomes if outcome.stage.services for name in outcome.failed]
    if not failed:
        return []
    if len(failed) > MOST_AGAIN:
        print(f"\n{len(failed)} tests on services failed. More than {MOST_AGAIN} are not run again.")
        return []
    kept = RESULTS / "run-again"
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    passed = []
    for number, name in enumerate(failed):
        results = kept / f"{number}.json"
        command = pytest_of(1, "--results", str(results), name)
        print(f"\n=== once more, alone: {name}", flush=True)
        second = subprocess.run(
            command, cwd=ROOT, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        first = next(outcome.tests[name]["output"] for outcome in outcomes if name in outcome.failed)
        (kept / f"{number}.txt").write_text(f"{name}\n\n=== first run\n{first}\n=== second run\n{second.stdout}")
        print(second.stdout, flush=True)
        if second.returncode == 0:
            passed.append(name)
    return passed


def verdict(name: str, outcomes: list[Outcome], passed_again: list[str], began: float) -> int:
    """Print how it went; gives the exit code."""
    print(f"\n{'stage':<12} {'took':>6} {'share':>6}  tests")
    for outcome in outcomes:
        share = clock(60 * outcome.stage.minutes)
        told = Counter("failed" if "error" in each else "passed" for each in outcome.tests.values())
        words = ", ".join(f"{count} {what}" for what, count in sorted(told.items(), reverse=True))
        late = "  more than its share" if outcome.seconds > 60 * outcome.stage.minutes else ""
        print(f"{outcome.stage.name:<12} {clock(outcome.seconds):>6} {share:>6}  {words}{late}")
    took = {each: told["seconds"] for outcome in outcomes for each, told in outcome.tests.items()}
    slowest = sorted(took, key=lambda each: -took[each])[:SLOWEST]
    print(f"\nthe {SLOWEST} slowest tests, in seconds", *(f"{took[each]:7.1f}  {each}" for each in slowest), sep="\n")
    print()
    for each in passed_again:
        print(f"passed when run again: {each}")
    if passed_again:
        print(f"Both outputs are in {(RESULTS / 'run-again').relative_to(ROOT)}. Each such test is a defect: fix it.")
    red = [
        f"FAILED {test} - {error}"
        for outcome in outcomes
        for test, error in outcome.failed.items()
        if test not in passed_again
    ]
    red += [
        f"FAILED {outcome.stage.name}: exit code {outcome.code}"
        for outcome in outcomes
        if outcome.code > 1 or (outcome.code and not outcome.failed)  # 1 is pytest's "tests failed"
    ]
    print(*red, sep="\n", end="\n" if red else "")
    total = clock(time.monotonic() - began)
    print(f"make {name}: {f'{len(red)} failed' if red else 'passed'}, {total} minutes")
    return 1 if red else 0


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds // 60)}:{int(seconds % 60):02}"


def keep_durations(outcomes: Iterable[Outcome]) -> None:
    """Write what each file of tests took, for the next runs."""
    files: Counter[str] = Counter()
    for outcome in outcomes:
        for test, told in outcome.tests.items():
            files[test.partition("::")[0]] += told["seconds"]  # type: ignore[assignment] - Counter adds floats as well
    kept = {file: round(seconds, 1) for file, seconds in sorted(files.items()) if seconds >= WORTH_KEEPING}
    DURATIONS.write_text(json.dumps(kept, indent=0) + "\n")


def touched(base: str) -> int:
    """Run the core, and the tests on services that show what was changed since ``base``; gives the exit code."""
    changed = subprocess.run(
        ["git", "diff", "--name-only", base], cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE
    ).stdout.split()
    found = services_for(changed)
    print(f"{len(changed)} files changed since {base}; on services: {' '.join(found) or 'nothing'}")
    parts = [CHECK, Stage("core", 4.5, pytest_of(2, *CORE), seeded())]
    if found:
        parts.append(Stage("services", 10, pytest_of(3, "-m", EXTRAS, *found), seeded(), services=True))
    return played("test-touched", parts)


def played(name: str, parts: list[Stage], *, keep: bool = False) -> int:
    """Run stages and print the verdict; gives the exit code."""
    began = time.monotonic()
    RESULTS.mkdir(parents=True, exist_ok=True)
    outcomes = [run(stage) for stage in parts if not stage.services]
    passed_again = []
    with ExitStack() as stack:
        if any(stage.services for stage in parts):
            share_services(stack)
            outcomes += [run(stage) for stage in parts if stage.services]
            passed_again = again(outcomes)
    if keep:
        keep_durations(outcomes)
    return verdict(name, outcomes, passed_again, began)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("test", "test-all", "test-touched"))
    parser.add_argument(
        "--base", default="HEAD", help="test-touched: the commit that the working tree is compared with"
    )
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so `subprocess.run` ends its child, and the services end
    if chosen.what == "test-touched":
        return touched(chosen.base)
    whole = chosen.what == "test-all"
    return played(chosen.what, stages(whole), keep=whole)


if __name__ == "__main__":
    sys.exit(main())
