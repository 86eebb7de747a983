"""Reads tables in memory: data frames of pandas, polars or any other library that narwhals supports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from hushstream.replay.logged.log import LogError

Table: TypeAlias = Any
"""The path of a file, or a data frame."""

FRAME = "data frame"
"""The name of a data frame in reports and errors."""


def is_file(table: Table) -> bool:
    """Whether a table is a path; otherwise it is a data frame.

    Raises:
        LogError: it is neither.
    """
    if isinstance(table, str | Path):
        return True
    import narwhals as frames

    if not frames.dependencies.is_into_dataframe(table):
        raise LogError(f"table: expected a path or a data frame, got {type(table).__name__}")
    return False


def name_of(table: Table) -> str:
    """The name of a table in reports and errors."""
    return str(table) if is_file(table) else FRAME


def columns_of(frame: Any) -> list[str]:
    """The names of a data frame's columns."""
    import narwhals as frames

    return list(frames.from_native(frame, eager_only=True).columns)


def pieces(frame: Any, columns: Sequence[str], rows: int) -> Iterator[dict[str, Sequence[Any]]]:
    """Yield columns of a data frame as Python values, at most ``rows`` rows at a time; a missing value is None."""
    import narwhals as frames

    chosen = frames.from_native(frame, eager_only=True).select(list(columns))
    for first in range(0, len(chosen), rows):
        part = chosen[first : first + rows]
        yield {name: _values(part[name]) for name in columns}


def _values(column: Any) -> list[Any]:
    missing = column.is_null().to_list()
    return [None if gone else _plain(value) for value, gone in zip(column.to_list(), missing, strict=True)]


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
