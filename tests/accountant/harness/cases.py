"""What each setting claims, beside the mechanism that it runs as `oracle` names it.

A release setting is taken in a deployment that has everything else at its defaults; so is each lift, each number of
slots in a life, each length of features, and each budget, under each filter, over several epochs of noise. What
follows from the settings of a whole deployment (how many codes, windows, nodes) is asked of the systems, the law of the
noise of the plans that draw it, and how one unit moves the draws of the factorisation that the running code has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache

import numpy as np
from hushstream_test_accountant_oracle import Both, Coin, Crowd, Gaussian, KNorm, Laplace, Law, Shown
from hushstream_test_accountant_settings import Found
from scipy import stats

from hushstream.counting import Concentrated, Plan
from hushstream.counting.buffered import BufferedToeplitz
from hushstream.engine.configuration import FeedbackConfig
from hushstream.engine.noise.budget import FILTER_NAMES, BudgetConfig, filter_of
from hushstream.engine.system import DeploymentValues
from hushstream.engine.values import ConfigurationError
from hushstream.privacy.amounts import Cost, delta_value
from hushstream.privacy.filters import RenyiFilter
from hushstream.privacy.mechanisms.noise import laplace_scale, noise_epsilon
from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.guarantee import epoch_guarantee as bgt_guarantee
from hushstream.systems.bgt.guarantee import lifetime_guarantee as bgt_promise
from hushstream.systems.colin.configuration import (
    CollaborativeConfig,
    ContinualConfig,
    FeatureConfig,
    lattice_sensitivity,
    local_reward_of,
    plan_of,
)
from hushstream.systems.colin.release import release_guarantee
from hushstream.systems.p2b.configuration import ContextConfig, EncoderConfig, P2BConfig, ReleaseConfig
from hushstream.systems.p2b.guarantee import (
    release_guarantee as p2b_guarantee,
)
from hushstream.systems.p2b.guarantee import (
    resolve_threshold,
    slot_terms_of,
    window_tree_of,
)
from hushstream.systems.p2b.lift import CountedLift, Group, counted_lift, guardrail_tree, lift_guarantee, lift_tree
from hushstream.systems.pdap.algorithm.blocks import block_scales
from hushstream.systems.pdap.configuration import PdapConfig
from hushstream.systems.pdap.promise import epoch_guarantee
from hushstream.systems.pdol.algorithm import counters as pdol_counters
from hushstream.systems.pdol.configuration import PdolConfig

NODES = 10
LARGEST_FACTORISATION = 256
BUDGETED = (
    ContinualConfig(mechanism="negative-digit", epsilon=0.05, epochs=60),
    ContinualConfig(mechanism="negative-digit", epsilon=0.05, epochs=60, noise="gaussian"),
)
"""Prices of which a budget of the usual size has room for many: a pure one, and one by rho."""


WHOLE_ORDERS = tuple(range(2, 2_000))
PURE, LENGTH, CONCENTRATED, CROWD = 0.02, 0.1, 0.25, 0.01
"""Slack of a pure epsilon; of one by K-norm noise on few coordinates; of a Gaussian by its rho; of a crowd's delta."""
RHO, CONVERTED, FEW_CONVERTED = 0.001, 1.0, 2.0
"""Above Renyi: a Gaussian, which is priced by its rho; and a pure epsilon, which a filter takes by the worst law that
has it (randomised response), although the tree's Laplace noise is a gentler one: over few epochs the further apart."""
MANY_EPOCHS = 10
RAREST = Fraction(1, 10**10)
FEW_COORDINATES = 24
"""Of all nodes that a reward moves, together. Beyond, K-norm noise comes close to its epsilon with a chance that is too
small for a PLD in floating point."""


@dataclass(frozen=True)
class Case:
    """One claim: ``cost`` for a unit that moves what ``law`` says.

    Attributes:
        slack: by how much it may lie above dp-accounting's PLD: of delta for crowds, of epsilon otherwise; None where
            it is composed by a rule that a PLD of a fixed schedule betters, where ``law`` is not the worst one, or
            where what is to be seen is too rare for floating point.
        above_renyi: by how much its epsilon may lie above dp-accounting's by Renyi divergences; None: not compared.
        orders: of those divergences.
    """

    name: str
    cost: Cost
    law: Law
    slack: float | None
    above_renyi: float | None = None
    orders: tuple[int, ...] = field(default=WHOLE_ORDERS, repr=False)


def cases_of(found: Found) -> Iterator[Case]:
    """Every claim of all settings."""
    yield from (case for config in found.whole for case in _of_deployment(config))
    for release in found.by_kind["ReleaseConfig"]:
        yield from _of_slots(_p2b(release))
    for slot in found.by_kind["SlotConfig"]:
        # New slots wait for a reward's wait, and devices seal them; no price follows from either.
        waits = FeedbackConfig(attribution_window_seconds=0.001)
        yield from _of_slots(replace(_p2b(ReleaseConfig()), slot=replace(slot, sealed=False), feedback=waits))
    for settings in found.by_kind["MeasurementConfig"]:
        yield from _of_lift(CountedLift(settings, 1, len(Group)))
    for features in found.by_kind["FeatureConfig"]:
        for noise in ("laplace", "k-norm", "gaussian"):
            yield from _of_rewards(ContinualConfig(mechanism="negative-digit", noise=noise), features)
    for release in found.by_kind["ContinualConfig"]:
        features = FeatureConfig(dimension=3)
        yield from _of_rewards(CollaborativeConfig("accounted", 1, features, release=release).release, features)
    for epsilon, delta in {(budget.epsilon, budget.delta): None for budget in found.by_kind["BudgetConfig"]}:
        for name in FILTER_NAMES:
            yield from _of_budget(BudgetConfig(epsilon, delta, name))


def _p2b(release: ReleaseConfig) -> P2BConfig:
    if release.form == "features":
        declared = ContextConfig(declared={"hour": {"kind": "time_of_day"}, "tablet": {"kind": "boolean"}})
        return P2BConfig("all", 5, declared, expected_slots=20_000, release=release)
    return P2BConfig("all", 5, ContextConfig(4), expected_slots=20_000, encoder=EncoderConfig(codes=4), release=release)


def _of_deployment(config: DeploymentValues) -> Iterator[Case]:
    if isinstance(config, CollaborativeConfig):
        yield from _of_rewards(config.release, config.features, config.budget)
        return
    if isinstance(config, PdapConfig):
        yield from _of_blocks(config)
        return
    if isinstance(config, PdolConfig):
        yield from _of_gradients(config)
        return
    if isinstance(config, BgtConfig):
        yield from _of_rounds(config)
        return
    yield from _of_slots(config)
    counted = counted_lift(config)
    if counted is not None:
        yield from _of_lift(counted)


def _of_blocks(config: PdapConfig) -> Iterator[Case]:
    """An outcome is in one block: of the levels' laws the one with the least noise."""
    scale = min(top / bottom for top, bottom in block_scales(config))
    yield Case("blocks", epoch_guarantee(config).cost, Laplace(scale, config.release.reward_levels), PURE)


def _of_gradients(config: PdolConfig) -> Iterator[Case]:
    """A leaf moves a counter by rho, whose Gaussian law has the distance sqrt(2 rho)."""
    plan = pdol_counters.plan_of(config.sharing, config.records.dimension)
    if isinstance(plan.budget, Concentrated):
        yield Case("gradients", plan.guarantee().cost, Gaussian(math.sqrt(2 * float(plan.budget.rho))), CONCENTRATED)


def _of_rounds(config: BgtConfig) -> Iterator[Case]:
    """Three Gaussian releases, each at its share of rho: together as one at their sum."""
    one = bgt_guarantee(config)
    if one.rho_micro is not None:
        distance = math.sqrt(2 * one.rho_micro / 1e6)
        yield Case("rounds", one.cost, Gaussian(distance), CONCENTRATED)
        yield Case("rounds, epochs", bgt_promise(config).cost, Gaussian(distance, config.release.epochs), None)


def _of_slots(config: P2BConfig) -> Iterator[Case]:
    release, promise = config.release, p2b_guarantee(config)
    slots, life = promise.lifetime.units, promise.lifetime.cost
    if release.mode == "paper":
        yield Case("paper", promise.cost, Shown(release.sampling), CROWD)
    elif release.mode == "tuples":
        crowd = _worst_crowd(resolve_threshold(config), release.sampling)
        yield Case("tuples", promise.cost, crowd, CROWD if delta_value(promise.delta_units) > RAREST else None)
        if 1 < slots <= 64:
            yield Case("tuples, life", life, _worst_crowd(resolve_threshold(config), release.sampling, slots), None)
    else:
        tree = window_tree_of(config)
        levels = 1 if tree is None else nodes_of(tree)
        high = 1 if tree is None else tree.levels
        numerator, denominator = laplace_scale(noise_epsilon(release.epsilon, release.sampling), release.levels * high)
        one = Laplace(numerator / denominator, release.levels, levels, release.sampling)
        yield Case("slot sums", promise.cost, one, PURE if levels == high else None)
        if release.levels > 1 and release.sampling == 1:
            halves = replace(one, shift=release.levels // 2, count=2 * levels)
            yield Case("slot sums, half a reward", promise.cost, halves, None)
        if slots > 1:
            yield Case("slot sums, life", life, _life(one, slots), PURE if release.sampling == 1 else None)
            yield Case("slot sums, budget", slot_terms_of(config).ceiling, _life(one, slots), None)


def _life(one: Laplace, slots: int) -> Laplace:
    """All slots of a user in one cell of one window; where coins are thrown, in windows of their own."""
    return replace(one, times=slots) if one.kept < 1 else replace(one, shift=slots * one.shift)


def _worst_crowd(threshold: int, kept: float, slots: int = 1) -> Crowd:
    """The number of others at which one report more tells most: the best of a hundred, then of all near it."""

    def tells(others: int) -> float:
        counts = np.arange(threshold, others + slots + 1)
        with_it, without = (stats.binom.pmf(counts, others + more, kept) for more in (slots, 0))
        return float(np.maximum(with_it - without / (1 - kept) ** slots, 0).sum())

    lowest, highest = max(0, threshold - slots), math.ceil(3 * threshold / kept)
    step = max(1, (highest - lowest) // 100)
    near = max(range(lowest, highest, step), key=tells)
    return Crowd(threshold, kept, max(range(max(lowest, near - step), near + step + 1), key=tells), slots)


def _of_lift(counted: CountedLift) -> Iterator[Case]:
    tree, decisions, levels = lift_tree(*counted), counted.settings.decisions_per_user, counted.levels
    promise = lift_guarantee(*counted)
    scale = tree.noise.numerator / tree.noise.denominator
    # All in one leaf; and one decision a leaf, so that low nodes move by one decision each.
    if counted.settings.guardrail is not None:
        other = guardrail_tree(*counted)
        laws = [
            Laplace(one.noise.numerator / one.noise.denominator, levels * decisions, one.levels)
            for one in (tree, other)
        ]
        yield Case("lift and guardrail", promise.cost, Both(*laws), PURE)
        return
    yield Case("lift", promise.cost, Laplace(scale, levels * decisions, tree.levels), PURE)
    if decisions <= min(64, counted.settings.releases):
        apart = Laplace(scale, levels, decisions, times=tree.levels)
        yield Case("lift, decisions apart", promise.cost, apart, None)


def _of_rewards(
    release: ContinualConfig, features: FeatureConfig, budget: BudgetConfig | None = None
) -> Iterator[Case]:
    if release.mechanism == "exact":
        return
    law, promise = law_of(release, features), release_guarantee(release, features, NODES, budget)
    epochs = 1 if promise.redraws is None else promise.redraws.most
    gaussian = isinstance(law, Gaussian)
    slack = CONCENTRATED if gaussian else PURE
    if isinstance(law, KNorm):
        slack = LENGTH if law.dimension * law.count <= FEW_COORDINATES else None
    name = f"{release.mechanism}, {release.noise}"
    yield Case(name, promise.price, law, slack, RHO if gaussian else None)
    if epochs > 1:
        yield Case(f"{name}, {epochs} epochs", promise.cost, replace(law, count=epochs * law.count), None)


@cache
def law_of(release: ContinualConfig, features: FeatureConfig) -> Law:
    """How one reward moves the draws of one user's counter, or of its own noise."""
    if release.mechanism == "noisy-reward":
        reward = local_reward_of(release)
        if reward.law == "response":
            return Coin(1 / (1 + math.exp(-release.epsilon)))
        numerator, denominator = laplace_scale(release.epsilon, reward.levels)
        return Laplace(numerator / denominator, reward.levels)
    plan = plan_of(release, features)
    amount = plan.noise.numerator / plan.noise.denominator
    shift = lattice_sensitivity(features, plan.budget.norm)
    if plan.noise.law == "laplace":
        return Laplace(amount, shift, nodes_of(plan))
    if plan.noise.law == "k-norm":
        return KNorm(features.dimension, shift / amount, nodes_of(plan))
    return Gaussian(shift * _length(plan) / math.sqrt(amount))


def nodes_of(plan: Plan) -> int:
    """How many draws one leaf moves, by the factorisation where it is small enough to be written out."""
    if plan.horizon > LARGEST_FACTORISATION:
        return plan.levels
    return round(float(np.abs(plan.factorisation(plan.horizon).right).sum(axis=0).max()))


def _length(plan: Plan) -> float:
    """The L2 length by which one leaf moves all draws."""
    if isinstance(plan, BufferedToeplitz):
        # The factorisation's matrix is Toeplitz, and its first column the longest.
        return float(np.linalg.norm(plan.shape.column(plan.horizon))) * 2.0**plan.fine_bits
    return math.sqrt(nodes_of(plan))


def _of_budget(budget: BudgetConfig) -> Iterator[Case]:
    for release in BUDGETED:
        try:
            promise = release_guarantee(release, FeatureConfig(dimension=3), NODES, budget)
        except ConfigurationError:
            continue  # not one epoch fits: nothing is guaranteed
        law = law_of(release, FeatureConfig(dimension=3))
        epochs = 1 if promise.redraws is None else promise.redraws.most
        cost = promise.price if promise.redraws is None else promise.cost
        many = replace(law, count=epochs * law.count)
        compared = budget.filter != "basic" and epochs > 1 and not isinstance(law, KNorm)
        filter_ = filter_of(budget)
        # A Renyi filter holds at one order, fixed beforehand; at that one it is compared.
        orders = (filter_.order,) if isinstance(filter_, RenyiFilter) else WHOLE_ORDERS
        converted = CONVERTED if epochs >= MANY_EPOCHS else FEW_CONVERTED
        above = (RHO if isinstance(law, Gaussian) else converted) if compared else None
        yield Case(f"{budget.filter}, {release.noise}, {epochs} epochs", cost, many, None, above, orders)


def distinct(cases: Iterable[Case]) -> tuple[Case, ...]:
    """Each claim about each law once; what is printed as a promise of next to nothing has no figure to compare."""
    seen = {(case.law, case.cost): case for case in cases if case.cost.epsilon_micro <= 50_000_000}
    return tuple(seen.values())
