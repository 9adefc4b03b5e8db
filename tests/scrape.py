"""Asks a daemon's endpoints, as Prometheus and what restarts daemons do."""

from __future__ import annotations

import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from tests.waiting import PATIENCE


def get(address: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    """Status, content type and body."""
    request = urllib.request.Request(address, headers=headers, method=method)  # noqa: S310 - of a daemon of the test
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def scraped(address: str) -> list[tuple[str, dict[str, str], float]]:
    """All samples of a daemon: name, labels, value."""
    status, _, text = get(f"{address}/metrics")
    assert status == 200, text
    families = text_string_to_metric_families(text)
    return [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]


def value(address: str, name: str, **labels: str) -> float:
    """The sum of a metric's samples that have these labels; 0 if there are none."""
    wanted = labels.items()
    return sum(number for found, having, number in scraped(address) if found == name and wanted <= having.items())
