"""Leave out the results that Kafka never takes: they are bad records of the output that writes them.

Kafka's refusals tell which these are: the peer aborts the transaction, reads the batch again, and goes on without them. It knows
the records themselves, so that holds however the rows are cut into batches when they are read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from peer.failed_records import Failed, origin_of
from peer.provenance import Provenance
from peer.sinks import Sink, TopicSink
from queues.messages import digest_of
from sardonyx.core.errors import Failure
from sardonyx.core.graph import Stage
from sardonyx.core.spec import stateful
from spark_tasks.failures import Bad

if TYPE_CHECKING:
    from queues.transaction_errors import Refusal

_ROUNDS = 100
"""Times in a row that further records of a batch may turn out to be refused: a function may make others in each run."""


class RefusedRecords:
    """The results of one assignment that Kafka has refused since the last commit.

    Args:
        stage: the task. Records are left out only if it is an output whose ``on_error`` says so.
        sinks: what writes its results.
    """

    def __init__(self, stage: Stage, sinks: Sequence[Sink]) -> None:
        leaves_out = stage.last.type == "output" and stage.task.on_error.leaves_out
        self._sink = next((sink for sink in sinks if isinstance(sink, TopicSink)), None) if leaves_out else None
        self._each = not stage.functions
        self._read = self._each and not stateful(stage.task)
        self._known: dict[bytes, Failure] = {}
        self._rounds = 0

    def learn(self, refusals: Sequence[Refusal]) -> bool:
        """Remember what Kafka refused. Return whether the next attempt leaves out more than this one did."""
        self._rounds += 1
        if self._sink is None or self._rounds > _ROUNDS or any(each.topic != self._sink.topic for each in refusals):
            return False
        new = {each.digest: each.explained().to_failure() for each in refusals if each.digest not in self._known}
        self._known |= new
        return bool(new)

    def committed(self) -> None:
        """The batch is committed: what it held does not come again."""
        self._known.clear()
        self._rounds = 0

    def left_out(self, results: pa.Table, provenance: Provenance) -> tuple[pa.Table, list[Failed]]:
        """Return the results without those that Kafka refuses, and these as failed records.

        Args:
            results: what the task makes of a batch.
            provenance: where the rows came from that its function got, or that leave it if it has none.
        """
        if self._sink is None or not self._known or not results.num_rows:
            return results, []
        failures = [self._known.get(digest_of(*record)) for record in self._sink.records(results)]
        failed = [
            Failed(
                Bad(index, "OutputError", 1, failure),
                origin_of(*provenance.message(index if self._each else 0)),
                "row" if self._read else "made",
                results.slice(index, 1),
            )
            for index, failure in enumerate(failures)
            if failure is not None
        ]
        return results.filter(pa.array([failure is None for failure in failures])), failed
