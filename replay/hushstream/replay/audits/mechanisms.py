"""The mechanisms: noise, responses and choices under fresh nonces, attacked on two neighbouring inputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from hushstream.counting import Concentrated
from hushstream.privacy.amounts import Cost, epsilon_float, epsilon_micro
from hushstream.privacy.audits.audit import AuditResult, audit_attack, audit_sizes
from hushstream.privacy.audits.laws import (
    Family,
    Pair,
    Sizes,
    gaussian_pair,
    laplace_pair,
    lattice_sizes,
    plane_pair,
    pure,
)
from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.exponential import exponential_choice, exponential_weights
from hushstream.privacy.mechanisms.gaussian import discrete_gaussian, gaussian_residue, gaussian_variance_for
from hushstream.privacy.mechanisms.guarantee import slot_sums_guarantee
from hushstream.privacy.mechanisms.k_norm import discrete_k_norm_joint, k_norm_guarantee
from hushstream.privacy.mechanisms.noise import discrete_laplace, laplace_scale
from hushstream.privacy.mechanisms.response import RandomisedResponse
from hushstream.privacy.mechanisms.rewards import LocalReward
from hushstream.replay.audits.draws import Score, each_run, fresh_key, fresh_stream, side_by_side
from hushstream.replay.audits.row import Run

EPSILON = 1.0
DELTA = 1e-6
BUDGET = Concentrated(0.5, DELTA)
STEP = 2
"""Sensitivity of Gaussian and K-norm noise, in steps of the lattice."""

CATEGORIES, LEVELS, CANDIDATES = 4, 4, 8
_DRAWS_AT_ONCE = 100

Draw = Callable[[Key, int], NDArray[np.float64]]
"""Draws n values of a noise under new nonces: integers (n,), or vectors (n, d)."""


def of_rho(curve: Callable[[float], Callable[[float], float]], delta: float) -> Family:
    """A family with the setting rho; its price is the epsilon that a budget states for rho."""

    def epsilon(rho: float) -> float:
        return epsilon_float(Concentrated(rho, delta).cost(0, gaussian_residue(1, 1)).epsilon_micro)

    return Family(curve, epsilon, largest=16.0)


def laplace_draw(key: Key, count: int) -> NDArray[np.float64]:
    """Discrete Laplace noise for an integer that moves by 1."""
    return discrete_laplace(fresh_stream(key, "laplace"), *laplace_scale(EPSILON, 1), count).astype(np.float64)


def gaussian_draw(key: Key, count: int) -> NDArray[np.float64]:
    """Discrete Gaussian noise for an integer that moves by `STEP`."""
    variance = gaussian_variance_for(BUDGET.rho, STEP**2)
    return discrete_gaussian(fresh_stream(key, "gaussian"), *variance, count).astype(np.float64)


def k_norm_draw(key: Key, count: int) -> NDArray[np.float64]:
    """K-norm noise for two integers that move by `STEP` in L2."""
    streams = [fresh_stream(key, "k-norm") for _ in range(count)]
    return discrete_k_norm_joint(streams, *laplace_scale(EPSILON, STEP), 2).astype(np.float64)


LAPLACE_COST = slot_sums_guarantee(EPSILON).cost
GAUSSIAN_COST = BUDGET.cost(1, gaussian_residue(*gaussian_variance_for(BUDGET.rho, STEP**2)))

LAPLACE_FAMILY = pure(lambda epsilon: laplace_pair(epsilon).power)
GAUSSIAN_FAMILY = of_rho(lambda rho: gaussian_pair(STEP**2 / (2 * rho), STEP).power, DELTA)
K_NORM_FAMILY = Family(lambda epsilon: plane_pair(STEP / epsilon, STEP).power, lambda epsilon: epsilon, 0.25, 16.0)


@cache
def k_norm_cost() -> Cost:
    """The cost of the attacked noise; it takes a second to compute, so it is not computed on import."""
    return k_norm_guarantee(EPSILON, STEP, 2).cost


def likelihood_ratio(score: Score, claimed: Cost, family: Family) -> Run:
    """The audit of one score."""
    return lambda runs, false_alarm: audit_attack(each_run(score), claimed, family, runs, false_alarm)


def sizes(draw: Draw, claimed: Cost, law: Sizes) -> Run:
    """The audit of the mean size of many draws, with a new nonce for each hundred."""

    def run(draws: int, false_alarm: float) -> AuditResult:
        key, total = fresh_key(), 0.0
        for _ in range(draws // _DRAWS_AT_ONCE):
            drawn = draw(key, _DRAWS_AT_ONCE).reshape(_DRAWS_AT_ONCE, -1)
            total += float(np.linalg.norm(drawn, axis=1).sum())
        return audit_sizes(law, total / draws, claimed, draws, false_alarm)

    return run


def laplace_score() -> Score:
    """The score: whether a noised 0 or 1 is at least 1."""
    key = fresh_key()
    return lambda present: present + laplace_draw(key, 1)[0] - 0.5


def gaussian_score() -> Score:
    """The score: on which side of the middle a noised integer lies."""
    key = fresh_key()
    return lambda present: STEP * present + gaussian_draw(key, 1)[0] - STEP / 2


def audit_k_norm() -> Run:
    """The audit of K-norm noise; the score is which of the two points is nearer to the noised one."""
    key = fresh_key()

    def scores(present: bool) -> NDArray[np.float64]:
        first = k_norm_draw(key, _DRAWS_AT_ONCE)[:, 0] + STEP * present
        return np.asarray(first**2 - (first - STEP) ** 2)

    return partial(audit_attack, side_by_side(scores, _DRAWS_AT_ONCE), k_norm_cost(), K_NORM_FAMILY)


def response_score(response: RandomisedResponse) -> Score:
    """The score: whether the answer is the unit's category."""
    key = fresh_key()

    def score(present: bool) -> float:
        answer = response.draw(fresh_stream(key, "response"), np.array([int(present)]))
        return 1.0 if answer[0] == 1 else -1.0

    return score


def response_family(categories: int) -> Family:
    """The distributions of the answers: the two categories in question, and all others."""

    return pure(lambda epsilon: response_pair(epsilon, categories).power)


def response_pair(epsilon: float, categories: int) -> Pair:
    """The answers to the first category, and to the second."""
    lie = 1 / (np.exp(epsilon) + categories - 1)
    null = np.full(categories, lie)
    null[0] = 1 - (categories - 1) * lie
    return Pair(null, np.roll(null, 1))


def reward_score(reward: LocalReward) -> Score:
    """The score: whether a noised reward, of 0 or of the highest level, is above the middle."""
    key, middle = fresh_key(), reward.levels / 2 if reward.law == "laplace" else 0.5

    def score(present: bool) -> float:
        noised = reward.draw(fresh_stream(key, "reward"), np.array([reward.levels * present]))
        return float(noised[0]) - middle

    return score


def choice_score() -> Score:
    """The score: whether the chosen candidate is the one whose utility the unit raises; it lowers all others."""
    key = fresh_key()
    utilities = _utilities()
    return lambda present: (
        1.0 if exponential_choice(fresh_stream(key, "choice"), utilities[present], EPSILON, 1) == 0 else -1.0
    )


def choice_family() -> Family:
    """The exact probabilities of the choices."""
    return pure(lambda epsilon: choice_pair(epsilon).power)


def choice_pair(epsilon: float) -> Pair:
    """The choices without the unit, and with it."""
    laws = []
    for present in (False, True):
        weights = exponential_weights(_utilities()[present], epsilon_micro(epsilon), 1)
        laws.append(np.array([weight / sum(weights) for weight in weights]))
    return Pair(*laws)


def _utilities() -> dict[bool, NDArray[np.int64]]:
    favour = np.full(CANDIDATES, -1, dtype=np.int64)
    favour[0] = 1
    return {False: np.zeros(CANDIDATES, dtype=np.int64), True: favour}


def laplace_sizes() -> Sizes:
    """The distribution of |x| for discrete Laplace noise."""
    return lattice_sizes(1, LAPLACE_FAMILY)


def gaussian_sizes() -> Sizes:
    """The distribution of |x| for discrete Gaussian noise."""

    def law(rho: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        variance = STEP**2 / (2 * rho)
        return _line(lambda x: -(x**2) / (2 * variance), 12 * np.sqrt(variance))

    return Sizes(law, GAUSSIAN_FAMILY)


def k_norm_sizes() -> Sizes:
    """The distribution of the length of K-norm noise in the plane."""

    def law(epsilon: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        line = np.arange(-int(32 * STEP / epsilon), int(32 * STEP / epsilon) + 1)
        squares, counts = np.unique(np.add.outer(line**2, line**2), return_counts=True)
        masses = counts * np.exp(-np.sqrt(squares) * epsilon / STEP)
        return np.sqrt(squares), masses / masses.sum()

    return Sizes(law, K_NORM_FAMILY)


def _line(
    exponent: Callable[[NDArray[np.float64]], NDArray[np.float64]], reach: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    whole = np.arange(int(reach) + 2.0)
    masses = np.exp(exponent(whole)) * np.where(whole > 0, 2, 1)
    return whole, masses / masses.sum()
