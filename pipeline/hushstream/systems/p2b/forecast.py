"""Forecasts what N slots will bring new users, from assumed spreads of effects, without a simulation of contributors.

**The law.** Effects on the log-odds of a reward are modelled as normal and independent: an item's own effect with
deviation ``arms``, effects of block f with deviation s_f, and effects that no released sum contains (users' own tastes,
pairs of features that were not declared) with deviation ``rest``. So at a visit the log-odds of the K items are
N(b, S^2), where S^2 is the sum of all squares. Let V_fb be the sampling variance plus the noise of the effect of cell b
(`server.effects`). The posterior mean of an effect keeps s^2 / (s^2 + V) of its variance. So the part of an item's
log-odds that the model sees has the variance

    C^2 = s_arms^2 k_arms + sum_f s_f^2 sum_b z_b s_f^2 / (s_f^2 + V_fb)

where z_b is the share of visits in cell b. Where items have m features that shape their prior (`server.prior`), the
part a = rho s^2 of an effect follows them, and b = (1 - rho) s^2 is the item's own. All K items tell of the former, so

    a (a / (a + (V + b) m/K)) + b (b / (b + V))

of its variance is kept in place of s^2 (s^2 / (s^2 + V)).

A new user is shown the item with the largest of K draws of N(0, C^2). The log-odds of this item are that draw plus an
unseen rest N(0, S^2 - C^2). With M the largest of K standard normals:

    reward = E s(b + C M + sqrt(S^2 - C^2) Z)        s the logistic function,

integrated over quantiles, not drawn. Without noise, and with all T interactions of N users instead of one each, the
same law gives the reward of the non-private model.

**V** follows `server.effects`: i = n z_b q (1 - q), with n = N/K slots of an item and q the share of slots with a
reward. V = (i + u v ((1 - q)^2 + q^2)) / i^2, where v is the noise's variance in reports squared, and u the number of
cells that share a slot's units (tags). With click preference h, q = h (1 - (1 - p)^T), where p is the click rate of
learners alone. The arms' totals are the mean over all blocks that count every slot.

**Codes.** A linear model with d numbers for each item is fitted on k centroids. Contexts act through d - 1 directions.
Codes keep 1 - k^(-2/(d-1)) of the spread along each of them (the error of k-means in d - 1 dimensions, Zador 1982). The
n reports of an item lie in k cells, so they have k times the noise of a cell. LinUCB on codes does not shrink by the
known noise, and an argmax does not depend on the scale: C = S_model^2 / sqrt(S_model^2 + V), where V is the sum over
the item's own effect and d - 1 directions.

**Learners alone** are simulated, with LinUCB's own bonus. A user meets K items whose log-odds stay as they are (with
codes, contexts are drawn anew at each visit, so only the items' own effects stay). Items that were never shown have
equal scores, so one item more than there are visits is enough.

*Limits.* With few slots (below some 10,000 with eight features) the posterior of the spreads themselves is wide, and
the forecast ignores that. A warm learner goes on learning a user's tastes; the forecast leaves that out, too. Errors
against the complete simulation: `hushstream experiment forecast`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from hushstream.features.schema import Block
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.slots import FeatureLayout

Float64 = NDArray[np.float64]

_QUANTILES = 400
_USERS = 4_000
MOST_VISITS = 100
_LEAST_SHARE = 1e-6
_TAG_POPULARITY = 0.6
_MISSING = 0.03


class ForecastError(HushstreamError):
    """Spreads that are impossible. The message says what was expected and what came."""


@dataclass(frozen=True, slots=True)
class Spreads:
    """Deviations of effects on the log-odds of a reward over items, and the rate around which they lie.

    Attributes:
        arms: deviation of an item's own effect.
        blocks: deviation of a feature's effect at a visit, by name; for codes there is one block named "context".
        rest: deviation of effects that no released sum contains.
        rate: share of visits that reward an item drawn at random, in (0, 1).
        alike: rho, the share of the variance of items' effects that follows their features.
    """

    arms: float
    blocks: Mapping[str, float]
    rest: float
    rate: float
    alike: float = 0.0

    def __post_init__(self) -> None:
        """Refuse impossible values.

        Raises:
            ForecastError: a negative spread, a rate outside of (0, 1), or a share outside of [0, 1].
        """
        least = min(self.arms, self.rest, *self.blocks.values())
        if least < 0 or not 0 < self.rate < 1 or not 0 <= self.alike <= 1:
            raise ForecastError(f"forecast: expected spreads of at least 0, a rate and a share in 0 to 1, got {self}")

    @property
    def whole(self) -> float:
        """S, the deviation of an item's log-odds at a visit."""
        return math.sqrt(self.arms**2 + sum(one**2 for one in self.blocks.values()) + self.rest**2)

    def times(self, items: float, features: float, alike: float) -> Spreads:
        """These spreads, with the items' own and the features' multiplied by a factor each, and another share alike."""
        blocks = {name: features * one for name, one in self.blocks.items()}
        return replace(self, arms=items * self.arms, blocks=blocks, alike=alike)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Mean reward of a new user's visit.

    Attributes:
        cold: with learners that start without a model.
        single: with the item that is best for all, once it is known.
        private: with learners that start from the released model.
        open: with learners that start from a model of all interactions in clear.
    """

    cold: float
    single: float
    private: float
    open: float

    def unlucky(self, luck: float) -> Forecast:
        """The forecast after a release that loses a share of what own learning earns."""
        return replace(self, private=self.private - luck * self.cold)

    def drawn(self, share: float, rate: float) -> Forecast:
        """The forecast where a share of all decisions is drawn from all items, which earn ``rate``."""
        cold, private, in_clear = (x + share * (rate - x) for x in (self.cold, self.private, self.open))
        return Forecast(cold, self.single, private, in_clear)

    @property
    def gain(self) -> float:
        """What the released model adds."""
        return self.private - self.cold

    @property
    def share(self) -> float | None:
        """The share of the non-private gain that is kept; None if there is no such gain."""
        whole = self.open - self.cold
        return self.gain / whole if whole > 0 else None


@dataclass(frozen=True, slots=True)
class Sample:
    """How much has been released.

    Attributes:
        slots: N, the number of slots in closed windows.
        interactions: the number of interactions of the same users in clear, for comparison.
        variance: variance of the noise in one released sum, over all windows, in the units of the sums squared.
    """

    slots: float
    interactions: float
    variance: float


@dataclass(frozen=True, slots=True)
class UserBehaviour:
    """What users do, as far as the forecast needs it.

    Attributes:
        arms: K.
        visits: number of visits of a new user, over which their reward is averaged.
        before_slot: T, number of interactions before a slot.
        chance: h, the probability that a slot prefers a rewarded interaction; None if it is drawn uniformly.
        bonus: deviation of a cold learner's score of an item that was never shown.
        returning: whether a user's contexts stay similar; otherwise only the items' own effects stay.
        item_features: m, the number of items' features that shape their prior; 0: none do.
    """

    arms: int
    visits: int
    before_slot: int
    chance: float | None
    bonus: float = 1.0
    returning: bool = True
    item_features: int = 0


def forecast_features(layout: FeatureLayout, spreads: Spreads, behaviour: UserBehaviour, sample: Sample) -> Forecast:
    """The forecast for linear sums over declared features.

    Args:
        layout: the layout of a slot and of the sums.
        spreads: with a spread for each of the schema's blocks.
        behaviour: of users.
        sample: what was released; ``variance`` in units squared.

    Raises:
        ForecastError: a block without a spread.
    """
    missing = [block.name for block in layout.schema.table if block.name not in spreads.blocks]
    if missing:
        raise ForecastError(f"forecast: expected a spread of every feature, got none of {', '.join(missing)}")
    cold = cold_reward(spreads, behaviour, behaviour.visits)
    share, open_to_all = slot_share(spreads, behaviour), replace(behaviour, item_features=0)
    private = _features_seen(layout, spreads, behaviour, sample.slots, share, sample.variance)
    in_clear = _features_seen(layout, spreads, open_to_all, sample.interactions, cold, 0.0)
    return _compared(cold, spreads, behaviour, sample, private, in_clear)


def forecast_codes(dimension: int, codes: int, spreads: Spreads, behaviour: UserBehaviour, sample: Sample) -> Forecast:
    """The forecast for sums over codes and a linear model on their centroids.

    Args:
        dimension: d, the number of entries of a histogram.
        codes: k.
        spreads: with the block "context".
        behaviour: of users.
        sample: what was released; ``variance`` in rewards squared.
    """
    cold = cold_reward(spreads, behaviour, behaviour.visits)
    kept = code_share(dimension, codes)

    def seen(each: float, share: float, variance: float, along: float) -> float:
        if each <= 0:
            return 0.0
        information = each * share * (1 - share)
        noise = (information + variance * codes * _residual(share)) / information**2
        signal = spreads.arms**2 + spreads.blocks["context"] ** 2
        return signal**2 / (signal + noise * (1 + (dimension - 1) / along)) if signal else 0.0

    private = seen(sample.slots / behaviour.arms, slot_share(spreads, behaviour), sample.variance, kept)
    in_clear = seen(sample.interactions / behaviour.arms, cold, 0.0, 1.0)
    return _compared(cold, spreads, behaviour, sample, private, in_clear)


def code_share(dimension: int, codes: int) -> float:
    """The share of the variance along each of d - 1 directions that k codes keep; see the module."""
    return 1.0 - float(codes ** (-2.0 / max(1, dimension - 1)))


def _compared(
    cold: float, spreads: Spreads, behaviour: UserBehaviour, sample: Sample, private: float, in_clear: float
) -> Forecast:
    """Rewards from the variances that both models see; without slots or interactions users learn alone."""
    released = best_reward(spreads, behaviour.arms, private) if sample.slots > 0 else cold
    single = best_reward(spreads, behaviour.arms, spreads.arms**2)
    # A model of few visits in clear is as unsure as a new learner, and learns like it.
    whole = max(cold, best_reward(spreads, behaviour.arms, in_clear)) if sample.interactions > 0 else cold
    return Forecast(cold, single, released, whole)


def slot_share(spreads: Spreads, behaviour: UserBehaviour) -> float:
    """q, the share of slots that hold a reward; the formula is in `server.warm_start`."""
    reward = cold_reward(spreads, behaviour, behaviour.before_slot)
    if behaviour.chance is None:
        return reward
    return min(max(behaviour.chance * -math.expm1(behaviour.before_slot * math.log1p(-reward)), _LEAST_SHARE), 0.999)


def noise_of_cells(layout: FeatureLayout, arms: int, sample: Sample, share: float) -> dict[str, float]:
    """Deviation of the noise alone in an average cell's effect, in log-odds, by block; "" is an item's own effect.

    Args:
        layout: the layout of a slot and of the sums.
        arms: K, the number of items that slots are about.
        sample: what was released.
        share: q.
    """
    each = sample.slots / arms
    found = {}
    for block, budget in zip(layout.blocks, layout.budgets, strict=True):
        information = each / block.cells * share * (1 - share)
        noise = block.own_part**2 * block.usual * sample.variance / (budget * layout.levels) ** 2 * _residual(share)
        found[block.name] = math.sqrt(noise) / information if information else math.inf
    return found


def _features_seen(
    layout: FeatureLayout, spreads: Spreads, behaviour: UserBehaviour, slots: float, share: float, variance: float
) -> float:
    """C^2, the variance of an item's log-odds that the model sees at a visit, with so many reports of all items."""
    if slots <= 0:
        return 0.0
    each, among = slots / behaviour.arms, behaviour.item_features / behaviour.arms
    alike = spreads.alike if among else 0.0
    information = each * share * (1 - share)
    units = [
        (block, (budget * layout.levels) ** 2) for block, budget in zip(layout.blocks, layout.budgets, strict=True)
    ]
    together = sum(one for block, one in units if block.complete)
    own = (information + variance / together * _residual(share)) / information**2
    seen = spreads.arms**2 * _kept(spreads.arms, np.array([own]), np.ones(1), alike, among)
    for block, squared in units[1:]:
        visits = visit_shares(block)
        known = np.maximum(information * visits, 1e-12)
        if block.signed:
            # The formula of a signed block, whose slot holds e/|e|_1, for each of its m coordinates.
            factor = mean_absolute_sum(block.cells)
            along = known / factor
            noise = (along / factor + variance / squared * _residual(share)) / along**2
        else:
            noise = (known + block.usual * variance / squared * _residual(share)) * (block.own_part / known) ** 2
        spread = spreads.blocks[block.name]
        seen += spread**2 * _kept(spread, noise, visits, alike, among)
    return float(seen)


def mean_absolute_sum(dimension: int) -> float:
    """E|e|_1 on the unit sphere of m dimensions, about sqrt(2 m / pi)."""
    return math.exp(
        math.log(dimension) + math.lgamma(dimension / 2) - math.lgamma((dimension + 1) / 2) - 0.5 * math.log(math.pi)
    )


def visit_shares(block: Block) -> Float64:
    """(cells,) z, the share of visits in each cell. It is assumed from the block's kind alone, without users' data.

    Categories (one cell for each visit) have 1/rank, and 3 % for unknown or missing values in the last cell. Tags have
    rank to the power -0.6. Numbers, times and histograms have equal shares.
    """
    if block.signed:
        return np.full(block.cells, 1.0 / block.cells)
    if block.usual > 1 and block.cells > 1:
        popular = np.arange(1, block.cells + 1, dtype=np.float64) ** -_TAG_POPULARITY
        return np.asarray(popular / popular.sum(), dtype=np.float64)
    if block.places == 1 and block.cells > 1:
        popular = 1.0 / np.arange(1, block.cells, dtype=np.float64)
        return np.append((1 - _MISSING) * popular / popular.sum(), _MISSING)
    return np.full(block.cells, 1.0 / block.cells)


def _kept(spread: float, noise: Float64, visits: Float64, alike: float, among: float) -> float:
    """The share of an effect's variance that is seen, over visits, with m/K features an item; see the module."""
    if not spread:
        return 0.0
    shared, own = alike * spread**2, (1 - alike) * spread**2
    seen = shared**2 / (shared + (noise + own) * among) if shared else 0.0
    return float((visits * (seen + own**2 / (own + noise))).sum()) / spread**2


def _residual(share: float) -> float:
    return (1 - share) ** 2 + share**2


def best_reward(spreads: Spreads, arms: int, seen: float) -> float:
    """The reward of the best of K items, according to a model that sees C^2 of their variance; see the module."""
    whole = spreads.whole
    best = math.sqrt(seen) * _largest(arms)
    unseen = math.sqrt(max(whole * whole - seen, 0.0)) * _normals()
    return float(_logistic(base(whole, spreads.rate) + best[:, None] + unseen[None, :]).mean())


@lru_cache(maxsize=256)
def base(whole: float, rate: float) -> float:
    """b, the mean log-odds with which an item drawn at random is rewarded at ``rate``, for a spread S."""
    low, high, deviates = -40.0, 40.0, whole * _normals()
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if float(_logistic(middle + deviates).mean()) < rate else (low, middle)
    return low


@lru_cache(maxsize=64)
def _largest(arms: int) -> Float64:
    """(n,) the largest of K standard normals, at even quantiles."""
    even = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    return np.array([_inverse(math.exp(math.log(one) / arms)) for one in even])


@lru_cache(maxsize=1)
def _normals() -> Float64:
    even = (np.arange(_QUANTILES // 4) + 0.5) / (_QUANTILES // 4)
    found = np.array([_inverse(one) for one in even])
    # Quantiles at even steps lack the tails, so their variance is too small, and is scaled up to 1.
    return np.asarray(found / math.sqrt(float((found**2).mean())), dtype=np.float64)


def _inverse(quantile: float) -> float:
    return NormalDist().inv_cdf(min(max(quantile, 1e-300), 1 - 1e-16))


def cold_reward(spreads: Spreads, behaviour: UserBehaviour, visits: int) -> float:
    """Mean reward of learners that start without a model, over their first visits (at most 100 are simulated).

    A score is the posterior mean plus the posterior deviation of an item's reward, under a normal prior of deviation
    ``bonus`` and rewards of variance 1. That is LinUCB with ridge 1 and alpha 1 if contexts stay as they are.
    """
    steady = spreads.whole if behaviour.returning else spreads.arms
    sizes = (round(spreads.whole, 9), round(steady, 9))
    return _cold(sizes, spreads.rate, behaviour.arms, min(visits, MOST_VISITS), behaviour.bonus)


@lru_cache(maxsize=256)
def _cold(sizes: tuple[float, float], rate: float, arms: int, visits: int, bonus: float) -> float:
    # Items that were never shown have equal scores, so one item more than there are visits is enough.
    arms = min(arms, visits + 1)
    draw = np.random.default_rng(20_000)
    whole, steady = sizes
    odds = base(whole, rate) + steady * draw.standard_normal((_USERS, arms))
    changing = math.sqrt(max(whole**2 - steady**2, 0.0))
    chances = _logistic(odds)
    shown, earned = np.zeros((_USERS, arms)), np.zeros((_USERS, arms))
    everyone, together = np.arange(_USERS), 0.0
    for _ in range(visits):
        spread = 1.0 / (bonus**-2 + shown)
        scores = earned * spread + np.sqrt(spread) + 1e-6 * draw.random((_USERS, arms))
        chosen = scores.argmax(axis=1)
        if changing:
            chances = _logistic(odds + changing * draw.standard_normal((_USERS, arms)))
        chance = chances[everyone, chosen]
        together += float(chance.mean())
        shown[everyone, chosen] += 1
        earned[everyone, chosen] += draw.random(_USERS) < chance
    return together / visits


def _logistic(values: Float64) -> Float64:
    return np.asarray(1.0 / (1.0 + np.exp(-values)), dtype=np.float64)
