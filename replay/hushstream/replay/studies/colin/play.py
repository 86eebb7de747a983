"""Plays collaborative bandits in batches: calibrations of the noise, the noise, one run, and many runs.

The calibrations that protect rewards in the collaborative experiments: the paper's, a sound one, and better ones.

The paper (Wang et al. 2020, Algorithms 1 and 2) noises the *projected* sums b = sum x~ r, dN numbers, by a binary
tree: one over all events under a trusted server, or one a user at the edge. `paper` is that as printed: Laplace noise
of scale Delta_2 log T / epsilon on each node. The logarithm is binary: the paper counts ceil(log T) partial sums. This
is wrong for two reasons: a reward changes h nodes with h > log T, and the price of independent Laplace noise is an L1
distance. The true epsilon of the noisy sums is

    h max_u ||w_u||_1 max_x ||x||_1 / (Delta_2 log T / epsilon)

and no smaller one holds for the user who comes first: the far tail of the noise of the h nodes that hold the first
reward attains the ratio. The arms alone, which are the output in the paper's Section 3, follow from these sums: for
them it is an upper bound. `laplace-l1` is the same tree with Laplace noise on the L1 sensitivity.

The better ones add noise to the *raw* sums of each user, d numbers, with a counter of T/N leaves for each user. A
reward changes these sums by ||x|| whatever the relation matrix is, and projection is post-processing. A user's own
counter needs no trusted server, so each of these is the DP and the LDP version at the same time. `local-reward` noises
each reward once.

The distances used are the largest ||x||_1 and ||x||_2 of the pool's features, which are public.

Draws the noise of every calibration over a run with the product's keyed counters, in the form for raw sums.

A counter's release is the exact sum plus noise whose distribution does not depend on the leaves, so the noise of all
releases is what the counter releases for leaves of zeros. It is drawn once a seed, for sensitivity 1 and epsilon 1,
and scaled to each epsilon and sensitivity: the lattice is 2^-20 of sensitivity over epsilon, so in lattice
units the counter stays the same. All rows of a seed therefore share their noise up to its scale, as they share the
world, so comparisons are paired. A deployment never uses noise twice; these keys are seeded and protect no one.

Noise on projected sums b enters a score as w_u' (x) I A^-1 b. With C = M' A^-1 M (`learners.collaborative`) that is
C times raw noise E with M E = P b, P the projection on the span of M: E = pinv(W') applied to the users' blocks.

Plays one run of a collaborative bandit under one calibration; the users of the world are served in turn.

In every event the next user is shown arms. The learner picks the arm with the highest bound phi_u . x + alpha
sqrt(x' C_uu x), computed from earlier releases. The public features enter A, the reward enters the counter, and the
counter's new release is used from the next event on.

Plays many runs of collaborative bandits, seed by seed, in as many processes as there are processors.

Plays collaborative bandits in a closed loop, directly or through a broker, and reports the result.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.agents.worker.deployment import parse_as, prepare
from hushstream.client.client import Client
from hushstream.client.logs import EventLog
from hushstream.counting import (
    BinaryTree,
    Plan,
    PureEpsilon,
    best_tree,
)
from hushstream.engine.declare.declaration import System
from hushstream.privacy.amounts import MICRO, Cost, epsilon_micro
from hushstream.privacy.keys import seeded_key
from hushstream.privacy.mechanisms.noise import KeyedStream, NoiseAddress
from hushstream.privacy.mechanisms.rewards import LocalReward
from hushstream.privacy.promises.promise import Claim, Guarantee
from hushstream.replay.catalogue import hint, make_world, seeded_world, world_options
from hushstream.replay.checks import NEVER_SECONDS, PlayOptions, merged_values, run_fields
from hushstream.replay.experiments.rows import Row, over_seeds
from hushstream.replay.report.parts import paired, ratio
from hushstream.replay.report.payoff import Payoff, paired_gap
from hushstream.replay.report.replayed import Column, RunCurve, RunResult, RunRows
from hushstream.replay.runners import playing
from hushstream.replay.runners.playing import Recording, deployed
from hushstream.replay.runners.to_end import await_version, play_all, run_to_end
from hushstream.replay.studies.colin.worlds import CollaborativeWorld
from hushstream.replay.study import Progress
from hushstream.replay.worlds.world import WorldError
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import partition_of
from hushstream.systems.colin.algorithm.estimator import CollaborativeState, OwnRewards
from hushstream.systems.colin.configuration import GRID_BITS, CollaborativeConfig
from hushstream.systems.colin.deployment import alone_ridge, inputs_of, noise_aware_ridge, projected_deviation
from hushstream.systems.colin.relation import Relation, SocialGraph
from hushstream.systems.colin.release import NEIGHBOURS, NOT_PROTECTED

NoiseAt = Literal["server", "learner"]
Sums = Literal["projected", "raw", "reward"]


REWARD_LEVELS = 256
_MARGIN = 1 + 2.0**-30


class CalibrationError(HushstreamError):
    """A calibration is unknown, or cannot protect the given input."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """One way to protect rewards.

    Attributes:
        key: its name in rows.
        words: its name in captions.
        sums: what is noised: projected sums in a binary tree, each user's raw sums in a negative-digit tree, or the
            reward itself.
        as_stated: whether the stated epsilon holds; False for the paper's own calibration.
    """

    key: str
    words: str
    sums: Sums
    as_stated: bool = True

    @property
    def paired(self) -> bool:
        """Whether the DP and the LDP version are the same, because each user has a counter or noise of their own."""
        return self.sums != "projected"


PAPER = "paper"
CALIBRATIONS = (
    Calibration(PAPER, "Laplace on the L2 sensitivity, log T levels, binary tree", "projected", as_stated=False),
    Calibration("laplace-l1", "the paper's tree, Laplace on the L1 sensitivity, all levels", "projected"),
    Calibration("user-laplace", "negative-digit trees of raw sums, Laplace", "raw"),
    Calibration("local-reward", "noise on each reward, once", "reward"),
)


@dataclass(frozen=True, slots=True)
class Exposure:
    """The public facts that decide a calibration: how far a reward changes sums, and how many rewards there are.

    Attributes:
        users: N.
        dimension: d.
        events: T, a multiple of N; every user has T/N.
        longest_l1: largest ||x||_1 of any arm.
        longest_l2: largest ||x||_2.
        rows_l1: ||w_u||_1 of each user.
        rows_l2: ||w_u||_2 of each user.
    """

    users: int
    dimension: int
    events: int
    longest_l1: float
    longest_l2: float
    rows_l1: tuple[float, ...]
    rows_l2: tuple[float, ...]

    @classmethod
    def of(cls, relation: Relation, dimension: int, events: int, longest_l1: float, longest_l2: float) -> Exposure:
        """Compute it from a relation matrix and the lengths of the features.

        Raises:
            CalibrationError: the events cannot be divided equally among the users.
        """
        if events % relation.users or events < relation.users:
            raise CalibrationError(f"events: expected a multiple of {relation.users} users, got {events}")
        norms = (tuple(relation.row_norms(1).tolist()), tuple(relation.row_norms(2).tolist()))
        return cls(relation.users, dimension, events, longest_l1, longest_l2, *norms)

    @property
    def events_of_user(self) -> int:
        """T/N."""
        return self.events // self.users

    def horizon(self, sums: Sums, noise_at: NoiseAt) -> int:
        """The number of leaves of one counter."""
        return self.events if sums == "projected" and noise_at == "server" else self.events_of_user

    def sensitivities(self, sums: Sums, noise_at: NoiseAt, order: Literal[1, 2] = 1) -> tuple[float, ...]:
        """The change by one reward in the leaf of each user's counter, in an L1 or L2 norm; one value if shared."""
        longest, rows = (self.longest_l1, self.rows_l1) if order == 1 else (self.longest_l2, self.rows_l2)
        if sums == "raw":
            return (longest,) * self.users
        moved = tuple(longest * row for row in rows)
        return (max(moved),) if noise_at == "server" else moved


def find_calibration(key: str) -> Calibration:
    """The calibration of this name.

    Raises:
        CalibrationError: no calibration has this name; the message lists the known ones.
    """
    for calibration in CALIBRATIONS:
        if calibration.key == key:
            return calibration
    raise CalibrationError(f"unknown calibration {key!r}; known: {', '.join(c.key for c in CALIBRATIONS)}")


def plan_for(sums: Sums, epsilon: float, horizon: int, dimension: int, sensitivity: int) -> Plan:
    """The plan of a counter, before any leaf."""
    if sums == "raw":
        return best_tree(PureEpsilon(epsilon), horizon, dimension, sensitivity)
    return BinaryTree(budget=PureEpsilon(epsilon), dimension=dimension, sensitivity=sensitivity, horizon=horizon)


def levels_of(horizon: int) -> int:
    """The number of nodes of the paper's tree that hold one leaf."""
    return plan_for("projected", 1, horizon, 1, 1).levels


def paper_scale(exposure: Exposure, noise_at: NoiseAt, epsilon: float) -> tuple[float, ...]:
    """The scale of the paper's Laplace noise on a node, Delta_2 log2 T / epsilon, of each counter.

    Raises:
        CalibrationError: a horizon of one event, whose logarithm is 0.
    """
    horizon = exposure.horizon("projected", noise_at)
    if horizon < 2:
        raise CalibrationError(f"paper: expected at least 2 events in a tree, got {horizon}")
    return tuple(
        distance * math.log2(horizon) / epsilon for distance in exposure.sensitivities("projected", noise_at, 2)
    )


def paper_true_epsilon(exposure: Exposure, noise_at: NoiseAt, epsilon: float) -> float:
    """The exact epsilon of the paper's noisy sums for one reward; see the module."""
    levels = levels_of(exposure.horizon("projected", noise_at))
    moved = exposure.sensitivities("projected", noise_at)
    return max(levels * far / scale for far, scale in zip(moved, paper_scale(exposure, noise_at, epsilon), strict=True))


def reward_law(epsilon: float) -> LocalReward:
    """The local mechanism with the smaller worst-case variance at this epsilon: one bit, or discrete Laplace."""
    return LocalReward.of(REWARD_LEVELS, epsilon)


@lru_cache(maxsize=512)
def guarantee_of(calibration: Calibration, exposure: Exposure, noise_at: NoiseAt, epsilon: float) -> Guarantee:
    """The guarantee of a run for one reward; its lifetime is all T/N rewards of one user.

    The figures come from seeded keys, so the guarantee is marked as reproducible.

    Raises:
        CalibrationError, BadPlan, BadNoise: no mechanism exists for these settings.
    """
    if calibration.sums == "reward":
        local = reward_law(epsilon).guarantee(rewards=exposure.events_of_user)
        return local.under_key(reproducible=True)
    farthest = max(exposure.sensitivities(calibration.sums, noise_at))
    dimension = exposure.dimension * (exposure.users if calibration.sums == "projected" else 1)
    horizon = exposure.horizon(calibration.sums, noise_at)
    units = math.ceil(farthest * _MARGIN * (1 << GRID_BITS))
    plan = plan_for(calibration.sums, epsilon, horizon, dimension, units)
    zone = "counter" if noise_at == "server" and not calibration.paired else "edge"
    stated = plan.guarantee(NEIGHBOURS, exposure.events_of_user, "hosted", zone)
    stated = replace(stated, not_protected=(*NOT_PROTECTED, *stated.not_protected))
    if not calibration.as_stated:
        stated = _with_claim(stated, exposure, noise_at, epsilon)
    return stated.under_key(reproducible=True)


def _with_claim(stated: Guarantee, exposure: Exposure, noise_at: NoiseAt, epsilon: float) -> Guarantee:
    true = Cost(math.ceil(paper_true_epsilon(exposure, noise_at, epsilon) * MICRO), stated.cost.delta_units)
    life = Cost(true.epsilon_micro * exposure.events_of_user, stated.lifetime.cost.delta_units)
    scale = max(paper_scale(exposure, noise_at, epsilon))
    theorem = "Theorem 1" if noise_at == "server" else "Theorem 3"
    return replace(
        stated,
        mechanism=f"binary tree, Laplace noise of scale {scale:.6g} on each node",
        cost=true,
        replace_one=true,
        lifetime=replace(stated.lifetime, cost=life, exchange=life),
        private_as_stated=False,
        claimed=Claim(epsilon_micro(epsilon), "0", f"Wang et al. 2020, {theorem}"),
    )


Float64 = NDArray[np.float64]

_UNIT = 1 << 20
"""Lattice units of sensitivity 1."""

_NONCE = bytes(32)


@dataclass(frozen=True, slots=True, eq=False)
class RawNoise:
    """The noise in the raw sums that are released after each event.

    Attributes:
        added: (T, N, d) float64; row t holds after t + 1 events.
        level: root mean square of a coordinate, in the space in which the mechanism adds noise.
    """

    added: Float64
    level: float


def raw_noise(
    calibration: Calibration, exposure: Exposure, relation: Relation, noise_at: NoiseAt, epsilon: float, seed: int
) -> RawNoise:
    """The noise of one run in which users are served in turn.

    Args:
        calibration: any calibration that noises sums.
        exposure: the run's public facts.
        relation: the relation matrix of its algorithm.
        noise_at: who runs the counter.
        epsilon: epsilon of one reward.
        seed: seed of the key.
    """
    scales = _scales(calibration, exposure, noise_at, epsilon)
    shape = (exposure.events, exposure.users, exposure.dimension)
    if calibration.sums == "raw":
        unit = _of_users("raw", exposure.events_of_user, exposure.dimension, exposure.users, seed)
        added = _in_turn(unit * scales[:, None, None])
        return RawNoise(added, _level(added))
    if noise_at == "server":
        unit = _unit_noise("projected", exposure.events, shape[1] * shape[2], -1, seed)
        projected = (unit * scales[0]).reshape(shape)
    else:
        own = _of_users("projected", exposure.events_of_user, shape[1] * shape[2], exposure.users, seed)
        projected = _summed_in_turn(own, scales).reshape(shape)
    level = _level(projected)
    inverse = np.linalg.pinv(relation.matrix.T)
    return RawNoise(np.matmul(inverse, projected), level)


def noised_rewards(rewards: Float64, epsilon: float, seed: int) -> Float64:
    """Add noise to every reward once, by `local-reward`: float64 of the same shape, unbiased, possibly outside [0, 1].

    Args:
        rewards: in [0, 1], any shape; put on the grid of `REWARD_LEVELS` steps toward zero first.
        epsilon: epsilon of one reward.
        seed: seed of the key.
    """
    law = reward_law(epsilon)
    stream = KeyedStream(seeded_key(seed, "edge"), _address("local-reward", {"levels": REWARD_LEVELS}))
    steps = np.trunc(rewards.ravel() * REWARD_LEVELS).astype(np.int64)
    return law.estimate(law.draw(stream, steps)).reshape(rewards.shape)


def forget_noise() -> None:
    """Free the noise that is kept for later runs under the same seed."""
    _unit_noise.cache_clear()


def _scales(calibration: Calibration, exposure: Exposure, noise_at: NoiseAt, epsilon: float) -> Float64:
    """The factors of each counter's unit noise."""
    if calibration.key == PAPER:
        levels = levels_of(exposure.horizon("projected", noise_at))
        return np.array(paper_scale(exposure, noise_at, epsilon)) / levels
    return np.array(exposure.sensitivities(calibration.sums, noise_at)) / epsilon


def _level(noise: Float64) -> float:
    return math.sqrt(float(np.mean(np.square(noise))))


def _in_turn(of_users: Float64) -> Float64:
    """Turn (N, T/N, d) into (T, N, d): after event t, user t mod N has one more leaf; before their first, zeros."""
    users, leaves, dimension = of_users.shape
    spread = np.zeros((leaves * users, users, dimension))
    for user in range(users):
        spread[user:, user] = np.repeat(of_users[user], users, axis=0)[: leaves * users - user]
    return spread


def _summed_in_turn(of_users: Float64, scales: Float64) -> Float64:
    """(T, m): the sum over users of the latest release of each one's counter of m coordinates."""
    users, leaves, size = of_users.shape
    total = np.zeros((leaves * users, size))
    for user in range(users):
        total[user:] += scales[user] * np.repeat(of_users[user], users, axis=0)[: leaves * users - user]
    return total


def _of_users(sums: Sums, leaves: int, dimension: int, users: int, seed: int) -> Float64:
    return np.stack([_unit_noise(sums, leaves, dimension, user, seed) for user in range(users)])


@lru_cache(maxsize=256)
def _unit_noise(sums: Sums, leaves: int, dimension: int, cell: int, seed: int) -> Float64:
    """Noise of every release of one counter, (leaves, dimension), for sensitivity 1 and epsilon 1."""
    plan = plan_for(sums, 1, leaves, dimension, _UNIT)
    counter = "negative-digit" if sums == "raw" else "binary"
    key = seeded_key(seed, "counter")
    address = replace(_address(f"{counter} laplace", {}), cell=None if cell < 0 else cell)
    running, nothing = plan.open(key, address), np.zeros((1, dimension), dtype=np.int64)
    drawn = np.empty((leaves, dimension))
    for row in drawn:
        running.add(nothing)
        row[:] = running.release().values / _UNIT
    drawn.setflags(write=False)
    return drawn


def _address(mechanism: str, parameters: dict[str, int | str | bytes]) -> NoiseAddress:
    return NoiseAddress(
        purpose="experiment",
        deployment="colin-experiments",
        genesis_nonce=_NONCE,
        system="colin",
        mechanism=mechanism,
        parameters=parameters,
        config_digest=b"experiment",
        epoch=0,
    )


Policy = Literal["random", "alone", "linucb", "colin", "goblin"]

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
        policy: the learner; ``alone`` (each user's own best exact learner); or ``random``.
        calibration: a calibration's key, or `NONPRIVATE`.
        noise_at: who adds the noise.
        epsilon: epsilon of one reward; 0 without privacy.
        tuning: the settings of the learner.
        mixed: whether most visits are dark (`hushstream.systems.colin.algorithm.estimator`); with noise on each reward.
    """

    world: WorldSetting
    policy: Policy
    calibration: str = NONPRIVATE
    noise_at: NoiseAt = "server"
    epsilon: float = 0.0
    tuning: Tuning = Tuning()
    mixed: bool = False


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


def relation_of(world: CollaborativeWorld, algorithm: Policy, tie_weight: float = 1.0) -> Relation:
    """The relation matrix of an algorithm in a world."""
    if algorithm == "colin":
        return Relation("colin", world.relation)
    if algorithm == "goblin":
        return Relation.goblin(world.graph * tie_weight)
    return Relation("linucb", np.eye(world.users))  # also of users alone


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
        ridge = alone_ridge(stage.features.shape[2]) if task.policy == "alone" else 1.0
        return _loop(stage, relation, task.tuning.alpha, ridge, stage.rewards, None, marks)
    calibration, exposure = find_calibration(task.calibration), exposure_for(task)
    if calibration.sums == "reward":
        ridge = noise_aware_ridge(reward_law(task.epsilon).variance, task.tuning.ridge_per_noise)
        rewards = noised_rewards(stage.rewards, task.epsilon, task.world.seed)
        cold = CollaborativeState(relation, stage.features.shape[2], ridge, norm=1.0)
        visits = _visits_of(task, cold) if task.mixed else None
        return _loop(stage, relation, task.tuning.alpha, ridge, rewards, None, marks, visits)
    noise = raw_noise(calibration, exposure, relation, task.noise_at, task.epsilon, task.world.seed)
    ridge = ridge_for(calibration, noise.level, relation, task.tuning.ridge_per_noise)
    return _loop(stage, relation, task.tuning.alpha, ridge, stage.rewards, noise.added, marks)


CLEAN_SHARE = 0.05
"""The share of visits that are clean where the others are dark."""


class Visits(NamedTuple):
    """Which of the (T,) events are clean, and what users learn from all their own exact rewards."""

    clean: NDArray[np.bool_]
    own: OwnRewards


def _visits_of(task: Task, cold: CollaborativeState) -> Visits:
    clean = np.random.default_rng(task.world.seed).random(task.world.events) < CLEAN_SHARE
    own = OwnRewards(cold.widths(), alone_ridge(cold.dimension), reward_law(task.epsilon).variance)
    return Visits(clean, own)


def ridge_for(calibration: Calibration, level: float, relation: Relation, per_noise: float) -> float:
    """Lambda from the level of the noise on a projected coordinate; see `hushstream.systems.colin.deployment`."""
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
    visits: Visits | None = None,
) -> Played:
    """Play all events; ``rewards`` enter the sums, and ``noise`` (T, N, d) is added to the releases.

    With ``visits`` those that are not clean are dark.
    """
    users, dimension = relation.users, stage.features.shape[2]
    state = CollaborativeState(relation, dimension, ridge, norm=1.0)
    sums = np.zeros((users, dimension))
    chosen = np.empty(len(rewards), dtype=np.int64)
    truth = getattr(stage.world, "mixed", None)
    errors: list[float] = []
    due = set(marks.tolist())
    for event in range(len(rewards)):
        user, shown = event % users, stage.features[event]
        if visits is None or visits.clean[event]:
            arm = state.choose(user, shown, alpha)
            state.observe(user, shown[arm])
            sums[user] += rewards[event, arm] * shown[arm]
            state.set_moment(sums if noise is None else sums + noise[event])
        else:
            arm = int(visits.own.scores(user, shown, *state.of_user(user), alpha).argmax())
        if visits is not None:
            visits.own.learn(user, shown[arm], stage.rewards[event, arm])
        chosen[event] = arm
        if event + 1 in due:
            errors.append(_distance(state.parameters(), truth))
    reward = np.cumsum(stage.expected[np.arange(len(chosen)), chosen])
    regret = np.cumsum(stage.expected.max(axis=1)) - reward
    return Played(marks, regret[marks - 1], reward[marks - 1], np.array(errors), ridge)


def _distance(parameters: Float64, truth: Float64 | None) -> float:
    return float("nan") if truth is None else float(np.linalg.norm(parameters - truth, axis=1).mean())


DP_ALGORITHMS: Mapping[str, tuple[Policy, str]] = {
    "DP-LinUCB": ("linucb", "server"),
    "DP-CoLin": ("colin", "server"),
    "DP-GOBLin": ("goblin", "server"),
    "LDP-CoLin": ("colin", "learner"),
    "LDP-GOBLin": ("goblin", "learner"),
}
"""The paper's private algorithms: the learner, and who adds the noise."""

NONPRIVATE_ALGORITHMS: Mapping[str, Policy] = {"alone": "alone", "CoLin": "colin", "GOBLin": "goblin"}


def canonical(task: Task) -> Task:
    """The same run under one name: where DP and LDP versions are the same, both are the LDP one."""
    if task.calibration != NONPRIVATE and find_calibration(task.calibration).paired:
        return replace(task, noise_at="learner")
    return task


def play_tasks(
    tasks: Iterable[Task], progress: Progress | None = None, processes: int | None = None
) -> dict[Task, Played]:
    """Play every task once.

    Args:
        tasks: in any order; equal ones (after `canonical`) are played once.
        progress: called with (worlds done, worlds in all, what).
        processes: the largest number of processes; None for one per processor. The results do not depend on it.
    """
    by_world: dict[WorldSetting, list[Task]] = defaultdict(list)
    for task in dict.fromkeys(canonical(task) for task in tasks):
        by_world[task.world].append(task)
    bundles = [_ordered(of_world) for of_world in by_world.values()]
    played = play_all(_play_bundle, bundles, "worlds of related users", progress, processes)
    return {task: one for bundle, found in played.items() for task, one in zip(bundle, found, strict=True)}


def _ordered(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """Order runs so that those with the same noise are neighbours, and it is drawn once."""
    return tuple(sorted(tasks, key=lambda task: (task.calibration, task.noise_at, task.policy, task.epsilon)))


def _play_bundle(tasks: Sequence[Task]) -> list[Played]:
    results = [play(task) for task in tasks]
    forget_noise()
    return results


def seed_columns(name: str, values: Float64) -> Row:
    """One value a seed, (n,), as mean, standard deviation (n - 1) and 95 % interval; of a single one only the mean."""
    mean, low, high = over_seeds(values)
    std = float(values.std(ddof=1)) if len(values) > 1 else float("nan")
    return {name: mean, f"{name}_std": std, f"{name}_low": low, f"{name}_high": high, "seeds": len(values)}


def collect(played: Mapping[Task, Played], tasks: Sequence[Task], figure: Callable[[Played], Float64]) -> Float64:
    """One figure of each task, stacked in the order of the tasks (one a seed)."""
    return np.stack([figure(played[canonical(task)]) for task in tasks])


def trust_words(calibration: Calibration, algorithm: str) -> str:
    """The words for the trust model of a row."""
    return "server" if not calibration.paired and DP_ALGORITHMS[algorithm][1] == "server" else "each user's learner"


_ANSWER_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class CollaborativePlan:
    """How a world is played: ``rounds`` for every user, in phases of ``rounds_per_phase``."""

    rounds: int
    rounds_per_phase: int

    def __post_init__(self) -> None:
        """Refuse a plan without rounds."""
        if min(self.rounds, self.rounds_per_phase) < 1:
            raise HushstreamError(
                f"plan: expected rounds and rounds a phase of at least 1, got {self.rounds} and {self.rounds_per_phase}"
            )

    @property
    def phases(self) -> int:
        """The number of phases; the last one may be shorter."""
        return -(-self.rounds // self.rounds_per_phase)

    def rounds_of(self, phase: int) -> range:
        """The rounds of one phase."""
        return range(phase * self.rounds_per_phase, min(self.rounds, (phase + 1) * self.rounds_per_phase))


@dataclass(slots=True)
class CollaborativePlayed:
    """The outcome of a run: (users, rounds) arrays, and how long it took.

    Attributes:
        chosen: arms, int32.
        rewards: float64.
        regret: best mean reward minus that of the chosen arm, float64.
        random_regret: the mean regret of a policy that picks an arm at random, float64.
        seconds: from the first context to the last model.
        latencies: seconds from request to answer, for a sample of the decisions.
    """

    chosen: NDArray[np.int32]
    rewards: NDArray[np.float64]
    regret: NDArray[np.float64]
    random_regret: NDArray[np.float64]
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)


def user_name(user: int) -> str:
    """The name of a world's user on the stream and in the relation graph."""
    return f"user-{user}"


class CollaborativeLoop:
    """Plays a collaborative world against a deployment."""

    def __init__(self, world: CollaborativeWorld, plan: CollaborativePlan, progress: Progress | None = None) -> None:
        """Bind a world to a plan.

        Raises:
            HushstreamError: the plan has more rounds than the world, or the world has no known mean rewards.
        """
        if plan.rounds > world.rounds:
            raise HushstreamError(f"plan: expected at most the world's {world.rounds} rounds, got {plan.rounds}")
        self._world = world
        self._plan = plan
        self._progress = progress
        self._done = 0
        self._feedback: list[asyncio.Future[None]] = []
        shape = (world.users, plan.rounds)
        self.played = CollaborativePlayed(
            np.zeros(shape, dtype=np.int32), np.zeros(shape), np.zeros(shape), np.zeros(shape)
        )

    async def run(self, log: EventLog) -> CollaborativePlayed:
        """Play all phases over a client's log.

        Raises:
            HushstreamError: no model followed the end of a phase in time.
        """
        started, context = time.perf_counter(), self._world.contexts(np.array([0]), 0)[0]
        async with Client(log) as client:
            for phase in range(self._plan.phases):
                await asyncio.gather(*(self._user(client, user, phase) for user in range(self._world.users)))
                await asyncio.gather(*self._feedback)
                self._feedback.clear()
                await client.end_phase(phase)
                await await_version(client, self._probes(log.partitions()), context, phase, _ANSWER_SECONDS)
        self.played.seconds = time.perf_counter() - started
        return self.played

    async def _user(self, client: Client, user: int, phase: int) -> None:
        for round_index in self._plan.rounds_of(phase):
            await self._interact(client, user, round_index)
            self._done += 1
            if self._progress is not None:
                total = self._world.users * self._plan.rounds
                self._progress(self._done, total, f"phase {phase + 1} of {self._plan.phases}")

    async def _interact(self, client: Client, user: int, round_index: int) -> None:
        world, name = self._world, user_name(user)
        event_id = f"{name}:{round_index}"
        one = np.array([user])
        asked = time.perf_counter()
        decision = await client.decide(event_id, name, world.contexts(one, round_index)[0], timeout=60.0)
        if self._done % 16 == 0:
            self.played.latencies.append(time.perf_counter() - asked)
        arm = decision.arm
        reward = float(world.rewards(one, round_index, np.array([arm]))[0])
        # No decision of this phase needs this feedback; only the end of the phase waits for it.
        self._feedback.append(asyncio.ensure_future(_answer(client, event_id, name, arm, reward)))
        self._note(user, round_index, arm, reward)

    def _note(self, user: int, round_index: int, arm: int, reward: float) -> None:
        arms = np.arange(self._world.arms)
        means = self._world.expected(np.full(len(arms), user), round_index, arms)
        if means is None:
            raise HushstreamError(f"{self._world.name}: expected a world with known mean rewards")
        played, place = self.played, (user, round_index)
        played.chosen[place], played.rewards[place] = arm, reward
        played.regret[place] = means.max() - means[arm]
        played.random_regret[place] = means.max() - means.mean()

    def _probes(self, partitions: int) -> dict[int, str]:
        """One user of each partition that has users."""
        names = [user_name(user) for user in reversed(range(self._world.users))]
        return {partition_of(name, partitions): name for name in names}


async def _answer(client: Client, event_id: str, name: str, arm: int, reward: float) -> None:
    await client.shown(event_id, name, arm)
    await client.reward(event_id, name, arm, reward)


MAX_ROWS_A_PHASE = 4000
_POINTS = 200
"""Most points of the regret curve."""


@dataclass(frozen=True, slots=True)
class CollaborativeOptions(PlayOptions):
    """What to run: the options of every system (`PlayOptions`), and those of collaborative bandits.

    Attributes:
        dataset: name of a collaborative world.
        rounds: interactions of each user; by default all that the world has.
        rounds_per_phase: a new model is made after this many rounds of every user.
    """

    dataset: str = "colin"
    rounds: int | None = None
    rounds_per_phase: int = 10


def run_collaborative(options: CollaborativeOptions, progress: Progress | None = None) -> RunResult:
    """Play a world through a collaborative system and return its regret, guarantee, counts and throughput.

    Raises:
        HushstreamError: the world, the runner or an option is unknown, the world has no related users, or the
            configuration is invalid.
    """
    options.require_runner()
    world = _world(options)
    plan = CollaborativePlan(options.rounds or world.rounds, options.rounds_per_phase)
    if world.users * plan.rounds_per_phase > MAX_ROWS_A_PHASE:
        raise HushstreamError(
            f"rounds_per_phase: expected at most {max(1, MAX_ROWS_A_PHASE // world.users)} for {world.users} users, "
            f"got {plan.rounds_per_phase}"
        )
    with deployed(options.folder) as folder:
        config = parse_as(CollaborativeConfig, _config(options, world, plan))
        if not world.public:
            raise HushstreamError(
                f"dataset: expected a public one, as regret is an exact figure on rewards; got {world.name}"
            )
        graph = relation_graph(world, config.learner.algorithm)
        system = prepare(folder, config, inputs_of(graph), public_dataset=world.name)
        place = options.place(folder)
        recording = run_to_end(lambda: playing.play(system, place, CollaborativeLoop(world, plan, progress).run))
    return _result(options, world, system, recording)


def relation_graph(world: CollaborativeWorld, algorithm: str) -> SocialGraph:
    """The world's users and their ties: for CoLin the weights that make W, for the others the plain graph.

    The columns of W are the weights divided by their sums, where a user's own tie is 1. So dividing each column by its
    diagonal entry gives the weights again.

    Raises:
        HushstreamError: W is not of symmetric weights beside own ties of 1, the one form that a deployment has.
    """
    names = [user_name(user) for user in range(world.users)]
    if algorithm != "colin":
        return SocialGraph(tuple(names), world.graph)
    weights = world.relation / np.diag(world.relation)
    if not np.allclose(weights, weights.T):
        raise HushstreamError(
            f"{world.name}: expected users whose own tie is 1, as in a deployment of colin, got others; state "
            "learner.algorithm=goblin or linucb, which need no own ties"
        )
    upper = np.triu(weights, 1)
    return SocialGraph(tuple(names), upper + upper.T)


def _world(options: CollaborativeOptions) -> CollaborativeWorld:
    world = seeded_world(options.dataset, options.world, options.seed)
    if not isinstance(world, CollaborativeWorld):
        raise HushstreamError(
            f"dataset: expected a world of related users, got {options.dataset!r}{hint(options.dataset)}"
        )
    return world


def _config(options: CollaborativeOptions, world: CollaborativeWorld, plan: CollaborativePlan) -> dict[str, Any]:
    """The configuration that fits a world, with the values that the caller set."""
    longest = plan.rounds + 1
    lengths = {"norm": _at_most_longest(world, 2), "norm_l1": _at_most_longest(world, 1)}
    values: dict[str, Any] = {
        "system": "colin",
        "deployment": "replay",
        "items": {"capacity": world.arms},
        "features": {"dimension": world.feature_dimension, **lengths},
        "feedback": {"attribution_window_seconds": NEVER_SECONDS, "settle_seconds": NEVER_SECONDS},
        "privacy": {"units_per_person": longest},
        "release": {"window_units": 4096},
    }
    return merged_values(values, options.config)


def _at_most_longest(world: CollaborativeWorld, order: int) -> float:
    """The largest length of features in the world, rounded up so that the bound is a short decimal."""
    return float(np.ceil(world.largest_feature_norm(order) * 1e6) / 1e6)


def _result(
    options: CollaborativeOptions,
    world: CollaborativeWorld,
    deployed: System,
    recording: Recording[CollaborativePlayed],
) -> RunResult:
    played, config = recording.played, deployed.core.config
    learner, release = config.learner, config.release
    curve = _curve(played, learner.algorithm)
    regret, random = (float(values.sum()) for values in (played.regret, played.random_regret))
    # Where all arms are equally good, a random policy has no regret either.
    share = regret / random if random else 1.0
    found = paired(played.regret.sum(axis=1), played.random_regret.sum(axis=1))
    return RunResult(
        **run_fields(options, world.name, deployed, recording, played.chosen.size),
        title=f"{learner.algorithm} on {world.name}: {release.mechanism}, noise at the {release.noise_at}",
        facts={
            "algorithm": learner.algorithm,
            "mechanism": release.mechanism,
            "noise at": release.noise_at,
            "users": world.users,
            "interactions": curve.at[-1],
            "mean reward": float(played.rewards.mean()),
        },
        reached=f"{100 * share:.0f} % of the regret of a policy that picks at random",
        headline=ratio("regret over that of a random policy", found),
        payoff=payoff(world, played.regret),
        rows=RunRows(
            "Regret: the best item's mean reward minus that of the shown item, over all interactions.",
            (Column("policy"), Column("cumulative_regret", ".1f"), Column("of_random", ".0%")),
            ((learner.algorithm, regret, share), ("random policy", random, 1.0)),
        ),
        curve=curve,
    )


def _curve(played: CollaborativePlayed, algorithm: str) -> RunCurve:
    """Cumulative regret over interactions, with users served equally often, at up to `_POINTS` points."""
    users, rounds = played.regret.shape
    places = np.unique(np.linspace(0, rounds - 1, min(rounds, _POINTS)).astype(int))
    lines = {algorithm: played.regret, "random policy": played.random_regret}
    return RunCurve(
        name="regret",
        title="Cumulative regret",
        caption="The sum over all users and interactions so far of the best item's mean reward minus that of the "
        "shown item. Below the random policy is better than chance; a curve whose slope falls shows learning.",
        what="Cumulative regret",
        across="interactions, all users",
        at=tuple((users * (places + 1)).tolist()),
        lines={name: tuple(np.cumsum(one.sum(axis=0))[places].tolist()) for name, one in lines.items()},
        form="sum",
    )


ALPHA = 0.1
"""Alpha of users alone, as in the experiments; that of a run would be a baseline that the run itself weakens."""


def regret_alone(world: CollaborativeWorld, rounds: int) -> Float64:
    """Best mean reward minus that of each choice of users alone, each with an exact learner, (users, rounds).

    Here a user learns from each reward at once, while a deployment waits for the end of its phase.

    Args:
        world: a world with known mean rewards.
        rounds: rounds of each user.

    Raises:
        HushstreamError: the world has no known mean rewards.
    """
    alone, wide = Relation("linucb", np.eye(1)), world.feature_dimension
    learners = [CollaborativeState(alone, wide, alone_ridge(wide)) for _ in range(world.users)]
    everyone = np.arange(world.users)
    found = np.zeros((world.users, rounds))
    for turn in range(rounds):
        features = world.features(everyone, turn).astype(np.float64)
        arms = np.array([one.choose(0, features[user], ALPHA) for user, one in enumerate(learners)])
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


def payoff(world: CollaborativeWorld, regret: Float64) -> Payoff:
    """The regret of a run compared with that of users alone; the sample is the users.

    Args:
        world: the world that was played.
        regret: (users, rounds), of the run.
    """
    ours = regret.mean(axis=1)
    others = regret_alone(world, regret.shape[1]).mean(axis=1)
    return Payoff(
        what="mean regret a visit",
        value=float(ours.mean()),
        baseline="users alone, each with an exact learner of their own "
        f"(no intercept, ridge {alone_ridge(world.feature_dimension):g}, alpha {ALPHA:g})",
        reference=float(others.mean()),
        gap=paired_gap(ours, others),
        units="users",
        otherwise="keep users apart, or use a larger epsilon",
        less_is_better=True,
        digits=4,
    )
