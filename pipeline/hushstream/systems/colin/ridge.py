"""The ridge that a collaborative deployment's models are made with: the configured one, or what its noise asks for."""

from __future__ import annotations

import math

from hushstream.systems.colin.configuration import CollaborativeConfig
from hushstream.systems.colin.relation import Relation
from hushstream.systems.colin.release import local_reward_of, mean_variance, plan_of
from hushstream.systems.colin.ridge_rule import (
    REWARD_RIDGE_PER_NOISE,
    SUMS_RIDGE_PER_NOISE,
    noise_aware_ridge,
    projected_deviation,
)


def ridge_of(config: CollaborativeConfig, relation: Relation) -> float:
    """Lambda, from public values alone; see `hushstream.systems.colin.ridge_rule`.

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
