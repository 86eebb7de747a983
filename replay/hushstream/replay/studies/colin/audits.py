"""The audits of collaborative bandits: releases, the paper's tree, the noise of each place, roles, forks.

*Neighbours.* The roles release from known inputs, with stops and restarts, on two streams that differ in one reward, 1
against 0. The attacker reads everything that the role published, repeated records too. A run is one user's counter.
Where the rewards of a step are one leaf (a trusted counter) and every coordinate has its own noise (all but K-norm),
one user gives several runs: their rewards have features with no entry in common.

*The paper's form.* The attack on DP-CoLin with its paper's calibration (Wang et al. 2020, Theorem 1), as the
experiments draw it. The paper's tree adds Laplace noise of scale Delta_2 log T / epsilon to each node. But a reward
moves h > log T nodes, and the price of Laplace noise is an L1 distance; `hushstream.replay.studies.colin.play` has the
epsilon that really holds. The two streams differ in the first reward, 1 against 0: after 2^l events the attacker reads
the node of level l that holds it.

One deployment gives `PARALLEL_RUNS` runs: noise is drawn for each feature separately, at a scale that does not depend
on the number of features, so a deployment with `PARALLEL_RUNS` times the features has the noise of that many
deployments. A move is rounded to the lattice of that noise, 2^-20 of the scale, which does not change the counts.

*Work.* The time of the counter's work on rewards of 0 and of 1 is compared, for every counter and noise.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from hushstream.counting import NegativeDigitTree, Plan, PureLength
from hushstream.engine.configuration import PartitionConfig
from hushstream.engine.values import MAX_RECORD_BYTES
from hushstream.privacy.amounts import Cost, epsilon_micro
from hushstream.privacy.audits import LAPLACE_STEPS, Family, Pair, laplace_pair, lattice_sizes, pure
from hushstream.privacy.keys import Key, seeded_key
from hushstream.replay.audits.catalogue import LEVELS
from hushstream.replay.audits.configured import (
    AuditReport,
    first_draw,
    laplace_law,
    left_out,
    report_of,
    require_noise,
    seen,
    steps_for,
)
from hushstream.replay.audits.readings import LAPLACE_FAMILY, Reading, Unmixed, reading_family, reading_of, unmixed
from hushstream.replay.audits.recordings import (
    AS_IT_WAS,
    Branch,
    PlayedRole,
    fresh_key,
    fresh_nonce,
    means,
    phase_end_fields,
    restart_between,
)
from hushstream.replay.audits.row import FEWER_RUNS, HORIZON, Audit, fork_row, noise_row
from hushstream.replay.audits.tests import (
    LEAVES,
    PARTITIONS,
    Axes,
    ForkTest,
    NeighbourTest,
    PlacesTest,
    SizeTest,
    side_by_side,
    sure_rates,
)
from hushstream.replay.audits.work import SLOTS, Holds, Work, audit_of, has_content
from hushstream.replay.studies.colin.play import (
    PAPER,
    Exposure,
    find_calibration,
    forget_noise,
    guarantee_of,
    levels_of,
    paper_scale,
    paper_true_epsilon,
    raw_noise,
)
from hushstream.schemas import codec
from hushstream.schemas.topics import partition_of
from hushstream.systems.colin.configuration import (
    GRID_BITS,
    CollaborationConfig,
    CollaborativeConfig,
    ContinualConfig,
    FeatureConfig,
    Mechanism,
    NoiseAt,
    NoiseLaw,
    local_reward_of,
    plan_of,
)
from hushstream.systems.colin.counter import CounterMachine
from hushstream.systems.colin.deployment import CollaborativeSystem
from hushstream.systems.colin.edge import CollaborativeLearnerMachine
from hushstream.systems.colin.relation import Relation, SocialGraph
from hushstream.systems.colin.release import epoch_guarantee
from hushstream.systems.colin.rows import Rows, short_enough


def played_rewards(
    system: CollaborativeSystem,
    key: Key,
    features: NDArray[np.float32],
    steps: NDArray[np.float64],
    nonce: bytes | None = None,
    branch: Branch = AS_IT_WAS,
) -> NDArray[np.float64]:
    """Sums of every user after each step as a counter publishes them, float64 (steps, users, d).

    Args:
        system: a system whose steps close after a row of each user.
        key: the counter's key.
        features: the features of every row, (d,).
        steps: rewards, (steps, users).
        nonce: the journal's nonce; None: a new one.
        branch: which branch of a rolled-back journal to play.
    """
    role = PlayedRole(partial(CounterMachine, system, 0, key), nonce, branch)
    for number, rewards in enumerate(steps):
        role.put("rewards", "Rewards", reward_fields(system, branch.number(number), features, rewards))
        role.work()
        restart_between(role, number, len(steps))
    return _released(system, role, len(steps), range(system.nodes))


def played_rows(
    system: CollaborativeSystem,
    key: Key,
    features: NDArray[np.float32],
    steps: NDArray[np.float64],
    nonce: bytes | None = None,
    branch: Branch = AS_IT_WAS,
    partition: int = 0,
) -> NDArray[np.float64]:
    """As `played_rewards`, for a learner that holds its users' counters; each step ends with a phase end.

    The users are those of the learner's partition, in their order. A reward of 0 is never sent.
    """
    role = PlayedRole(partial(CollaborativeLearnerMachine, system, partition, key), nonce, branch)
    homes = homes_of(system, partition)
    for number, rewards in enumerate(steps):
        events = {f"{branch.number(number)}-{node}": system.graph.users[node] for node in homes}
        for event, user in events.items():
            context = features.astype("<f4").tobytes()
            role.put("contexts", "Context", {"event_id": event, "user": user, "context": context}, partition)
        role.work()
        _feedback(role, events, rewards[homes], partition)
        role.put("contexts", "Seal", phase_end_fields(system.digest, number), partition)
        role.work()
        restart_between(role, number, len(steps))
    return _released(system, role, len(steps), homes)


def homes_of(system: CollaborativeSystem, partition: int) -> list[int]:
    """The users of a learner's partition, by number."""
    users, partitions = system.graph.users, system.config.partitions.learner
    return [node for node, user in enumerate(users) if partition_of(user, partitions) == partition]


def reward_fields(
    system: CollaborativeSystem,
    number: int,
    features: NDArray[np.float32],
    rewards: NDArray[np.float64],
    first: int = 0,
) -> dict[str, Any]:
    """The fields of a record with a reward of one user after another, from ``first`` on, for the same features."""
    nodes = np.arange(first, first + len(rewards)) % system.nodes
    return {
        "batch_id": number.to_bytes(16, "big"),
        "config_digest": system.digest,
        "nodes": nodes.astype("<i4").tobytes(),
        "contexts": np.tile(features, (len(nodes), 1)).astype("<f4").tobytes(),
        "rewards": rewards.astype("<f8").tobytes(),
    }


def release_sums(system: CollaborativeSystem, release: Mapping[str, Any]) -> NDArray[np.int64]:
    """The sums of a release, int64 (users, d); 0 for users who are not in it."""
    sums = np.zeros((system.nodes, system.features.dimension), dtype=np.int64)
    blocks = np.frombuffer(release["blocks"], "<i4")
    sums[blocks] = np.frombuffer(release["sums"], "<i8").reshape(len(blocks), -1)
    return sums


def _feedback(role: PlayedRole, events: Mapping[str, str], rewards: NDArray[np.float64], partition: int) -> None:
    for (event, user), reward in zip(events.items(), rewards.tolist(), strict=True):
        fields = {"event_id": event, "user": user, "arm": 0}
        role.put("clicks", "Feedback", {**fields, "kind": "shown", "reward": 0.0}, partition)
        if reward:
            role.put("clicks", "Feedback", {**fields, "kind": "reward", "reward": reward}, partition)
    role.work()


def _released(system: CollaborativeSystem, role: PlayedRole, steps: int, users: Sequence[int]) -> NDArray[np.float64]:
    found = role.published("releases", "Release")
    sums = ((one["release_id"], release_sums(system, one)[list(users)]) for one in found)
    return means(sums, steps)


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


def audit_counter_release(system: CollaborativeSystem, most: int) -> NeighbourTest:
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
    return NeighbourTest(side_by_side(scores, width), claimed, family)


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


def audit_noisy_reward(system: CollaborativeSystem) -> NeighbourTest:
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
    return NeighbourTest(side_by_side(scores, system.nodes), claimed, family)


PAPER_EPSILON = 2.0
PAPER_FEATURES, EVENTS, PARALLEL_RUNS = 2, 2, 25
RELATION = Relation("colin", np.array([[2.0, 1.0], [1.0, 2.0]]) / 3)
"""The relation of two users; each user's own weight is twice that of the other user."""

EXPOSURE = Exposure.of(RELATION, PAPER_FEATURES, EVENTS, PAPER_FEATURES**0.5, 1.0)
CLAIM = Cost(epsilon_micro(PAPER_EPSILON))
"""The epsilon that the paper states."""

SURE = 2.5
"""The attacker says yes if the log likelihood ratio is above this; a larger value can prove a larger epsilon."""


def audit_paper_tree() -> NeighbourTest:
    """Attack the shared tree under a trusted server; the result is compared with the epsilon that really holds."""
    claimed = guarantee_of(find_calibration(PAPER), EXPOSURE, "server", PAPER_EPSILON).cost
    rates = sure_rates(pair, SURE, paper_true_epsilon(EXPOSURE, "server", PAPER_EPSILON))
    return NeighbourTest(side_by_side(_scores, PARALLEL_RUNS), claimed, family(), rates)


def levels() -> int:
    """The number of nodes that hold the first reward."""
    return levels_of(EVENTS)


def family() -> Family:
    """The distributions of all nodes of the first reward, in all entries of both users' blocks."""
    return pure(lambda epsilon: pair(epsilon).power)


def pair(epsilon: float) -> Pair:
    """The nodes in both users' blocks together; each block has its share of the L1 distance."""
    laws = [laplace_pair(epsilon * share, PAPER_FEATURES * levels(), LAPLACE_STEPS) for share in RELATION.matrix[0]]
    return Pair(
        np.multiply.outer(laws[0].null, laws[1].null).ravel(), np.multiply.outer(laws[0].moved, laws[1].moved).ravel()
    )


def _scores(present: bool) -> NDArray[np.float64]:
    """Logarithms of likelihood ratios minus `SURE`, (PARALLEL_RUNS,)."""
    wide = replace(EXPOSURE, dimension=PAPER_FEATURES * PARALLEL_RUNS)
    seed = int.from_bytes(os.urandom(7), "big")
    drawn = raw_noise(find_calibration(PAPER), wide, RELATION, "server", PAPER_EPSILON, seed).added
    forget_noise()
    # The relation is invertible, so raw sums give the projected ones that the paper publishes.
    noise = np.matmul(RELATION.matrix.T, drawn).reshape(EVENTS, RELATION.users, PARALLEL_RUNS, PAPER_FEATURES)
    move = (RELATION.matrix[0] / PAPER_FEATURES**0.5)[None, :, None, None]
    seen = noise[np.array([2**level for level in range(levels())]) - 1] + present * move
    ratio = (2 * np.clip(seen, 0, move) - move) / paper_scale(EXPOSURE, "server", PAPER_EPSILON)[0]
    return np.asarray(ratio.sum(axis=(0, 1, 3)) - SURE, dtype=np.float64)


NOISE_USERS, STEPS = 12, 2
"""Users and steps of counters whose noise is compared with one another."""

PARALLEL_USERS = 50
"""How many users one deployment has; each user's counter is one run."""

ENTRIES = 2
ENTRY_FEATURES, UNIT = FeatureConfig(ENTRIES, norm_l1=1.0), np.eye(1, ENTRIES, dtype=np.float32)[0]


def counter_draws(release: ContinualConfig) -> PlacesTest:
    """Each draw of every user's trusted counter, and each coordinate of it; each user is one run."""
    system, plan = _long(release)
    key = fresh_key()

    def journal() -> NDArray[np.float64]:
        return np.moveaxis(played_rewards(system, key, UNIT, np.zeros((LEAVES, system.nodes))), 1, 0)

    axes: Axes = {"entry": range(ENTRIES)}
    return PlacesTest.of_draws(
        journal, unmixed(plan, LEAVES), axes, epoch_cost(system), isinstance(plan.budget, PureLength)
    )


def counter_users(release: ContinualConfig, users: int = NOISE_USERS) -> PlacesTest:
    """Each user and entry over some steps, of a trusted counter or of learners that hold the counters."""
    system, plan = _long(release, users)
    key = fresh_key()

    def journal() -> NDArray[np.float64]:
        if release.noise_at == "learner":
            return _of_partitions(system, key, STEPS)[None]
        return played_rewards(system, key, UNIT, np.zeros((STEPS, users)))[None]

    axes: Axes = {"user": range(users), "entry": range(ENTRIES)}
    return PlacesTest.of_draws(
        journal, unmixed(plan, STEPS), axes, epoch_cost(system), isinstance(plan.budget, PureLength)
    )


def noisy_rewards(release: ContinualConfig) -> PlacesTest:
    """Each user's noised rewards, from learners of two partitions."""
    system = _deployment(release, NOISE_USERS)
    law, key = local_reward_of(system.config.release), fresh_key()
    # A reward is noised in steps of its levels; sums are on the lattice, where a feature of 1 is 2^GRID_BITS.
    step = law.levels / float(1 << GRID_BITS)

    def journal() -> NDArray[np.float64]:
        sums = _of_partitions(system, key, STEPS)[..., 0]
        noised = np.rint(np.diff(sums, axis=0, prepend=0.0) * step)
        return np.asarray(noised / law.levels, dtype=np.float64)[None]

    axes: Axes = {"reward": range(STEPS), "user": range(NOISE_USERS)}
    return PlacesTest(journal, axes, lattice_sizes(law.levels, LAPLACE_FAMILY), epoch_cost(system))


def _deployment(release: ContinualConfig, users: int = PARALLEL_USERS) -> CollaborativeSystem:
    """A deployment of ``users`` users; a step of a trusted counter closes after a row of every user."""
    return collaborative(replace(release, rows=users), ENTRY_FEATURES, users, PartitionConfig(learner=PARTITIONS))


def _long(release: ContinualConfig, users: int = PARALLEL_USERS) -> tuple[CollaborativeSystem, Plan]:
    """A deployment whose counters have `LEAVES` leaves, and its plan."""
    system = _deployment(replace(release, horizon=LEAVES, rewards_per_user=LEAVES), users)
    return system, plan_of(system.config.release, ENTRY_FEATURES)


def _of_partitions(system: CollaborativeSystem, key: Key, steps: int) -> NDArray[np.float64]:
    """Sums of the users of all partitions, float64 (steps, users, entries)."""
    nonce, rewards = fresh_nonce(), np.zeros((steps, system.nodes))
    parts = [played_rows(system, key, UNIT, rewards, nonce, partition=partition) for partition in range(PARTITIONS)]
    return np.concatenate(parts, axis=1)


def epoch_cost(system: CollaborativeSystem) -> Cost:
    """What one epoch costs."""
    return epoch_guarantee(system.config.release, system.features, system.nodes).cost


ATTACK_USERS = 50
STEP = 1 << GRID_BITS
"""A reward of 1 for `UNIT` features, in lattice units."""


def audit_target_leaf(release: ContinualConfig) -> NeighbourTest:
    """Attack one reward of every user, 1 against 0, at a step that is drawn for each journal; all other rewards are 0.

    The attacker reads each node that holds the reward separately. In some steps more of these nodes can be read than
    in others. The curve is that of the step with the most; it lies above the curves of all other steps and of their
    mixtures.

    Raises:
        HushstreamError: the counter is no digit tree with Laplace noise.
    """
    system = collaborative(replace(release, rows=ATTACK_USERS), ENTRY_FEATURES, ATTACK_USERS)
    plan, leaves = plan_of(system.config.release, ENTRY_FEATURES), release.leaves
    solved, key = unmixed(plan, leaves), fresh_key()
    play = played_rows if release.noise_at == "learner" else played_rewards
    moved = STEP / solved.unit

    def scores(present: bool) -> NDArray[np.float64]:
        target = int.from_bytes(os.urandom(4), "big") % leaves
        steps = np.zeros((leaves, ATTACK_USERS))
        steps[target] = float(present)
        draws = solved(play(system, key, UNIT, steps)[..., 0])[solved.holders[:, target]]
        return np.asarray((2 * np.clip(draws / moved, 0, 1) - 1).sum(axis=0), dtype=np.float64)

    return NeighbourTest(side_by_side(scores, ATTACK_USERS), epoch_cost(system), leaf_family(solved, plan.levels))


def leaf_family(solved: Unmixed, levels: int) -> Family:
    """The distributions of the nodes of the leaf with the most readable nodes."""
    most = int(solved.holders.sum(axis=0).max())
    return pure(lambda epsilon: laplace_pair(epsilon * most / levels, most, LAPLACE_STEPS).power)


def redrawn_sums(release: ContinualConfig) -> NeighbourTest:
    """Attack a counter that is resumed with a log from which a released reward is missing.

    The counter must draw new noise for everything and charge for it. If it used the noise of the last epoch again, the
    difference of the two releases would be the reward.
    """
    system = collaborative(replace(release, rows=ATTACK_USERS, epochs=2), ENTRY_FEATURES, ATTACK_USERS)
    key, (lost,) = fresh_key(), np.eye(1, ATTACK_USERS)

    def scores(present: bool) -> NDArray[np.float64]:
        role = PlayedRole(partial(CounterMachine, system, 0, key))
        # The first user's reward is always lost, so that the log always changes.
        held = np.where(lost > 0, 1.0, float(present))
        for number, rewards in enumerate((np.zeros(ATTACK_USERS), held)):
            role.put("rewards", "Rewards", reward_fields(system, number, UNIT, rewards))
        role.work()
        role.replace("rewards", 1, "Rewards", reward_fields(system, 1, UNIT, np.zeros(ATTACK_USERS)))
        role.restart()
        role.put("rewards", "Rewards", reward_fields(system, 2, UNIT, np.zeros(ATTACK_USERS)))
        role.work()
        sums = {one["leaf"]: release_sums(system, one)[1:, 0] for one in role.published("releases", "Release")}
        return np.asarray((sums[2] - sums[3]) / STEP - 0.5)

    once = epoch_cost(system)
    return NeighbourTest(side_by_side(scores, ATTACK_USERS - 1), once + once)


EPSILON = 8.0
"""Epsilon of one reward; large, so that few runs detect an error."""

FEW_USERS = 8
"""Users of slow audits, as single counters take long to open."""

TARGETS = 7
"""The number of steps from which the attacked step is drawn."""
TARGET_EPSILON = 4.0


def role_rows() -> tuple[Audit, ...]:
    """All audits of roles, in the order of the table."""
    return (*_counters(), *_edge(), *_attacks(), *fork_rows(EVERY_COUNTER, NOISY))


def _counters() -> tuple[Audit, ...]:
    draws, users = counter_draws, counter_users
    over = f"draws of {LEAVES} steps, entries"
    return (
        noise_row("counter-binary-each-draw", over, partial(draws, _release(mechanism="binary"))),
        noise_row("counter-negative-digit-each-draw", over, partial(draws, _release())),
        noise_row("counter-k-norm-each-draw", over, partial(draws, _release(noise="k-norm")), FEWER_RUNS),
        noise_row(
            "counter-blt-each-draw", over, partial(draws, _release(mechanism="blt", noise="gaussian")), FEWER_RUNS
        ),
        noise_row("counter-each-user", "users, entries, steps", partial(users, _release())),
        noise_row(
            "counter-binary-each-user",
            "users, entries, steps",
            partial(users, _release(mechanism="binary", noise="gaussian"), FEW_USERS),
            FEWER_RUNS,
        ),
    )


def _edge() -> tuple[Audit, ...]:
    return (
        noise_row(
            "edge-counters-each-user",
            "users, entries, steps",
            partial(counter_users, _release(noise_at="learner")),
        ),
        noise_row("noisy-rewards-each-user", "users, rewards", partial(noisy_rewards, NOISY)),
    )


def _attacks() -> tuple[Audit, ...]:
    def row(name: str, about: str, runs: int, make: Callable[[], NeighbourTest], factor: int = 1) -> Audit:
        return Audit(name, "role", about, runs, make, factor)

    step = "a reward of 1 against 0 at a random step, through a {} that restarts"
    at_server, at_learner = (partial(audit_target_leaf, target_release(place)) for place in ("server", "learner"))
    return (
        row("random-step-of-the-counter", step.format("counter"), 3_000, at_server),
        row("random-step-at-the-edge", step.format("learner"), 3_000, at_learner),
        row("redrawn-sums", "a released reward is lost, sums anew", 500, partial(redrawn_sums, ONCE), 2),
    )


ONCE = ContinualConfig(mechanism="negative-digit", horizon=32, rewards_per_user=32)
"""With this few steps a counter has one level and negative digits, so its noise is drawn ahead."""


def target_release(noise_at: NoiseAt) -> ContinualConfig:
    """A counter of which any step may be attacked."""
    return ContinualConfig(
        noise_at=noise_at, mechanism="binary", epsilon=TARGET_EPSILON, horizon=TARGETS, rewards_per_user=TARGETS
    )


def _release(**settings: Any) -> ContinualConfig:
    return ContinualConfig(
        **{"mechanism": "negative-digit", "epsilon": EPSILON, "horizon": 63, "rewards_per_user": 63, **settings}
    )


ROLE_COUNTERS: tuple[tuple[NoiseLaw, tuple[Mechanism, ...]], ...] = (
    ("laplace", ("negative-digit", "binary")),
    ("k-norm", ("negative-digit", "binary")),
    ("gaussian", ("negative-digit", "binary", "blt")),
)
"""The mechanisms that a configuration may name."""

EVERY_COUNTER = tuple(
    _release(mechanism=mechanism, noise=noise) for noise, mechanisms in ROLE_COUNTERS for mechanism in mechanisms
)

NOISY = _release(
    noise_at="learner",
    mechanism="noisy-reward",
    epsilon=3.0,
    reward_levels=4,
    horizon=TARGETS,
    rewards_per_user=TARGETS,
)


_FEATURES = 5
_A_RECORD = 32
"""The number of rewards in one record."""

_USERS = 16

FORMS = {
    "negative-digit": ContinualConfig(mechanism="negative-digit", epsilon=8.0, horizon=32, rewards_per_user=32),
    "binary": ContinualConfig(mechanism="binary", epsilon=8.0, horizon=32, rewards_per_user=32),
    "gaussian": ContinualConfig(mechanism="binary", noise="gaussian", epsilon=8.0, horizon=32, rewards_per_user=32),
}


_WORK_KEY = seeded_key(4, "counter")
"""Under this key no step draws an integer a second time: one that does takes longer, by its noise alone."""


def works(slots: int = SLOTS) -> tuple[Work, ...]:
    """The work of one step with ``slots`` rewards, for each form."""
    features = FeatureConfig(_FEATURES, norm_l1=_FEATURES**0.5)
    return tuple(
        _work(form, collaborative(replace(release, rows=slots), features, _USERS)) for form, release in FORMS.items()
    )


def _work(form: str, system: CollaborativeSystem) -> Work:
    make = partial(CounterMachine, system, 0, _WORK_KEY)
    about = "a step of rewards of 0 against one of rewards of 1"
    return Work(f"time-of-rewards-{form}", ("colin", "counter"), about, make, (), partial(_step, system))


def _step(system: CollaborativeSystem, holds: Holds) -> Sequence[bytes]:
    unit, values = np.full(_FEATURES, _FEATURES**-0.5 * 0.99, dtype=np.float32), []
    for first in range(0, system.config.release.rows, _A_RECORD):
        rewards = np.array([float(has_content(holds, place)) for place in range(first, first + _A_RECORD)])
        values.append(codec.encode("Rewards", reward_fields(system, first + 1, unit, rewards, first)))
    return values


FEATURES = 4
"""The number of entries of a reward's features, all equal, which changes sums the most in L1."""


COLLABORATIVE_EPSILON = 8.0
"""An epsilon so large that few runs detect noise of half the size, also Gaussian noise."""


COUNTERS: Mapping[NoiseLaw, Mapping[Mechanism, int]] = {
    "laplace": {"negative-digit": HORIZON, "binary": 3},
    "k-norm": {"negative-digit": HORIZON, "binary": 3},
    "gaussian": {"negative-digit": HORIZON, "binary": 3, "blt": 4},
}
"""Horizons of the counters that a configuration may name; trees have two levels."""


K_NORM_RUNS = 600
"""Runs for K-norm noise, which is slow to draw; the smallest number that detects noise of half the size."""


def rows() -> tuple[Audit, ...]:
    """Every audit of the system: each counter that a configuration may name, at both places, with each noise."""
    counters = [
        _continual(noise_at, mechanism, noise)
        for noise, kinds in COUNTERS.items()
        for mechanism in kinds
        for noise_at in get_args(NoiseAt)
    ]
    return (
        *counters,
        *(_noisy_reward(f"{start}noisy-reward", noise_at, 1.0, 1_000) for start, noise_at in _NOISED_AT),
        *(_noisy_reward(f"{start}noisy-reward-laplace", noise_at, 3.0, 2_000) for start, noise_at in _NOISED_AT),
        Audit(
            "colin-paper",
            "release",
            "the first reward, 1 against 0, all releases seen",
            3_000,
            audit_paper_tree,
            paper_claim=CLAIM,
            subjects=(EXPOSURE,),
        ),
        *role_rows(),
        *map(audit_of, works()),
    )


def _continual(noise_at: NoiseAt, mechanism: Mechanism, noise: NoiseLaw) -> Audit:
    horizon = COUNTERS[noise][mechanism]
    release = ContinualConfig(
        noise_at=noise_at,
        mechanism=mechanism,
        noise=noise,
        epsilon=COLLABORATIVE_EPSILON,
        horizon=horizon,
        rewards_per_user=horizon,
    )
    # Under a trusted server the rewards of one step are one leaf, so one deployment gives many runs.
    parallel_runs = 25 if noise_at == "server" and noise != "k-norm" else 1
    features = FeatureConfig(parallel_runs * FEATURES, norm_l1=FEATURES**0.5)

    def make() -> NeighbourTest:
        return audit_counter_release(collaborative(release, features), horizon)

    about = "a reward of 1 against 0, all releases seen"
    runs, factor = (K_NORM_RUNS, 2) if noise == "k-norm" else (1_000, 4)
    return Audit(f"{noise_at}-{mechanism}-{noise}", "release", about, runs, make, factor, subjects=(release,))


_NOISED_AT: tuple[tuple[str, NoiseAt], ...] = (("", "learner"), ("server-", "server"))


def _noisy_reward(name: str, noise_at: NoiseAt, epsilon: float, runs: int) -> Audit:
    """At a small epsilon a noised reward is one bit, at a larger one it has Laplace noise."""
    release = ContinualConfig(
        noise_at=noise_at,
        mechanism="noisy-reward",
        epsilon=epsilon,
        rewards_per_user=HORIZON,
        reward_levels=LEVELS,
    )

    def make() -> NeighbourTest:
        return audit_noisy_reward(collaborative(release, FeatureConfig(FEATURES)))

    return Audit(name, "release", "a reward of 1 against 0", runs, make, subjects=(release,))


Played = Callable[
    [CollaborativeSystem, Key, NDArray[np.float32], NDArray[np.float64], bytes, Branch], NDArray[np.float64]
]
"""`played_rewards`, or `played_rows`."""


def first_rewards(role: str, played: Played, releases: tuple[ContinualConfig, ...]) -> ForkTest:
    """The fork of the first reward of every user, through counters of some configurations; each user is one run.

    In the branch with other contents every user's reward is 1. Users do not affect one another, as each has a counter.
    """
    # The counter draws for two epochs: the second one begins after a suspected rollback.
    whole = [replace(one, rows=PARALLEL_USERS, epochs=2) for one in releases]
    systems, key = [collaborative(one, ENTRY_FEATURES, PARALLEL_USERS) for one in whole], fresh_key()

    def noise(system: CollaborativeSystem, branch: Branch, nonce: bytes) -> NDArray[np.float64]:
        reward = float(branch.other_contents)
        sums = played(system, key, UNIT, np.full((1, PARALLEL_USERS), reward), nonce, branch)[0, :, 0]
        return np.asarray(sums - reward * (1 << GRID_BITS), dtype=np.float64)

    def play(branch: Branch, nonce: bytes) -> NDArray[np.float64]:
        return np.stack([noise(system, branch, nonce) for system in systems], axis=1)

    prices = [epoch_cost(system) for system in systems]
    dearest = Cost(max(cost.epsilon_micro for cost in prices), max(cost.delta_units for cost in prices))
    return ForkTest("colin", role, play, dearest, len(systems))


def fork_rows(counters: tuple[ContinualConfig, ...], noisy: ContinualConfig) -> tuple[Audit, ...]:
    """All audits of forks, in the order of the table.

    Args:
        counters: one of every mechanism and distribution of noise, at a trusted counter.
        noisy: a configuration that noises rewards one by one.
    """
    edge = tuple(replace(one, noise_at="learner") for one in counters)
    every = f"users of {len(counters)} counters, those that draw ahead after a suspected rollback"
    return (
        fork_row("forked-counters", every, partial(first_rewards, "counter", played_rewards, counters), 700),
        fork_row("forked-edge-counters", every, partial(first_rewards, "learner", played_rows, edge)),
        fork_row("forked-noisy-rewards", "users", partial(first_rewards, "learner", played_rows, (noisy,))),
    )


_ALONE = 3
"""An audit of this many single counters takes as long as one of a group of digit trees."""


_WIDE = 50
"""The estimated time of an audit grows by the same amount for each full group of this many features."""


def audit_config(config: CollaborativeConfig, runs: int, false_alarm: float) -> AuditReport:
    """Attack the releases of a configuration.

    Raises:
        HushstreamError: its release adds no noise, or this number of runs takes too long.
    """
    release, bounds = config.release, config.features
    require_noise(release.mechanism)
    # How often a step is released does not change its noise; with one row a step there is space for more users.
    system = collaborative(replace(release, rows=1), bounds)
    settings: dict[str, Any] = {
        "system": config.system,
        "epsilon": release.epsilon,
        "noise_at": release.noise_at,
        "noise": release.noise,
        "dimension": bounds.dimension,
        "users": system.nodes,
    }
    promise = epoch_guarantee(release, bounds, system.nodes)
    if release.mechanism == "noisy-reward":
        settings |= {"levels": release.reward_levels}
        attacked, noise, steps_text = audit_noisy_reward(system), _noise_of_rewards(system, promise.cost), ""
    else:
        plan = plan_of(release, bounds)
        most = _steps_of_users(plan, system, runs)
        attacked, noise = audit_counter_release(system, most), _noise_of_counters(system, plan, promise.cost)
        steps = reading_of(plan, most).steps
        settings |= {"horizon": plan.horizon, "steps": steps}
        steps_text = seen(plan, steps, "step")
    return report_of(
        release.mechanism,
        settings,
        attacked,
        noise,
        promise,
        runs,
        false_alarm,
        steps_text,
        _reduced(config, system.nodes),
    )


def _reduced(config: CollaborativeConfig, users: int) -> tuple[str, ...]:
    return left_out(
        (True, f"all users but {users}, and their relation, as each user's sums have noise of their own"),
        (True, "the items, as a reward moves the sums by its features alone"),
        (config.release.rows != 1, "rows of a step beyond the first, as they do not change its noise"),
    )


def _noise_of_counters(system: CollaborativeSystem, plan: Plan, price: Cost) -> SizeTest:
    """The noise of all users' counters, released after one reward of 0."""
    unit, law = first_draw(plan)
    key, users = fresh_key(), np.arange(system.nodes, dtype=np.int64)
    features = np.zeros((system.nodes, system.features.dimension), dtype=np.float32)
    rows = Rows(users.astype(np.int32), features, np.zeros(system.nodes))

    def read() -> NDArray[np.float64]:
        noised = system.noised_sums(key, fresh_nonce(), 0, 0)
        noised.add(rows)
        drawn = noised.sums(users) / unit
        vectors = isinstance(plan.budget, PureLength) and plan.dimension > 1
        return np.asarray(np.linalg.norm(drawn, axis=1) if vectors else np.abs(drawn).ravel())

    return SizeTest(read, price, law)


def _noise_of_rewards(system: CollaborativeSystem, price: Cost) -> SizeTest | None:
    """The noise on rewards of 0; None where a noised reward has one of two values, so that its noise has no size."""
    law = local_reward_of(system.config.release)
    if law.law != "laplace":
        return None
    key, users = fresh_key(), np.arange(system.nodes, dtype=np.int64)
    _, entry = farthest_features(system.features, "gaussian")
    features = np.zeros((system.nodes, system.features.dimension), dtype=np.float32)
    features[:, 0] = entry
    rows = Rows(users.astype(np.int32), features, np.zeros(system.nodes))

    def read() -> NDArray[np.float64]:
        noised = system.noised_sums(key, fresh_nonce(), 0, 0)
        noised.add(rows)
        return np.abs(noised.sums(users)[:, 0]) / (entry * (1 << GRID_BITS))

    return SizeTest(read, price, laplace_law(law.levels, system.config.release.epsilon))


def _steps_of_users(plan: Plan, system: CollaborativeSystem, runs: int) -> int:
    alone = 1 if isinstance(plan, NegativeDigitTree) else max(1, system.nodes // _ALONE)
    return steps_for(runs, parallel_runs(system), alone * (1 + system.features.dimension // _WIDE))
