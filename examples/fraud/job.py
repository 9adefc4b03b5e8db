"""Card fraud: payments that try a stolen card out, and large payments that the owner of the card does not confirm in time.

    sardonyx run examples/fraud/job.py

read -> watch -> alerts   (JSON)

``watch`` keeps a state for each card: when it was last tried out with a small payment, and which large payments wait to be
confirmed. Each of these has a timer. If it is not deleted in time, the timer fires and gives an alert.

By default the payments are generated, and the timers that are left fire at their end. ``FRAUD_TOPIC=payments`` reads them from a
Kafka topic instead, in which the rows of a card are in one partition. The timers then fire as the clock of the payments goes on,
and the alerts go to the topic ``payments-alerts``.
"""

import os
from collections.abc import Iterator
from datetime import datetime, timedelta

from msgspec import Struct

from sardonyx import Job, MapState, State, Timer, Timers, event_time, files, generator, kafka

SCHEMA = "id bigint, at timestamp, card string, what string, amount double"
GENERATED = {
    "id": "sequence",
    "at": {"kind": "moment", "start": "2026-11-23T00:00:00Z", "step": "2 s"},
    "card": {"kind": "key", "distinct": 100, "prefix": "card-"},
    "what": {"kind": "choice", "of": ["payment", "payment", "payment", "confirm"]},
    "amount": {"kind": "choice", "of": [0.5, 20.0, 35.0, 80.0, 250.0, 900.0]},
}


class Waiting(Struct):
    """A payment that waits to be confirmed."""

    amount: float
    until: datetime


def watch(
    row: dict,
    tried: State[datetime],
    waiting: MapState[int, Waiting],
    timers: Timers,
    *,
    small: float,
    large: float,
    minutes: int,
) -> Iterator[dict]:
    """Give an alert for a large payment soon after a small one, and let each large payment wait to be confirmed."""
    time = timedelta(minutes=minutes)
    if row["what"] == "confirm":
        for payment in [payment for payment, each in waiting.items() if row["at"] < each.until]:
            del waiting[payment]
            timers.delete(str(payment))
    elif row["amount"] <= small:
        tried.value = row["at"]
    elif row["amount"] >= large:
        if tried.exists and row["at"] - tried.value < time:
            yield {
                "card": row["card"],
                "at": row["at"],
                "payment": row["id"],
                "amount": row["amount"],
                "why": "tried out",
            }
        waiting[row["id"]] = Waiting(row["amount"], row["at"] + time)
        timers.set(row["at"] + time, str(row["id"]))


def unconfirmed(timer: Timer, waiting: MapState[int, Waiting]) -> dict:
    """Give an alert for a payment that was not confirmed in time."""
    payment = int(timer.name)
    amount = waiting.pop(payment).amount
    return {"card": timer.key, "at": timer.at, "payment": payment, "amount": amount, "why": "not confirmed"}


def make_job(topic: str | None = None, end: str | None = None) -> Job:
    """The job.

    Args:
        topic: of the payments; FRAUD_TOPIC in the environment, or they are generated.
        end: where the topic ends, as for ``kafka``. None: the job runs until it is stopped.
    """
    topic = topic or os.environ.get("FRAUD_TOPIC")
    job = Job("fraud", doc="Alerts for cards that are tried out, and for large payments that no customer confirms")
    source = kafka(topic, schema=SCHEMA, start="earliest", end=end) if topic else generator(20_000, columns=GENERATED)
    payments = job.input("read", source, time=event_time("at", delay="10 s", idle="1 min" if topic else None))
    alerts = job.keyed(
        "watch",
        watch,
        after=payments,
        group_by="card",
        on_timer=unconfirmed,
        ttl="1 day",
        params={"small": 1.0, "large": 500.0, "minutes": 15},
    )
    to = kafka(f"{topic}-alerts", key="card") if topic else files("out/alerts", format="json", mode="overwrite")
    job.output("alerts", to, after=alerts)
    return job


job = make_job
"""What ``sardonyx run`` looks for: a Job, or a function that makes one."""
