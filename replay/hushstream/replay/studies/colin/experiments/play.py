"""Plays one run of a collaborative bandit under one calibration; the users of the world are served in turn.

In every event the next user is shown arms. The learner picks the arm with the highest bound phi_u . x + alpha
sqrt(x' C_uu x), computed from earlier releases. The public features enter A, the reward enters the counter, and the
counter's new release is used from the next event on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hushstream.replay.catalogue.worlds import make_world, world_options
from hushstream.replay.studies.colin.experiments.mechanisms import (
    Calibration,
    Exposure,
    NoiseAt,
    find_calibration,
    reward_law,
)
from hushstream.replay.studies.colin.experiments.noise import noised_rewards, raw_noise
from hushstream.replay.studies.colin.worlds.related import CollaborativeWorld
from hushstream.replay.worlds.world import WorldError
from hushstream.systems.colin.algorithm.estimator import CollaborativeState
from hushstream.systems.colin.relation import Algorithm, Relation
from hushstream.systems.colin.ridge_rule import noise_aware_ridge, projected_deviation

Float64 = NDArray[np.float64]
Policy = Literal["random", "linucb", "colin", "goblin"]

NONPRIVATE = "none"
"""The calibration of a run without privacy."""

_CHECKPOINTS = 100


@dataclass(frozen=True, slots=True)
class WorldSetting:
    """A world by name and options, and how many events are played in it.

    Attributes:
        name: name of the world's factory.
        options: options other than rounds and seed, as sorted pairs.
        events: T.
        seed: seed of the world, the keys and the random policy.
    """

    name: str
    options: tuple[tuple[str, Any], ...]
    events: int
    seed: int


@dataclass(frozen=True, slots=True)
class Tuning:
    """The settings of a learner; see `ridge_for`.

    Attributes:
        alpha: width of the bounds.
        ridge_per_noise: how much the ridge grows with the known noise.
        tie_weight: factor of the graph's weights for GOBLin.
    """

    alpha: float = 0.1
    ridge_per_noise: float = 0.0
    tie_weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Task:
    """One run.

    Attributes:
        world: the world and its events.
        policy: the learner, or ``random``.
        calibration: a calibration's key, or `NONPRIVATE`.
        noise_at: who adds the noise.
        epsilon: epsilon of one reward; 0 without privacy.
        tuning: the settings of the learner.
    """

    world: WorldSetting
    policy: Policy
    calibration: str = NONPRIVATE
    noise_at: NoiseAt = "server"
    epsilon: float = 0.0
    tuning: Tuning = Tuning()


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """The outcome of a run.

    Attributes:
        events: (m,) numbers of events at the checkpoints.
        regret: (m,) cumulative expected regret there.
        reward: (m,) cumulative expected reward.
        error: (m,) mean over users of the L2 distance between the vector that scores for a user and the true one,
            NaN where the truth is not known.
        ridge: the lambda that was used.
    """

    events: NDArray[np.int64]
    regret: Float64
    reward: Float64
    error: Float64
    ridge: float


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """A world's values for a whole run, except the choices.

    Attributes:
        world: the world, for its relation, graph and truth.
        features: (T, arms, d) float64.
        expected: (T, arms).
        rewards: (T, arms).
    """

    world: CollaborativeWorld
    features: Float64
    expected: Float64
    rewards: Float64


@lru_cache(maxsize=2)
def stage_of(setting: WorldSetting) -> Stage:
    """Tabulate a world, user t mod N at event t.

    Raises:
        WorldError: unknown or bad options, a world whose arms have no features, or events that cannot be divided
            equally among the users.
    """
    world = _world_of(setting)
    rounds = world.rounds
    everyone = np.arange(world.users)
    features = np.stack([world.features(everyone, turn) for turn in range(rounds)])
    return Stage(
        world,
        features.reshape(setting.events, world.arms, world.feature_dimension).astype(np.float64),
        _by_arm(world, rounds, world.expected),
        _by_arm(world, rounds, world.rewards),
    )


def _world_of(setting: WorldSetting) -> CollaborativeWorld:
    options = dict(setting.options)
    users = int(options["users"]) if "users" in options else int(world_options(setting.name)["users"])
    if setting.events % users:
        raise WorldError(f"{setting.name}: expected events to be a multiple of {users} users, got {setting.events}")
    world = make_world(setting.name, **options, rounds=setting.events // users, seed=setting.seed)
    if not isinstance(world, CollaborativeWorld):
        raise WorldError(f"{setting.name}: expected a world that shows each arm's features, got {world.name}")
    return world


def _by_arm(world: CollaborativeWorld, rounds: int, ask: Callable[..., Float64 | None]) -> Float64:
    users = np.repeat(np.arange(world.users), world.arms)
    arms = np.tile(np.arange(world.arms), world.users)
    table = np.stack([np.asarray(ask(users, turn, arms)) for turn in range(rounds)])
    return table.reshape(rounds * world.users, world.arms)


def relation_of(world: CollaborativeWorld, algorithm: Algorithm, tie_weight: float = 1.0) -> Relation:
    """The relation matrix of an algorithm in a world."""
    if algorithm == "colin":
        return Relation("colin", world.relation)
    if algorithm == "goblin":
        return Relation.goblin(world.graph * tie_weight)
    return Relation("linucb", np.eye(world.users))


def _exposure(world: CollaborativeWorld, relation: Relation, events: int) -> Exposure:
    l1, l2 = world.largest_feature_norm(1), world.largest_feature_norm(2)
    return Exposure.of(relation, world.feature_dimension, events, l1, l2)


def exposure_for(task: Task) -> Exposure:
    """The public facts of a task's run, without playing it."""
    return _exposure_for(task.world, task.policy, task.tuning.tie_weight)


@lru_cache(maxsize=256)
def _exposure_for(setting: WorldSetting, policy: Policy, tie_weight: float) -> Exposure:
    if policy == "random":
        raise WorldError(f"{setting.name}: expected a learner, got the random policy, which does not learn")
    world = _world_of(setting)
    return _exposure(world, relation_of(world, policy, tie_weight), setting.events)


def play(task: Task) -> Played:
    """Play one run; a pure function of the task.

    Raises:
        WorldError, CalibrationError, BadPlan, BadNoise: settings that cannot be played.
    """
    stage = stage_of(task.world)
    marks = checkpoints(task.world.events)
    if task.policy == "random":
        return _random(stage, marks)
    relation = relation_of(stage.world, task.policy, task.tuning.tie_weight)
    if task.calibration == NONPRIVATE:
        return _loop(stage, relation, task.tuning.alpha, 1.0, stage.rewards, None, marks)
    calibration, exposure = find_calibration(task.calibration), exposure_for(task)
    if calibration.sums == "reward":
        ridge = noise_aware_ridge(reward_law(task.epsilon).variance, task.tuning.ridge_per_noise)
        rewards = noised_rewards(stage.rewards, task.epsilon, task.world.seed)
        return _loop(stage, relation, task.tuning.alpha, ridge, rewards, None, marks)
    noise = raw_noise(calibration, exposure, relation, task.noise_at, task.epsilon, task.world.seed)
    ridge = ridge_for(calibration, noise.level, relation, task.tuning.ridge_per_noise)
    return _loop(stage, relation, task.tuning.alpha, ridge, stage.rewards, noise.added, marks)


def ridge_for(calibration: Calibration, level: float, relation: Relation, per_noise: float) -> float:
    """Lambda from the level of the noise on a projected coordinate; see `hushstream.systems.colin.ridge_rule`."""
    return noise_aware_ridge(projected_deviation(relation, level) if calibration.sums == "raw" else level, per_noise)


def checkpoints(events: int) -> NDArray[np.int64]:
    """At most a hundred event numbers, evenly spaced; the last one is the last event."""
    step = max(1, events // _CHECKPOINTS)
    return np.arange(step, events + 1, step) if events % step == 0 else np.append(np.arange(step, events, step), events)


def _random(stage: Stage, marks: NDArray[np.int64]) -> Played:
    """A policy that picks at random; its values are expectations over its picks."""
    reward = np.cumsum(stage.expected.mean(axis=1))
    regret = np.cumsum(stage.expected.max(axis=1)) - reward
    nothing = np.full(len(marks), np.nan)
    return Played(marks, regret[marks - 1], reward[marks - 1], nothing, 0.0)


def _loop(
    stage: Stage,
    relation: Relation,
    alpha: float,
    ridge: float,
    rewards: Float64,
    noise: Float64 | None,
    marks: NDArray[np.int64],
) -> Played:
    """Play all events; ``rewards`` enter the sums, and ``noise`` (T, N, d) is added to the releases."""
    users, dimension = relation.users, stage.features.shape[2]
    state = CollaborativeState(relation, dimension, ridge, norm=1.0)
    sums = np.zeros((users, dimension))
    chosen = np.empty(len(rewards), dtype=np.int64)
    truth = getattr(stage.world, "mixed", None)
    errors: list[float] = []
    due = set(marks.tolist())
    for event in range(len(rewards)):
        user, shown = event % users, stage.features[event]
        arm = state.choose(user, shown, alpha)
        state.observe(user, shown[arm])
        sums[user] += rewards[event, arm] * shown[arm]
        state.set_moment(sums if noise is None else sums + noise[event])
        chosen[event] = arm
        if event + 1 in due:
            errors.append(_distance(state.parameters(), truth))
    reward = np.cumsum(stage.expected[np.arange(len(chosen)), chosen])
    regret = np.cumsum(stage.expected.max(axis=1)) - reward
    return Played(marks, regret[marks - 1], reward[marks - 1], np.array(errors), ridge)


def _distance(parameters: Float64, truth: Float64 | None) -> float:
    return float("nan") if truth is None else float(np.linalg.norm(parameters - truth, axis=1).mean())
