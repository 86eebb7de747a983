"""A small simulation of P2B: cold users contribute one slot each, fresh users start from the release."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from hushstream.learners.linucb import LinUCBModel
from hushstream.learners.population import NormalPrior, Population
from hushstream.systems.p2b.codebook import Encoder, fit_grid, grid_points
from hushstream.systems.p2b.server.estimate import ModelSums, model_from_sums
from hushstream.systems.p2b.shuffler import Domain, Reports, noised_sums, slot_sums

DIMENSION = ARMS = ROUNDS = 10


@dataclass
class Simulation:
    """One world of the paper's preference benchmark (contexts uniform on the grid, drawn anew each round)."""

    seed: int
    reward_scale: float = 1.0
    linear: bool = False
    encoders: dict[int, Encoder] = field(default_factory=dict)
    grid: np.ndarray = field(default_factory=lambda: grid_points(DIMENSION, 1))

    def __post_init__(self):
        rng = np.random.default_rng([self.seed, 1])
        limit = np.sqrt(6 / (DIMENSION + ARMS))
        shape = (DIMENSION, ARMS)
        self.weights = rng.uniform(-limit, limit, shape) if self.linear else 5 * rng.standard_normal(shape)

    def chances(self, contexts):
        scores = contexts @ self.weights
        if self.linear:
            return np.clip(self.reward_scale * scores, 0, 1)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        return self.reward_scale * shares / shares.sum(axis=1, keepdims=True)

    def play(self, start, users, stream):
        """Mean expected reward of users who start from a model, and one random interaction of each."""
        rng = np.random.default_rng([self.seed, stream])
        population = Population(NormalPrior.of_state(start.state()), users, ROUNDS)
        reported = rng.integers(0, ROUNDS, users)
        units, arms, clicks = (
            np.zeros((users, DIMENSION), np.int64),
            np.zeros(users, np.int64),
            np.zeros(users),
        )
        earned = 0.0
        for now in range(ROUNDS):
            drawn = self.grid[rng.integers(0, len(self.grid), users)]
            contexts = (drawn / 10).astype(np.float32)
            chosen, _ = population.choose(contexts, rng.integers(0, 1 << 40, users))
            chance = self.chances(drawn / 10)[np.arange(users), chosen]
            clicked = (rng.random(users) < chance).astype(np.float64)
            population.learn(contexts, chosen, clicked)
            earned += chance.mean() / ROUNDS
            mine = reported == now
            units[mine], arms[mine], clicks[mine] = drawn[mine], chosen[mine], clicked[mine]
        return earned, (units, arms, clicks)

    def cold(self, users):
        return self.play(LinUCBModel.cold(ARMS, DIMENSION), users, 2)

    def warm(self, sums: ModelSums, users=2500):
        """What fresh users earn; all models of one world meet the same contexts and coins."""
        return self.play(LinUCBModel(sums.gram, sums.moment), users, 3)[0]

    def release(self, data, codes, epsilon, windows=1):
        """Noised sums over several windows, their noise's variance, and the encoder."""
        if codes not in self.encoders:
            self.encoders[codes] = fit_grid(DIMENSION, 1, codes, seed=0)
        encoder = self.encoders[codes]
        units, arms, clicks = data
        domain = Domain(codes, ARMS, 1)
        reports = Reports.of(domain, encoder.encode(units), arms, clicks.astype(np.int64))
        released = slot_sums(reports)
        if epsilon is None:
            return released, 0.0, encoder
        # The simulation's own noise: a difference of two geometric variables is discrete Laplace.
        rng = np.random.default_rng([self.seed, 4, codes, windows])
        decay = np.exp(-epsilon)
        for _ in range(windows):
            draws = rng.geometric(1 - decay, (2, 2, codes, ARMS)).astype(np.int64)
            released = noised_sums(released, draws[0] - draws[1])
        return released, windows * 2 * decay / (1 - decay) ** 2, encoder

    def private(self, data, codes, epsilon, windows=1):
        sums, variance, encoder = self.release(data, codes, epsilon, windows)
        return model_from_sums(sums.ones, sums.zeros, 1, variance, encoder.centroids)


@pytest.fixture(scope="session")
def simulate():
    """Make simulations that share fitted encoders and the grid."""
    encoders: dict[int, Encoder] = {}
    grid = grid_points(DIMENSION, 1)

    def make(seed, **settings):
        return Simulation(seed, encoders=encoders, grid=grid, **settings)

    return make
