"""The benchmarks reach into the product; what changes there shall not be noticed an hour into one of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"


def test_every_script_finds_what_it_takes_from_the_product():
    """Each can be imported, in a process of its own: some stand in for parts of the product."""
    scripts = sorted(path.stem for path in BENCH.glob("*.py"))
    assert scripts
    imports = [sys.executable, "-c", f"import {', '.join(scripts)}; print(machine.machine())"]
    found = subprocess.run(imports, cwd=BENCH, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert re.search(r", (commit \w{7,}(, changed)?|of no commit), \d{4}-", found.stdout), "what a figure is of"
