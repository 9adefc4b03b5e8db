"""Spark Structured Streaming with a function that keeps a state for each key, in RocksDB, at least once: see ``spark_opponent``.

It is given ``way``: ``apply`` for applyInPandasWithState, ``transform`` for transformWithStateInPandas.
"""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.state import GroupStateTimeout
from spark_opponent import given, rows_of, session, write

RESULT = "key string, hits long, total double"


def apply(key: tuple, batches: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """A result for each key and micro-batch."""
    hits, total = state.get if state.exists else (0, 0.0)
    for rows in batches:
        hits, total = hits + len(rows), total + float(rows["value"].sum())
    state.update((hits, total))
    yield pd.DataFrame({"key": [key[0]], "hits": [hits], "total": [total]})


class Transform(StatefulProcessor):
    """The same."""

    def init(self, handle: Any) -> None:
        self._state = handle.getValueState("running", "hits long, total double")

    def handleInputRows(  # noqa: N802 - Spark calls it so
        self, key: tuple, rows: Iterator[pd.DataFrame], _timers: Any
    ) -> Iterator[pd.DataFrame]:
        hits, total = self._state.get() if self._state.exists() else (0, 0.0)
        for batch in rows:
            hits, total = hits + len(batch), total + float(batch["value"].sum())
        self._state.update((hits, total))
        yield pd.DataFrame({"key": [key[0]], "hits": [hits], "total": [total]})

    def close(self) -> None:
        pass


rows = rows_of(session(state=True), "key string, value double")
if given["way"] == "apply":
    found = rows.groupBy("key").applyInPandasWithState(
        apply, RESULT, "hits long, total double", "update", GroupStateTimeout.NoTimeout
    )
else:
    found = rows.groupBy("key").transformWithStateInPandas(Transform(), RESULT, "Update", "None")
write(found, "update")
