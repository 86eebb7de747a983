"""Writes a run's report: ``results.json``, CSV files, pictures, and the page that shows them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, fields
from pathlib import Path

from hushstream.replay.report.folder import PAGE, RESULTS, figures_csv, json_bytes, write_files
from hushstream.replay.report.sheet import png
from hushstream.replay.report.wording import provenance_lines
from hushstream.replay.studies.p2b.report.document import as_json
from hushstream.replay.studies.p2b.report.page import run_page
from hushstream.replay.studies.p2b.report.plots import plots
from hushstream.replay.studies.p2b.report.results import CellRow, ConditionRow, RunResult
from hushstream.replay.studies.p2b.report.wording import figures_of, figures_of_cells, figures_of_rows

REWARDS = "rewards.csv"
CELLS = "cells.csv"
OWNED = (RESULTS, REWARDS, CELLS, "rewards.png", "noise.png", "epsilon.png", PAGE)
"""Every file that a report may have; a file of an earlier run that the new one does not write is removed."""


def write_report(result: RunResult, directory: Path | str) -> list[Path]:
    """Write the report of a run into a folder, which is made if it does not exist.

    Equal results give equal bytes. Files of an earlier report in the folder are replaced or removed, so that all files
    are of the same run.

    Returns:
        The paths written, the page last.

    Raises:
        ReportNotWritten: the folder cannot be written.
    """
    return write_files(directory, _content(result), OWNED)


def _content(result: RunResult) -> dict[str, bytes]:
    drawn = plots(result)
    content = {RESULTS: json_bytes(as_json(result))}
    if result.rows:
        content[REWARDS] = _rows_bytes(ConditionRow, result.rows, figures_of_rows(result))
    if result.cells is not None:
        content[CELLS] = _rows_bytes(CellRow, result.cells, figures_of_cells(result))
    content |= {f"{one.name}.png": png(one, provenance_lines(result, figures_of(result))) for one in drawn}
    content[PAGE] = run_page(result, drawn, list(content)).encode()
    return content


def _rows_bytes(
    kind: type[ConditionRow | CellRow], rows: Sequence[ConditionRow | CellRow], figures: Sequence[str]
) -> bytes:
    return figures_csv((column.name for column in fields(kind)), map(astuple, rows), figures)
