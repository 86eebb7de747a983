"""The releases of the shuffler and of the lift on neighbouring inputs, each under its own journal nonce.

A run is one cell of the shuffler, or one group of the lift: a slot or a user changes only its own cell or group, and
the noise (or the coins) of the others is independent. So one release gives as many runs as it has cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.noise.budget import BudgetConfig
from hushstream.privacy.audits.audit import Attack, audit_attack
from hushstream.privacy.audits.laws import Family, Pair, laplace_pair, pure, sampled_pair
from hushstream.privacy.keys import Key
from hushstream.replay.audits.draws import fresh_key, fresh_nonce, side_by_side
from hushstream.replay.audits.readings import Reading, reading_family, reading_of
from hushstream.replay.audits.row import Attacked, Run
from hushstream.systems.p2b.configuration import (
    ContextConfig,
    EncoderConfig,
    LiftConfig,
    P2BConfig,
    ReleaseConfig,
    ShadowConfig,
)
from hushstream.systems.p2b.contribution.encoder import CENTROID_STEPS
from hushstream.systems.p2b.contribution.slots import Report, pack
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.guarantee.summed import resolve_codes
from hushstream.systems.p2b.lift import GROUPS, SUMS, LiftCounter, lift_guarantee, lift_tree, required_lift
from hushstream.systems.p2b.machines.release import release_address, release_window
from hushstream.systems.p2b.machines.running import open_running
from hushstream.systems.p2b.shuffler.windows import ClosedBy, ClosedWindow

Contents = Sequence[Report | None]
"""The contents of the slots of one window."""

CELLS, ARMS = 25, 2
"""Codes and arms of an attacked deployment."""

_WAIT_MS = 1_000
"""Time that a decision waits for its reward before the lift counts it."""

TARGET = 1
"""The arm of the unit's report; the known reports are of arm 0, or in the same cell."""


def p2b(
    release: ReleaseConfig,
    lift: LiftConfig | None = None,
    budget: BudgetConfig | None = None,
    shadow: ShadowConfig | None = None,
) -> P2BSystem:
    """A deployment with `CELLS` codes."""
    return stand_in(
        P2BConfig(
            deployment="audit",
            arms=ARMS,
            context=ContextConfig(CELLS),
            expected_slots=1_000,
            encoder=EncoderConfig(codes=CELLS),
            release=release,
            lift=LiftConfig() if lift is None else lift,
            budget=budget,
            shadow=ShadowConfig() if shadow is None else shadow,
        )
    )


def stand_in(config: P2BConfig) -> P2BSystem:
    """The deployment of a configuration with an encoder that is not fitted, as releases do not depend on centroids."""
    centroids = np.arange(resolve_codes(config)) % config.context.dimension
    return P2BSystem.of(config, np.eye(config.context.dimension, dtype=np.int64)[centroids] * CENTROID_STEPS)


def published(
    system: P2BSystem, key: Key, windows: Sequence[Contents], nonce: bytes | None = None
) -> NDArray[np.int64]:
    """The sums of some windows as the shuffler publishes them: int64 (windows, 2, codes, arms).

    The journal has a new nonce if none is given.
    """
    genesis = fresh_nonce() if nonce is None else nonce
    running = open_running(system.window_tree, key, release_address(system, genesis, 0))
    crowds = []
    for number, contents in enumerate(windows):
        closed = ClosedWindow(number, ClosedBy.SLOTS, tuple(pack(slot) for slot in contents))
        crowds.append(crowd_sums(system, release_window(system, key, genesis, 0, closed, running).crowd))
    return np.array(crowds)


def crowd_sums(system: P2BSystem, crowd: Mapping[str, Any]) -> NDArray[np.int64]:
    """The two sums of a crowd record, int64 (2, codes, arms)."""
    sums = [np.frombuffer(crowd[name], "<i8").astype(np.int64) for name in ("ones", "zeros")]
    return np.array(sums).reshape(2, system.codes, system.config.arms)


def slots(present: bool, others: int = 0, other_arm: int = TARGET) -> list[Report | None]:
    """For each code, the unit's slot (a report or null) and the reports of others."""
    known = [Report(code, other_arm, 1) for code in range(CELLS) for _ in range(others)]
    return [*known, *(Report(code, TARGET, 1) if present else None for code in range(CELLS))]


Publish = Callable[[P2BSystem, Key, Sequence[Contents]], NDArray[np.int64] | NDArray[np.float64]]
"""Publishes some windows, (windows, 2, codes, arms)."""


def audit_slot_sums_release(system: P2BSystem, most: int, publish: Publish = published) -> Attacked:
    """Attack fresh noise or a counter: a report moves the two sums of its cell by R and M - R, and nothing else.

    R is half of M, so that both sums move equally; where M is odd R is M, and only one sum moves.

    Args:
        system: the attacked system.
        most: the most windows of a counter that the attack may feed.
        publish: the bare release, or the role around it.

    Raises:
        HushstreamError: see `reading_of`.
    """
    release, tree = system.config.release, system.window_tree
    reading = ONE_WINDOW if tree is None else reading_of(tree, most)
    step = release.levels if release.levels % 2 else release.levels // 2
    moved = release.levels // step
    cells: list[Report | None] = [
        Report(code, arm, step) for code in range(system.codes) for arm in range(system.config.arms)
    ]
    later: list[Contents] = [[None] * len(cells)] * (reading.steps - 1)
    key = fresh_key()

    def scores(present: bool) -> NDArray[np.float64]:
        first = [cell if present else None for cell in cells]
        totals = np.cumsum(publish(system, key, [first, *later]), axis=0)[np.array(reading.times) - 1]
        seen = totals[:, :moved].reshape(len(totals), moved, len(cells)).transpose(0, 2, 1)
        return reading.clipped_score(seen, step)

    attack = side_by_side(scores, len(cells))
    return Attacked(attack, system.guarantee().cost, slots_family(system, reading))


ONE_WINDOW = Reading((1,), np.eye(1), np.ones(1), np.ones(1), 1.0)
"""Reads each window separately, for fresh noise."""


def slots_family(system: P2BSystem, reading: Reading) -> Family:
    """The distributions of one or both sums of a cell on all read nodes, at the slot's configured sampling rate."""
    return pure(lambda epsilon: slots_pair(system, reading, epsilon).power)


def slots_pair(system: P2BSystem, reading: Reading, epsilon: float) -> Pair:
    """`slots_family` at one epsilon of the slot."""
    kept, levels = system.config.release.sampling, system.config.release.levels
    step = levels if levels % 2 else levels // 2
    noise = math.log1p(math.expm1(epsilon) / kept)
    pair = laplace_pair(noise * reading.share, levels // step * len(reading.times), step)
    return Pair(pair.null, kept * pair.moved + (1 - kept) * pair.null)


def audit_lift(system: P2BSystem) -> Run:
    """Attack the lift: compare all decisions and rewards of one user with none.

    Both groups have such a user. They make more decisions than are counted, all rewarded, before the first release.
    """
    lift, levels = system.config.lift, system.config.release.levels
    tree = lift_tree(lift, levels)
    reading, step = reading_of(tree, tree.horizon), levels * lift.decisions_per_user
    key = fresh_key()

    def scores(present: bool) -> NDArray[np.float64]:
        counter = LiftCounter(lift, levels, _WAIT_MS, key, system.lift_address(fresh_nonce(), 0))
        for index in range(2 * lift.decisions_per_user if present else 0):
            for holdout in (False, True):
                counter.count(bytes(16), holdout, index, _WAIT_MS, 1.0)
        sums = np.array([counter.release(2 * _WAIT_MS).sums for _ in range(reading.steps)])
        return reading.clipped_score(sums[np.array(reading.times) - 1].reshape(-1, len(GROUPS), 2), step)

    claimed = lift_guarantee(lift, levels).cost
    return partial(audit_attack, side_by_side(scores, len(GROUPS)), claimed, reading_family(tree, reading, 2))


def audit_shadow(system: P2BSystem) -> Run:
    """Attack the lift of shadow mode: compare all answers, shown items and rewards of one user with none.

    Every item has such a user, as in `audit_lift`.
    """
    counted = required_lift(system.config)
    lift, levels, items = counted
    tree = lift_tree(*counted)
    reading, step = reading_of(tree, tree.horizon), levels * lift.decisions_per_user
    key = fresh_key()

    def scores(present: bool) -> NDArray[np.float64]:
        address = system.lift_address(fresh_nonce(), 0)
        counter = LiftCounter(lift, levels, _WAIT_MS, key, address, items)
        for index in range(2 * lift.decisions_per_user if present else 0):
            for item in range(items):
                counter.count_answer(bytes(16), item, True, index, _WAIT_MS, 1.0)
        sums = np.array([counter.release(2 * _WAIT_MS).sums for _ in range(reading.steps)])
        return reading.clipped_score(sums[np.array(reading.times) - 1].reshape(-1, items, SUMS)[..., :1], step)

    claimed = lift_guarantee(*counted).cost
    return partial(audit_attack, side_by_side(scores, items), claimed, reading_family(tree, reading, 1))


def audit_tuples_release(system: P2BSystem, others: int) -> Run:
    """Attack tuples: one more report in a crowd of ``others``."""
    chance, threshold = system.config.release.sampling, system.threshold
    key, likelier = fresh_key(), max(threshold, math.floor(chance * (others + 1)) + 1)

    def scores(present: bool) -> NDArray[np.float64]:
        counts = published(system, key, [slots(present, others)])[0, 0, :, TARGET]
        return np.asarray(counts - likelier + 0.5)

    family = tuples_family(others, threshold)
    return partial(audit_attack, side_by_side(scores, CELLS), system.guarantee().cost, family)


def tuples_family(others: int, threshold: int) -> Family:
    """The distributions of crowds of one size at every sampling probability p, with the price -ln(1-p)."""
    return Family(
        lambda sampling: sampled_pair(sampling, others, threshold).power,
        lambda sampling: -math.log1p(-sampling),
        smallest=0.01,
        largest=0.9999,
    )


def unique_tuple_attack(system: P2BSystem, others: int) -> Attack:
    """Attack a report with an arm of its own and a code of ``others``, to see whether its tuple is released."""
    key = fresh_key()

    def scores(present: bool) -> NDArray[np.float64]:
        counts = published(system, key, [slots(present, others, other_arm=0)])[0, 0, :, TARGET]
        return np.asarray(counts - 0.5)

    return side_by_side(scores, CELLS)


def audit_unique_tuple(system: P2BSystem, others: int) -> Run:
    """Run the attack that breaks the paper's claim, on any release mode."""
    return partial(audit_attack, unique_tuple_attack(system, others), system.guarantee().cost, None)
