"""The promise of a p2b configuration and the prices of its releases: functions of the configuration alone.

The slots of one user may be in one window, under one draw of noise. So n of them together are priced as one release
with a group of n (n epsilon), never as n releases. A budget under zCDP or Renyi accounting converts that price, and so
has room for fewer slots than a budget that adds epsilons.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from hushstream.counting import NegativeDigitTree, PureEpsilon, best_tree, choose_release
from hushstream.engine.declare.topics import contents_on
from hushstream.engine.noise.budget import BudgetConfig, BudgetFacts, filter_of, largest_that, require_fits
from hushstream.engine.noise.caps import with_cap
from hushstream.engine.noise.spending import SpendingTerms
from hushstream.engine.system import Priced
from hushstream.privacy.amounts import exact
from hushstream.privacy.ledger import BasicFilter, Debit, Filter
from hushstream.privacy.mechanisms.amplification import noise_epsilon
from hushstream.privacy.mechanisms.guarantee import Guarantee
from hushstream.privacy.mechanisms.noise import laplace_scale, laplace_variance
from hushstream.privacy.promises.contents import Content, Form
from hushstream.privacy.promises.promise import Promises
from hushstream.privacy.promises.sentence import Prices
from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.contribution.feature_layout import FeatureLayout, budgets
from hushstream.systems.p2b.guarantee.summed import summed_of
from hushstream.systems.p2b.lift import counted_lift, lift_debit, lift_guarantee, required_lift
from hushstream.systems.p2b.server.forgetting import fade_of_crowds, fade_of_windows, remembered
from hushstream.systems.p2b.topics import TOPICS


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
    (`hushstream.systems.p2b.server.forgetting`).
    """
    if windows < 1:
        return 0.0
    if config.set_half_life is not None:
        return _faded_variance(config, windows)
    tree = window_tree_of(config)
    if tree is None:
        one = windows * _fresh_variance(config)
    else:
        windows = min(windows, tree.horizon)
        before = (windows - 1) * tree.mean_square(windows - 1) if windows > 1 else 0.0
        one = windows * tree.mean_square(windows) - before
    return one * config.partitions.shuffler


def _faded_variance(config: P2BConfig, windows: int) -> float:
    tree, fade = window_tree_of(config), fade_of_crowds(config)
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
    """The price of ``slots`` slots of one user together, with the lift if there is a hold-out."""
    return Promises(_guarantee_for(config, slots), _lift_of(config)).together


@lru_cache(maxsize=64)
def layout_of_slots(config: P2BConfig) -> FeatureLayout:
    """The layout of a slot of declared features; it follows from the configuration alone."""
    release, schema = config.release, config.context.schema
    items = config.arms if config.expected_items is None else config.expected_items
    expected, fresh = expected_windows(config), window_tree_of(config) is None
    windows = (expected if fresh else 1) * config.partitions.shuffler
    slots = config.expected_slots * config.slot.lifetime_slots
    if config.set_half_life is not None:
        # The effective number of slots of the weighed sums, and the number of windows that have as much noise.
        slots = max(1, round(slots * remembered(config, expected).share))
        windows = max(1, round(noise_variance(config, expected) / _fresh_variance(config)) if fresh else windows)
    divided = budgets(len(schema.table), items, release.slot_epsilon, slots, windows)
    return FeatureLayout(schema, config.arms, release.levels, divided)


def release_guarantee(config: P2BConfig, public_dataset: bool = False) -> Guarantee:
    """The guarantee of a configuration, before anything is fitted or run.

    Args:
        config: the configuration.
        public_dataset: whether a public dataset is replayed.

    Raises:
        ConfigurationError: the budget pays for no slot.
    """
    promise = with_cap(
        _guarantee_for(config, lifetime_slots_of(config)),
        "privacy.units_per_person",
        lambda slots: life_prices(config, slots),
    )
    return promise.with_contents(p2b_contents(config, public_dataset))


def promises_of(config: P2BConfig, public_dataset: bool = False) -> Promises:
    """The promises of a configuration to one person, with the lift if one is released; see `release_guarantee`.

    Raises:
        ConfigurationError: the budget cannot pay for one slot.
    """
    return Promises(release_guarantee(config, public_dataset), _lift_of(config))


def _lift_of(config: P2BConfig) -> Guarantee | None:
    counted = counted_lift(config)
    return None if counted is None else lift_guarantee(*counted)


@lru_cache(maxsize=64)
def priced(config: P2BConfig, public_dataset: bool = False) -> Priced:
    """The promises and prices of slots and, if one is released, of the lift; see `promises_of`.

    Raises:
        ConfigurationError: the budget cannot pay for one slot, or for the lift.
    """
    lift = {} if config.counted is None else {"ledger-edge": lift_terms_of(config)}
    ledgers = {"ledger": slot_terms_of(config), **lift}
    return Priced(promises_of(config, public_dataset), budgets_of(config), ledgers)


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
    require_fits(fits, "one slot of one user", _guarantee_for(config, 1).cost, budget)
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
    return SpendingTerms("lift", price, counted[0].releases, price, limit, "deployment-lift", name)


@lru_cache(maxsize=64)
def budgets_of(config: P2BConfig) -> tuple[BudgetFacts, ...]:
    """The budget of the slots of a user and, if a lift is released, the budget of the lift.

    Raises:
        ConfigurationError: the budget cannot pay for one slot, or for the lift.
    """
    terms, planned = slot_terms_of(config), config.slot.lifetime_slots
    limit = terms.life.cost if config.budget is None else config.budget.limit
    windows = None if terms.own == "window" else terms.releases
    unit = "all slots of one user"
    slots = lifetime_slots_of(config)
    promised = _lift_of(config)
    together = f"{unit} and the lift" if promised is not None and config.budget is not None else unit
    found = [BudgetFacts(config.budget, limit, together, "slots of a user", planned, slots, "windows", windows)]
    if promised is not None:
        lift = lift_terms_of(config)
        limit = lift.life.cost if config.budget is None else config.budget.limit
        unit = promised.unit if config.budget is None else together
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
        not_protected=(
            *found.not_protected,
            "whoever causes several events: each event is a user of its own (users.events), so the promise to a person "
            "covers one event, and n events of a person cost n times as much",
        ),
    )


def _life(promise: Guarantee, config: P2BConfig) -> Debit:
    """The price of all slots of one user together."""
    unit = f"{promise.lifetime.units} slots of one user"
    return Debit("", summed_of(config).mechanism, promise.lifetime.cost, promise.relation, unit)


def _slots_share(budget: BudgetConfig) -> Fraction:
    return 1 - exact(budget.lift)


TRUSTED = frozenset({"edge", "shuffler"})

_content = contents_on(TOPICS, TRUSTED)


def p2b_contents(config: P2BConfig, public_dataset: bool = False) -> tuple[Content, ...]:
    """Every topic that holds content of a person, in the order in which data flows.

    Args:
        config: the configuration.
        public_dataset: whether a public dataset is replayed: its interactions then travel in clear as well.
    """
    return (*_edge(config), *_beyond(config, public_dataset), *_lift(config), *_items(config))


def _edge(config: P2BConfig) -> Iterator[Content]:
    if config.kind == "hosted":
        yield _content("contexts", "every context, with the user's name", Form.CLEAR)
        yield _content("clicks", "what a user was shown and how it was rewarded, with the user's name", Form.CLEAR)
        yield _content("decisions", "the arm decided for each event id, which follows the user's clicks", Form.CLEAR)
    slot = f"one slot a user, without identity: {summed_of(config).in_a_slot}"
    yield _content("reports", slot, Form.SEALED if config.slot.sealed else Form.CLEAR)


def _beyond(config: P2BConfig, public_dataset: bool) -> Iterator[Content]:
    summed = summed_of(config)
    compared = public_dataset and summed.compares
    if compared:
        yield _content("interactions", "context, arm and reward of the interactions that slots report", Form.CLEAR)
    cells, form = summed.crowds
    yield _content("crowds", cells, form)
    yield _content("models", "the model, made of crowds alone", form)
    if summed.parts > 1:
        yield _content("model-parts", "the model's arrays, which are larger than a record, made of crowds alone", form)
    if config.devices:
        yield _content("statements", "the model as devices take it, made of crowds alone", form)
    if compared:
        yield _content("models", "the non-private track's model, made of exact interactions", Form.CLEAR)


def _lift(config: P2BConfig) -> Iterator[Content]:
    if config.lift.holdout:
        yield _content("lift", "running counts of what was shown and rewarded, by group", Form.NOISED)
    elif config.counted is not None:
        yield _content("lift", "running counts of answers, by item, by agreement and by reward", Form.NOISED)


def _items(config: P2BConfig) -> Iterator[Content]:
    if config.items_from_requests:
        what = "ids and public features of items as requests named them first, published without noise"
        yield _content("items", what, Form.PUBLIC)
