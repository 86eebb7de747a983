"""Write Grafana's dashboards as JSON into ``deploy/grafana/dashboards``, by the kind of endpoint that they show.

    python deploy/grafana/build.py [--check]

With ``--check`` nothing is written; the exit code is 1 when a file differs from what `panels` declares.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import GraphThresholdsStyleMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    DynamicConfigValue,
    GridPos,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
)
from panels import BOARDS, Board, Panel

from hushstream.replay.report.committed import main as committed

FOLDER = Path(__file__).resolve().parent / "dashboards"
SOURCE = {"public": "Prometheus", "zone": "Prometheus of the zone"}
_WIDTH = {"stat": 8, "timeseries": 12}
_COLUMNS = 24
"""The width of Grafana's grid, in columns."""
_HEIGHT = {"stat": 5, "timeseries": 8}
_GOOD, _BAD = "green", "red"
_DASHED = {"fill": "dash", "dash": [8, 8]}
"""The style of a later query's lines, so that they do not hide an earlier query's lines with the same values."""


def as_json(board: Board) -> str:
    """One dashboard in Grafana's JSON, ready for provisioning."""
    made = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.about)
        .tags(["hushstream"])
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .time("now-6h", "now")
        .refresh("30s")
        .with_variable(dashboard.DatasourceVariable("source").label(SOURCE[board.endpoint]).type("prometheus"))
        .with_variable(
            dashboard.QueryVariable("deployment")
            .label("Deployment")
            .datasource(_source())
            .query("label_values(up, deployment)")
            .multi(True)
            .include_all(True)
            .all_value(".*")
        )
    )
    for number, (panel, place) in enumerate(zip(board.panels, _places(board), strict=True), start=1):
        made = made.with_panel(_panel(panel, board.class_of(panel)).id(number).grid_pos(place))
    return json.dumps(made.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def wanted() -> dict[Path, str | None]:
    """The text of each file; None of one that belongs to no board."""
    return dict.fromkeys(FOLDER.rglob("*.json")) | {_path(board): as_json(board) for board in BOARDS}


def _path(board: Board) -> Path:
    return FOLDER / board.endpoint / f"{board.uid}.json"


def _source() -> DataSourceRef:
    return DataSourceRef(type_val="prometheus", uid="${source}")


def _places(board: Board) -> list[GridPos]:
    """Place panels row by row; a panel of another kind, or too wide for the rest of a row, begins the next row."""
    places: list[GridPos] = []
    x = y = height = 0
    kind = board.panels[0].kind
    for panel in board.panels:
        width = _WIDTH[panel.kind]
        if x + width > _COLUMNS or panel.kind != kind:
            x, y = 0, y + height
        kind, height = panel.kind, _HEIGHT[panel.kind]
        places.append(GridPos(h=height, w=width, x=x, y=y))
        x += width
    return places


def _panel(panel: Panel, metric_class: str) -> stat.Panel | timeseries.Panel:
    kind: stat.Panel | timeseries.Panel = stat.Panel() if panel.kind == "stat" else timeseries.Panel()
    made = (
        kind.title(panel.title)
        .description(f"{panel.about}{_fires(panel)} Class: {metric_class}.")
        .datasource(_source())
        .unit(panel.unit)
        .thresholds(_thresholds(panel))
    )
    if not panel.signed:
        made = made.min(0)
    if panel.words:
        named = {
            str(value): ValueMappingResult(text=text, color=_GOOD if value == 0 else _BAD, index=value)
            for value, text in panel.words.items()
        }
        made = made.mappings([ValueMap(options=named)])
    if isinstance(made, timeseries.Panel):
        shown = GraphThresholdsStyleMode.OFF if panel.limit is None else GraphThresholdsStyleMode.DASHED
        made = made.thresholds_style(common.GraphThresholdsStyleConfig().mode(shown))
        for letter, _ in zip("BCDEF", panel.queries[1:], strict=False):
            made = made.override_by_query(letter, [DynamicConfigValue("custom.lineStyle", _DASHED)])
    for letter, query in zip("ABCDEF", panel.queries, strict=False):
        made = made.with_target(
            prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(letter).datasource(_source())
        )
    return made


def _fires(panel: Panel) -> str:
    if not panel.alert:
        return ""
    return f" {panel.alert} fires {'above' if panel.above else 'below'} {panel.limit:g}: the runbook says what to do."


def _thresholds(panel: Panel) -> dashboard.ThresholdsConfig:
    """Green where no alert has a limit; otherwise also red for the values at which the alert fires."""
    below, above = (_GOOD, _GOOD) if panel.limit is None else (_GOOD, _BAD) if panel.above else (_BAD, _GOOD)
    steps = [Threshold(None, below), *([] if panel.limit is None else [Threshold(panel.limit, above)])]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


if __name__ == "__main__":
    sys.exit(committed(wanted, __doc__))
