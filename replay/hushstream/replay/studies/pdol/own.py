"""Reads a user's own labelled records: CSV, Parquet and svmlight files with a mapping file.

The mapping says what is public about the records: which columns are features and within which bounds, which label is
the positive one, and which nodes there are. None of this is taken from the rows. An error names the row and the
column, never the value.

Keys, for CSV and Parquet:

    label: bought            column of the label
    positive: "yes"          its value that means 1; any other value means -1
    bounds: {age: [18, 100]} numbers, by column; a value is mapped to -1..1 between its bounds, cut at them
    categories: {kind: [a, b]} names, by column; each name is a feature
    features: {age: {kind: number, range: [18, 100]}}   in place of bounds and categories: declared features by column
    nodes: [north, south]    names of the nodes, with ``node: COLUMN``; or their number, then records are dealt in turn
    node: shop               column of the node
    public: true             whether exact figures may be shown

For svmlight: positive, nodes (a number), public, and

    dimension: 5000          features; indices run from 1 to it (from 0 with ``zero_based: true``)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hushstream.features.schema import FeatureSchema
from hushstream.replay.logged.log import LogError
from hushstream.replay.logged.mapping import (
    BOUNDS,
    CATEGORIES,
    Reader,
    count_or_names,
    declared,
    flag,
    read_mapping,
    source_of,
    whole,
)
from hushstream.replay.logged.table import RawChunk, Table, is_file, name_of, read_chunks
from hushstream.replay.logged.values import category_numbers, numbers, texts, visits_of
from hushstream.replay.studies.pdol.worlds import RecordStream, make_stream
from hushstream.schemas.errors import unreadable

SVMLIGHT_SUFFIXES = (".svm", ".svmlight", ".libsvm")
_LARGEST_DIMENSION = 130_000

Columns = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]
"""Row ends, indices, values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMapping:
    """The keys of a mapping file; see the module."""

    positive: str
    nodes: int | tuple[str, ...]
    label: str | None = None
    node: str | None = None
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dimension: int | None = None
    zero_based: bool = False
    delimiter: str = ","
    public: bool = False
    features: FeatureSchema | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns that the table must have."""
        declared = () if self.features is None else self.features.layout.names or ()
        named = [self.label, self.node, *self.bounds, *self.categories, *declared]
        return tuple(dict.fromkeys(name for name in named if name is not None))

    @property
    def node_count(self) -> int:
        """M, the number of nodes."""
        return self.nodes if isinstance(self.nodes, int) else len(self.nodes)

    @property
    def width(self) -> int:
        """n without the constant feature."""
        if self.dimension is not None:
            return self.dimension
        if self.features is not None:
            return self.features.cells
        return len(self.bounds) + sum(len(names) for names in self.categories.values())


def load_records(file: Table, mapping: RecordMapping | Mapping[str, Any] | str | Path) -> RecordStream:
    """Read a table into a stream of records, in the order of its rows.

    Args:
        file: a data frame, or the path of a file: ``.svm``, ``.svmlight`` or ``.libsvm``; ``.parquet`` or ``.pq``;
            anything else is CSV.
        mapping: a mapping, its keys and values, or the path of a mapping file.

    Raises:
        LogError: the file, the mapping or a value is invalid.
    """
    if not isinstance(mapping, RecordMapping):
        mapping = record_mapping(mapping)
    path = Path(name_of(file))
    svmlight = is_file(file) and path.suffix.lower() in SVMLIGHT_SUFFIXES
    _require_kind(path, mapping, svmlight)
    chunks = () if svmlight else read_chunks(file, mapping)
    parts = [_svmlight(path, mapping)] if svmlight else [_part(path, mapping, chunk) for chunk in chunks]
    ends, indices, values = _joined([part[0] for part in parts])
    labels = np.concatenate([part[1] for part in parts])
    named = [part[2] for part in parts if part[2] is not None]
    nodes = np.concatenate(named) if named else np.arange(len(labels)) % mapping.node_count
    return make_stream(
        path.name,
        ends,
        indices,
        values,
        labels,
        mapping.width,
        nodes,
        mapping.node_count,
        public=mapping.public,
    )


def record_mapping(given: Mapping[str, Any] | str | Path) -> RecordMapping:
    """Read a mapping from its file, or check its keys and values.

    Raises:
        LogError: as `hushstream.replay.logged.mapping.read_mapping`; or combinations of values that are not valid.
    """
    mapping, source = read_mapping(given, RecordMapping, ("positive", "nodes"), _READERS), source_of(given)
    if mapping.node is not None and isinstance(mapping.nodes, int):
        raise LogError(f"{source}: nodes: expected the names of the nodes beside a column of them, got a number")
    if mapping.node is None and not isinstance(mapping.nodes, int):
        raise LogError(f"{source}: nodes: expected a number, or names with a column `node`, got names alone")
    both = sorted(set(mapping.bounds) & set(mapping.categories))
    if both:
        raise LogError(f"{source}: expected bounds or categories for a column, got both for {', '.join(both)}")
    return mapping


def _positive(source: str, key: str, value: object) -> str:
    # YAML does not read yes, 1 and 1.0 as texts. Whole numbers are accepted; other values need quotes.
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise LogError(f"{source}: {key}: expected a text (in quotes), got {type(value).__name__}")
    return str(value)


_READERS: Mapping[str, Reader] = {
    "positive": _positive,
    "nodes": count_or_names(1, _LARGEST_DIMENSION),
    "bounds": BOUNDS,
    "categories": CATEGORIES,
    "dimension": whole(1, _LARGEST_DIMENSION),
    "zero_based": flag,
    "public": flag,
    "features": declared,
}


def _require_kind(path: Path, mapping: RecordMapping, svmlight: bool) -> None:
    if svmlight and (mapping.dimension is None or mapping.columns):
        raise LogError(f"{path}: expected a mapping with dimension and without columns for an svmlight file")
    if not svmlight and (mapping.label is None or mapping.dimension is not None or not mapping.width):
        raise LogError(f"{path}: expected a mapping with label, and bounds or categories, and without dimension")


def _part(
    path: Path, mapping: RecordMapping, chunk: RawChunk
) -> tuple[Columns, npt.NDArray[np.int64], npt.NDArray[np.int64] | None]:
    """Columns, labels and nodes of one piece of a table."""
    place = (str(path), chunk.row_names)
    assert mapping.label is not None
    labels = np.where(texts(chunk.columns[mapping.label], mapping.label, place) == mapping.positive, 1, -1)
    nodes = None
    if mapping.node is not None:
        assert not isinstance(mapping.nodes, int)
        nodes = category_numbers(chunk.columns[mapping.node], mapping.node, place, mapping.nodes)
    if mapping.features is not None:
        _, seen = visits_of(mapping.features, chunk.columns, place)
        rows, cells = np.nonzero(seen)
        ends = np.searchsorted(rows, np.arange(len(labels) + 1)).astype(np.int64)
        return (ends, cells.astype(np.int64), seen[rows, cells].astype(np.float64)), labels, nodes
    entries: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]] = []
    first = 0
    for name, (low, high) in mapping.bounds.items():
        found = numbers(chunk.columns[name], name, place, least=-np.inf, most=np.inf)
        entries.append((np.full(len(labels), first), np.clip(2 * (found - low) / (high - low) - 1, -1, 1)))
        first += 1
    for name, known in mapping.categories.items():
        entries.append((first + category_numbers(chunk.columns[name], name, place, known), np.ones(len(labels))))
        first += len(known)
    indices = np.stack([index for index, _ in entries], axis=1).ravel()
    values = np.stack([value for _, value in entries], axis=1).ravel()
    ends = np.arange(len(labels) + 1, dtype=np.int64) * len(entries)
    return (ends, indices.astype(np.int64), values), labels, nodes


def _svmlight(
    path: Path, mapping: RecordMapping
) -> tuple[Columns, npt.NDArray[np.int64], npt.NDArray[np.int64] | None]:
    lengths, indices, values, labels = [], [], [], []
    for number, fields_of in _svmlight_lines(path):
        labels.append(1 if fields_of[0].lstrip("+") == mapping.positive.lstrip("+") else -1)
        for entry in fields_of[1:]:
            index, _, value = entry.partition(":")
            try:
                place, size = int(index) - (not mapping.zero_based), float(value)
            except ValueError:
                raise LogError(f"{path}, line {number}: expected INDEX:VALUE") from None
            if not 0 <= place < mapping.width or not math.isfinite(size):
                raise LogError(f"{path}, line {number}: expected an index within the dimension and a finite value")
            indices.append(place)
            values.append(size)
        lengths.append(len(fields_of) - 1)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    columns = ends, np.array(indices, dtype=np.int64), np.array(values, dtype=np.float64)
    return columns, np.array(labels, dtype=np.int64), None


def _svmlight_lines(path: Path) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield number and fields of each line with a record."""
    empty = True
    try:
        with path.open(encoding="utf-8-sig") as stream:
            for number, line in enumerate(stream, 1):
                found = line.partition("#")[0].split()
                if found:
                    empty = False
                    yield number, found
    except (OSError, UnicodeDecodeError) as error:
        raise LogError(f"{path}: expected a readable UTF-8 file, got {unreadable(error)}") from error
    if empty:
        raise LogError(f"{path}: the file has no records")


def _joined(parts: Sequence[Columns]) -> Columns:
    lengths = np.concatenate([np.diff(ends) for ends, _, _ in parts])
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return ends, np.concatenate([part[1] for part in parts]), np.concatenate([part[2] for part in parts])
