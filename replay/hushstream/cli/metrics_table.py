"""The table of all metrics as Markdown, from the declarations that workers, gateways and `verify --follow` register."""

from __future__ import annotations

import typer

from hushstream.agents.observe.metrics import METRICS
from hushstream.gateway.metrics import GATEWAY_METRICS
from hushstream.ops.check.follow import AUDIT_METRICS


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="metrics-table", hidden=True)(metrics_table)


def metrics_table() -> None:
    """Every metric, as a Markdown table."""
    typer.echo(markdown(), nl=False)


def markdown() -> str:
    """One row a metric, in the order of the declarations."""
    rows = ["| metric | kind | class | labels | what it says |", "|---|---|---|---|---|"]
    for spec in (*METRICS, *GATEWAY_METRICS, *AUDIT_METRICS):
        labels = ", ".join(f"`{label}`" for label in spec.labels)
        rows.append(f"| `{spec.name}` | {spec.kind} | {spec.metric_class} | {labels} | {spec.help} |")
    return "\n".join(rows) + "\n"
