"""What Kafka still lacks of a shard whose state is in a database. Pure.

The commits of such a shard are numbered from 1 on. Each is one transaction of the database: the new state, the new positions, the
number, and the messages that Kafka must get for it, which are *owed*. After it, a transaction of Kafka writes these messages and
the same positions, which name the number. The next commit of the database begins only once that is known to have happened, and
takes the place of what was owed. So Kafka is at the number of the database, or at the one before. docs/design/sql_state.md says
what that is worth when peers die, or work on without knowing that others have taken over.
"""

from __future__ import annotations

from enum import Enum


class Standing(Enum):
    """How Kafka's positions of a shard stand to the database."""

    LEVEL = "Kafka has what the last commit owed"
    OWED = "Kafka lacks it: it must be written, once, before the shard goes on"
    LOST = "one of the two has lost commits"


def standing(kafka: int, database: int) -> Standing:
    """Compare the numbers of the last commits; 0: there was none.

    Args:
        kafka: asked first, when no former holder of the partition can move its positions there any more.
        database: asked after it.
    """
    if kafka == database:
        return Standing.LEVEL
    return Standing.OWED if kafka + 1 == database else Standing.LOST
