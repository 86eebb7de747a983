"""Reads users' own logs: CSV and Parquet tables with a mapping file, in pieces; it checks every value.

The format follows the file's suffix: ``.parquet`` or ``.pq`` is Parquet and needs pyarrow. Any other suffix is CSV in
UTF-8, with or without a byte-order mark. An error names the row and the column, never the value.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hushstream.replay.logged.declared import visits_of
from hushstream.replay.logged.features import bounded_entries, category_entries, histogram
from hushstream.replay.logged.frames import FRAME, Table, columns_of, is_file, name_of, pieces
from hushstream.replay.logged.log import LogError, LoggedDataset
from hushstream.replay.logged.mapping import INTERNAL, TableMapping, load_mapping
from hushstream.replay.logged.values import (
    Place,
    arm_numbers,
    category_numbers,
    eligible_arms,
    integers,
    numbers,
    texts,
    times_ms,
)

PARQUET_SUFFIXES = (".parquet", ".pq")
_CHUNK_ROWS = 65536


class TableColumns(Protocol):
    """The part of a mapping that a reader of tables needs."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to read."""

    @property
    def delimiter(self) -> str:
        """The separator of the fields in a CSV file."""


@dataclass(frozen=True, slots=True)
class RawChunk:
    """Consecutive unchecked rows.

    Attributes:
        first_row: number of the first row in the whole file, from 0.
        row_names: the name of each row in errors.
        columns: values by column; texts from CSV, Python values from Parquet.
    """

    first_row: int
    row_names: Sequence[str]
    columns: dict[str, Sequence[Any]]


def stream_table(
    table: Table, mapping: TableMapping | str | Path, chunk_rows: int = _CHUNK_ROWS
) -> Iterator[LoggedDataset]:
    """Yield a table in parts of at most ``chunk_rows`` rows; memory does not grow with the file.

    Args:
        table: the path of a CSV or Parquet file, or a data frame.
        mapping: a mapping, or the path of a mapping file.
        chunk_rows: the most rows of a part.

    Raises:
        LogError: the file, the mapping or a value is invalid, or the table has no rows; a wrong row raises when it is
            reached.
    """
    if not isinstance(mapping, TableMapping):
        mapping = load_mapping(mapping)
    name = name_of(table)
    for chunk in read_chunks(table, mapping, chunk_rows):
        yield _checked(name, mapping, chunk)


def columns_in(path: Path, delimiter: str = ",") -> list[str]:
    """The names of the columns of a CSV or Parquet file.

    Raises:
        LogError: there is no such file, or its content is not in its format.
    """
    _require_file(path)
    if path.suffix.lower() in PARQUET_SUFFIXES:
        with _parquet_file(path) as file:
            return list(file.schema_arrow.names)
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            return next(csv.reader(stream, delimiter=delimiter), [])
    except (UnicodeDecodeError, csv.Error):
        raise LogError(f"{path}: expected CSV in UTF-8 with a header") from None


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise LogError(f"{path}: expected a file, got {'a folder' if path.is_dir() else 'none'}")


def read_chunks(table: Table, mapping: TableColumns, chunk_rows: int = _CHUNK_ROWS) -> Iterator[RawChunk]:
    """Yield the columns that a mapping names, unchecked, in parts of at most ``chunk_rows`` rows.

    Raises:
        LogError: there is no such file, its content is not in its format, a column is missing, or it has no rows.
    """
    empty = True
    for chunk in _read(table, mapping, chunk_rows):
        empty = False
        yield chunk
    if empty:
        raise LogError(f"{name_of(table)}: the table has no rows")


def _read(table: Table, mapping: TableColumns, chunk_rows: int) -> Iterator[RawChunk]:
    if not is_file(table):
        return _read_frame(table, mapping, chunk_rows)
    path = Path(table)
    _require_file(path)
    read = _read_parquet if path.suffix.lower() in PARQUET_SUFFIXES else _read_csv
    return read(path, mapping, chunk_rows)


def _read_frame(frame: Table, mapping: TableColumns, chunk_rows: int) -> Iterator[RawChunk]:
    _places(FRAME, columns_of(frame), mapping)
    first_row = 0
    for columns in pieces(frame, mapping.columns, chunk_rows):
        rows = len(next(iter(columns.values())))
        yield RawChunk(first_row, _row_names(first_row, rows), columns)
        first_row += rows


def _row_names(first_row: int, rows: int) -> list[str]:
    return [f"row {first_row + index + 1}" for index in range(rows)]


def _checked(table: str, mapping: TableMapping, chunk: RawChunk) -> LoggedDataset:
    rows = len(chunk.row_names)
    place = (table, chunk.row_names)
    numbers_from = chunk.first_row + np.arange(rows)

    def column(name: str) -> tuple[Sequence[Any], str, tuple[str, Sequence[str]]]:
        return chunk.columns[name], name, place

    eligible = eligible_arms(*column(mapping.eligible), mapping) if mapping.eligible else None
    chosen = arm_numbers(*column(mapping.arm), mapping)
    if eligible is not None:
        outside = np.flatnonzero(~eligible[np.arange(rows), chosen])
        if outside.size:
            raise LogError(f"{table}, {chunk.row_names[outside[0]]}: the arm shown is not among the eligible ones")
    if mapping.uniform:
        propensities: npt.NDArray[np.float64] | None = 1.0 / (
            np.full(rows, mapping.arm_count) if eligible is None else eligible.sum(axis=1)
        )
    else:
        propensities = _propensities(*column(mapping.propensity)) if mapping.propensity else None
    visits, contexts = (
        (None, _contexts(mapping, chunk.columns, place))
        if mapping.features is None
        else visits_of(mapping.features, chunk.columns, place)
    )
    return LoggedDataset(
        name=Path(table).name,
        arms=mapping.arm_count,
        users=texts(*column(mapping.user)) if mapping.user else numbers_from.astype(str),
        timestamps_ms=(
            times_ms(*column(mapping.timestamp), unit=mapping.timestamp_unit)
            if mapping.timestamp
            else numbers_from.astype(np.int64)
        ),
        contexts=contexts,
        chosen=chosen,
        rewards=numbers(*column(mapping.reward), least=0.0, most=1.0),
        propensities=propensities,
        eligible=eligible,
        positions=integers(*column(mapping.position)) if mapping.position else None,
        internal=mapping.data == INTERNAL,
        arm_names=mapping.arms if isinstance(mapping.arms, tuple) else (),
        schema=mapping.features,
        visits=visits,
    )


def _contexts(mapping: TableMapping, columns: dict[str, Sequence[Any]], place: Place) -> npt.NDArray[np.float32]:
    """The contexts (n, d), converted to histograms if the mapping has bounds or categories."""
    entries = []
    for name in mapping.context:
        if name in mapping.categories:
            known = mapping.categories[name]
            entries.append(category_entries(category_numbers(columns[name], name, place, known), len(known)))
            continue
        values = numbers(columns[name], name, place, least=-np.inf, most=np.inf)
        entries.append(bounded_entries(values, *mapping.bounds[name]) if name in mapping.bounds else values[:, None])
    if mapping.bounds or mapping.categories:
        return histogram(entries)
    return np.concatenate(entries, axis=1).astype(np.float32)


def _propensities(values: Sequence[Any], name: str, place: tuple[str, Sequence[str]]) -> npt.NDArray[np.float64]:
    return numbers(values, name, place, least=float(np.nextafter(0.0, 1.0)), most=1.0, form="a number in (0, 1]")


def _read_csv(path: Path, mapping: TableColumns, chunk_rows: int) -> Iterator[RawChunk]:
    try:
        # utf-8-sig drops a byte-order mark, which would otherwise become part of the first column's name.
        with path.open(encoding="utf-8-sig", newline="") as stream:
            yield from _csv_chunks(
                path, csv.reader(stream, delimiter=mapping.delimiter, strict=True), mapping, chunk_rows
            )
    except UnicodeDecodeError as error:
        raise LogError(f"{path}: expected UTF-8, got other bytes") from error


def _csv_chunks(path: Path, reader: Any, mapping: TableColumns, chunk_rows: int) -> Iterator[RawChunk]:
    try:
        header = next(reader, None)
        if header is None:
            return
        places = _places(path, header, mapping)
        first_row, rows, names = 0, [], []
        for row in reader:
            if not row:
                continue
            if len(row) != len(header):
                raise LogError(f"{path}, line {reader.line_num}: expected {len(header)} fields, got {len(row)}")
            rows.append(row)
            names.append(f"line {reader.line_num}")
            if len(rows) == chunk_rows:
                yield RawChunk(first_row, names, _by_column(rows, places))
                first_row, rows, names = first_row + len(rows), [], []
        if rows:
            yield RawChunk(first_row, names, _by_column(rows, places))
    except csv.Error as error:
        raise LogError(f"{path}, line {reader.line_num}: not CSV: {error}") from error


def _by_column(rows: list[list[str]], places: dict[str, int]) -> dict[str, Sequence[Any]]:
    return {name: [row[place] for row in rows] for name, place in places.items()}


def _places(path: Path | str, header: Sequence[str], mapping: TableColumns) -> dict[str, int]:
    missing = [column for column in mapping.columns if column not in header]
    if missing:
        raise LogError(f"{path}: missing column {', '.join(missing)}; the file has {', '.join(header)}")
    twice = [column for column in mapping.columns if list(header).count(column) > 1]
    if twice:
        raise LogError(f"{path}: column {', '.join(twice)} occurs more than once")
    return {column: list(header).index(column) for column in mapping.columns}


def _parquet_file(path: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise LogError(f"{path}: reading Parquet needs pyarrow: install hushstream[parquet]") from error
    try:
        return pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise LogError(f"{path}: expected a Parquet file, got something else") from error


def _read_parquet(path: Path, mapping: TableColumns, chunk_rows: int) -> Iterator[RawChunk]:
    with _parquet_file(path) as file:
        _places(path, file.schema_arrow.names, mapping)
        first_row = 0
        for batch in file.iter_batches(batch_size=chunk_rows, columns=list(mapping.columns)):
            if not batch.num_rows:
                continue
            names = _row_names(first_row, batch.num_rows)
            columns = {name: batch.column(name).to_pylist() for name in mapping.columns}
            yield RawChunk(first_row, names, columns)
            first_row += batch.num_rows
