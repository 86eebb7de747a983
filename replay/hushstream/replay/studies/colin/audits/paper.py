"""The attack on DP-CoLin with its paper's calibration (Wang et al. 2020, Theorem 1), as the experiments draw it.

The paper's tree adds Laplace noise of scale Delta_2 ln T / epsilon to each node. But a reward moves h > ln T nodes, and
the price of Laplace noise is an L1 distance; `hushstream.replay.studies.colin.experiments.mechanisms` has the epsilon
that really holds. The two streams differ in the first reward, 1 against 0: after 2^l events the attacker reads the node
of level l that holds it.

One deployment gives `PARALLEL_RUNS` runs: noise is drawn for each feature separately, at a scale that does not depend
on the number of features, so a deployment with `PARALLEL_RUNS` times the features has the noise of that many
deployments. A move is rounded to the lattice of that noise, 2^-20 of the scale, which does not change the counts.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.amounts import Cost, epsilon_micro
from hushstream.privacy.audits.audit import audit_attack
from hushstream.privacy.audits.laws import LAPLACE_STEPS, Family, Pair, laplace_pair, pure
from hushstream.replay.audits.draws import side_by_side
from hushstream.replay.audits.row import Run
from hushstream.replay.studies.colin.experiments.mechanisms import (
    PAPER,
    Exposure,
    find_calibration,
    guarantee_of,
    levels_of,
    paper_scale,
)
from hushstream.replay.studies.colin.experiments.noise import forget_noise, raw_noise
from hushstream.systems.colin.relation import Relation

EPSILON = 2.0
FEATURES, EVENTS, PARALLEL_RUNS = 2, 4, 25
RELATION = Relation("colin", np.array([[2.0, 1.0], [1.0, 2.0]]) / 3)
"""The relation of two users; each user's own weight is twice that of the other user."""

EXPOSURE = Exposure.of(RELATION, FEATURES, EVENTS, FEATURES**0.5, 1.0)
CLAIM = Cost(epsilon_micro(EPSILON))
"""The epsilon that the paper states."""

SURE = 2.5
"""The attacker says yes if the log likelihood ratio is above this; a larger value can prove a larger epsilon."""


def audit_paper_tree() -> Run:
    """Attack the shared tree under a trusted server; the result is compared with the epsilon that really holds."""
    claimed = guarantee_of(find_calibration(PAPER), EXPOSURE, "server", EPSILON).cost
    return partial(audit_attack, side_by_side(_scores, PARALLEL_RUNS), claimed, family())


def levels() -> int:
    """The number of nodes that hold the first reward."""
    return levels_of(find_calibration(PAPER), EVENTS)


def family() -> Family:
    """The distributions of all nodes of the first reward, in all entries of both users' blocks."""
    return pure(lambda epsilon: pair(epsilon).power)


def pair(epsilon: float) -> Pair:
    """The nodes in both users' blocks together; each block has its share of the L1 distance."""
    laws = [laplace_pair(epsilon * share, FEATURES * levels(), LAPLACE_STEPS) for share in RELATION.matrix[0]]
    return Pair(
        np.multiply.outer(laws[0].null, laws[1].null).ravel(), np.multiply.outer(laws[0].moved, laws[1].moved).ravel()
    )


def _scores(present: bool) -> NDArray[np.float64]:
    """Logarithms of likelihood ratios minus `SURE`, (PARALLEL_RUNS,)."""
    wide = replace(EXPOSURE, dimension=FEATURES * PARALLEL_RUNS)
    seed = int.from_bytes(os.urandom(7), "big")
    drawn = raw_noise(find_calibration(PAPER), wide, RELATION, "server", EPSILON, seed).added
    forget_noise()
    # The relation is invertible, so raw sums give the projected ones that the paper publishes.
    noise = np.matmul(RELATION.matrix.T, drawn).reshape(EVENTS, RELATION.users, PARALLEL_RUNS, FEATURES)
    move = (RELATION.matrix[0] / FEATURES**0.5)[None, :, None, None]
    seen = noise[np.array([2**level for level in range(levels())]) - 1] + present * move
    ratio = (2 * np.clip(seen, 0, move) - move) / paper_scale(EXPOSURE, "server", EPSILON)[0]
    return np.asarray(ratio.sum(axis=(0, 1, 3)) - SURE, dtype=np.float64)
