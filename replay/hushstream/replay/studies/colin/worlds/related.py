"""Worlds in which each round shows a user several arms with features of their own, and users are related.

A context of such a world is the (arms, d) float32 matrix of the shown arms' features, flattened by rows to arms * d
numbers, so the same records carry it as any other context. Arm a of a round is row a of the matrix.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from hushstream.replay.worlds.draws import Draws, IntArray
from hushstream.replay.worlds.world import World, WorldError

# Rounding a row of length 1 to float32 can make it longer than 1; scaled to this length first, it never does.
_ROUNDING_ROOM = 1.0 - 2.0**-22


@runtime_checkable
class CollaborativeWorld(World, Protocol):
    """A world for collaborative bandits; see the module.

    Attributes:
        variant: how its features and users are made; figures name it.
        feature_dimension: d, the length of one arm's features; ``dimension`` is arms * d.
        relation: (N, N) float64, W of CoLin: entry (i, j) is the influence between users i and j, each column
            sums to 1, and user u's expected reward weighs the users' parameters by row u.
        graph: (N, N) float64, symmetric edge weights with an empty diagonal, for GOBLin.
    """

    @property
    def variant(self) -> str: ...
    @property
    def feature_dimension(self) -> int: ...
    @property
    def relation(self) -> npt.NDArray[np.float64]: ...
    @property
    def graph(self) -> npt.NDArray[np.float64]: ...

    def features(self, users: IntArray, round_index: int) -> npt.NDArray[np.float32]:
        """Return the (n, arms, d) features of the arms shown to ``users`` (n,) at one round."""
        ...

    def largest_feature_norm(self, order: int) -> float:
        """Return the largest L1 (order 1) or L2 (order 2) length of any arm's features: public, like all features."""
        ...


def unit_rows(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Scale rows (n, d) to L2 length 1, as float32 rows that are never longer than 1.

    Raises:
        WorldError: a row is all zeros.
    """
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not lengths.all():
        raise WorldError("features: expected every row to differ from zero, got a row of zeros")
    return np.asarray(rows / lengths * _ROUNDING_ROOM, dtype=np.float32)


def columns_to_one(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Divide each column of a nonnegative (N, N) matrix by its sum, as the paper normalises W.

    Raises:
        WorldError: a weight is negative or a column is all zeros.
    """
    totals = weights.sum(axis=0)
    if weights.min(initial=0.0) < 0.0 or not totals.all():
        raise WorldError("relation: expected weights >= 0 and a positive sum in each column")
    return np.asarray(weights / totals, dtype=np.float64)


def pick_without_replacement(
    draws: Draws, users: IntArray, round_index: int, count: int, pool: int | IntArray
) -> npt.NDArray[np.int64]:
    """Draw ``count`` different numbers below ``pool`` for each user at a round; every set is equally likely.

    It uses Floyd's method (Bentley and Floyd 1987), with one uniform draw for each number.

    Args:
        draws: seed and purpose.
        users: (n,).
        round_index: the round.
        count: how many numbers each user gets; no pool may be smaller.
        pool: one for all or (n,).

    Returns:
        (n, count) int64; each row depends only on seed, purpose, user and round.
    """
    coins = draws.uniforms(users, round_index, count)
    picked = np.empty((len(users), count), dtype=np.int64)
    for column in range(count):
        last = pool - count + column
        drawn = (coins[:, column] * (last + 1)).astype(np.int64)
        taken = (picked[:, :column] == drawn[:, None]).any(axis=1)
        picked[:, column] = np.where(taken, last, drawn)
    return picked
