"""The release modes: what a deployment publishes under a journal nonce of its own, on neighbouring inputs.

A run is one cell of the shuffler, or one user of a collaborative deployment: a slot or a reward moves only its own,
and the noise (or the coins) of the others is independent of it. So one release gives as many runs as it has cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.contribution.encoder import CENTROID_STEPS
from hushstream.contribution.slots import Report, pack
from hushstream.counting import NegativeDigitTree
from hushstream.learners.relation import SocialGraph
from hushstream.privacy.audit import Attack, AuditResult, audit_attack
from hushstream.privacy.audit_laws import (
    LAPLACE_STEPS,
    Family,
    Pair,
    laplace_pair,
    pure,
    sampled_pair,
)
from hushstream.privacy.keys import Key
from hushstream.replay.audits.draws import fresh_key, fresh_nonce, side_by_side
from hushstream.shuffling.windows import ClosedBy, Sealed
from hushstream.systems.collaborative import CollaborativeSystem
from hushstream.systems.collaborative_configuration import (
    GRID_BITS,
    CollaborativeConfig,
    ContinualConfig,
    FeatureConfig,
)
from hushstream.systems.collaborative_moments import Moments
from hushstream.systems.collaborative_release import local_reward_of, plan_of
from hushstream.systems.collaborative_rows import Rows
from hushstream.systems.configuration import ContextConfig, EncoderConfig, P2BConfig, ReleaseConfig
from hushstream.systems.p2b import P2BSystem
from hushstream.systems.p2b_release import release_address, release_window
from hushstream.systems.p2b_running import open_running

CELLS, USERS = 25, 100
"""Codes of a deployment of the shuffler, and users of a collaborative one: runs in one release."""

ARMS = 2
FEATURES = 4

TARGET = 1
"""The arm that the unit's report names; what is known of the others is in arm 0, or in the same cell."""


def p2b(release: ReleaseConfig) -> P2BSystem:
    """A deployment with `CELLS` codes."""
    config = P2BConfig(
        deployment="audit",
        arms=ARMS,
        context=ContextConfig(CELLS),
        expected_slots=1_000,
        encoder=EncoderConfig(codes=CELLS),
        release=release,
    )
    return P2BSystem.of(config, np.eye(CELLS, dtype=np.int64) * CENTROID_STEPS)


def published(
    system: P2BSystem, key: Key, windows: list[list[Report | None]], nonce: bytes | None = None
) -> NDArray[np.int64]:
    """The sums of some windows as the shuffler publishes them: int64 (windows, 2, codes, arms).

    The journal's nonce is a new one, unless it is given.
    """
    genesis = fresh_nonce() if nonce is None else nonce
    running = open_running(system.window_tree, key, release_address(system, genesis, 0))
    crowds = []
    for number, contents in enumerate(windows):
        sealed = Sealed(number, ClosedBy.SLOTS, tuple(pack(slot) for slot in contents))
        crowds.append(crowd_sums(system, release_window(system, key, genesis, 0, sealed, running).crowd))
    return np.array(crowds)


def crowd_sums(system: P2BSystem, crowd: Mapping[str, Any]) -> NDArray[np.int64]:
    """Both sums of a crowd record, int64 (2, codes, arms)."""
    sums = [np.frombuffer(crowd[name], "<i8").astype(np.int64) for name in ("ones", "zeros")]
    return np.array(sums).reshape(2, system.codes, system.config.arms)


def slots(present: bool, others: int = 0, other_arm: int = TARGET) -> list[Report | None]:
    """For each code the unit's slot, a report or null, and the reports of others."""
    known = [Report(code, other_arm, 1) for code in range(CELLS) for _ in range(others)]
    return [*known, *(Report(code, TARGET, 1) if present else None for code in range(CELLS))]


def audit_slot_sums_release(system: P2BSystem) -> Callable[[int, float], AuditResult]:
    """Fresh noise or a counter: a report moves the two sums of its cell by R and M - R, and nothing else.

    R is half of M, so that both sums move; for M = 1 it is 1.
    """
    release, tree = system.config.release, system.window_tree
    level = (release.levels + 1) // 2
    steps = [step for step in (level, release.levels - level) if step]
    times = [1] if tree is None else [tree.base**height for height in range(tree.levels)]
    cells: list[Report | None] = [Report(code, arm, level) for code in range(CELLS) for arm in range(ARMS)]
    empty: list[Report | None] = [None] * len(cells)
    key = fresh_key()

    def scores(present: bool) -> NDArray[np.float64]:
        windows = [cells if present else empty, *[empty] * (times[-1] - 1)]
        totals = np.cumsum(published(system, key, windows), axis=0)[np.array(times) - 1]
        seen = sum((2 * np.clip(totals[:, place], 0, step) - step).sum(axis=0) for place, step in enumerate(steps))
        return np.asarray(seen, dtype=np.float64).ravel()

    def curve(epsilon: float) -> Callable[[float], float]:
        kept = release.sampling
        noise = math.log1p(math.expm1(epsilon) / kept)
        # With both sums the steps are equal: M is even.
        pair = laplace_pair(noise, len(steps) * len(times), steps[0])
        return Pair(pair.null, kept * pair.moved + (1 - kept) * pair.null).power

    return partial(audit_attack, side_by_side(scores, CELLS * ARMS), system.guarantee().cost, pure(curve))


def audit_tuples_release(system: P2BSystem, others: int) -> Callable[[int, float], AuditResult]:
    """Tuples: one report more in a crowd of ``others``."""
    chance, threshold = system.config.release.sampling, system.threshold
    key, likelier = fresh_key(), max(threshold, math.floor(chance * (others + 1)) + 1)

    def scores(present: bool) -> NDArray[np.float64]:
        counts = published(system, key, [slots(present, others)])[0, 0, :, TARGET]
        return np.asarray(counts - likelier + 0.5)

    family = tuples_family(others, threshold)
    return partial(audit_attack, side_by_side(scores, CELLS), system.guarantee().cost, family)


def tuples_family(others: int, threshold: int) -> Family:
    """Crowds of one size at every sampling probability p, sold for -ln(1-p)."""
    return Family(
        lambda sampling: sampled_pair(sampling, others, threshold).power,
        lambda sampling: -math.log1p(-sampling),
        smallest=0.01,
        largest=0.9999,
    )


def unique_tuple_attack(system: P2BSystem, others: int) -> Attack:
    """A report whose arm nobody else has, under a code that ``others`` have: does its tuple show?"""
    key = fresh_key()

    def scores(present: bool) -> NDArray[np.float64]:
        counts = published(system, key, [slots(present, others, other_arm=0)])[0, 0, :, TARGET]
        return np.asarray(counts - 0.5)

    return side_by_side(scores, CELLS)


def audit_unique_tuple(system: P2BSystem, others: int) -> Callable[[int, float], AuditResult]:
    """The attack that breaks the paper's claim, whatever the release mode."""
    return partial(audit_attack, unique_tuple_attack(system, others), system.guarantee().cost, None)


def collaborative(release: ContinualConfig) -> CollaborativeSystem:
    """A deployment with `USERS` users who have no ties."""
    config = CollaborativeConfig(deployment="audit", arms=1, features=FeatureConfig(FEATURES), release=release)
    users = tuple(f"user-{number}" for number in range(USERS))
    return CollaborativeSystem.of(config, SocialGraph(users, np.zeros((USERS, USERS))))


def audit_counter_release(system: CollaborativeSystem) -> Callable[[int, float], AuditResult]:
    """A trusted counter or one at the edge: the first reward of every user is 1 or 0, of features as long as allowed.

    The features have equal entries: of all vectors of that length these move the sums the furthest in L1.
    """
    plan = plan_of(system.config.release, system.features)
    assert isinstance(plan, NegativeDigitTree)
    base, levels, key = plan.base, plan.levels, fresh_key()
    features = np.full((USERS, FEATURES), 1 / math.sqrt(FEATURES), dtype=np.float32)
    step = int(features[0, 0] * (1 << GRID_BITS))
    users = np.arange(USERS, dtype=np.int64)

    def scores(present: bool) -> NDArray[np.float64]:
        moments = system.moments(key, fresh_nonce(), 0, 0)
        total = np.zeros(USERS)
        leaves = 0
        for level in range(levels):
            while leaves < base**level:
                _reward(moments, features, float(present and not leaves))
                leaves += 1
            total += (2 * np.clip(moments.sums(users), 0, step) - step).sum(axis=1) / step
        return total

    return partial(audit_attack, side_by_side(scores, USERS), system.guarantee().cost, sums_family(levels))


def sums_family(levels: int) -> Family:
    """All nodes of one reward, in all entries of its features."""
    return pure(lambda epsilon: laplace_pair(epsilon, FEATURES * levels, LAPLACE_STEPS).power)


def audit_noisy_reward(system: CollaborativeSystem) -> Callable[[int, float], AuditResult]:
    """Each reward is noised once: a reward of 1 or 0, of features that have one entry."""
    key, law = fresh_key(), local_reward_of(system.config.release)
    features = np.zeros((USERS, FEATURES), dtype=np.float32)
    features[:, 0] = 1
    users = np.arange(USERS, dtype=np.int64)

    def scores(present: bool) -> NDArray[np.float64]:
        moments = system.moments(key, fresh_nonce(), 0, 0)
        _reward(moments, features, float(present))
        return np.asarray(moments.sums(users)[:, 0] / float(1 << GRID_BITS) - 0.5, dtype=np.float64)

    steps = law.levels if law.law == "laplace" else 1
    family = pure(lambda epsilon: laplace_pair(epsilon, 1, steps).power)
    return partial(audit_attack, side_by_side(scores, USERS), system.guarantee().cost, family)


def _reward(moments: Moments, features: NDArray[np.float32], reward: float) -> None:
    """One reward for each user."""
    moments.add(Rows(np.arange(USERS, dtype=np.int32), features, np.full(USERS, reward)))
