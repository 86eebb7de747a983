"""The model without privacy for declared features: ridge regression on every interaction in clear.

It is computed here, in one process, from what contributors did in a replay of a public dataset, because no deployment
with declared features sends interactions in clear.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hushstream.features.schema import FeatureSchema, Rows
from hushstream.learners.sparse_population import NormalPrior, SparsePopulation
from hushstream.replay.worlds.draws import Draws, IntArray
from hushstream.replay.worlds.mixed_table import FeatureWorld
from hushstream.replay.worlds.world import World

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


class DeclaredWorld(World, FeatureWorld, Protocol):
    """A world for a closed loop, with visits that declared features describe."""


class ClearSums:
    """The sums for ridge regression: for each item, a gram matrix and a moment of dense contexts."""

    def __init__(self, schema: FeatureSchema, arms: int) -> None:
        """Start without interactions."""
        width = schema.cells + 1
        self._ridge = float(len(schema.table) + 1)
        self.gram, self.moment = np.zeros((arms, width, width)), np.zeros((arms, width))

    def add(self, contexts: Float32, arms: IntArray, rewards: Float64) -> None:
        """Count n interactions: contexts (n, P) as `written_out` gives them, items (n,) and rewards (n,)."""
        for arm in range(len(self.gram)):
            mine = contexts[arms == arm]
            self.gram[arm] += mine.T @ mine
            self.moment[arm] += mine.T @ rewards[arms == arm].astype(np.float32)

    def prior(self) -> NormalPrior:
        """The model that new users start from."""
        covariance = np.linalg.inv(self.gram + self._ridge * np.eye(self.gram.shape[1])).astype(np.float64)
        return NormalPrior.of(np.einsum("kij,kj->ki", covariance, self.moment), covariance, 1.0)


def written_out(schema: FeatureSchema, rows: Rows) -> Float32:
    """Make dense contexts (1, blocks) from rows, (n, P)."""
    blocks, width = schema.blocks(rows), schema.cells + 1
    keys = blocks.cells + 1 + np.arange(len(rows))[:, None] * width
    dense = np.bincount(keys.ravel(), blocks.values.ravel(), len(rows) * width).reshape(len(rows), width)
    dense[:, 0] = 1.0
    return dense.astype(np.float32)


def clear_sums_of(world: DeclaredWorld, users: Int64, chosen: IntArray, rewards: Float64) -> ClearSums:
    """The sums of what users (n,) did in a closed loop: items (n, rounds) that they were shown, and their rewards."""
    sums = ClearSums(world.schema, world.arms)
    for turn in range(chosen.shape[1]):
        contexts = written_out(world.schema, world.visits(users, turn).rows)
        sums.add(contexts, chosen[:, turn], rewards[:, turn])
    return sums


def clear_rewards(world: DeclaredWorld, prior: NormalPrior, users: Int64, seed: int) -> Float64:
    """Rewards of new users who start from a model, (n, rounds), with the world's coins.

    Args:
        world: the world of the users.
        prior: the model.
        users: (n,).
        seed: seed of the draws that break ties among items.
    """
    population = SparsePopulation(prior, len(users), world.rounds)
    found = np.zeros((len(users), world.rounds))
    for turn in range(world.rounds):
        contexts = written_out(world.schema, world.visits(users, turn).rows)
        # A draw much smaller than any difference of scores breaks ties.
        ties = 1e-5 * Draws(seed, "ties").uniforms(users, turn, world.arms)
        chosen = np.asarray((population.scores(contexts) + ties).argmax(axis=1))
        found[:, turn] = world.rewards(users, turn, chosen)
        population.learn(contexts, chosen, found[:, turn])
    return found
