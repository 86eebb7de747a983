"""Writes the files of a report into their folder."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hushstream.replay.report.values import ReportNotWritten

RESULTS = "results.json"
PAGE = "index.html"


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
    """A document as the bytes of a JSON file."""
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def figures_csv(columns: Iterable[str], rows: Iterable[Sequence[Any]], figures: Iterable[str]) -> bytes:
    """Rows as the bytes of a CSV file with a last column ``figures``, a text that says what each row's figures are."""
    return csv_bytes((*columns, "figures"), ((*row, text) for row, text in zip(rows, figures, strict=True)))


def csv_bytes(columns: Iterable[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """Rows as the bytes of a CSV file."""
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return target.getvalue().encode()
