"""Makes what talks to services unimportable, for ``pytest -p tests.without_services tests/core``: the core needs none of it."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder

ABSENT = frozenset({"kazoo", "confluent_kafka", "pyspark"})


class _Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"tests of the core do without {name}", name=name)


sys.meta_path.insert(0, _Absent())
