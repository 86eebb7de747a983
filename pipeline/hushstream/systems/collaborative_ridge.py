"""The ridge that a collaborative deployment's models are made with: the configured one, or what its noise asks for."""

from __future__ import annotations

import math

from hushstream.learners.relation import Relation
from hushstream.learners.ridge import (
    REWARD_RIDGE_PER_NOISE,
    SUMS_RIDGE_PER_NOISE,
    noise_aware_ridge,
    projected_deviation,
)
from hushstream.systems.collaborative_configuration import CollaborativeConfig
from hushstream.systems.collaborative_release import local_reward_of, mean_variance, plan_of


def ridge_of(config: CollaborativeConfig, relation: Relation) -> float:
    """Lambda, from public values alone; see `hushstream.learners.ridge`.

    A counter's noise is taken at its mean over the horizon of one epoch.

    Raises:
        BadPlan: no counter has the configured settings.
    """
    release, ridge = config.release, config.learner.ridge
    if ridge != "auto":
        return ridge
    if release.mechanism == "exact":
        return noise_aware_ridge(0.0, SUMS_RIDGE_PER_NOISE)
    if release.mechanism == "noisy-reward":
        return noise_aware_ridge(local_reward_of(release).variance, REWARD_RIDGE_PER_NOISE)
    deviation = math.sqrt(mean_variance(plan_of(release, config.features)))
    return noise_aware_ridge(projected_deviation(relation, deviation), SUMS_RIDGE_PER_NOISE)
