"""What the shards of an assignment make of a batch, before it is committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa

from peer.failed_records import Failed
from peer.operators import LATE_PREFIX
from peer.provenance import Provenance
from queues.messages import Outgoing
from sardonyx.core.checkpoints import Checkpoints
from sardonyx.core.fronts import Held
from sardonyx.core.positions import Partition
from sardonyx.state.columns import with_columns
from sardonyx.state.messages import Mark


class ShardCommit(NamedTuple):
    """What a batch commits for one shard."""

    partition: Partition
    """Whose position the shard's mark rides with."""
    mark: Mark
    closed: int
    """The clock by which everything that is due is done, and its results are out."""
    done: bool
    """Whether this is the clock of the batch, and the log holds all of the state: only then may its partitions be drained."""
    held: Held | None = None
    """If the job keeps its lineage: what the shard still holds after it."""
    checkpoints: Checkpoints | None = None
    """If the job has checkpoints: what is known of them after it."""
    waits: int | None = None
    """See :attr:`peer.operators.Answer.waits`; None also if it begins with the state of another job."""


class Planned(NamedTuple):
    """What the shards make of a batch."""

    results: pa.Table
    late: pa.Table | None
    """Late rows, if the task keeps them; with what they are too late for, in columns with :data:`LATE_PREFIX`."""
    late_rows: int
    rows_in: dict[Partition, int]
    """Rows that went in, by partition; those of combined rows are counted one by one."""
    messages: list[Outgoing]
    shards: list[ShardCommit]
    late_from: Provenance
    """Where the late rows came from."""
    origins: Provenance
    """Where the results came from: a partition, up to an offset."""
    failed: Sequence[Failed] = ()
    """Records that the user's function raised for, in a shard."""
    since: Mapping[int, tuple[int, ...]] = MappingProxyType({})
    """If the job keeps its lineage, by partition number: the rows that the shard held before came from these offsets on, as
    :attr:`sardonyx.core.fronts.Held.since`. One that is missing held none.
    """

    @property
    def late_results(self) -> pa.Table | None:
        """The late rows as the edges of late rows give them: with ``window_start``, ``window_end`` and ``late_by``."""
        if self.late is None:
            return None
        about = [name for name in self.late.column_names if name.startswith(LATE_PREFIX)]
        added = {name.removeprefix(LATE_PREFIX): self.late[name] for name in about}
        return with_columns(self.late.drop_columns(about), added)

    @property
    def dropped(self) -> int:
        """Late rows that nothing takes."""
        return self.late_rows - (0 if self.late is None else self.late.num_rows)


__all__ = ["Planned", "ShardCommit"]
