"""Draws the noise of every calibration over a run with the product's keyed counters, in the form for raw sums.

A counter's release is the exact sum plus noise whose distribution does not depend on the leaves, so the noise of all
releases is what the counter releases for leaves of zeros. It is drawn once a seed, for sensitivity 1 and epsilon 1 (or
rho 1/2), and scaled to each epsilon and sensitivity: the lattice is 2^-20 of sensitivity over epsilon, so in lattice
units the counter stays the same. All rows of a seed therefore share their noise up to its scale, as they share the
world, so comparisons are paired. A deployment never uses noise twice; these keys are seeded and protect no one.

Noise on projected sums b enters a score as w_u' (x) I A^-1 b. With C = M' A^-1 M (`learners.collaborative`) that is
C times raw noise E with M E = P b, P the projection on the span of M: E = pinv(W') applied to the users' blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hushstream.counting import Budget, Concentrated, PureEpsilon, PureLength
from hushstream.privacy.keys import seeded_key
from hushstream.privacy.mechanisms.noise import KeyedStream, NoiseAddress
from hushstream.replay.studies.colin.experiments.mechanisms import (
    DELTA,
    PAPER,
    REWARD_LEVELS,
    Calibration,
    Exposure,
    NoiseAt,
    find_calibration,
    levels_of,
    node_epsilon_share,
    paper_scale,
    plan_for,
    reward_law,
)
from hushstream.systems.colin.relation import Relation

Float64 = NDArray[np.float64]

_UNIT = 1 << 20
"""Lattice units of sensitivity 1."""

_UNIT_BUDGETS: Mapping[str, Budget] = {
    "laplace": PureEpsilon(1),
    "k-norm": PureLength(1),
    "gaussian": Concentrated(0.5, DELTA),
}
_NONCE = bytes(32)


@dataclass(frozen=True, slots=True, eq=False)
class RawNoise:
    """The noise in the raw sums that are released after each event.

    Attributes:
        added: (T, N, d) float64; row t holds after t + 1 events.
        level: root mean square of a coordinate, in the space in which the mechanism adds noise.
    """

    added: Float64
    level: float


def raw_noise(
    calibration: Calibration, exposure: Exposure, relation: Relation, noise_at: NoiseAt, epsilon: float, seed: int
) -> RawNoise:
    """The noise of one run in which users are served in turn.

    Args:
        calibration: any calibration that noises sums.
        exposure: the run's public facts.
        relation: the relation matrix of its algorithm.
        noise_at: who runs the counter.
        epsilon: epsilon of one reward.
        seed: seed of the key.
    """
    scales = _scales(calibration, exposure, noise_at, epsilon)
    shape = (exposure.events, exposure.users, exposure.dimension)
    if calibration.sums == "raw":
        unit = _of_users(calibration, exposure.events_of_user, exposure.dimension, exposure.users, seed)
        added = _in_turn(unit * scales[:, None, None])
        return RawNoise(added, _level(added))
    if noise_at == "server":
        unit = _of_counter(calibration, exposure.events, shape[1] * shape[2], -1, seed)
        projected = (unit * scales[0]).reshape(shape)
    else:
        own = _of_users(calibration, exposure.events_of_user, shape[1] * shape[2], exposure.users, seed)
        projected = _summed_in_turn(own, scales).reshape(shape)
    level = _level(projected)
    inverse = np.linalg.pinv(relation.matrix.T)
    return RawNoise(np.matmul(inverse, projected), level)


def noised_rewards(rewards: Float64, epsilon: float, seed: int) -> Float64:
    """Add noise to every reward once, by `local-reward`: float64 of the same shape, unbiased, possibly outside [0, 1].

    Args:
        rewards: in [0, 1], any shape; put on the grid of `REWARD_LEVELS` steps toward zero first.
        epsilon: epsilon of one reward.
        seed: seed of the key.
    """
    law = reward_law(epsilon)
    stream = KeyedStream(seeded_key(seed, "edge"), _address("local-reward", {"levels": REWARD_LEVELS}))
    steps = np.trunc(rewards.ravel() * REWARD_LEVELS).astype(np.int64)
    return law.estimate(law.draw(stream, steps)).reshape(rewards.shape)


def forget_noise() -> None:
    """Free the noise that is kept for later runs under the same seed."""
    _unit_noise.cache_clear()


def _scales(calibration: Calibration, exposure: Exposure, noise_at: NoiseAt, epsilon: float) -> Float64:
    """The factors of each counter's unit noise."""
    if calibration.key == PAPER:
        levels = levels_of(calibration, exposure.horizon("projected", noise_at))
        return np.array(paper_scale(exposure, noise_at, epsilon)) / levels
    share = node_epsilon_share(calibration, epsilon)
    return np.array(exposure.sensitivities(calibration.sums, calibration.law, noise_at)) / share


def _level(noise: Float64) -> float:
    return math.sqrt(float(np.mean(np.square(noise))))


def _in_turn(of_users: Float64) -> Float64:
    """Turn (N, T/N, d) into (T, N, d): after event t, user t mod N has one more leaf; before their first, zeros."""
    users, leaves, dimension = of_users.shape
    spread = np.zeros((leaves * users, users, dimension))
    for user in range(users):
        spread[user:, user] = np.repeat(of_users[user], users, axis=0)[: leaves * users - user]
    return spread


def _summed_in_turn(of_users: Float64, scales: Float64) -> Float64:
    """(T, m): the sum over users of the latest release of each one's counter of m coordinates."""
    users, leaves, size = of_users.shape
    total = np.zeros((leaves * users, size))
    for user in range(users):
        total[user:] += scales[user] * np.repeat(of_users[user], users, axis=0)[: leaves * users - user]
    return total


def _of_users(calibration: Calibration, leaves: int, dimension: int, users: int, seed: int) -> Float64:
    return np.stack([_of_counter(calibration, leaves, dimension, user, seed) for user in range(users)])


def _of_counter(calibration: Calibration, leaves: int, dimension: int, cell: int, seed: int) -> Float64:
    law = find_calibration("laplace-l1").law if calibration.law == "laplace" else calibration.law
    return _unit_noise(calibration.counter, law, leaves, dimension, cell, seed)


@lru_cache(maxsize=256)
def _unit_noise(counter: str, law: str, leaves: int, dimension: int, cell: int, seed: int) -> Float64:
    """Noise of every release of one counter, (leaves, dimension), for sensitivity 1 and epsilon 1 or rho 1/2."""
    calibration = Calibration("unit", "", "raw", law, counter)  # type: ignore[arg-type]
    budget = _UNIT_BUDGETS[law]
    plan = plan_for(calibration, budget, leaves, dimension, _UNIT)
    key = seeded_key(seed, "counter")
    address = replace(_address(f"{counter} {law}", {}), cell=None if cell < 0 else cell)
    drawn = plan.open(key, address).release_each(np.zeros((leaves, dimension), dtype=np.int64)) / _UNIT
    drawn.setflags(write=False)
    return drawn


def _address(mechanism: str, parameters: dict[str, int | str | bytes]) -> NoiseAddress:
    return NoiseAddress(
        purpose="experiment",
        deployment="colin-experiments",
        genesis_nonce=_NONCE,
        system="colin",
        mechanism=mechanism,
        parameters=parameters,
        config_digest=b"experiment",
        epoch=0,
    )
