"""Reads users' own logs: CSV and Parquet tables with a mapping file, in pieces; it checks every value.

The format follows the file's suffix: ``.parquet`` or ``.pq`` is Parquet and needs pyarrow; ``.jsonl``, ``.ndjson`` and
``.json`` are JSON. ``duckdb:`` and SQL are a query of DuckDB, which reads folders of Parquet and databases where they
are. Any other suffix is CSV in UTF-8 or, with its byte-order
mark, UTF-16; a first line ``sep=;``, as Excel writes it, names the delimiter. An error names the row and the column,
never the value. Rows without an item are left out and counted: nothing was shown there.

*Frames.* Reads tables in memory: data frames of pandas, polars or any other library that narwhals supports.

*JSON lines.* Reads JSON as a table: one object a line, or one array of objects. Nested objects become columns by one
rule.

An object within an object is flattened: ``{"user": {"id": 7}}`` has the column ``user_id``. Lists stay values, for tags
and embeddings. A key that a row lacks is a missing value there. Numbers, booleans and null keep their type.

*Published logs.* By name; the one that is built in is the Open Bandit Dataset (Saito et al. 2020), impressions logged
with their propensities by two policies. Three items are shown at a time, one row each with its position; the propensity
is that of the item at its position. The Thompson policy's propensities were computed by its authors by Monte Carlo.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import time
from decimal import Decimal
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import IO, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from hushstream.features.schema import declare
from hushstream.replay.logged.log import LEAST_PROPENSITY, LogError, LoggedDataset, concatenate
from hushstream.replay.logged.mapping import INTERNAL, PUBLIC, TableMapping, table_mapping
from hushstream.replay.logged.values import (
    Place,
    absent,
    arm_numbers,
    eligible_arms,
    integers,
    marks_nothing,
    numbers,
    rewards,
    times_ms,
    users,
    visits_of,
)
from hushstream.replay.study import Registry

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json", ".dsjson")
_HEAD_ROWS = 1_000
"""A table has the columns of so many first rows."""
_DSJSON = frozenset({"_label_cost", "_label_probability"})


def json_columns(path: Path) -> list[str]:
    """The columns of the first 1,000 rows, in the order in which they occur.

    Raises:
        LogError: the file cannot be read, is no JSON of this form, or is the DSJSON of Vowpal Wabbit.
    """
    names, rows = dict[str, None](), 0
    for _, row in islice(json_rows(path), _HEAD_ROWS):
        names |= dict.fromkeys(row)
        rows += 1
    if rows == 1:
        raise LogError(
            f"{path}: expected an object for each row, got one in all; write JSON lines (pandas: "
            "to_json(orient='records', lines=True)), or an array of objects"
        )
    return list(names)


def json_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row with its name in errors; see `json_columns`."""
    for name, value in _lines(path):
        if not isinstance(value, dict):
            raise LogError(f"{path}, {name}: expected a JSON object, got {type(value).__name__}")
        if value.keys() >= _DSJSON:
            raise LogError(
                f"{path}, {name}: this is Vowpal Wabbit's DSJSON, which lists all actions of a decision; write one "
                "object a decision, with the action shown, its probability, the reward and the features of the visit"
            )
        flat = list(_flat(value, ""))
        row = dict(flat)
        if len(row) < len(flat):
            twice = next(key for key, count in Counter(key for key, _ in flat).items() if count > 1)
            raise LogError(f"{path}, {name}: expected keys that differ when flattened, got {twice} twice: rename one")
        yield name, row


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        with path.open(encoding="utf-8-sig") as stream:
            if next((one for one in iter(lambda: stream.read(1), "") if not one.isspace()), "") == "[":
                stream.seek(0)
                rows = json.load(stream, object_pairs_hook=_object)
                yield from ((f"row {place}", value) for place, value in enumerate(rows, 1))
                return
            stream.seek(0)
            for number, line in enumerate(stream, 1):
                if line.strip():
                    yield f"line {number}", _parsed(path, number, line)
    except UnicodeDecodeError:
        raise LogError(f"{path}: expected JSON in UTF-8, got other bytes") from None
    except json.JSONDecodeError as error:
        raise LogError(f"{path}, line {error.lineno}: expected JSON, got something else") from None
    except (ValueError, RecursionError):
        raise LogError(f"{path}: expected JSON with each key of an object once, got something else") from None


def _parsed(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        raise LogError(
            f"{path}, line {number}: expected one JSON object with each key once, got something else"
        ) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; of two values of one key nobody can say which is meant."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError
    return found


def _flat(value: Mapping[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for key, entry in value.items():
        if isinstance(entry, dict):
            yield from _flat(entry, f"{before}{key}_")
        else:
            yield before + key, entry


QUERY = "duckdb:"


@dataclass(frozen=True, slots=True)
class Query:
    """A table that DuckDB reads, in the order of the query.

    Attributes:
        sql: one or more statements, of which the last one gives rows.
    """

    sql: str

    def __str__(self) -> str:
        return QUERY + self.sql

    @property
    def name(self) -> str:
        """One line of text."""
        return " ".join(str(self).split())


Source: TypeAlias = Path | Query
"""Where a table is that is not in memory."""
Table: TypeAlias = Any
"""The path of a file, a query (`Query`, or its text), or a data frame."""


def source_of(text: str | Source) -> Source:
    """The query or the file that a text names."""
    if isinstance(text, str):
        return Query(text.removeprefix(QUERY)) if text.startswith(QUERY) else Path(text)
    return text


FRAME = "data frame"
"""The name of a data frame in reports and errors."""


def is_file(table: Table) -> bool:
    """Whether a table is a path or a query; otherwise it is a data frame.

    Raises:
        LogError: it is neither.
    """
    if isinstance(table, str | Path | Query):
        return True
    import narwhals as frames

    if not frames.dependencies.is_into_dataframe(table):
        raise LogError(f"table: expected a path or a data frame, got {type(table).__name__}")
    return False


def name_of(table: Table) -> str:
    """The name of a table in reports and errors."""
    return str(table) if is_file(table) else FRAME


def columns_of(frame: Any) -> list[str]:
    """The names of a data frame's columns.

    Raises:
        LogError: two have one name.
    """
    import narwhals as frames

    try:
        return list(frames.from_native(frame, eager_only=True).columns)
    except frames.exceptions.DuplicateError:
        raise LogError(f"{FRAME}: expected columns of different names, got one twice: rename it") from None


def pieces(frame: Any, columns: Sequence[str], rows: int) -> Iterator[dict[str, Sequence[Any]]]:
    """Yield columns of a data frame as Python values, at most ``rows`` rows at a time; a missing value is None."""
    import narwhals as frames

    chosen = frames.from_native(frame, eager_only=True).select(list(columns))
    for first in range(0, len(chosen), rows):
        part = chosen[first : first + rows]
        yield {name: _frame_values(part[name]) for name in columns}


def _frame_values(column: Any) -> list[Any]:
    missing = column.is_null().to_list()
    return [None if gone else _plain(value) for value, gone in zip(column.to_list(), missing, strict=True)]


def _plain(value: Any) -> Any:
    """A value without the types of data frames; a warehouse's decimals are numbers, its times of day texts."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, time):
        return value.isoformat()
    return value.tolist() if isinstance(value, np.ndarray) else value


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
        table: the path of a CSV, Parquet or JSON file, or a data frame.
        mapping: a mapping, or the path of a mapping file.
        chunk_rows: the most rows of a part.

    Raises:
        LogError: the file, the mapping or a value is invalid, or the table has no rows; a wrong row raises when it is
            reached.
    """
    if not isinstance(mapping, TableMapping):
        mapping = table_mapping(mapping)
    name = name_of(table)
    for chunk in read_chunks(table, mapping, chunk_rows):
        shown, left_out = _where_an_item_was_shown(chunk, mapping)
        if shown.row_names:
            yield replace(_checked(name, mapping, shown), left_out=left_out)


def columns_in(path: Source, delimiter: str = ",") -> list[str]:
    """The names of the columns of a CSV, Parquet or JSON file, or of a query.

    Raises:
        LogError: there is no such file, or its content is not in its format.
    """
    if isinstance(path, Query) or path.suffix.lower() in PARQUET_SUFFIXES:
        with _arrow_rows(path) as rows:
            return list(_leaves(path, rows.schema_arrow))
    _require_file(path)
    if path.suffix.lower() in JSON_SUFFIXES:
        return json_columns(path)
    try:
        with opened(path) as stream:
            return _header(_fields(stream, delimiter))
    except (UnicodeError, csv.Error):
        raise LogError(f"{path}: {NOT_UTF8}") from None


NOT_UTF8 = (
    "expected CSV with a header in UTF-8; if Excel wrote it, save it as `CSV UTF-8` (a Parquet file is named .parquet)"
)
_LONGEST_HEAD = 1 << 16
_VOWPAL = re.compile(r"(?:shared|-?[\d.]+(?::-?[\d.]+){0,2}) (?:-?[\d.]+ *)?\|| *\|\w* (?:[^|]|(?<= )\|)*$")
"""A line of Vowpal Wabbit: a label and the first namespace, or namespaces with a blank before each, unlike fields."""
_PACKED = {
    b"\x1f\x8b": "a gzip archive: unpack it (gunzip)",
    b"PK\3\4": "a workbook or a zip archive: save it as CSV UTF-8",
}
_BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff")
_UTF_32 = b"\xff\xfe\0\0"


@contextmanager
def opened(path: Path) -> Iterator[IO[str]]:
    """Open a CSV file behind its byte-order mark and Excel's line ``sep=;``, if it has them.

    Raises:
        LogError: there is no such file, or it is of another format.
    """
    _require_file(path)
    with path.open("rb") as raw:
        start = raw.read(4)
        if start == _UTF_32:
            raise UnicodeError("UTF-32")
        encoding = "utf-16" if start[:2] in _BYTE_ORDER_MARKS else "utf-8-sig"
    with path.open(encoding=encoding, newline="") as stream:
        if delimiter_line(stream) is None:
            stream.seek(0)
        begin = stream.tell()
        head = stream.readline(_LONGEST_HEAD)
        if "\0" in head:
            raise UnicodeError("UTF-16 without its mark")
        _require_header(path, head)
        stream.seek(begin)
        yield stream


def _fields(stream: IO[str], delimiter: str) -> Any:
    """A reader of rows; a blank behind a delimiter belongs to no field, so that quotes may follow it."""
    return csv.reader(stream, delimiter=delimiter, skipinitialspace=delimiter != " ", strict=True)


def _header(reader: Iterator[list[str]]) -> list[str]:
    return [cell.strip() for cell in next(filter(None, reader), [])]


def delimiter_line(stream: IO[str]) -> str | None:
    """The delimiter that a first line ``sep=;`` names; None where the first line is another."""
    line = stream.readline(16).rstrip("\r\n").strip('"')
    return line[4:] if line.startswith("sep=") and len(line) == 5 else None


def _require_header(path: Path, line: str) -> None:
    """Refuse a first line of another format than CSV.

    Raises:
        LogError: it is one.
    """
    if line.lstrip().startswith(("{", "[")):
        raise LogError(f"{path}: expected CSV with a header, got JSON: name the file .jsonl")
    if _VOWPAL.match(line):
        raise LogError(
            f"{path}: expected CSV with a header, got Vowpal Wabbit's text format; write one row a decision, with the "
            "action shown, its probability, the reward and the features of the visit as columns"
        )


def once(names: Sequence[str]) -> list[str]:
    """The names of columns that a header has once: which of two is meant nobody can say."""
    return [name for name in names if list(names).count(name) == 1]


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise LogError(f"{path}: expected a file, got {'a folder' if path.is_dir() else 'none'}")
    with path.open("rb") as raw:
        start = raw.read(4)
    for begin, found in _PACKED.items():
        if start.startswith(begin):
            raise LogError(f"{path}: expected CSV, Parquet or JSON lines, got {found}")


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
    path = source_of(table)
    if isinstance(path, Query) or path.suffix.lower() in PARQUET_SUFFIXES:
        return _read_arrow(path, mapping, chunk_rows)
    _require_file(path)
    read = _read_json if path.suffix.lower() in JSON_SUFFIXES else _read_csv
    return read(path, mapping, chunk_rows)


def _read_json(path: Path, mapping: TableColumns, chunk_rows: int) -> Iterator[RawChunk]:
    _places(path, json_columns(path), mapping)
    rows, first_row = json_rows(path), 0
    while part := list(islice(rows, chunk_rows)):
        columns: dict[str, Sequence[Any]] = {name: [row.get(name) for _, row in part] for name in mapping.columns}
        yield RawChunk(first_row, [name for name, _ in part], columns)
        first_row += len(part)


def _read_frame(frame: Table, mapping: TableColumns, chunk_rows: int) -> Iterator[RawChunk]:
    _places(FRAME, columns_of(frame), mapping)
    first_row = 0
    for columns in pieces(frame, mapping.columns, chunk_rows):
        rows = len(next(iter(columns.values())))
        yield RawChunk(first_row, _row_names(first_row, rows), columns)
        first_row += rows


def _row_names(first_row: int, rows: int) -> list[str]:
    return [f"row {first_row + index + 1}" for index in range(rows)]


def _where_an_item_was_shown(chunk: RawChunk, mapping: TableMapping) -> tuple[RawChunk, int]:
    """The rows with an item in them, and the number of all others."""
    kept = [place for place, item in enumerate(chunk.columns[mapping.arm]) if not _no_item(item, mapping.arms)]
    left_out = len(chunk.row_names) - len(kept)
    if not left_out:
        return chunk, 0
    columns: dict[str, Sequence[Any]] = {
        name: [values[place] for place in kept] for name, values in chunk.columns.items()
    }
    return RawChunk(chunk.first_row, [chunk.row_names[place] for place in kept], columns), left_out


def _no_item(value: Any, arms: int | tuple[str, ...]) -> bool:
    """Whether no item was shown: a missing value, or its usual marker where no arm has this name."""
    return absent(value) or (marks_nothing(value) and not (isinstance(arms, tuple) and value in arms))


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
        stated: npt.NDArray[np.float64] | None = 1.0 / (
            np.full(rows, mapping.arm_count) if eligible is None else eligible.sum(axis=1)
        )
    else:
        stated = propensities(*column(mapping.propensity)) if mapping.propensity else None
    schema = mapping.features
    if schema is None:
        raise LogError(f"{table}: expected a mapping with features, or a deployment that declares them, got neither")
    visits, contexts = visits_of(schema, chunk.columns, place)
    return LoggedDataset(
        name=Path(table).name,
        arms=mapping.arm_count,
        users=users(*column(mapping.user)) if mapping.user else numbers_from.astype(str),
        timestamps_ms=(
            times_ms(*column(mapping.timestamp), unit=mapping.timestamp_unit)
            if mapping.timestamp
            else numbers_from.astype(np.int64)
        ),
        schema=schema,
        visits=visits,
        contexts=contexts,
        chosen=chosen,
        rewards=rewards(*column(mapping.reward)),
        propensities=stated,
        eligible=eligible,
        positions=integers(*column(mapping.position)) if mapping.position else None,
        internal=mapping.data == INTERNAL,
        arm_names=mapping.arms if isinstance(mapping.arms, tuple) else (),
    )


def propensities(values: Sequence[Any], name: str, place: Place) -> npt.NDArray[np.float64]:
    """Convert to probabilities, (n,) float64.

    Raises:
        LogError: a value is missing, or none.
    """
    form = (
        f"a probability from {LEAST_PROPENSITY:g} to 1 such as 0.25, without a decimal comma or a percent sign (the "
        "logging policy's own; leave out a row without one)"
    )
    return numbers(values, name, place, least=LEAST_PROPENSITY, most=1.0, form=form)


def _read_csv(path: Path, mapping: TableColumns, chunk_rows: int) -> Iterator[RawChunk]:
    try:
        with opened(path) as stream:
            yield from _csv_chunks(path, _fields(stream, mapping.delimiter), mapping, chunk_rows)
    except UnicodeError as error:
        raise LogError(f"{path}: {NOT_UTF8}") from error


def _csv_chunks(path: Path, reader: Any, mapping: TableColumns, chunk_rows: int) -> Iterator[RawChunk]:
    try:
        header = _header(reader)
        if not header:
            return
        places = _places(path, header, mapping)
        first_row, rows, names = 0, [], []
        for row in reader:
            if not row:
                continue
            if len(row) != len(header):
                raise LogError(
                    f"{path}, line {reader.line_num}: expected {len(header)} fields, got {len(row)}; begin the file "
                    "with its header, end no line with a delimiter, and quote texts that contain one"
                )
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


def _places(path: Source | str, header: Sequence[str], mapping: TableColumns) -> dict[str, int]:
    missing = [column for column in mapping.columns if column not in header]
    if missing:
        # A first line without any of the columns may be a row: its cells are values of somebody.
        none = len(missing) == len(mapping.columns) and not isinstance(path, Query)
        there = "is the first line a header?" if none else f"it has {', '.join(map(str, header))}"
        raise LogError(f"{path}: missing column {', '.join(missing)}; {there}")
    twice = [column for column in mapping.columns if list(header).count(column) > 1]
    if twice:
        raise LogError(f"{path}: column {', '.join(map(repr, dict.fromkeys(twice)))} occurs more than once: rename one")
    return {column: list(header).index(column) for column in mapping.columns}


def _arrow_rows(path: Source) -> Any:
    """Open a table with typed columns: it has `schema_arrow` and `iter_batches`, as pyarrow's files have."""
    if isinstance(path, Query):
        _require_extra(path, "duckdb", "duckdb", "pyarrow")
        return _QueryRows(path)
    _require_file(path)
    _require_extra(path, "parquet", "pyarrow")
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise LogError(f"{path}: expected a Parquet file, got something else") from error


def _require_extra(path: Source, extra: str, *needed: str) -> None:
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise LogError(
            f"{path}: expected {' and '.join(missing)} to be installed: pip install 'hushstream[{extra}]', or in a "
            f"clone pip install -e '.[{extra}]'"
        )


class _QueryRows:
    """The rows of a query as pyarrow gives those of a file."""

    def __init__(self, query: Query) -> None:
        import duckdb

        self._query = query
        with self._told():
            self._relation = duckdb.connect().sql(query.sql)
            if self._relation is None:
                raise LogError(f"{query}: expected a last statement that gives rows, got none")
            self.schema_arrow = self._relation.limit(0).to_arrow_table().schema

    def __enter__(self) -> _QueryRows:
        return self

    def __exit__(self, *_: object) -> None:
        self._relation.close()

    def iter_batches(self, batch_size: int, columns: Sequence[str]) -> Iterator[Any]:
        """Batches of at most so many rows of the columns."""
        quoted = ['"' + name.replace('"', '""') + '"' for name in columns]
        with self._told():
            yield from self._relation.select(", ".join(quoted)).to_arrow_reader(batch_size)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Tell what is wrong with the query; of what is wrong with a value only its kind, as the text repeats it."""
        import duckdb

        try:
            yield
        except (duckdb.ProgrammingError, duckdb.IOException) as error:
            raise LogError(f"{self._query}: {str(error).partition(chr(10))[0]}") from None
        except duckdb.Error as error:
            raise LogError(f"{self._query}: expected rows, got {type(error).__name__} of DuckDB") from None


def _read_arrow(path: Source, mapping: TableColumns, chunk_rows: int) -> Iterator[RawChunk]:
    with _arrow_rows(path) as file:
        leaves = _leaves(path, file.schema_arrow)
        _places(path, list(leaves), mapping)
        first_row, wanted = 0, list(dict.fromkeys(leaves[name][0] for name in mapping.columns))
        for batch in file.iter_batches(batch_size=chunk_rows, columns=wanted):
            if not batch.num_rows:
                continue
            names = _row_names(first_row, batch.num_rows)
            columns: dict[str, Sequence[Any]] = {
                name: _values(path, name, _leaf(batch, leaves[name])) for name in mapping.columns
            }
            yield RawChunk(first_row, names, columns)
            first_row += batch.num_rows


def _leaves(path: Source, schema: Any) -> dict[str, tuple[str, ...]]:
    """The columns of a Parquet file with their paths: a struct is flattened as an object of JSON is.

    Raises:
        LogError: two have one name then.
    """
    import pyarrow

    found: dict[str, tuple[str, ...]] = {}

    def walk(fields: Any, above: tuple[str, ...]) -> None:
        for one in fields:
            place = (*above, one.name)
            if pyarrow.types.is_struct(one.type):
                walk([one.type.field(number) for number in range(one.type.num_fields)], place)
            else:
                if (name := "_".join(place)) in found:
                    raise LogError(f"{path}: expected columns that differ when flattened, got {name} twice: rename one")
                found[name] = place

    walk(schema, ())
    return found


def _leaf(batch: Any, place: tuple[str, ...]) -> Any:
    import pyarrow.compute

    column = batch.column(place[0])
    return pyarrow.compute.struct_field(column, list(place[1:])) if len(place) > 1 else column


def _text_of(content: bytes) -> str:
    """The text in bytes of a fixed size; in hexadecimal if they hold none, as those of a UUID."""
    try:
        text = content.rstrip(b"\0").decode()
    except UnicodeDecodeError:
        return content.hex()
    return text if text.isprintable() else content.hex()


def _values(path: Source, name: str, column: Any) -> list[Any]:
    """Python values of a column: times to the microsecond, bytes as texts.

    Raises:
        LogError: bytes that are no text in UTF-8.
    """
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pyarrow.types.is_fixed_size_binary(kind):
        return [None if one is None else _text_of(one) for one in column.to_pylist()]
    if pyarrow.types.is_decimal(kind) or pyarrow.types.is_time(kind):
        return list(map(_plain, column.to_pylist()))
    if pyarrow.types.is_timestamp(kind):
        column = column.cast(pyarrow.timestamp("us", kind.tz), safe=False)
    elif pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind):
        try:
            column = column.cast(pyarrow.string())
        except pyarrow.ArrowInvalid:
            raise LogError(f"{path}, column {name}: expected texts in UTF-8, got other bytes") from None
    values: list[Any] = column.to_pylist()
    return values


Loader = Callable[..., LoggedDataset]
"""A function that reads a log from the dataset's folder; options are passed by keyword."""

LOGS: Registry[Loader] = Registry("log", "hushstream.logs", Callable, LogError)
"""Logs that other packages offer by entry point."""

POLICIES = ("random", "bts")
ARMS = {"all": 80, "men": 34, "women": 46}

_USER_FEATURES = tuple(f"user_feature_{number}" for number in range(4))


@dataclass(frozen=True, slots=True)
class _UserFeatures:
    """The columns of the user features."""

    columns: tuple[str, ...] = _USER_FEATURES
    delimiter: str = ","


def load_obd(folder: str | Path, policy: str = "random", campaign: str = "all") -> LoggedDataset:
    """Read one log.

    Args:
        folder: the folder that holds ``random`` and ``bts``, with a table for each campaign.
        policy: ``random`` or ``bts``, the policy that wrote the log.
        campaign: ``all`` (80 arms), ``men`` (34) or ``women`` (46).

    Returns:
        The log in the order of the file. Its features are the four hashed user features, with the values that they have
        in the logs of both policies; the affinities are left out, as they are zero in most rows. Its users are the
        combinations of user features, as the release has no user ids.

    Raises:
        LogError: policy or campaign is unknown, the file is missing or empty, or a row is malformed.
    """
    if policy not in POLICIES or campaign not in ARMS:
        raise LogError(f"obd: expected policy in {POLICIES} and campaign in {tuple(ARMS)}")
    paths = {name: Path(folder) / name / campaign / f"{campaign}.csv" for name in POLICIES}
    values: dict[str, set[str]] = {name: set() for name in _USER_FEATURES}
    for path in (path for name, path in paths.items() if name == policy or path.is_file()):
        for chunk in read_chunks(path, _UserFeatures()):
            for name, seen in values.items():
                seen.update(chunk.columns[name])
    mapping = TableMapping(
        features=declare({name: {"kind": "category", "vocabulary": sorted(seen)} for name, seen in values.items()}),
        timestamp="timestamp",
        arm="item_id",
        arms=ARMS[campaign],
        reward="click",
        propensity="propensity_score",
        position="position",
        data=PUBLIC,
    )
    log = concatenate(list(stream_table(paths[policy], mapping)))
    users = np.array(["-".join(visit.values()) for visit in log.visits], dtype=np.str_)
    return replace(log, name=f"obd/{policy}/{campaign}", users=users)


def known_logs() -> dict[str, Loader]:
    """Return the loader of every published log by the name of its dataset, sorted.

    Raises:
        LogError: two packages claim one name.
    """
    return LOGS.known({"obd": load_obd})
