"""Alpha by the lemma: how wide the confidence of a version must be, from public values alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hushstream.counting import NegativeDigitTree
from hushstream.systems.colin.algorithm.lemma import gaussian_norm, laplace_norm, raw_noise_width, reward_width
from hushstream.systems.colin.configuration import GRID_BITS, CollaborativeConfig
from hushstream.systems.colin.relation import Relation
from hushstream.systems.colin.release import plan_of


def lemma_alpha(config: CollaborativeConfig, relation: Relation, ridge: float, counts: Sequence[int]) -> float:
    """The width of one version that holds with probability 1 - ``learner.failure``.

    Half of the failure is for rewards, half for the noise of this version's sums
    (`hushstream.systems.colin.algorithm.lemma`).

    Args:
        config: with a mechanism whose noise is bounded there: a digit tree, or exact sums.
        relation: of N users.
        ridge: lambda of the estimator.
        counts: (N,) rows that the version rests on, of each user.
    """
    learner, features = config.learner, config.features
    width = reward_width(
        relation, features.dimension, counts, ridge=ridge, delta=learner.failure / 2, norm=features.norm
    )
    if config.release.mechanism == "exact":
        return width
    noise = _noise_norm(config, relation.users * features.dimension)
    return width + raw_noise_width(relation, noise, ridge)


def _noise_norm(config: CollaborativeConfig, coordinates: int) -> float:
    plan = plan_of(config.release, config.features)
    assert isinstance(plan, NegativeDigitTree)
    # Every level adds or takes back at most b // 2 nodes.
    nodes = plan.levels * (plan.base // 2)
    step = float(1 << GRID_BITS)
    if plan.noise.law == "laplace":
        scale = plan.noise.numerator / plan.noise.denominator / step
        return laplace_norm(scale, nodes, coordinates, config.learner.failure / 2)
    deviation = math.sqrt(nodes * plan.noise.variance) / step
    return gaussian_norm(deviation, coordinates, config.learner.failure / 2)
