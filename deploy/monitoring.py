"""Writes what monitors a deployment, from one table each of metrics, panels and alerts: ``python -m deploy.monitoring``.

The metrics are those that the daemons declare. From them come the table in ``docs/metrics.md``, the boards for Grafana and the
rules for Prometheus. A test compares the files with what this would write.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.alerts import ALERTS, Alert
from deploy.panels import BOARDS, Board, Panel

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "metrics.md"
GRAFANA = ROOT / "deploy" / "grafana"
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
BEGIN, END = "<!-- {}: written by python -m deploy.monitoring -->\n", "<!-- end of {} -->\n"


@dataclass(frozen=True)
class Row:
    """A metric of the table."""

    of: str
    """What has it: ``both`` daemons and the pages; ``peer``, ``coordinator`` or ``web`` alone."""
    family: Any


def table() -> list[Row]:
    """All metrics, those that all have first."""
    from coordinator.loop import leader_metrics
    from peer import peer_metrics
    from queues import queue_metrics
    from sardonyx.runtime import daemon_metrics
    from sardonyx.runtime.metrics import REGISTRY
    from sardonyx.web import lag_meter, page_metrics
    from sentinel import sentinel_metrics
    from spark_tasks import spark_metrics

    modules = (
        ("both", daemon_metrics),
        ("peer", peer_metrics),
        ("peer", queue_metrics),
        ("peer", sentinel_metrics),
        ("peer", spark_metrics),
        ("coordinator", leader_metrics),
        ("web", lag_meter),
        ("web", page_metrics),
    )
    rows, families = [], REGISTRY.families
    for name, module in modules:  # in their order, whichever was imported first
        named = {id(each) for each in (*vars(module).values(), *getattr(module, "GAUGES", []))}
        rows += [Row(name, family) for family in families if id(family) in named]
    return rows


def names_in(expr: str) -> set[str]:
    """The metrics of ours that a query names."""
    return set(re.findall(r"\bsardonyx_\w+", expr))


def files() -> dict[Path, str]:
    """Every file, and what belongs into it."""
    return {
        PAGE: _replaced(_replaced(PAGE.read_text(), "metrics", _metrics()), "alerts", _alerts()),
        **{GRAFANA / f"{board.name}.json": json.dumps(_board(board), indent=1) + "\n" for board in BOARDS},
        RULES: _rules(),
    }


def _replaced(text: str, name: str, part: str) -> str:
    begin, end = BEGIN.format(name), END.format(name)
    before, _, rest = text.partition(begin)
    return f"{before}{begin}{part}{end}{rest.partition(end)[2]}"


def _metrics() -> str:
    lines = ["| metric | of | labels | most series | what it says |", "| --- | --- | --- | --- | --- |"]
    for row in table():
        family = row.family
        labels = ", ".join(f"`{label}`" for label in family.labels)
        bounds = f" Buckets: {', '.join(f'{bound:g}' for bound in family.bounds)}." if family.bounds else ""
        of = "all" if row.of == "both" else row.of
        lines.append(f"| `{family.name}` | {of} | {labels} | {family.most} | {family.kind}: {family.help}{bounds} |")
    return "\n".join(lines) + "\n"


def _alerts() -> str:
    lines = ["| alert | fires when | run next |", "| --- | --- | --- |"]
    lines += [f"| `{alert.name}` | {alert.when} | `{alert.command}` |" for alert in ALERTS]
    return "\n".join(lines) + "\n"


def _rules() -> str:
    """As YAML. Strings of JSON are strings of YAML."""
    lines = [
        "# Written by python -m deploy.monitoring, from deploy/alerts.py.",
        "groups:",
        "  - name: sardonyx",
        "    rules:",
    ]
    for alert in ALERTS:
        lines += _rule(alert)
    return "\n".join(lines) + "\n"


def _rule(alert: Alert) -> list[str]:
    command = alert.command.replace("JOB", "{{ $labels.sx_job }}")
    return [
        f"      - alert: {alert.name}",
        f"        expr: {json.dumps(alert.expr)}",
        f"        for: {alert.lasts}",
        f"        labels: {{severity: {alert.severity}}}",
        "        annotations:",
        f"          summary: {json.dumps(f'{alert.when} ({{{{ $labels.deployment }}}})')}",
        f"          runbook: {json.dumps(command)}",
    ]


def _board(board: Board) -> dict[str, Any]:
    chosen = () if board.chosen is None else (board.chosen,)
    return {
        "title": board.title,
        "uid": f"sardonyx-{board.name}",
        "tags": ["sardonyx"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
                _variable("deployment", "label_values(sardonyx_build_info, deployment)"),
                *(
                    _variable(label, f'label_values({metric}{{deployment=~"$deployment"}}, {label})')
                    for label, metric in chosen
                ),
            ]
        },
        "panels": [_panel(number, panel) for number, panel in enumerate(board.panels)],
        "links": [
            {"type": "dashboards", "tags": ["sardonyx"], "title": "Sardonyx", "asDropdown": True, "keepTime": True}
        ],
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": query,
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    return {
        "id": number + 1,
        "title": panel.title,
        "description": panel.says,
        "type": "timeseries",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "gridPos": {"x": number % 3 * 8, "y": number // 3 * 8, "w": 8, "h": 8},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": {"fillOpacity": 10}}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + place), "expr": expr, "legendFormat": panel.legend}
            for place, expr in enumerate(panel.exprs)
        ],
    }


def main() -> None:
    """Write the files."""
    for path, text in files().items():
        path.write_text(text)
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
