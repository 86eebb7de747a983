"""The worlds of PDOL, streams of labelled records that are dealt to nodes: one label of TMC2007, sparse synthetic
records, clicks of MovieLens-100K.

Reads a user's own labelled records: CSV, Parquet and svmlight files with a mapping file.

The mapping says what is public about the records: which columns are features and within which bounds, which label is
the positive one, and which nodes there are. None of this is taken from the rows. An error names the row and the
column, never the value.

Keys, for CSV and Parquet:

    label: bought            column of the label
    positive: "yes"          its value that means 1; any other value means -1
    features: {age: {kind: number, range: [18, 100]}}   declared features, by column
    nodes: [north, south]    names of the nodes, with ``node: COLUMN``; or their number, then records are dealt in turn
    node: shop               column of the node
    public: true             whether exact figures may be shown

For svmlight: positive, nodes (a number), public, and

    dimension: 5000          features; indices run from 1 to it (from 0 with ``zero_based: true``)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from hushstream.features.schema import FeatureSchema
from hushstream.replay.datasets.store import locate
from hushstream.replay.logged.log import LogError
from hushstream.replay.logged.mapping import count_or_names, read_mapping, source_of, within
from hushstream.replay.logged.table import RawChunk, Table, is_file, name_of, read_chunks
from hushstream.replay.logged.values import category_numbers, texts, visits_of
from hushstream.replay.worlds.draws import Draws
from hushstream.replay.worlds.movielens import Ratings, read_ratings
from hushstream.replay.worlds.multilabel import read_corpus, split_labels
from hushstream.replay.worlds.world import WorldError, require_number
from hushstream.schemas.errors import unreadable
from hushstream.systems.pdol.algorithm.rows import Rows, quantise, unit_rows

Sizes = Literal["even", "zipf"]


@dataclass(frozen=True, eq=False)
class RecordStream:
    """Records in the order of time, each arriving at a node.

    Attributes:
        name: name of world and variant, as figures state it.
        rows: the slots, int columns of `Rows`; a record that breaks a bound is already null here.
        nodes: int64 (m,), the node of each record.
        node_count: M.
        dimension: n.
        refused: how many records broke a bound.
        private_features: mean share of a record's squared norm in features that no other node has.
        public: whether exact figures may be shown.
    """

    name: str
    rows: Rows
    nodes: npt.NDArray[np.int64]
    node_count: int
    dimension: int
    refused: int = 0
    private_features: float = 0.0
    public: bool = True

    def __len__(self) -> int:
        """The number of records."""
        return len(self.rows)

    @cached_property
    def constant(self) -> float:
        """The accuracy of a constant prediction of the more frequent label."""
        taken = self.rows.labels[self.rows.labels != 0]
        return float(max(np.mean(taken == 1), np.mean(taken == -1)))

    @property
    def records_per_node(self) -> float:
        """The mean number of records of a node."""
        return len(self) / self.node_count


def make_stream(
    name: str,
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int64],
    values: npt.NDArray[np.float64],
    labels: npt.NDArray[np.int64],
    dimension: int,
    nodes: npt.NDArray[np.int64],
    node_count: int,
    *,
    private_features: float = 0.0,
    public: bool = True,
) -> RecordStream:
    """Scale every record to norm 1, add a constant feature (the last coordinate), and quantise.

    The constant feature has the size of one feature of value 1, before the scaling.

    Args:
        name: name of the stream.
        indptr: (m + 1,) as in `Rows`.
        indices: coordinates below ``dimension``.
        values: real numbers.
        labels: (m,), 1 or -1.
        dimension: features without the constant one.
        nodes: (m,).
        node_count: M.
        private_features: see `RecordStream`.
        public: see `RecordStream`.
    """
    rows = len(labels)
    lengths = np.diff(indptr)
    ends = indptr + np.arange(rows + 1)
    places = np.repeat(np.arange(rows), lengths) + np.arange(len(indices))
    wide_indices = np.full(len(indices) + rows, dimension, dtype=np.int64)
    wide_values = np.ones(len(indices) + rows)
    wide_indices[places], wide_values[places] = indices, values
    scaled = unit_rows(ends, wide_values)
    slots, refused = quantise(ends, wide_indices, scaled, labels, dimension + 1)
    return RecordStream(
        name,
        slots,
        np.asarray(nodes, dtype=np.int64),
        node_count,
        dimension + 1,
        int(np.count_nonzero(refused)),
        private_features,
        public,
    )


def deal(records: int, nodes: int, sizes: Sizes, seed: int) -> npt.NDArray[np.int64]:
    """The node that each record of a shuffled stream goes to.

    ``even`` deals in turn. ``zipf`` gives node i a share of 1 / (i + 1), with its records spread over the whole time.

    Raises:
        WorldError: other sizes, or more nodes than records.
    """
    require_number("records", "nodes", nodes, 1, records)
    if sizes == "even":
        return np.arange(records) % nodes
    if sizes != "zipf":
        raise WorldError(f"records: sizes must be even or zipf, got {sizes!r}")
    share = 1.0 / np.arange(1, nodes + 1)
    counts = np.maximum(1, np.floor(records * share / share.sum())).astype(np.int64)
    counts[0] += records - counts.sum()
    owners = np.repeat(np.arange(nodes), counts)
    return np.asarray(Draws(seed, "nodes").generator().permutation(owners))


def permuted(records: int, seed: int) -> npt.NDArray[np.int64]:
    """The order in which the records of a collection arrive."""
    return np.asarray(Draws(seed, "records").generator().permutation(records), dtype=np.int64)


def sparse_columns(
    dense: npt.NDArray[np.bool_],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Row ends, indices and values (all 1) of a matrix of booleans."""
    ends = np.concatenate([[0], np.cumsum(dense.sum(axis=1))]).astype(np.int64)
    indices = np.nonzero(dense)[1].astype(np.int64)
    return ends, indices, np.ones(len(indices))


_INFORMATIVE = 0.18
_HEAD = 50.0
_FLIPPED = 0.05


def tmc_binary(
    *, label: str = "class19", nodes: int = 64, sizes: Sizes = "even", seed: int = 0, data_dir: str | None = None
) -> RecordStream:
    """TMC2007: one label against the rest, on the 500 words of the corpus.

    Args:
        label: class01 to class22.
        nodes: M.
        sizes: ``even`` or ``zipf``.
        seed: decides the order of the records and which node gets each.
        data_dir: local data folder in place of the cache.

    Raises:
        DatasetError: the files are absent or differ from the published ones.
        WorldError: there is no such label, or an option is out of range.
    """
    words, labels, names = split_labels(read_corpus(locate("tmc-binary", data_dir)))
    if label not in names:
        raise WorldError(f"tmc-binary: label must be one of {names[0]} .. {names[-1]}, got {label!r}")
    order = permuted(len(words), seed)
    signed = np.where(labels[order, names.index(label)], 1, -1)
    columns = sparse_columns(words[order])
    owners = deal(len(order), nodes, sizes, seed)
    return make_stream(f"tmc-binary/{label}", *columns, signed, words.shape[1], owners, nodes)


def sparse_synthetic(
    *,
    records: int = 100_000,
    dimension: int = 10_000,
    features: int = 50,
    nodes: int = 64,
    sizes: Sizes = "even",
    drift: float = 0.0,
    seed: int = 0,
) -> RecordStream:
    """Sparse records of many features; few features carry information about the label.

    A record has ``features`` draws (repeated ones count once) of a feature, by popularity 1 / (rank + 50). Weights are
    normal on a random 18 % of the features and 0 on the others. The label is 1 where the record's sum lies above the
    median of all, and 5 % of the labels are flipped.

    Args:
        records: m.
        dimension: n, without the constant feature.
        features: draws of a record.
        nodes: M.
        sizes: ``even`` or ``zipf``.
        drift: rotation of the weights towards other weights over the whole stream, in quarters of a circle.
        seed: seed of everything.

    Raises:
        WorldError: an option is out of range.
    """
    require_number("sparse-synthetic", "records", records, 1, 10_000_000)
    require_number("sparse-synthetic", "dimension", dimension, 2, 100_000)
    require_number("sparse-synthetic", "features", features, 1, dimension)
    require_number("sparse-synthetic", "drift", drift, 0.0, 4.0)
    draw = Draws(seed, "sparse-synthetic").generator()
    popularity = 1.0 / (np.arange(dimension) + _HEAD)
    drawn = draw.choice(dimension, size=(records, features), p=popularity / popularity.sum())
    weights = [_weights(draw, dimension) for _ in range(2)]
    present = np.sort(drawn, axis=1)
    fresh = np.ones(present.shape, dtype=bool)
    fresh[:, 1:] = present[:, 1:] > present[:, :-1]
    ends = np.concatenate([[0], np.cumsum(fresh.sum(axis=1))]).astype(np.int64)
    sums = [np.where(fresh, weight[present], 0.0).sum(axis=1) for weight in weights]
    angle = drift * (np.pi / 2) * np.arange(records) / records
    score = np.cos(angle) * sums[0] + np.sin(angle) * sums[1]
    signed = np.where(score > np.median(score), 1, -1)
    signed[draw.random(records) < _FLIPPED] *= -1
    indices = present[fresh].astype(np.int64)
    name = f"sparse-synthetic/{dimension:,}" + (f", drift {drift:g}" if drift else "")
    owners = deal(records, nodes, sizes, seed)
    return make_stream(name, ends, indices, np.ones(len(indices)), signed, dimension, owners, nodes)


def _weights(draw: np.random.Generator, dimension: int) -> npt.NDArray[np.float64]:
    chosen = draw.permutation(dimension)[: max(1, round(_INFORMATIVE * dimension))]
    weights = np.zeros(dimension)
    weights[chosen] = draw.normal(size=len(chosen))
    return weights


def dense_synthetic(
    *, records: int = 8_000, dimension: int = 20, nodes: int = 16, apart: float = 0.0, seed: int = 0, part: int = 0
) -> tuple[RecordStream, npt.NDArray[np.float64]]:
    """Dense records: normal features, and a logistic label whose log-odds have the standard deviation 3.

    The second result is the chance of the label 1, (m,).

    Args:
        records: m, dealt evenly.
        dimension: n, without the constant feature.
        nodes: M.
        apart: share of the variance of log-odds that is due to weights of the node alone.
        seed: seed of the weights and of everything else.
        part: another number draws other records of the same weights.

    Raises:
        WorldError: an option is out of range.
    """
    require_number("dense-synthetic", "records", records, 1, 10_000_000)
    require_number("dense-synthetic", "dimension", dimension, 2, 10_000)
    require_number("dense-synthetic", "apart", apart, 0.0, 1.0)
    owners = deal(records, nodes, "even", seed)
    drawn = Draws(seed, "dense-weights").generator()
    common, own = drawn.standard_normal(dimension), drawn.standard_normal((nodes, dimension))
    weights = 3 * (np.sqrt(1 - apart) * common + np.sqrt(apart) * own) / np.sqrt(dimension)
    draw = Draws(seed, f"dense-records-{part}").generator()
    found = draw.standard_normal((records, dimension))
    chances = 1 / (1 + np.exp(-(found * weights[owners]).sum(axis=1)))
    signed = np.where(draw.random(records) < chances, 1, -1)
    ends, indices = dimension * np.arange(records + 1), np.tile(np.arange(dimension), records)
    return make_stream("dense-synthetic", ends, indices, found.ravel(), signed, dimension, owners, nodes), chances


def ml_clicks(*, nodes: int = 64, like_at: int = 4, seed: int = 0, data_dir: str | None = None) -> RecordStream:
    """MovieLens-100K: the label says whether a user likes a film. Users are dealt to nodes, so each node has its own.

    A record has three features: its user, its film, and the constant. A third of its squared norm is in the user's
    feature, which no other node has.

    Args:
        nodes: M.
        like_at: stars from which a rating is a like.
        seed: decides which node each user is at.
        data_dir: local data folder in place of the cache.

    Raises:
        DatasetError: the files are absent or differ from the published ones.
        WorldError: an option is out of range.
    """
    return clicks_of(read_ratings(locate("ml-clicks", data_dir)), nodes, like_at, seed)


def clicks_of(ratings: Ratings, nodes: int, like_at: int, seed: int) -> RecordStream:
    """Make the stream of `ml_clicks` from ratings that were read already."""
    users, films = int(ratings.users.max()) + 1, len(ratings.genres)
    require_number("ml-clicks", "nodes", nodes, 1, users)
    require_number("ml-clicks", "like_at", like_at, 2, 5)
    order = np.argsort(ratings.seconds, kind="stable")
    user, film = ratings.users[order], ratings.items[order]
    at = np.asarray(Draws(seed, "users").generator().permutation(users)) % nodes
    indices = np.stack([user, users + film], axis=1).ravel()
    signed = np.where(ratings.stars[order] >= like_at, 1, -1)
    ends = 2 * np.arange(len(order) + 1, dtype=np.int64)
    ones = np.ones(len(indices))
    return make_stream("ml-clicks", ends, indices, ones, signed, users + films, at[user], nodes, private_features=1 / 3)


SVMLIGHT_SUFFIXES = (".svm", ".svmlight", ".libsvm")
_LARGEST_DIMENSION = 130_000

Columns = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]
"""Row ends, indices, values."""


def _positive(key: str, value: object) -> str:
    # YAML does not read yes, 1 and 1.0 as texts. Whole numbers are accepted; other values need quotes.
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise LogError(f"{key}: expected a text (in quotes), got {type(value).__name__}")
    return str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMapping:
    """The keys of a mapping file; see the module."""

    positive: Annotated[str, _positive]
    nodes: Annotated[int | tuple[str, ...], count_or_names(1, _LARGEST_DIMENSION)]
    label: str | None = None
    node: str | None = None
    dimension: Annotated[int | None, within(1, _LARGEST_DIMENSION)] = None
    zero_based: bool = False
    delimiter: str = ","
    public: bool = False
    features: FeatureSchema | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns that the table must have."""
        declared = () if self.features is None else self.features.layout.names or ()
        named = [self.label, self.node, *declared]
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
        return 0 if self.features is None else self.features.cells


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
    mapping, source = read_mapping(given, RecordMapping), source_of(given)
    if mapping.node is not None and isinstance(mapping.nodes, int):
        raise LogError(f"{source}: nodes: expected the names of the nodes beside a column of them, got a number")
    if mapping.node is None and not isinstance(mapping.nodes, int):
        raise LogError(f"{source}: nodes: expected a number, or names with a column `node`, got names alone")
    return mapping


def _require_kind(path: Path, mapping: RecordMapping, svmlight: bool) -> None:
    if svmlight and (mapping.dimension is None or mapping.columns):
        raise LogError(f"{path}: expected a mapping with dimension and without columns for an svmlight file")
    if not svmlight and (mapping.label is None or mapping.dimension is not None or mapping.features is None):
        raise LogError(f"{path}: expected a mapping with label and features, and without dimension")


def _part(
    path: Path, mapping: RecordMapping, chunk: RawChunk
) -> tuple[Columns, npt.NDArray[np.int64], npt.NDArray[np.int64] | None]:
    """Columns, labels and nodes of one piece of a table."""
    place = (str(path), chunk.row_names)
    assert mapping.label is not None
    assert mapping.features is not None
    labels = np.where(texts(chunk.columns[mapping.label], mapping.label, place) == mapping.positive, 1, -1)
    nodes = None
    if mapping.node is not None:
        assert not isinstance(mapping.nodes, int)
        nodes = category_numbers(chunk.columns[mapping.node], mapping.node, place, mapping.nodes)
    _, seen = visits_of(mapping.features, chunk.columns, place)
    rows, cells = np.nonzero(seen)
    ends = np.searchsorted(rows, np.arange(len(labels) + 1)).astype(np.int64)
    return (ends, cells.astype(np.int64), seen[rows, cells].astype(np.float64)), labels, nodes


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
