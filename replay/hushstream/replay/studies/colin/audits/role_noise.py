"""Audits of the noise at every place of the releases of collaborative bandits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hushstream.counting import Plan, PureLength
from hushstream.engine.configuration import PartitionConfig
from hushstream.privacy.amounts import Cost
from hushstream.privacy.audits.laws import lattice_sizes
from hushstream.privacy.keys import Key
from hushstream.replay.audits.draws import fresh_key, fresh_nonce
from hushstream.replay.audits.mechanisms import LAPLACE_FAMILY
from hushstream.replay.audits.roles.noise import LEAVES, PARTITIONS, Axes, audit_draws, audit_places
from hushstream.replay.audits.row import Run
from hushstream.replay.audits.unmixed import unmixed
from hushstream.replay.studies.colin.audits.releases import collaborative
from hushstream.replay.studies.colin.audits.worked import played_rewards, played_rows
from hushstream.systems.colin.configuration import GRID_BITS, ContinualConfig, FeatureConfig
from hushstream.systems.colin.deployment import CollaborativeSystem
from hushstream.systems.colin.release import epoch_guarantee, local_reward_of, plan_of

USERS, STEPS = 12, 2
"""Users and steps of counters whose noise is compared with one another."""

PARALLEL_USERS = 50
"""How many users one deployment has; each user's counter is one run."""

ENTRIES = 2
FEATURES, UNIT = FeatureConfig(ENTRIES, norm_l1=1.0), np.eye(1, ENTRIES, dtype=np.float32)[0]


def counter_draws(release: ContinualConfig) -> Run:
    """Each draw of every user's trusted counter, and each coordinate of it; each user is one run."""
    system, plan = _long(release)
    key = fresh_key()

    def journal() -> NDArray[np.float64]:
        return np.moveaxis(played_rewards(system, key, UNIT, np.zeros((LEAVES, system.nodes))), 1, 0)

    axes: Axes = {"entry": range(ENTRIES)}
    return audit_draws(journal, unmixed(plan, LEAVES), axes, epoch_cost(system), isinstance(plan.budget, PureLength))


def counter_users(release: ContinualConfig, users: int = USERS) -> Run:
    """Each user and entry over some steps, of a trusted counter or of learners that hold the counters."""
    system, plan = _long(release, users)
    key = fresh_key()

    def journal() -> NDArray[np.float64]:
        if release.noise_at == "learner":
            return _of_partitions(system, key, STEPS)[None]
        return played_rewards(system, key, UNIT, np.zeros((STEPS, users)))[None]

    axes: Axes = {"user": range(users), "entry": range(ENTRIES)}
    return audit_draws(journal, unmixed(plan, STEPS), axes, epoch_cost(system), isinstance(plan.budget, PureLength))


def noisy_rewards(release: ContinualConfig) -> Run:
    """Each user's noised rewards, from learners of two partitions."""
    system = _deployment(release, USERS)
    law, key = local_reward_of(system.config.release), fresh_key()
    # A reward is noised in steps of its levels; sums are on the lattice, where a feature of 1 is 2^GRID_BITS.
    step = law.levels / float(1 << GRID_BITS)

    def journal() -> NDArray[np.float64]:
        sums = _of_partitions(system, key, STEPS)[..., 0]
        noised = np.rint(np.diff(sums, axis=0, prepend=0.0) * step)
        return np.asarray(noised / law.levels, dtype=np.float64)[None]

    axes: Axes = {"reward": range(STEPS), "user": range(USERS)}
    return audit_places(journal, axes, lattice_sizes(law.levels, LAPLACE_FAMILY), epoch_cost(system))


def _deployment(release: ContinualConfig, users: int = PARALLEL_USERS) -> CollaborativeSystem:
    """A deployment of ``users`` users; a step of a trusted counter closes after a row of every user."""
    return collaborative(replace(release, rows=users), FEATURES, users, PartitionConfig(learner=PARTITIONS))


def _long(release: ContinualConfig, users: int = PARALLEL_USERS) -> tuple[CollaborativeSystem, Plan]:
    """A deployment whose counters have `LEAVES` leaves, and its plan."""
    system = _deployment(replace(release, horizon=LEAVES, rewards_per_user=LEAVES), users)
    return system, plan_of(system.config.release, FEATURES)


def _of_partitions(system: CollaborativeSystem, key: Key, steps: int) -> NDArray[np.float64]:
    """Sums of the users of all partitions, float64 (steps, users, entries)."""
    nonce, rewards = fresh_nonce(), np.zeros((steps, system.nodes))
    parts = [played_rows(system, key, UNIT, rewards, partition, nonce) for partition in range(PARTITIONS)]
    return np.concatenate(parts, axis=1)


def epoch_cost(system: CollaborativeSystem) -> Cost:
    """What one epoch costs."""
    return epoch_guarantee(system.config.release, system.features, system.nodes).cost
