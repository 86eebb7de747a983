"""Makes streams of labelled records, and deals them to nodes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from hushstream.replay.worlds.draws import Draws
from hushstream.replay.worlds.world import WorldError, require_number
from hushstream.systems.pdol.algorithm.edge import quantise, unit_rows
from hushstream.systems.pdol.algorithm.rows import Rows

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
