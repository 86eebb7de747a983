"""The document on metrics says what the code declares."""

from __future__ import annotations

from pathlib import Path

from hushstream.agents.observe.metrics import METRICS
from hushstream.cli.metrics_table import markdown
from hushstream.gateway.metrics import GATEWAY_METRICS
from hushstream.ops.audit.metrics import AUDIT_METRICS

ALL = (*METRICS, *GATEWAY_METRICS, *AUDIT_METRICS)
DOCUMENT = Path(__file__).parents[2] / "deploy" / "docs" / "metrics.md"


def test_the_document_holds_the_table_of_the_declared_metrics():
    section = DOCUMENT.read_text(encoding="utf-8").split("## All metrics")[1]
    table = "".join(f"{line}\n" for line in section.splitlines() if line.startswith("|"))
    assert table == markdown(), "run `hushstream metrics-table` and put its table into the document"


def test_every_metric_has_its_row_with_class_labels_and_help():
    rows = markdown().splitlines()[2:]
    assert len(rows) == len(ALL)
    for spec, row in zip(ALL, rows, strict=True):
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[:3] == [f"`{spec.name}`", spec.kind, spec.metric_class]
        assert cells[3].replace("`", "").split(", ") == list(spec.labels)
        assert cells[4] == spec.help


def test_the_document_explains_every_class_and_its_endpoint():
    text = DOCUMENT.read_text(encoding="utf-8")
    for spec in ALL:
        endpoint = "--zone-metrics-port" if spec.metric_class == "zone-private" else "--metrics-port"
        assert any(
            line.startswith(f"| {spec.metric_class} |") and line.endswith(f"`{endpoint}` |")
            for line in text.splitlines()
        )
