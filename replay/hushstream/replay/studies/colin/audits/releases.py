"""The releases of a collaborative deployment on two streams that differ in one reward, 1 against 0.

A run is one user's counter. Where the rewards of a step are one leaf (a trusted counter) and every coordinate has its
own noise (all but K-norm), one user gives several runs: their rewards have features with no entry in common.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.configuration import PartitionConfig
from hushstream.engine.values import MAX_RECORD_BYTES
from hushstream.privacy.audits.laws import laplace_pair, pure
from hushstream.replay.audits.draws import fresh_key, fresh_nonce, side_by_side
from hushstream.replay.audits.readings import Reading, reading_family, reading_of
from hushstream.replay.audits.row import Attacked
from hushstream.systems.colin.configuration import (
    GRID_BITS,
    CollaborationConfig,
    CollaborativeConfig,
    ContinualConfig,
    FeatureConfig,
    NoiseLaw,
)
from hushstream.systems.colin.deployment import CollaborativeSystem
from hushstream.systems.colin.relation import SocialGraph
from hushstream.systems.colin.release import epoch_guarantee, local_reward_of, plan_of
from hushstream.systems.colin.rows import Rows, short_enough

USERS = 100
"""The number of users of an attacked deployment, if it can have that many."""

SCORES: Mapping[NoiseLaw, Callable[[Reading, NDArray[np.int64], int], NDArray[np.float64]]] = {
    "laplace": Reading.clipped_score,
    "k-norm": Reading.length_score,
    "gaussian": Reading.linear_score,
}
"""The attacker's score, by the distribution of the noise."""


def collaborative(
    release: ContinualConfig, features: FeatureConfig, most: int = USERS, partitions: PartitionConfig | None = None
) -> CollaborativeSystem:
    """A deployment of unrelated users, as the noise does not depend on the relation.

    It has ``most`` users, or as many as a model of these features has space for.
    """
    room = (MAX_RECORD_BYTES - 4096) // (4 * features.dimension * (features.dimension + 2))
    users = tuple(f"user-{number}" for number in range(max(1, min(most, room))))
    config = CollaborativeConfig(
        deployment="audit",
        arms=1,
        features=features,
        learner=CollaborationConfig("linucb"),
        release=release,
        partitions=PartitionConfig() if partitions is None else partitions,
    )
    return CollaborativeSystem.of(config, SocialGraph(users, np.zeros((len(users), len(users)))))


def audit_counter_release(system: CollaborativeSystem, most: int) -> Attacked:
    """Attack a trusted counter or one at the edge: the first reward of every user is 1 or 0.

    Args:
        system: the attacked system.
        most: how many leaves of a user's counter the attack may feed.

    Raises:
        HushstreamError: see `reading_of`.
    """
    release, bounds = system.config.release, system.features
    plan = plan_of(release, bounds)
    reading, (moved, entry) = reading_of(plan, most), farthest_features(bounds, release.noise)
    key, width = fresh_key(), parallel_runs(system)
    groups = width // system.nodes
    read = bounds.dimension if release.noise == "k-norm" else groups * moved
    rows = _first_rewards(system.nodes, groups, moved, bounds.dimension, entry)
    step, users = int(entry * (1 << GRID_BITS)), np.arange(system.nodes, dtype=np.int64)

    def scores(present: bool) -> NDArray[np.float64]:
        noised_sums = system.noised_sums(key, fresh_nonce(), 0, 0)
        seen, leaves = [], 0
        for time in reading.times:
            while leaves < time:
                noised_sums.add(rows(float(present), all_groups=True) if not leaves else rows(0.0, all_groups=False))
                leaves += 1
            seen.append(noised_sums.sums(users)[:, :read].reshape(width, -1))
        return SCORES[release.noise](reading, np.array(seen), step)

    family = reading_family(plan, reading, moved)
    claimed = epoch_guarantee(release, bounds, system.nodes).cost
    return Attacked(side_by_side(scores, width), claimed, family)


def parallel_runs(system: CollaborativeSystem) -> int:
    """The number of independent runs in one release of `audit_counter_release`."""
    release, bounds = system.config.release, system.features
    moved, _ = farthest_features(bounds, release.noise)
    # All entries of a K-norm vector share their noise.
    apart = release.noise_at == "server" and release.noise != "k-norm"
    return system.nodes * (bounds.dimension // moved if apart else 1)


def farthest_features(bounds: FeatureConfig, law: NoiseLaw) -> tuple[int, float]:
    """The features that change sums the most in the norm of the noise: the number of equal entries, and their value.

    In L2 it is one entry of the largest allowed value. In L1 it is the smallest number of equal entries whose L2 length
    is allowed.
    """
    moved = 1 if law != "laplace" else max(1, math.ceil((bounds.l1_bound / bounds.norm) ** 2 * (1 - 1e-12)))
    length = bounds.l1_bound if law == "laplace" else min(bounds.norm, bounds.l1_bound)
    entry = np.float32(length / moved)
    while not short_enough(np.full((1, moved), entry, dtype=np.float32), bounds).all():
        entry = np.nextafter(entry, np.float32(0))
    return moved, float(entry)


def _first_rewards(users: int, groups: int, moved: int, dimension: int, entry: float) -> Callable[..., Rows]:
    """Rows of rewards: one for each group of coordinates of each user, or one for each user."""
    nodes = np.repeat(np.arange(users, dtype=np.int32), groups)
    features = np.zeros((users, groups, dimension), dtype=np.float32)
    for group in range(groups):
        features[:, group, group * moved : (group + 1) * moved] = entry
    every = features.reshape(users * groups, dimension)

    def rows(reward: float, all_groups: bool) -> Rows:
        if all_groups:
            return Rows(nodes, every, np.full(len(nodes), reward))
        return Rows(np.arange(users, dtype=np.int32), features[:, 0], np.full(users, reward))

    return rows


def audit_noisy_reward(system: CollaborativeSystem) -> Attacked:
    """Attack rewards that are noised once each: a reward of 1 or 0, with features that have one entry."""
    release, bounds = system.config.release, system.features
    key, law = fresh_key(), local_reward_of(release)
    _, entry = farthest_features(bounds, "gaussian")
    rows = _first_rewards(system.nodes, 1, 1, bounds.dimension, entry)
    users, step = np.arange(system.nodes, dtype=np.int64), entry * (1 << GRID_BITS)

    def scores(present: bool) -> NDArray[np.float64]:
        noised_sums = system.noised_sums(key, fresh_nonce(), 0, 0)
        noised_sums.add(rows(float(present), all_groups=True))
        return np.asarray(noised_sums.sums(users)[:, 0] / step - 0.5, dtype=np.float64)

    steps = law.levels if law.law == "laplace" else 1
    family = pure(lambda epsilon: laplace_pair(epsilon, 1, steps).power)
    claimed = epoch_guarantee(release, bounds, system.nodes).cost
    return Attacked(side_by_side(scores, system.nodes), claimed, family)
