"""What a change of a running job's queues does in Kafka: it ends what peers may still commit by the spec before, and deletes what
goes.

Every function is idempotent, because the coordinator runs it again after every takeover.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from queues.admin import delete_groups, delete_topics, holds_any
from queues.transaction import TransactionalWriter
from sardonyx.core.changing import Rewiring
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Stage
from sardonyx.runtime.failpoints import failpoint
from sardonyx.runtime.settings import Settings

_AT_A_TIME = 8
"""Slots that are fenced concurrently."""


def end_transaction(settings: Settings, transactional_id: str) -> None:
    """End what is open under a transactional id, and fence its producer.

    Raises:
        ProducerLost, SetupError: as :meth:`queues.transaction.TransactionalWriter.open`.
    """
    writer = TransactionalWriter(settings, transactional_id)
    try:
        writer.open()
    finally:
        writer.close()


def fence_slots(settings: Settings, job: str, stages: Sequence[Stage], facts: Mapping[str, LinkFacts]) -> None:
    """Fence every slot that the tasks can ever have had, and their seals. No producer that was opened before commits any more.

    Raises:
        ProducerLost, SetupError: as :func:`end_transaction`. Some may be fenced already.
    """
    ids = [
        stage.transactional_id(settings.deployment, job, slot)
        for stage in stages
        for slot in range(max((facts[link.name].partitions for link in stage.ingress), default=1))
    ]
    ids += [stage.sealing_id(settings.deployment, job) for stage in stages if stage.marks]
    if ids:
        with ThreadPoolExecutor(min(len(ids), _AT_A_TIME), thread_name_prefix="fence") as pool:
            list(pool.map(lambda each: end_transaction(settings, each), ids))


def drop_links(
    settings: Settings, job: str, found: Rewiring, settle: Callable[[], Collection[str]] = lambda: ()
) -> None:
    """Delete the groups and topics that a job does not have any more. Topics that hold dead letters stay until it is forgotten.

    Args:
        settings: connection to Kafka.
        job: id of the job.
        found: what goes.
        settle: as of :func:`queues.admin.delete_links`.

    Raises:
        SetupError: the broker refuses or does not answer. It may have deleted some already; a second call continues.
    """
    delete_groups(settings, [stage.group(settings.deployment, job) for stage in found.ended])
    failpoint("change-dropping")
    stays = set(settle())
    stays |= {link.topic for link in found.gone if link.kind == "dead" and holds_any(settings, link.topic)}
    delete_topics(settings, sorted({link.topic for link in found.gone if link.owned} - stays))
