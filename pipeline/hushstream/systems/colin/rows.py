"""Rows of a collaborative system: user, features and reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.configuration import GRID_BITS, FeatureConfig

MAX_ROWS_A_RECORD = 256
"""Largest number of rows in one record of rewards, or in one release at the edge. A step takes whole records, so this
keeps its release within the size of a record."""

FORGOTTEN = 1 << 62
"""Replaces the number of counted rewards of an erased user, so that no allowance covers another one."""


EVENT = np.dtype("V16")
"""The name of an event: 16 opaque bytes."""


class BadRows(HushstreamError):
    """Rows are not what a deployment's configuration allows."""


class Shape(Protocol):
    """Limits of rows."""

    @property
    def nodes(self) -> int: ...
    @property
    def features(self) -> FeatureConfig: ...


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """n rewards: ``nodes`` int32 (n,), ``features`` float32 (n, d), ``rewards`` float64 (n,) in [0, 1].

    Attributes:
        events: V16 (n,), opaque names of the events that they are of; blank where a batch is named as a whole.
    """

    nodes: NDArray[np.int32]
    features: NDArray[np.float32]
    rewards: NDArray[np.float64]
    events: NDArray[np.void] = field(default_factory=lambda: np.zeros(0, dtype=EVENT))

    def __post_init__(self) -> None:
        """Without names, all are blank."""
        if len(self.events) != len(self.nodes):
            object.__setattr__(self, "events", np.zeros(len(self.nodes), dtype=EVENT))

    def __len__(self) -> int:
        """n."""
        return len(self.nodes)

    def without(self, node: int) -> Rows:
        """The rows of the other nodes."""
        kept = self.nodes != node
        return Rows(self.nodes[kept], self.features[kept], self.rewards[kept], self.events[kept])

    @classmethod
    def joined(cls, parts: Sequence[Rows], dimension: int) -> Rows:
        """All rows of d features in the order of their nodes; those of one node keep their order."""
        none = cls(np.zeros(0, np.int32), np.zeros((0, dimension), np.float32), np.zeros(0))
        parts = (none, *parts)
        nodes = np.concatenate([part.nodes for part in parts])
        order = np.argsort(nodes, kind="stable")
        return cls(
            nodes[order],
            np.concatenate([part.features for part in parts])[order],
            np.concatenate([part.rewards for part in parts])[order],
            np.concatenate([part.events for part in parts])[order],
        )

    def within(self, taken: NDArray[np.int64], most: int) -> Rows:
        """The rows within each node's allowance; ``taken`` (N,) grows by them."""
        order = np.argsort(self.nodes, kind="stable")
        nodes = self.nodes[order]
        first = np.searchsorted(nodes, nodes)
        before = np.empty(len(nodes), dtype=np.int64)
        before[order] = np.arange(len(nodes)) - first
        kept = taken[self.nodes] + before < most
        np.add.at(taken, self.nodes[kept], 1)
        if kept.all():
            return self
        return Rows(self.nodes[kept], self.features[kept], self.rewards[kept], self.events[kept])

    def lattice(self) -> NDArray[np.int64]:
        """Features times reward in units of 2^-`GRID_BITS`, toward zero, int64 (n, d).

        For any two rewards in [0, 1] entry i of the results differs by at most |x_i| * 2^`GRID_BITS`: both have the
        sign of x_i and neither is larger than that. So one reward moves its row by at most ||x||_1 (L1) and
        ||x||_2 (L2), in these units, whatever rounding does.
        """
        scaled = self.features.astype(np.float64) * self.rewards[:, None] * float(1 << GRID_BITS)
        return np.trunc(scaled).astype(np.int64)


def parse_rows(nodes: bytes, features: bytes, rewards: bytes, shape: Shape) -> Rows:
    """Read rows from the columns of a record.

    Raises:
        BadRows: columns whose lengths do not match, unknown nodes, features that are too long, rewards outside [0, 1].
    """
    n, d = len(nodes) // 4, shape.features.dimension
    if (len(nodes), len(features), len(rewards)) != (4 * n, 4 * n * d, 8 * n):
        raise BadRows(f"rows: expected columns of one length and {d} features, got others")
    rows = Rows(
        np.frombuffer(nodes, "<i4").astype(np.int32),
        np.frombuffer(features, "<f4").reshape(n, d).astype(np.float32),
        np.frombuffer(rewards, "<f8").astype(np.float64),
    )
    if not ((rows.nodes >= 0) & (rows.nodes < shape.nodes)).all():
        raise BadRows(f"rows: expected nodes below {shape.nodes}, got others")
    if not short_enough(rows.features, shape.features).all():
        raise BadRows("rows: expected features within the configured length, got longer ones")
    # Written so that NaN, which compares false, is refused.
    if not ((rows.rewards >= 0) & (rows.rewards <= 1)).all():
        raise BadRows("rows: expected rewards in [0, 1], got others")
    return rows


def sum_of_names(events: NDArray[np.void]) -> bytes:
    """Sum of the names of events modulo 2^128, 16 bytes: one name for all of them, independent of order and batches."""
    total = sum(int.from_bytes(event.tobytes(), "little") for event in events)
    return (total % (1 << 128)).to_bytes(16, "little")


def short_enough(features: NDArray[np.float32], bounds: FeatureConfig) -> NDArray[np.bool_]:
    """Which rows of (n, d) are within both lengths; what is not finite is not.

    The lengths are compared in float64 with a margin of 2^-40. This is far below a step of the lattice, and below the
    margin of the sensitivity that sizes the noise (`hushstream.systems.colin.release`).
    """
    exact = features.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("nd,nd->n", exact, exact)
        lengths = np.abs(exact).sum(axis=1)
        slack = 1 + 2.0**-40
        good: NDArray[np.bool_] = (squares <= bounds.norm**2 * slack) & (lengths <= bounds.l1_bound * slack)
    return good
