"""What all tests share: the seed, the switch to rewrite golden files, and an environment without our settings in it."""

from __future__ import annotations

import gc
import json
import os
import random
from pathlib import Path

import pytest

pytest_plugins = ("sardonyx.testing.plugin",)

SERVICES = Path(__file__).parent / "services"
ON_SERVICES = 900
"""Seconds after which a test on services hangs: several waits of `tests.waiting`, and five times what any of them takes."""
# In the environment, so that the processes that share the tests have one seed.
SEED = int(os.environ.setdefault("SARDONYX_SEED", "") or random.SystemRandom().randrange(2**32))
os.environ["SARDONYX_SEED"] = str(SEED)

DURATIONS: dict[str, float] = json.loads((Path(__file__).parent / "durations.json").read_text())
"""Seconds that each file of tests took in the last ``make test-all``; see `tests.stages`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the golden output of scenario files anew")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if getattr(config.option, "hypothesis_seed", None) is None:
        config.option.hypothesis_seed = SEED  # one seed for all chance in a session
    import hypothesis

    slow = [hypothesis.HealthCheck.too_slow]
    # A busy machine is no failure.
    hypothesis.settings.register_profile("sardonyx", deadline=None, suppress_health_check=slow, print_blob=True)
    hypothesis.settings.load_profile("sardonyx")
    hypothesis.core.global_force_seed = SEED
    for name in [name for name in os.environ if name.startswith("SARDONYX__")]:
        del os.environ[name]  # the tests do not take over the settings of the user who runs them


def pytest_report_header() -> str:
    return f"seed: {SEED} (set SARDONYX_SEED={SEED} to run with it again)"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SERVICES in item.path.parents:
            item.add_marker(pytest.mark.services)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(ON_SERVICES))
    # The longest first, so that no process is left alone with one of them in the end.
    items.sort(key=lambda item: -DURATIONS.get(item.nodeid.partition("::")[0], 0.0))


def pytest_collection_finish() -> None:
    """Nothing that stands here is garbage before the end, and random histories make objects by the million."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.fixture
def seed() -> int:
    """The seed of this session, printed in its header."""
    return SEED


@pytest.fixture
def rng(seed: int, request: pytest.FixtureRequest) -> random.Random:
    """Chance that can be had again: from the session's seed and the test's name."""
    return random.Random(f"{seed}/{request.node.nodeid}")
