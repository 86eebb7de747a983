"""Neighbouring inputs through the machines of the roles: journaled, stopped, resumed, released and replayed.

The attacker reads everything that the role published, repeated records too
(`hushstream.replay.studies.colin.audits.worked`).
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.audits.audit import audit_attack
from hushstream.privacy.audits.laws import LAPLACE_STEPS, Family, laplace_pair, pure
from hushstream.replay.audits.draws import fresh_key, fresh_nonce, side_by_side
from hushstream.replay.audits.roles.played import PlayedRole
from hushstream.replay.audits.row import Run
from hushstream.replay.audits.unmixed import Unmixed, unmixed
from hushstream.replay.studies.colin.audits.releases import collaborative
from hushstream.replay.studies.colin.audits.role_noise import FEATURES, UNIT, epoch_cost
from hushstream.replay.studies.colin.audits.worked import played_rewards, played_rows, release_sums, reward_fields
from hushstream.systems.colin.configuration import GRID_BITS, ContinualConfig
from hushstream.systems.colin.counter.machine import CounterMachine
from hushstream.systems.colin.release import plan_of

USERS = 50
STEP = 1 << GRID_BITS
"""A reward of 1 for `UNIT` features, in lattice units."""


def audit_target_leaf(release: ContinualConfig) -> Run:
    """Attack one reward of every user, 1 against 0, at a step that is drawn for each journal; all other rewards are 0.

    The attacker reads each node that holds the reward separately. In some steps more of these nodes can be read than
    in others. The curve is that of the step with the most; it lies above the curves of all other steps and of their
    mixtures.

    Raises:
        HushstreamError: the counter is no digit tree with Laplace noise.
    """
    system = collaborative(replace(release, rows=USERS), FEATURES, USERS)
    plan, leaves = plan_of(system.config.release, FEATURES), release.leaves
    solved, key = unmixed(plan, leaves), fresh_key()
    play = played_rows if release.noise_at == "learner" else played_rewards
    moved = STEP / solved.unit

    def scores(present: bool) -> NDArray[np.float64]:
        target = int.from_bytes(os.urandom(4), "big") % leaves
        steps = np.zeros((leaves, USERS))
        steps[target] = float(present)
        draws = solved(play(system, key, UNIT, steps)[..., 0])[solved.holders[:, target]]
        return np.asarray((2 * np.clip(draws / moved, 0, 1) - 1).sum(axis=0), dtype=np.float64)

    return partial(audit_attack, side_by_side(scores, USERS), epoch_cost(system), leaf_family(solved, plan.levels))


def leaf_family(solved: Unmixed, levels: int) -> Family:
    """The distributions of the nodes of the leaf with the most readable nodes."""
    most = int(solved.holders.sum(axis=0).max())
    return pure(lambda epsilon: laplace_pair(epsilon * most / levels, most, LAPLACE_STEPS).power)


def redrawn_sums(release: ContinualConfig) -> Run:
    """Attack a counter that is resumed with a log from which a released reward is missing.

    The counter must draw new noise for everything and charge for it. If it used the noise of the last epoch again, the
    difference of the two releases would be the reward.
    """
    system = collaborative(replace(release, rows=USERS, epochs=2), FEATURES, USERS)
    key, (lost,) = fresh_key(), np.eye(1, USERS)

    def scores(present: bool) -> NDArray[np.float64]:
        role = PlayedRole(partial(CounterMachine, system, 0, key))
        # The first user's reward is always lost, so that the log always changes.
        held = np.where(lost > 0, 1.0, float(present))
        for number, rewards in enumerate((np.zeros(USERS), held)):
            role.put("rewards", "Rewards", reward_fields(system, number, UNIT, rewards))
        role.work()
        role.replace("rewards", 1, "Rewards", reward_fields(system, 1, UNIT, np.zeros(USERS)))
        role.restart()
        role.put("rewards", "Rewards", reward_fields(system, 2, UNIT, np.zeros(USERS)))
        role.work()
        sums = {one["leaf"]: release_sums(system, one)[1:, 0] for one in role.published("releases", "Release")}
        return np.asarray((sums[2] - sums[3]) / STEP - 0.5)

    once = epoch_cost(system)
    return partial(audit_attack, side_by_side(scores, USERS - 1), once + once, None)


def forked_counter(release: ContinualConfig) -> Run:
    """Attack a journal that is rolled back: in the other branch every user gives half a reward in place of 1 or 0.

    Both branches together are one adaptive sequence in which a leaf of each is protected, so they cost twice the price.
    """
    system, key = collaborative(replace(release, rows=USERS), FEATURES, USERS), fresh_key()

    def scores(present: bool) -> NDArray[np.float64]:
        nonce, branches = fresh_nonce(), (float(present), 0.5)
        first, second = (
            played_rewards(system, key, UNIT, np.full((1, USERS), reward), nonce)[0, :, 0] for reward in branches
        )
        return np.asarray((first - second) / STEP)

    once = epoch_cost(system)
    return partial(audit_attack, side_by_side(scores, USERS), once + once, None)
