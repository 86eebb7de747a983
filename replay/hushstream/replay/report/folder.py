"""Writes a run's report: ``results.json``, CSV files, pictures and the page that shows them together."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

from hushstream.replay.report.document import as_json
from hushstream.replay.report.errors import ReportNotWritten
from hushstream.replay.report.page import run_page
from hushstream.replay.report.plots import plots
from hushstream.replay.report.results import CellRow, ConditionRow, RunResult
from hushstream.replay.report.sheet import png
from hushstream.replay.report.wording import provenance_lines

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
    return write_files(directory, _content(result), OWNED)


def write_files(directory: Path | str, content: Mapping[str, bytes], owned: Sequence[str] = ()) -> list[Path]:
    """Write files into a folder, and remove those of an earlier report that ``owned`` names and ``content`` lacks.

    Raises:
        ReportNotWritten: the folder cannot be written.
    """
    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in set(owned) - set(content):
            (folder / name).unlink(missing_ok=True)
        for name, data in content.items():
            (folder / name).write_bytes(data)
    except OSError as error:
        raise ReportNotWritten(f"report: expected a folder to write to, got {folder} ({error.strerror})") from error
    return [folder / name for name in content]


def json_bytes(document: Mapping[str, Any]) -> bytes:
    """A document as a file."""
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def csv_bytes(columns: Iterable[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """Rows as a file."""
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return target.getvalue().encode()


def _content(result: RunResult) -> dict[str, bytes]:
    drawn = plots(result)
    content = {RESULTS: json_bytes(as_json(result))}
    if result.rows:
        content[REWARDS] = _rows_bytes(ConditionRow, result.rows)
    if result.cells is not None:
        content[CELLS] = _rows_bytes(CellRow, result.cells)
    content |= {f"{one.name}.png": png(one, provenance_lines(result)) for one in drawn}
    content[PAGE] = run_page(result, drawn, list(content)).encode()
    return content


def _rows_bytes(kind: type[ConditionRow | CellRow], rows: Sequence[ConditionRow | CellRow]) -> bytes:
    return csv_bytes((column.name for column in fields(kind)), map(astuple, rows))
