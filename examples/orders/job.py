"""Generated orders: keep the wrong ones apart, list the large ones, and add up each customer's orders per batch.

A function sees one batch. So ``customers`` holds partial sums: several rows for a customer whose orders came in several batches.
Their sums are exact; add them up where the files are read, such as ``SELECT customer, sum(amount_sum) ... GROUP BY customer``.

sardonyx run examples/orders/job.py

read -> check -+-> (large) -> review           (JSON)
               +-> per-customer -> customers   (Parquet)
               +-> (failed) -> refused         (JSON)
"""

import pyarrow as pa
import pyarrow.compute as pc

from sardonyx import Job, files, generator

COLUMNS = {
    "id": "sequence",
    "customer": {"kind": "key", "distinct": 50, "prefix": "customer-"},
    "amount": {"kind": "number", "min": -5, "max": 1000},
}


def check(order: dict) -> dict:
    """Refuse orders with a negative amount."""
    if order["amount"] < 0:
        raise ValueError(f"order {order['id']} has the amount {order['amount']:.2f}")
    return order


def is_large(orders: pa.Table) -> pa.ChunkedArray:
    """Orders large enough to be reviewed by a person."""
    return pc.greater(orders["amount"], 950)


def add_up(orders: pa.Table) -> pa.Table:
    """What each customer ordered in this batch. All orders of a customer come to one peer, those of one batch in one table."""
    return orders.group_by("customer").aggregate([("id", "count"), ("amount", "sum")])


job = Job("orders", doc="Orders added up by customer and batch, with the wrong and the large ones apart")
orders = job.input("read", generator(200_000, columns=COLUMNS))
good = job.task("check", check, after=orders)
per_customer = job.task("per-customer", add_up, after=good, group_by="customer")
job.output("customers", files("out/customers", format="parquet", mode="overwrite"), after=per_customer)
job.output("review", files("out/review", format="json", mode="overwrite"), after=good.where(is_large))
job.output("refused", files("out/refused", format="json", mode="overwrite"), after=good.failed)
