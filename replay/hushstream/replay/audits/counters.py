"""The counters on two streams that differ in their first leaf: the attacker sees every release.

Digit trees: after b^l leaves the release is the sum plus the noise of one node of level l, the one that holds the
first leaf. The leaf moves only these nodes, and the attacker reads each separately: their likelihood ratio is exact.
Counters with Gaussian noise: releases are R x + z multiplied by L, so the best test is linear, with weights
(L L^T)^-1 1. It cannot do better than an attacker who sees R x + z itself, and the bound uses that attacker's curve.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hushstream.counting import (
    BinaryTree,
    BufferedToeplitz,
    HonakerTree,
    NegativeDigitTree,
    Plan,
    PureEpsilon,
)
from hushstream.privacy.audits import Attack, Family, gaussian_curve, gaussian_pair, laplace_pair, pure
from hushstream.replay.audits.readings import BUDGET, DELTA, EPSILON, of_rho
from hushstream.replay.audits.recordings import fresh_address, fresh_key
from hushstream.replay.audits.row import Audit
from hushstream.replay.audits.tests import NeighbourTest, side_by_side
from hushstream.schemas.errors import HushstreamError

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


def tree_family(plan: NegativeDigitTree) -> Family:
    """The distributions of all nodes of one leaf."""
    return pure(lambda epsilon: laplace_pair(epsilon, plan.levels, plan.sensitivity).power)


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


def rows() -> tuple[Audit, ...]:
    """The audits of all counters, for one coordinate of each."""
    return (
        _row("binary-tree", BINARY, 5_000, tree_attack(BINARY), tree_family(BINARY)),
        _row("negative-digit-tree", NEGATIVE_DIGIT, 5_000, tree_attack(NEGATIVE_DIGIT), tree_family(NEGATIVE_DIGIT)),
        _row("honaker-tree", HONAKER, 2_000, linear_attack(HONAKER, SEEN), honaker_family(HONAKER)),
        _row("buffered-toeplitz", BUFFERED, 2_000, linear_attack(BUFFERED, SEEN), gaussian_family()),
    )


def _row(name: str, plan: Plan, runs: int, attack: Attack, family: Family) -> Audit:
    about = "two streams that differ in one leaf, all releases seen"
    test = NeighbourTest(attack, plan.guarantee().cost, family)
    return Audit(name, "counter", about, runs, lambda: test, subjects=(plan,))
