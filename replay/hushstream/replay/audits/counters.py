"""The counters on two streams that differ in their first leaf: the attacker sees every release.

Digit trees: after b^l leaves the release is the sum plus the noise of one node of level l, the one that holds the
first leaf. The leaf moves only these nodes, and the attacker reads each separately: their likelihood ratio is exact.
Counters with Gaussian noise: releases are R x + z multiplied by L, so the best test is linear, with weights
(L L^T)^-1 1. It cannot do better than an attacker who sees R x + z itself, and the bound uses that attacker's curve.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hushstream.counting import (
    BinaryTree,
    BufferedToeplitz,
    Concentrated,
    HonakerTree,
    NegativeDigitTree,
    Plan,
    PureEpsilon,
)
from hushstream.privacy.audits.audit import Attack, audit_attack
from hushstream.privacy.audits.laws import Family, gaussian_curve, gaussian_pair, laplace_pair, pure
from hushstream.replay.audits.draws import fresh_address, fresh_key, side_by_side
from hushstream.replay.audits.mechanisms import of_rho
from hushstream.replay.audits.row import Run
from hushstream.schemas.errors import HushstreamError

EPSILON = 1.0
DELTA = 1e-6
BUDGET = Concentrated(0.5, DELTA)
SEEN = 15
"""How many releases the linear attack uses."""

PARALLEL_COUNTERS = 25
"""How many scalar counters share one nonce, as the coordinates of a vector."""

_ROUNDING = 1 / 12
"""The variance that rounding a release to the lattice adds."""

BINARY = BinaryTree(budget=PureEpsilon(EPSILON), horizon=15)
NEGATIVE_DIGIT = NegativeDigitTree(budget=PureEpsilon(EPSILON), horizon=112)
HONAKER = HonakerTree(budget=BUDGET, horizon=SEEN)
BUFFERED = BufferedToeplitz(budget=BUDGET, sensitivity=1 << 10, horizon=SEEN)


def audit_tree(plan: NegativeDigitTree) -> Run:
    """A digit tree with Laplace noise for one coordinate."""
    return partial(audit_attack, tree_attack(plan), plan.guarantee().cost, tree_family(plan))


def tree_family(plan: NegativeDigitTree) -> Family:
    """The distributions of all nodes of one leaf."""
    return pure(lambda epsilon: laplace_pair(epsilon, plan.levels, plan.sensitivity).power)


def audit_linear(plan: Plan, family: Family) -> Run:
    """A counter with Gaussian noise for one coordinate."""
    return partial(audit_attack, linear_attack(plan, SEEN), plan.guarantee().cost, family)


def tree_attack(plan: NegativeDigitTree) -> Attack:
    """The attack by the exact likelihood ratio of all nodes."""
    key, step = fresh_key(), plan.sensitivity
    wide = in_parallel(plan)

    def scores(present: bool) -> NDArray[np.float64]:
        counter = wide.open(key, fresh_address("tree"))
        total = np.zeros(PARALLEL_COUNTERS)
        for level in range(plan.levels):
            leaves = np.zeros((plan.base**level - counter.leaves, PARALLEL_COUNTERS), dtype=np.int64)
            if not counter.leaves:
                leaves[0] = step * present
            counter.add(leaves)
            total += np.clip(counter.release().values, 0, step)
        return 2 * total - plan.levels * step

    return side_by_side(scores, PARALLEL_COUNTERS)


def linear_attack(plan: Plan, seen: int) -> Attack:
    """The attack by the best linear test of the first ``seen`` releases."""
    key, step = fresh_key(), plan.sensitivity
    wide = in_parallel(plan)
    left = plan.factorisation(seen).left
    fine = plan.fine_bits if isinstance(plan, BufferedToeplitz) else 0
    covariance = left @ left.T * plan.noise.variance * 4.0**-fine + _ROUNDING * np.eye(seen)
    weights = np.linalg.solve(covariance, np.ones(seen))
    stream = {present: np.zeros((seen, PARALLEL_COUNTERS), dtype=np.int64) for present in (False, True)}
    stream[True][0] = step

    def scores(present: bool) -> NDArray[np.float64]:
        released = wide.open(key, fresh_address("linear")).release_each(stream[present])
        return np.asarray(weights @ (released - step / 2))

    return side_by_side(scores, PARALLEL_COUNTERS)


def in_parallel(plan: Plan) -> Plan:
    """The counter with `PARALLEL_COUNTERS` coordinates, which are scalar counters with independent noise.

    Raises:
        HushstreamError: its noise is smaller than the scalar counter's.
    """
    wide = replace(plan, dimension=PARALLEL_COUNTERS)
    if wide.noise.variance < plan.noise.variance:
        raise HushstreamError("audit: expected as much noise on each of many coordinates as on one, got less")
    return wide


def honaker_family(plan: HonakerTree) -> Family:
    """The distributions of all nodes of the first leaf."""
    levels = plan.levels
    return of_rho(lambda rho: gaussian_pair(levels / (2 * rho), plan.sensitivity, levels).power, DELTA)


def gaussian_family() -> Family:
    """Two normal distributions at distance sqrt(2 rho): all noise on a lattice far finer than the sensitivity."""
    return of_rho(lambda rho: gaussian_curve(float(np.sqrt(2 * rho))), DELTA)
