"""The promise of a p2b configuration and the prices of its releases: functions of the configuration alone.

The slots of one user may be in one window, under one draw of noise. So n of them together are priced as one release
with a group of n (n epsilon), never as n releases. A budget under zCDP or Renyi accounting converts that price, and so
has room for fewer slots than a budget that adds epsilons.

*What is summed.* What a deployment sums, codes or declared features, as far as it follows from the configuration alone.

This is needed before anything is fitted: for promises and prices, for the check of a configuration, and to prepare a
deployment. What the roles of a running deployment need is in `hushstream.systems.p2b.deployment`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import SupportsFloat

from hushstream.counting import NegativeDigitTree, PureEpsilon, best_tree, choose_release
from hushstream.engine.declare.topics import contents_on
from hushstream.engine.noise.budget import BudgetConfig, BudgetFacts, filter_of, largest_that, require_fits, with_cap
from hushstream.engine.noise.spending import SpendingTerms
from hushstream.engine.release_parts import MOST_BYTES, WHOLE_BYTES, parts_needed
from hushstream.engine.system import Priced
from hushstream.engine.values import ConfigurationError
from hushstream.privacy.amounts import count_text, exact
from hushstream.privacy.ledger import BasicFilter, Debit, Filter
from hushstream.privacy.mechanisms.guarantee import (
    linear_sums_guarantee,
    paper_guarantee,
    slot_sums_guarantee,
    tuples_guarantee,
)
from hushstream.privacy.mechanisms.noise import laplace_scale, laplace_variance, noise_epsilon
from hushstream.privacy.mechanisms.tuples import curve_epsilon, smallest_threshold
from hushstream.privacy.promises.promise import Content, Form, Guarantee
from hushstream.privacy.promises.sentence import Prices
from hushstream.systems.p2b.codebook import grid_size
from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.lift import counted_lift, lift_debit, lift_guarantee, required_lift, variance_after
from hushstream.systems.p2b.server.totals import fade_of_sums, fade_of_windows, remembered
from hushstream.systems.p2b.slots import UNITS, ContributionError, FeatureLayout, budgets, slot_bytes
from hushstream.systems.p2b.topics import TOPICS

PAPER_THRESHOLD = 10
"""The shuffler's threshold in the paper's public code."""


@dataclass(frozen=True)
class SummedCodes:
    """Sums by code and arm; or tuples of code, arm and reward above a threshold."""

    config: P2BConfig
    fits_encoder = True
    parts = 1
    in_a_slot = "code, arm and reward of one interaction, or null"

    @property
    def mechanism(self) -> str:
        return self.config.release.mode

    @property
    def released(self) -> tuple[str, Form]:
        return _SUMS_OF_CODES[self.config.release.mode]

    @property
    def sums(self) -> tuple[int, int]:
        config = self.config
        return 2 * resolve_codes(config) * config.arms, config.release.levels

    @property
    def resolved(self) -> Mapping[str, str | float]:
        return {"codes": resolve_codes(self.config)}

    def guarantee(self, slots: int, tree_levels: int) -> Guarantee:
        config, release = self.config, self.config.release
        if release.mode == "slot-sums":
            return slot_sums_guarantee(
                epsilon=noise_epsilon(release.slot_epsilon, release.sampling),
                levels=release.levels,
                sampling=release.sampling,
                lifetime_slots=slots,
                deployment=config.kind,
                tree_levels=tree_levels,
            )
        threshold = resolve_threshold(config)
        make = tuples_guarantee if release.mode == "tuples" else paper_guarantee
        return make(threshold=threshold, sampling=release.sampling, lifetime_slots=slots, deployment=config.kind)

    def check(self) -> None:
        codes, context = resolve_codes(self.config), self.config.context
        most = grid_size(context.dimension, context.digits)
        if codes > most:
            raise ConfigurationError(f"encoder.codes: expected at most the {most} contexts of the grid, got {codes}")
        require_code_sizes(self.config, codes)


@dataclass(frozen=True)
class SummedFeatures:
    """Sums by item and by cell of every declared feature.

    Attributes:
        config: of the deployment.
        fits_encoder: whether something is fitted for a deployment before it runs.
        in_a_slot: what a slot holds, in words.
        mechanism: what makes the sums of a window, in journals and prices.
        released: what leaves the shuffler, in words, and whether it is noised, sampled or clear.
    """

    config: P2BConfig
    fits_encoder = False
    in_a_slot = "declared features, arm and reward of one interaction, or null"
    mechanism = "linear-sums"
    released = ("sums of rewards by arm and coordinate of each declared feature over a window", Form.NOISED)

    @property
    def sums(self) -> tuple[int, int]:
        """The number of sums of a window, and how far one slot moves them together in L1."""
        return 2 * self._cells * self.config.arms, self.config.release.levels * UNITS

    @property
    def resolved(self) -> Mapping[str, str | float]:
        """Values that follow from the configuration and are printed with it."""
        return {"cells": self._cells, "slot_bytes": slot_bytes(self._places)}

    @property
    def parts(self) -> int:
        """The number of parts in which sums and models leave; 1 if each fits into a record."""
        return parts_needed(self._item_bytes * self.config.arms)

    @property
    def _item_bytes(self) -> int:
        """The bytes of an item in sums and models, with the version at which the item entered and its features."""
        return 16 * self._cells + self._row_bytes

    @property
    def _row_bytes(self) -> int:
        """The bytes that say which item a row stands for."""
        schema = self.config.item_features
        return 4 + (0 if schema is None else schema.row_bytes)

    @property
    def _cells(self) -> int:
        """The number of cells of an item: the constant's cell, and those of every feature."""
        return self.config.context.schema.cells + 1

    @property
    def _places(self) -> int:
        return self.config.context.schema.places + 1

    def guarantee(self, slots: int, tree_levels: int) -> Guarantee:
        """The guarantee for ``slots`` slots in a user's life.

        Args:
            slots: the number of slots.
            tree_levels: the nodes of the counter over windows that contain one window; 1 without a counter.
        """
        config, release = self.config, self.config.release
        return linear_sums_guarantee(
            epsilon=noise_epsilon(release.slot_epsilon, release.sampling),
            units=UNITS,
            places=self._places,
            levels=release.levels,
            sampling=release.sampling,
            lifetime_slots=slots,
            deployment=config.kind,
            tree_levels=tree_levels,
        )

    def check(self) -> None:
        """Refuse a configuration whose records could never be published, before anything runs.

        Raises:
            ConfigurationError: a record would be too large.
        """
        cells, arms, each = self._cells, self.config.arms, self._item_bytes
        if self.config.devices and self.parts > 1:
            raise ConfigurationError(
                f"configuration: expected a model of one record for kind edge (16 * {arms} items * {cells} cells, at "
                f"most {WHOLE_BYTES} bytes), got {each * arms} bytes: devices fetch it whole"
            )
        _require_sizes(
            {f"the catalogue ({arms} items * {self._row_bytes} bytes)": self._row_bytes * arms},
            WHOLE_BYTES,
            f"with these items.features there is room for {count_text(WHOLE_BYTES // self._row_bytes, 'item')}",
        )
        _require_sizes(
            {f"sums and models (16 * {arms} items * {cells} cells)": each * arms},
            MOST_BYTES,
            f"with these features there is room for {count_text(MOST_BYTES // each, 'item')}",
        )


def summed_of(config: P2BConfig) -> SummedCodes | SummedFeatures:
    """What a deployment of a configuration sums."""
    return SummedCodes(config) if config.release.form == "codes" else SummedFeatures(config)


def resolve_codes(config: P2BConfig) -> int:
    """How many codes the encoder has: as configured, or chosen from the configuration alone."""
    if config.encoder.codes != "auto":
        return config.encoder.codes
    release = config.release
    return auto_codes(
        arms=config.arms,
        expected_slots=config.expected_slots,
        epsilon=release.slot_epsilon,
        levels=release.levels,
        dimension=config.context.dimension,
    )


def resolve_threshold(config: P2BConfig) -> int:
    """The threshold as configured, the paper's, or the smallest one that reaches the target delta."""
    release = config.release
    if release.threshold != "auto":
        return release.threshold
    if release.mode == "paper":
        return PAPER_THRESHOLD
    return smallest_threshold(release.sampling, curve_epsilon(release.sampling), release.target_delta)


def require_code_sizes(config: P2BConfig, codes: int) -> None:
    """Refuse a number of codes with which sums or models do not fit into one record.

    Raises:
        ConfigurationError: a record would be too large.
    """
    sums = 2 * 8 * codes * config.arms
    dimension = config.context.dimension
    model = 8 * config.arms * dimension * (dimension + 1)
    _require_sizes(
        {"the sums of a window (16 * codes * arms)": sums, "a model (8 * arms * d * (d + 1))": model},
        WHOLE_BYTES,
        "use fewer arms, codes or dimensions",
    )


def _require_sizes(sizes: Mapping[str, int], most: int, remedy: str) -> None:
    for name, size in sizes.items():
        if size > most:
            raise ConfigurationError(f"configuration: expected {name} of at most {most} bytes, got {size}; {remedy}")


_SUMS_OF_CODES = {
    "slot-sums": ("sums of rewards by code and arm over a window", Form.NOISED),
    "tuples": (
        "how many kept reports of a window held the same code, arm and reward, where they reach the threshold",
        Form.SAMPLED,
    ),
    "paper": (
        "the kept reports of a window as they are, where enough share the code: what is unique under it is shown",
        Form.CLEAR,
    ),
}


_NOISE_AGAINST_MERGING = 5.0
_CODES_A_DIMENSION = 4


def auto_codes(
    arms: int,
    expected_slots: int,
    epsilon: SupportsFloat,
    levels: int = 1,
    dimension: int = 10,
    windows: int = 1,
) -> int:
    """Choose k, a power of two, for slot sums.

    Two errors depend on k in opposite ways. *Noise*: an average cell holds ``n = N / (k K)`` reports, whose clicks
    have variance at most ``n/4``, and gets noise of variance ``v`` (in rewards). So noise multiplies the variance of
    what is learned by ``1 + 4 v / n = 1 + k / s`` with ``s = N / (4 v K)``, which follows from the configuration
    alone. *Merging*: the server cannot distinguish contexts with the same code; this loss falls about as ``1/k``
    until the centroids span the space. The sum ``c/k + k/s`` is smallest at ``k = sqrt(c s)``, rounded to the nearest
    power of two in the logarithm. ``c = 5`` was fitted by simulation. A model with d numbers for each arm gains
    nothing from more than a few codes for each dimension, so k is at most ``4 d`` (k-means resolves
    ``k^(-2/(d-1))``: with twice the codes, distances are 14 % smaller at d = 10).

    Checked by simulation (d=10, K=10, T=10; reward of the private warm start against that of the best power
    of two): 500 slots at eps 1 give 8 (the best), 1,400 at eps 1 give 8 (2 % below 16), 14,000 at ln 2 give
    16 (the best), 20,000 at ln 2 give 32 (equal to 16), 70,000 at ln 2 in the linear world give 32 (2 %
    below 16).

    Args:
        arms: K.
        expected_slots: N, reports expected in all windows together.
        epsilon: the epsilon of one window's release.
        levels: M.
        dimension: d, at least 2.
        windows: number of releases whose noise adds up.

    Returns:
        k, from 2 to ``4 d``.

    Raises:
        ContributionError: an argument out of range.
    """
    budget = float(epsilon)
    if min(arms, expected_slots, levels, windows) < 1 or dimension < 2 or not 0.0 < budget < math.inf:
        raise ContributionError(
            "expected positive arms, reports, levels, windows and epsilon, and at least 2 dimensions, got "
            f"{arms}, {expected_slots}, {levels}, {windows}, {budget} and {dimension}"
        )
    variance = windows * _noise_variance(budget, levels)
    signal = expected_slots / (4.0 * variance * arms)
    wanted = math.sqrt(_NOISE_AGAINST_MERGING * signal)
    most = float(_CODES_A_DIMENSION * dimension)
    return 1 << min(round(math.log2(min(max(wanted, 2.0), most))), int(math.log2(most)))


def _noise_variance(epsilon: float, levels: int) -> float:
    """Variance, in rewards, of discrete Laplace noise of scale M/eps on a sum in units of 1/M.

    With ``a = eps/M`` it is ``2 e^-a / (1 - e^-a)^2 = 1 / (2 sinh(a/2)^2)`` in units.
    """
    half = epsilon / levels / 2.0
    if half > 300.0:
        return math.ulp(0.0)
    return max(0.5 / (math.sinh(half) * levels) ** 2, math.ulp(0.0))


def expected_windows(config: P2BConfig) -> int:
    """How many windows of one shuffler partition the configuration expects.

    If time also closes windows, their number does not follow from the slots; then it is at least `windows`.
    """
    release, slots = config.release, config.expected_slots * config.slot.lifetime_slots
    filled = max(1, -(-slots // (release.window_slots * config.partitions.shuffler)))
    return filled if release.window_seconds is None else max(filled, release.windows)


@lru_cache(maxsize=64)
def window_tree_of(config: P2BConfig) -> NegativeDigitTree | None:
    """The counter over a partition's windows, or None if each window has fresh noise."""
    release, expected = config.release, expected_windows(config)
    if release.mode != "slot-sums" or release.sums == "fresh":
        return None
    epsilon = noise_epsilon(release.slot_epsilon, release.sampling)
    horizon = max(release.windows, expected) if release.sums == "auto" else release.windows
    sums, sensitivity = summed_of(config).sums
    fade = fade_of_windows(config)
    if release.sums == "auto" and choose_release(epsilon, expected, horizon, sensitivity, fade) == "fresh":
        return None
    return best_tree(PureEpsilon(epsilon), horizon, sums, sensitivity)


def noise_variance(config: P2BConfig, windows: int) -> float:
    """The variance of the noise in one sum over the first ``windows`` windows of all partitions, in the sums' units.

    With fresh noise the variances of windows are added; with a counter it is the variance of its total at that window.
    If windows fade, it is that of the weighted sum, scaled to the effective number of slots
    (`hushstream.systems.p2b.server.totals`).
    """
    if windows < 1:
        return 0.0
    if config.half_life is not None:
        return _faded_variance(config, windows)
    tree = window_tree_of(config)
    if tree is None:
        one = windows * _fresh_variance(config)
    else:
        windows = min(windows, tree.horizon)
        one = variance_after(tree, windows)
    return one * config.partitions.shuffler


def _faded_variance(config: P2BConfig, windows: int) -> float:
    tree, fade = window_tree_of(config), fade_of_sums(config)
    ratio, parts = remembered(config, windows).ratio, config.partitions.shuffler
    if tree is None:
        newest, each = _fresh_variance(config), windows * parts
    else:
        newest, each = tree.faded_variance(min(windows, tree.horizon), fade_of_windows(config)), parts
    return ratio**2 * newest * -math.expm1(2 * each * math.log(fade)) / (1.0 - fade**2)


def _fresh_variance(config: P2BConfig) -> float:
    """The variance of the fresh noise in one sum of a window."""
    epsilon = noise_epsilon(config.release.slot_epsilon, config.release.sampling)
    return laplace_variance(*laplace_scale(epsilon, summed_of(config).sums[1]))


def life_prices(config: P2BConfig, slots: int) -> Prices:
    """The price of ``slots`` slots of one user together, with the lift if one is released."""
    return replace(_guarantee_for(config, slots), lift=_lift_of(config)).together


@lru_cache(maxsize=64)
def layout_of_slots(config: P2BConfig) -> FeatureLayout:
    """The layout of a slot of declared features; it follows from the configuration alone."""
    release, schema = config.release, config.context.schema
    items = config.arms if config.expected_items is None else config.expected_items
    expected, fresh = expected_windows(config), window_tree_of(config) is None
    windows = (expected if fresh else 1) * config.partitions.shuffler
    slots = config.expected_slots * config.slot.lifetime_slots
    if config.half_life is not None:
        # The effective number of slots of the weighed sums, and the number of windows that have as much noise.
        slots = max(1, round(slots * remembered(config, expected).share))
        windows = max(1, round(noise_variance(config, expected) / _fresh_variance(config)) if fresh else windows)
    divided = budgets(len(schema.table), items, release.slot_epsilon, slots, windows)
    return FeatureLayout(schema, config.arms, release.levels, divided)


def release_guarantee(config: P2BConfig) -> Guarantee:
    """The guarantee of a configuration, before anything is fitted or run.

    Raises:
        ConfigurationError: the budget pays for no slot.
    """
    promise = with_cap(
        _guarantee_for(config, lifetime_slots_of(config)),
        "privacy.units_per_person",
        lambda slots: life_prices(config, slots),
    )
    promise = replace(promise, not_protected=(*promise.not_protected, *_open_by_settings(config)))
    return promise.with_contents(p2b_contents(config))


def _open_by_settings(config: P2BConfig) -> Iterator[str]:
    """What settings leave open: the buffer that users of a learner share, and windows that close on log time."""
    if config.kind == "hosted":
        yield (
            "whose feedback is lost where somebody floods the buffer of early feedback (`feedback.early_feedback`): one"
            " user's click may then change another's report"
        )
    if config.release.window_seconds is not None:
        yield "in which of two windows a report near an end is (`release.window_seconds`), which a click may decide"


def guarantee_of(config: P2BConfig) -> Guarantee:
    """The guarantee of a configuration to one person, with the lift if one is released; see `release_guarantee`.

    Raises:
        ConfigurationError: the budget cannot pay for one slot.
    """
    return replace(release_guarantee(config), lift=_lift_of(config))


def _lift_of(config: P2BConfig) -> Guarantee | None:
    counted = counted_lift(config)
    return None if counted is None else lift_guarantee(*counted)


@lru_cache(maxsize=64)
def priced(config: P2BConfig) -> Priced:
    """The guarantee and prices of slots and, if one is released, of the lift; see `guarantee_of`.

    Raises:
        ConfigurationError: the budget cannot pay for one slot, or for the lift.
    """
    lift = {} if config.counted is None else {"ledger-edge": lift_terms_of(config)}
    ledgers = {"ledger": slot_terms_of(config), **lift}
    return Priced(guarantee_of(config), budgets_of(config), ledgers)


@lru_cache(maxsize=64)
def lifetime_slots_of(config: P2BConfig) -> int:
    """How many slots a user sends in their life: as many as are planned, or as fit the budget.

    Raises:
        ConfigurationError: the budget cannot pay for one slot.
    """
    budget, planned = config.budget, config.slot.lifetime_slots
    if budget is None:
        return planned
    limit = filter_of(budget, _slots_share(budget))
    fits = largest_that(lambda slots: limit.admits(limit.price(_life(_guarantee_for(config, slots), config))), planned)
    require_fits(fits, "one report of one user", _guarantee_for(config, 1).cost, budget)
    return fits


@lru_cache(maxsize=64)
def slot_terms_of(config: P2BConfig) -> SpendingTerms:
    """The prices of the shuffler's releases, and their limit.

    A charge is one window, or one counter over a limited number of windows; the deployment scope is charged once for
    all slots of one user.
    """
    promise = release_guarantee(config)
    price = Debit("", summed_of(config).mechanism, promise.cost, promise.relation, promise.unit)
    life = _life(promise, config)
    budget = config.budget
    limit: Filter = BasicFilter(life.cost) if budget is None else filter_of(budget, _slots_share(budget))
    name = "basic" if budget is None else budget.filter
    tree = window_tree_of(config)
    if tree is None:
        return SpendingTerms("window", price, 1, life, limit, composition=name)
    return SpendingTerms("epoch", price, tree.horizon, life, limit, composition=name)


@lru_cache(maxsize=64)
def lift_terms_of(config: P2BConfig) -> SpendingTerms:
    """The price of a partition's lift releases, and their limit: one charge pays for all of them.

    Raises:
        ConfigurationError: the price does not fit the lift's share of the budget.
    """
    counted = required_lift(config)
    price = lift_debit(*counted)
    budget = config.budget
    limit: Filter = BasicFilter(price.cost)
    if budget is not None:
        limit = filter_of(budget, exact(budget.lift))
        fits = int(limit.admits(limit.price(price)))
        require_fits(fits, f"the lift in its share of {budget.lift:g}", price.cost, budget)
    name = "basic" if budget is None else budget.filter
    return SpendingTerms("lift", price, counted.settings.releases, price, limit, "deployment-lift", name)


@lru_cache(maxsize=64)
def budgets_of(config: P2BConfig) -> tuple[BudgetFacts, ...]:
    """The budget of the slots of a user and, if a lift is released, the budget of the lift.

    Raises:
        ConfigurationError: the budget cannot pay for one slot, or for the lift.
    """
    terms, planned = slot_terms_of(config), config.slot.lifetime_slots
    limit = terms.life.cost if config.budget is None else config.budget.limit
    windows = None if terms.own == "window" else terms.releases
    unit = "all reports of one user"
    slots = lifetime_slots_of(config)
    promised = _lift_of(config)
    together = f"{unit} and the lift" if promised is not None and config.budget is not None else unit
    found = [BudgetFacts(config.budget, limit, together, "reports of a user", planned, slots, "windows", windows)]
    if promised is not None:
        lift = lift_terms_of(config)
        limit = lift.life.cost if config.budget is None else config.budget.limit
        counted = count_text(required_lift(config).settings.decisions_per_user, "decision")
        measured = f"the A/B measurement (lift), charged once a user, over their first {counted}"
        unit = measured if config.budget is None else together
        found.append(BudgetFacts(config.budget, limit, unit, "charges for the lift", 1, 1, "releases", lift.releases))
    return tuple(found)


@lru_cache(maxsize=256)
def _guarantee_for(config: P2BConfig, slots: int) -> Guarantee:
    tree = window_tree_of(config)
    found = summed_of(config).guarantee(slots, 1 if tree is None else tree.levels)
    if not config.users.events:
        return found
    return replace(
        found,
        lifetime=replace(found.lifetime, counted=False),
        conditions=(
            "a person causes one event: each event is a user of its own (users.events), so nobody counts them, and n "
            "events of a person cost n times as much",
            *found.conditions,
        ),
    )


def _life(promise: Guarantee, config: P2BConfig) -> Debit:
    """The price of all slots of one user together."""
    unit = f"{promise.lifetime.units} reports of one user"
    return Debit("", summed_of(config).mechanism, promise.lifetime.cost, promise.relation, unit)


def _slots_share(budget: BudgetConfig) -> Fraction:
    return 1 - exact(budget.lift)


TRUSTED = frozenset({"edge", "shuffler"})

_content = contents_on(TOPICS, TRUSTED)


def p2b_contents(config: P2BConfig) -> tuple[Content, ...]:
    """Every topic that holds content of a person, in the order in which data flows."""
    return (*_edge(config), *_beyond(config), *_lift(config), *_items(config))


def _edge(config: P2BConfig) -> Iterator[Content]:
    if config.kind == "hosted":
        yield _content("contexts", "every context, with the user's name", Form.CLEAR)
        told = "how it was rewarded" if config.measurement.guardrail is None else "the reward and harm of it"
        yield _content("clicks", f"what a user was shown and {told}, with the user's name", Form.CLEAR)
        yield _content("decisions", "the arm decided for each event id, which follows the user's clicks", Form.CLEAR)
    slot = f"one report a user, without identity: {summed_of(config).in_a_slot}"
    yield _content("reports", slot, Form.SEALED if config.devices else Form.CLEAR)


def _beyond(config: P2BConfig) -> Iterator[Content]:
    summed = summed_of(config)
    cells, form = summed.released
    yield _content("window-sums", cells, form)
    yield _content("models", "the model, made of noised sums alone", form)
    if summed.parts > 1:
        yield _content("model-parts", "arrays of the model, larger than a record, made of noised sums alone", form)
    if config.devices:
        yield _content("statements", "the model as devices take it, made of noised sums alone", form)


def _lift(config: P2BConfig) -> Iterator[Content]:
    if config.counted is None:
        return
    by = "group" if config.measurement.of == "groups" else "item that was answered and by whether it was shown"
    what = "rewards and of what is missing to whole ones"
    if config.measurement.guardrail is not None:
        what += f", and of a harm ({config.measurement.guardrail})"
    yield _content("lift", f"running counts of {what}, by {by}", Form.NOISED)


def _items(config: P2BConfig) -> Iterator[Content]:
    if config.items_from_requests:
        what = "ids and public features of items as requests named them first, published without noise"
        yield _content("items", what, Form.PUBLIC)
