"""The revenue of shops and their largest orders, as a batch, in micro-batches, or as a stream: the windows of the source decide.

MODE=batch sardonyx check examples/pipeline/job.py      # or micro, or stream
python examples/pipeline/main.py                        # all three, on services of its own
"""

import os

from sardonyx import Count, Sum, event_time, kafka
from sardonyx.pipeline import Pipeline, Window

SCHEMA = "shop string, at timestamp, currency string, amount double"
WINDOWS = {
    "batch": Window.all(),
    "micro": Window.size(4),
    "stream": Window.time("1 min", by=event_time("at", delay="5 s", idle="30 s")),
}


def is_paid(order: dict) -> bool:
    return order["amount"] > 0


def in_euros(order: dict, dollar: float) -> dict:
    rate = dollar if order["currency"] == "USD" else 1.0
    return {**order, "euros": round(order["amount"] * rate, 2)}


def larger(one: dict, other: dict) -> dict:
    return max(one, other, key=lambda order: (order["euros"], str(order["at"])))


def build(p: Pipeline, mode: str, topic: str = "orders") -> None:
    """The same pipeline in each mode. Only the window of the source differs, and whether the source has an end."""
    end = None if mode == "stream" else "latest"
    source = kafka(topic, schema=SCHEMA, start="earliest", end=end)
    orders = p.source("orders", source, window=WINDOWS[mode])
    paid = orders.filter(is_paid).map(in_euros, params={"dollar": 0.9}).key_by("shop")

    totals = {"orders": Count(), "euros": Sum("euros")}
    revenue = paid.aggregate("revenue", totals, across="windows", state_limit=1_000_000)
    largest = paid.reduce(larger, "largest", across="windows", state_limit=1_000_000)
    revenue.sink("revenue-out", kafka(f"revenue-{mode}", key="shop"))
    largest.sink("largest-out", kafka(f"largest-{mode}", key="shop"))


def job() -> Pipeline:
    mode = os.environ.get("MODE", "batch")
    made = Pipeline(f"shops-{mode}", partitions=2)
    build(made, mode)
    return made
