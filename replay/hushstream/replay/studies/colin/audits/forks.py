"""Forks of the journals of collaborative bandits' roles: every counter, and noised rewards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.amounts import Cost
from hushstream.privacy.keys import Key
from hushstream.replay.audits.draws import fresh_key
from hushstream.replay.audits.roles.forks import Branch, Fork, fork_row
from hushstream.replay.audits.row import Recipe
from hushstream.replay.studies.colin.audits.releases import collaborative
from hushstream.replay.studies.colin.audits.role_noise import FEATURES, PARALLEL_USERS, UNIT, epoch_cost
from hushstream.replay.studies.colin.audits.worked import played_rewards, played_rows
from hushstream.systems.colin.configuration import GRID_BITS, ContinualConfig
from hushstream.systems.colin.deployment import CollaborativeSystem

Played = Callable[[CollaborativeSystem, Key, NDArray[np.float32], NDArray[np.float64], Branch, bytes], Any]


def _at_the_counter(
    system: CollaborativeSystem,
    key: Key,
    unit: NDArray[np.float32],
    steps: NDArray[np.float64],
    branch: Branch,
    nonce: bytes,
) -> NDArray[np.float64]:
    return played_rewards(system, key, unit, steps, nonce, branch)


def _at_learners(
    system: CollaborativeSystem,
    key: Key,
    unit: NDArray[np.float32],
    steps: NDArray[np.float64],
    branch: Branch,
    nonce: bytes,
) -> NDArray[np.float64]:
    return played_rows(system, key, unit, steps, 0, nonce, branch)


def first_rewards(role: str, played: Played, releases: tuple[ContinualConfig, ...]) -> Fork:
    """The fork of the first reward of every user, through counters of some configurations; each user is one run.

    In the branch with other contents every user's reward is 1. Users do not affect one another, as each has a counter.
    """
    # The counter draws for two epochs: the second one begins after a suspected rollback.
    whole = [replace(one, rows=PARALLEL_USERS, epochs=2) for one in releases]
    systems, key = [collaborative(one, FEATURES, PARALLEL_USERS) for one in whole], fresh_key()

    def noise(system: CollaborativeSystem, branch: Branch, nonce: bytes) -> NDArray[np.float64]:
        reward = float(branch.other_contents)
        sums = played(system, key, UNIT, np.full((1, PARALLEL_USERS), reward), branch, nonce)[0, :, 0]
        return np.asarray(sums - reward * (1 << GRID_BITS), dtype=np.float64)

    def play(branch: Branch, nonce: bytes) -> NDArray[np.float64]:
        return np.stack([noise(system, branch, nonce) for system in systems], axis=1)

    prices = [epoch_cost(system) for system in systems]
    dearest = Cost(max(cost.epsilon_micro for cost in prices), max(cost.delta_units for cost in prices))
    return Fork("colin", role, play, dearest + dearest)


def fork_rows(counters: tuple[ContinualConfig, ...], noisy: ContinualConfig) -> tuple[Recipe, ...]:
    """All audits of forks, in the order of the table.

    Args:
        counters: one of every mechanism and distribution of noise, at a trusted counter.
        noisy: a configuration that noises rewards one by one.
    """
    edge = tuple(replace(one, noise_at="learner") for one in counters)
    every = f"users of {len(counters)} counters, those that draw ahead after a suspected rollback"
    return (
        fork_row("forked-counters", every, partial(first_rewards, "counter", _at_the_counter, counters)),
        fork_row("forked-edge-counters", every, partial(first_rewards, "learner", _at_learners, edge)),
        fork_row("forked-noisy-rewards", "users", partial(first_rewards, "learner", _at_learners, (noisy,))),
    )
