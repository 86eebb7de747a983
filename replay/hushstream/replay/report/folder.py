"""Writes a run's report: ``results.json``, CSV files, pictures and the page that shows them together."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import astuple, fields
from pathlib import Path

from hushstream.replay.report.document import as_json
from hushstream.replay.report.errors import ReportNotWritten
from hushstream.replay.report.page import html
from hushstream.replay.report.plots import LIGHT, plots, render
from hushstream.replay.report.results import CellRow, ConditionRow, RunResult

RESULTS = "results.json"
REWARDS = "rewards.csv"
CELLS = "cells.csv"
PAGE = "index.html"
OWNED = (RESULTS, REWARDS, CELLS, "rewards.png", "noise.png", "epsilon.png", PAGE)
"""Every file that a report may hold; one of an earlier run that the new one lacks is removed."""


def write_report(result: RunResult, directory: Path | str) -> list[Path]:
    """Write the report of a run into a folder, which is made if it does not exist.

    Equal results give equal bytes. Files of an earlier report in the same folder are replaced or removed, so
    that what stands there is of one run.

    Returns:
        The paths written, the page last.

    Raises:
        ReportNotWritten: the folder cannot be written.
    """
    folder = Path(directory)
    content = _content(result)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in set(OWNED) - set(content):
            (folder / name).unlink(missing_ok=True)
        for name, data in content.items():
            (folder / name).write_bytes(data)
    except OSError as error:
        raise ReportNotWritten(f"report: expected a folder to write to, got {folder} ({error.strerror})") from error
    return [folder / name for name in content]


def _content(result: RunResult) -> dict[str, bytes]:
    drawn = plots(result)
    content = {RESULTS: (json.dumps(as_json(result), indent=2, ensure_ascii=False) + "\n").encode()}
    if result.rows:
        content[REWARDS] = _csv(ConditionRow, result.rows)
    if result.cells is not None:
        content[CELLS] = _csv(CellRow, result.cells)
    content |= {f"{plot.name}.png": render(plot, result, LIGHT, footer=True) for plot in drawn}
    content[PAGE] = html(result, drawn, list(content)).encode()
    return content


def _csv(kind: type[ConditionRow | CellRow], rows: Sequence[ConditionRow | CellRow]) -> bytes:
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(column.name for column in fields(kind))
    writer.writerows(astuple(row) for row in rows)
    return target.getvalue().encode()
