"""The synthetic preference benchmark (Malekzadeh et al. 2020, section 5.1): text and code variants.

*Text* (``variant="softmax"``): the mean reward of arm a is ``reward_scale * softmax(W' x)_a`` with W a d x K matrix of
normal entries with standard deviation ``weight_scale``. *Code* (``variant="linear"``): the mean is ``clip(reward_scale
* (W' x + noise), 0, 1)`` with a random linear layer W (uniform in +-sqrt(6 / (d + K)), the usual initialisation),
reward_scale 0.1 and noise of standard deviation 0.01 before scaling.

The paper's own settings of the text variant are reward_scale 0.1 and Gaussian noise of variance 0.01 on the
reward (``outcome="gaussian"``: the noisy mean itself, clipped to [0, 1], is the reward). The default here is
the world of the demo: softmax, weight_scale 5, reward_scale 1, binary clicks, d = K = 10.

Contexts are normalised histograms, drawn anew for each round (as in the public code) and uniformly from all points with
``digits`` decimal digits, the finite set that the paper's encoder is fitted on. This was chosen by simulation, to give
the .153 that is known for the demo's settings: LinUCB with alpha 1, started cold, T = 10, earns .140 +- .007 (standard
error, 40 worlds; .148 +- .004 where ties are broken at random). Worlds differ: over seeds the figure has a standard
deviation of .044.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from hushstream.replay.worlds.draws import Draws, IntArray
from hushstream.replay.worlds.world import WorldError, check_request, require_number

Variant = Literal["softmax", "linear"]
Outcome = Literal["clicks", "gaussian"]

_MOST_USERS = 2**32
_USERS_AT_ONCE = 65536


@dataclass(frozen=True, slots=True)
class SyntheticWorld:
    """A simulated population whose mean rewards are known; see `synthetic` for the meaning of each option."""

    variant: Variant
    users: int
    rounds: int
    dimension: int
    arms: int
    weight_scale: float
    reward_scale: float
    noise_std: float
    outcome: Outcome
    digits: int
    seed: int
    weights: npt.NDArray[np.float64] = field(repr=False, compare=False)
    public: bool = True

    @property
    def name(self) -> str:
        """The variant that figures must name: the paper's text or its code."""
        return f"synthetic/{self.variant}"

    def contexts(self, users: IntArray, round_index: int) -> npt.NDArray[np.float32]:
        """Return the (n, d) normalised histograms of ``users`` (n,) at one round."""
        check_request(self, users, round_index)
        return _grid_points(
            Draws(self.seed, "contexts"), np.asarray(users), round_index, self.dimension, 10**self.digits
        )

    def rewards(self, users: IntArray, round_index: int, arms: IntArray) -> npt.NDArray[np.float64]:
        """Return the (n,) clicks (0 or 1), or with ``outcome="gaussian"`` the noisy clipped means."""
        mean = self._scores(users, round_index, arms)
        if self.noise_std > 0.0:
            mean = mean + self.noise_std * Draws(self.seed, "noise").normals(users, round_index, arms)
        chance = np.clip(mean, 0.0, 1.0)
        if self.outcome == "gaussian":
            return chance
        coins = Draws(self.seed, "clicks").uniforms(users, round_index, 1, arms)[:, 0]
        return (coins < chance).astype(np.float64)

    def expected(self, users: IntArray, round_index: int, arms: IntArray) -> npt.NDArray[np.float64]:
        """Return the (n,) exact mean rewards given context and arm, clipping included."""
        mean = self._scores(users, round_index, arms)
        if self.noise_std > 0.0:
            return clipped_normal_mean(mean, self.noise_std)
        return np.clip(mean, 0.0, 1.0)

    def eligible(self, users: IntArray, round_index: int) -> None:
        """None: every arm may be shown to everyone."""
        return

    def _scores(self, users: IntArray, round_index: int, arms: IntArray) -> npt.NDArray[np.float64]:
        check_request(self, users, round_index, arms)
        users, arms = np.asarray(users), np.asarray(arms)
        scores = np.empty(users.size)
        for start in range(0, users.size, _USERS_AT_ONCE):
            rows = slice(start, start + _USERS_AT_ONCE)
            logits = self.contexts(users[rows], round_index).astype(np.float64) @ self.weights
            if self.variant == "softmax":
                logits = np.exp(logits - logits.max(axis=1, keepdims=True))
                logits /= logits.sum(axis=1, keepdims=True)
            scores[rows] = logits[np.arange(logits.shape[0]), arms[rows]]
        return self.reward_scale * scores


def synthetic(
    *,
    variant: str = "softmax",
    users: int = 2000,
    rounds: int = 10,
    dimension: int = 10,
    arms: int = 10,
    weight_scale: float | None = None,
    reward_scale: float | None = None,
    noise_std: float | None = None,
    outcome: str = "clicks",
    digits: int = 1,
    seed: int = 0,
) -> SyntheticWorld:
    """Build the synthetic preference world.

    Args:
        variant: ``softmax`` (the paper's text) or ``linear`` (its public code).
        users: population size, at most 2**32.
        rounds: T, rounds a user.
        dimension: d, length of a context.
        arms: K.
        weight_scale: multiplies W; default 5 (softmax) or 1 (linear).
        reward_scale: multiplies the mean reward, in (0, 1]; default 1 (softmax) or 0.1 (linear).
        noise_std: standard deviation of Gaussian noise on the mean, before clipping; default 0 (softmax with
            clicks), 0.1 (softmax with ``gaussian``: the paper's variance 0.01) or 0.001 (linear: 0.1 * 0.01).
        outcome: ``clicks`` (Bernoulli of the mean) or ``gaussian`` (the noisy mean clipped to [0, 1]).
        digits: q, decimal digits of the grid.
        seed: seed of all random numbers.

    Raises:
        WorldError: an option has an unknown value or lies out of range.
    """
    linear = _one_of("variant", variant, Variant) == "linear"
    _one_of("outcome", outcome, Outcome)
    if weight_scale is None:
        weight_scale = 1.0 if linear else 5.0
    if reward_scale is None:
        reward_scale = 0.1 if linear else 1.0
    if noise_std is None:
        noise_std = reward_scale * 0.01 if linear else (0.1 if outcome == "gaussian" else 0.0)
    for option, value, least, most in (
        ("users", users, 1, _MOST_USERS),
        ("rounds", rounds, 1, _MOST_USERS),
        ("dimension", dimension, 2, 4096),
        ("arms", arms, 2, 4096),
        ("digits", digits, 1, 6),
        ("weight_scale", weight_scale, 0.0, 1e6),
        ("reward_scale", reward_scale, 1e-9, 1.0),
        ("noise_std", noise_std, 0.0, 1e3),
    ):
        require_number("synthetic", option, value, least, most)
    return SyntheticWorld(
        variant="linear" if linear else "softmax",
        users=users,
        rounds=rounds,
        dimension=dimension,
        arms=arms,
        weight_scale=float(weight_scale),
        reward_scale=float(reward_scale),
        noise_std=float(noise_std),
        outcome=cast(Outcome, outcome),
        digits=digits,
        seed=seed,
        weights=_weights(linear, dimension, arms, weight_scale, seed),
    )


def _one_of(option: str, value: str, allowed: object) -> str:
    known = get_args(allowed)
    if value not in known:
        raise WorldError(f"synthetic: {option} must be one of {', '.join(known)}, got {value!r}")
    return value


def _weights(linear: bool, dimension: int, arms: int, scale: float, seed: int) -> npt.NDArray[np.float64]:
    generator = Draws(seed, "weights").generator()
    if linear:
        limit = np.sqrt(6.0 / (dimension + arms))
        return scale * generator.uniform(-limit, limit, size=(dimension, arms))
    return scale * generator.standard_normal((dimension, arms))


def _grid_points(
    draws: Draws, users: IntArray, round_index: int, dimension: int, total: int
) -> npt.NDArray[np.float32]:
    """Draw uniformly from the histograms of ``total`` units over ``dimension`` bins, divided by ``total``.

    A histogram is a choice of dimension - 1 bars among total + dimension - 1 places (stars and bars); the
    choice is made by Floyd's method (Bentley and Floyd 1987), one uniform a bar.
    """
    bars_wanted = dimension - 1
    places = total + bars_wanted
    coins = draws.uniforms(users, round_index, bars_wanted)
    bars = np.empty((users.size, bars_wanted), dtype=np.int32)
    for column in range(bars_wanted):
        last = places - bars_wanted + column
        drawn = (coins[:, column] * (last + 1)).astype(np.int32)
        taken = (bars[:, :column] == drawn[:, None]).any(axis=1)
        bars[:, column] = np.where(taken, last, drawn)
    bars.sort(axis=1)
    edges = np.empty((users.size, dimension + 1), dtype=np.int32)
    edges[:, 0] = -1
    edges[:, 1:-1] = bars
    edges[:, -1] = places
    counts = np.diff(edges, axis=1) - 1
    return (counts / total).astype(np.float32)


def clipped_normal_mean(mean: npt.NDArray[np.float64], std: float) -> npt.NDArray[np.float64]:
    """Return E[clip(N(mean, std^2), 0, 1)] for each mean (n,) and one std > 0."""
    from scipy.special import ndtr

    low, high = (0.0 - mean) / std, (1.0 - mean) / std
    density_low = np.exp(-0.5 * low**2) / np.sqrt(2.0 * np.pi)
    density_high = np.exp(-0.5 * high**2) / np.sqrt(2.0 * np.pi)
    inside = ndtr(high) - ndtr(low)
    return np.asarray(mean * inside + std * (density_low - density_high) + ndtr(-high), dtype=np.float64)
