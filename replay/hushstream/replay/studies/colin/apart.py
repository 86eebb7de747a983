"""What users would miss apart: each with a LinUCB of their own, their exact rewards, and nothing shared."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hushstream.replay.report.payoff import Payoff, paired_gap
from hushstream.replay.studies.colin.worlds.related import CollaborativeWorld
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.algorithm.estimator import CollaborativeState
from hushstream.systems.colin.relation import Relation

RIDGE, ALPHA = 1.0, 0.1
"""Of a learner without noise, as in the experiments; a run may say another alpha."""

Float64 = NDArray[np.float64]


def regret_apart(world: CollaborativeWorld, rounds: int, alpha: float) -> Float64:
    """Best mean reward minus that of what each user chooses alone, (users, rounds).

    A user learns from each reward at once, where a deployment waits for its phase to end.

    Args:
        world: with known mean rewards.
        rounds: of each user.
        alpha: width of the bounds.

    Raises:
        HushstreamError: the world has no known mean rewards.
    """
    alone = Relation("linucb", np.eye(1))
    learners = [CollaborativeState(alone, world.feature_dimension, RIDGE) for _ in range(world.users)]
    everyone = np.arange(world.users)
    found = np.zeros((world.users, rounds))
    for turn in range(rounds):
        features = world.features(everyone, turn).astype(np.float64)
        arms = np.array([one.choose(0, features[user], alpha) for user, one in enumerate(learners)])
        rewards = np.clip(world.rewards(everyone, turn, arms), 0.0, 1.0)
        for user, one in enumerate(learners):
            one.learn(0, features[user, arms[user]], float(rewards[user]))
        found[:, turn] = _missed(world, turn, arms)
    return found


def _missed(world: CollaborativeWorld, turn: int, arms: NDArray[np.int64]) -> Float64:
    users = np.repeat(np.arange(world.users), world.arms)
    means = world.expected(users, turn, np.tile(np.arange(world.arms), world.users))
    if means is None:
        raise HushstreamError(f"{world.name}: expected a world with known mean rewards")
    table = means.reshape(world.users, world.arms)
    missed: Float64 = table.max(axis=1) - table[np.arange(world.users), arms]
    return missed


def payoff(world: CollaborativeWorld, regret: Float64, alpha: float | Literal["lemma"]) -> Payoff:
    """The regret of a run against that of users apart; users are the sample.

    Args:
        world: that was played.
        regret: (users, rounds), of the run.
        alpha: of the run's learner; what a lemma says of noised sums is not for exact ones, so then `ALPHA`.
    """
    ours = regret.mean(axis=1)
    others = regret_apart(world, regret.shape[1], ALPHA if alpha == "lemma" else alpha).mean(axis=1)
    return Payoff(
        what="mean regret a visit",
        value=float(ours.mean()),
        baseline="users who keep apart, each with an exact learner of their own",
        reference=float(others.mean()),
        gap=paired_gap(ours, others),
        units="users",
        otherwise="keep users apart, or take a larger epsilon or noise at the learner",
        less_is_better=True,
        digits=4,
    )
