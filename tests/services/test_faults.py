"""Forty faults over three shapes of job at once, on services of their own: everything comes out, once, in order."""

from __future__ import annotations

import json

import pytest

from tests.faults.harness import Options, good, run
from tests.faults.verbs import FAMILIES


@pytest.mark.timeout(400)
def test_forty_faults_lose_and_double_nothing(seed: int) -> None:
    """The same run as by ``make faults SEED=... FAULTS=40 SHAPE=copy,diamond,files``."""
    result = run(Options(seed=seed, faults=40, shapes=("copy", "diamond", "files"), records=20_000))
    told = json.dumps(result, indent=1)
    assert good(result), told
    assert sum(result["faults"].values()) >= 40, told
    assert result["records_out"] > result["records_in"] > 0, told  # a diamond gives two for one


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("family", FAMILIES)
def test_faults_of_one_family_lose_and_double_nothing(seed: int, family: str) -> None:
    """Twenty of a kind, over all shapes."""
    result = run(Options(seed=seed, faults=20, families=(family,), spark=int(family == "spark")))
    assert good(result), json.dumps(result, indent=1)
