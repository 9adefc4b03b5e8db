"""Lookups in a table that changes rarely: what docs/joins.md advises gives the right values, and soon."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sardonyx import Job, event_time, kafka
from sardonyx.job.warn import warnings_of
from sardonyx.testing import ClockedRun

Begin = Callable[..., ClockedRun]
BEGUN = datetime(2026, 11, 23, 10, tzinfo=UTC)
SKUS = "abc"


def shop(*, start: str = "latest", end: str | None = None, wait: str | None = None, **clock: Any) -> Job:
    """Orders, each with the price of its time. The job file that docs/joins.md shows."""
    job = Job("shop", partitions=2)
    orders = job.input(
        "orders",
        kafka("orders", schema="sku string, at timestamp, n bigint", start=start, end=end),
        time=event_time("at", delay="2 min", idle="1 min"),
    )
    prices = job.input(
        "prices",
        kafka("prices", schema="sku string, at timestamp, price bigint", start="earliest", end=end),
        time=event_time("at", **clock),
    )
    job.output("out", kafka("out"), after=job.lookup("priced", orders, prices, on="sku", wait=wait, within="90 d"))
    return job


def test_each_order_has_the_price_of_its_time_and_soon(seed: int, sardonyx_clocked: Begin) -> None:
    """The table has a row every few hours. An order, which may be two minutes old, is given the price of its own time half a
    minute after it came, and waits for no other row.
    """
    rng = random.Random(f"rare tables/{seed}")
    run = sardonyx_clocked(shop(idle="10 s", at_rest="wall"), now=BEGUN)
    now, known = BEGUN, {sku: [(BEGUN - timedelta(days=1), 0)] for sku in SKUS}
    run.give("prices", [{"sku": sku, "at": at.isoformat(), "price": price} for sku in SKUS for at, price in known[sku]])
    expected = []
    for n in range(40):
        if n % 5 == 0:
            known[changed := rng.choice(SKUS)].append((now, n))
            run.give("prices", [{"sku": changed, "at": now.isoformat(), "price": n}])
        sku, at = rng.choice(SKUS), now - timedelta(seconds=rng.randrange(120))
        if n % 10 == 9:  # whatever the seed, some orders have a price that has changed
            sku, at = changed, now
        run.give("orders", [{"sku": sku, "at": at.isoformat(), "n": n}])
        expected.append((n, max(entry for entry in known[sku] if entry[0] <= at)[1]))
        run.advance(30)
        assert sorted((row["n"], row["price"]) for row in run.rows()) == expected
        pause = rng.choice([0, 5, 60, 7200])
        run.advance(pause)
        now += timedelta(seconds=30 + pause)
    assert len({price for _, price in expected}) > 3, "prices changed"


def test_without_it_an_order_waits_for_the_next_row_of_the_table(sardonyx_clocked: Begin) -> None:
    """The table's clock moves with its rows alone: hours of the machine's clock change nothing."""
    run = sardonyx_clocked(shop(), now=BEGUN)
    run.give("prices", [{"sku": "a", "at": "2026-11-23T09:00:00", "price": 1}])
    run.give("orders", [{"sku": "a", "at": "2026-11-23T10:00:00", "n": 1}])
    run.advance("5 h")
    assert run.rows() == []
    run.give("prices", [{"sku": "b", "at": "2026-11-23T15:00:00", "price": 2}])
    assert [(row["n"], row["price"]) for row in run.rows()] == [(1, 1)]


@pytest.mark.parametrize("end", [None, "latest"])
def test_a_wait_for_rows_of_the_past_is_warned_about(end: str | None, tmp_path: Path) -> None:
    """Also where the job ends: they may all be read before the table is. Not where the orders are those to come."""
    codes = {start: _codes(shop(start=start, end=end, wait="10 s"), tmp_path) for start in ("earliest", "latest")}
    assert "SX-WARN-WAIT" in codes["earliest"]
    assert "SX-WARN-WAIT" not in codes["latest"]
    assert "SX-WARN-WAIT" not in _codes(shop(start="earliest", end=end), tmp_path)


def _codes(job: Job, folder: Path) -> list[str]:
    return [each.code for each in warnings_of(job.spec(), folder)]
