"""Generated views and orders: which pages a user had seen before an order, and what each page brought in by the hour.

    sardonyx run examples/clicks/job.py

    views --+-> bought -+-> pairs                    (JSON: a row for each view and order)
    orders -+           +-> per-page -> pages        (Parquet: a row for each page and hour)

An order belongs to the views of its user in the half hour before it. A view without an order comes, too, with nulls
(``how="left"``), so the hours of pages that sold nothing are there as well.
"""

from sardonyx import Count, Distinct, Job, Sum, files, generator, tumbling

VIEWS = {
    "view": "sequence",
    "user": {"kind": "key", "distinct": 800, "prefix": "user-"},
    "page": {"kind": "choice", "of": ["home", "search", "product", "basket"]},
    "at": {"kind": "moment", "start": "2026-01-01T00:00:00Z", "step": "1 s"},
}
ORDERS = {
    "order": "sequence",
    "user": {"kind": "key", "distinct": 800, "prefix": "user-"},
    "amount": {"kind": "integer", "min": 5, "max": 200},
    "at": {"kind": "moment", "start": "2026-01-01T00:00:00Z", "step": "10 s"},
}

job = Job("clicks", doc="Views joined with the orders of the half hour after them")
views = job.input("views", generator(20_000, columns=VIEWS), time="at")
orders = job.input("orders", generator(2_000, columns=ORDERS), time="at")
bought = job.join("bought", views, orders, on="user", within=("0 s", "30 min"), how="left")
per_page = job.window(
    "per-page",
    tumbling("1 h"),
    after=bought,
    group_by="page",
    aggregate={"views": Distinct("view"), "sales": Count("order"), "amount": Sum("amount")},
)
job.output("pairs", files("out/pairs", format="json", mode="overwrite"), after=bought)
job.output("pages", files("out/pages", format="parquet", mode="overwrite"), after=per_page)
