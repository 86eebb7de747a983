"""The budget of a deployment: what a unit may pay in its life, and how much of the plan that allows.

`hushstream.engine.noise.spending` says what each release charges to it.

*Caps.* The setting that limits how many units of a person are counted, and its largest useful value.

*Exact sums.* Sums without noise guarantee nothing. They are released only if the data is already public.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Any, Literal

from hushstream.engine.values import Checked, ConfigurationError, Is, check_fields, number, price, probability, require
from hushstream.privacy.amounts import (
    DELTA_ONE,
    MICRO,
    Cost,
    delta_text,
    epsilon_text,
    exact,
)
from hushstream.privacy.filters import ConcentratedFilter, RenyiFilter
from hushstream.privacy.ledger import BasicFilter, LimitFilter
from hushstream.privacy.promises.promise import Cap, Content, Deployment, Guarantee, Lifetime
from hushstream.privacy.promises.sentence import Prices, bound, shown

FilterName = Literal["basic", "zcdp", "renyi"]
FILTER_NAMES: tuple[FilterName, ...] = ("basic", "zcdp", "renyi")

_LARGEST_EPSILON = 1e6


def _is_share(value: float) -> bool:
    return 0 <= value < 1


@dataclass(frozen=True, slots=True)
class BudgetConfig(Checked):
    """What a unit may pay in its life: a reward, or all slots (and the lift) of one user.

    Attributes:
        epsilon: limit of all prices together, with delta.
        delta: see epsilon.
        filter: how prices compose: basic adds epsilons and deltas, zcdp adds rhos, renyi adds divergences at one order
            that is fixed beforehand.
        lift: share of the limit that the lift may spend.
    """

    epsilon: Annotated[float, Is("privacy.lifetime.", price, _LARGEST_EPSILON)]
    delta: Annotated[float, Is("privacy.lifetime.", probability)]
    filter: Annotated[FilterName, Is("privacy.lifetime.")] = "basic"
    lift: Annotated[float, Is("privacy.lifetime.measurement", number, "a share from 0 to below 1", _is_share)] = 0.0

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        check_fields(self)
        if self.filter != "basic":
            expected = "at least 2e-24 for zcdp or renyi"
            require(self.limit.delta_units >= 2, "privacy.lifetime.delta", expected, self.delta)

    @property
    def limit(self) -> Cost:
        """The limit as whole amounts, rounded down."""
        epsilon, delta = exact(self.epsilon), exact(self.delta)
        return Cost(math.floor(epsilon * MICRO), math.floor(delta * DELTA_ONE))


def filter_of(budget: BudgetConfig, share: Fraction = Fraction(1)) -> LimitFilter:
    """The filter of a deployment scope that may spend ``share`` of the budget."""
    kinds: Mapping[FilterName, Callable[[Cost], LimitFilter]] = {
        "basic": BasicFilter,
        "zcdp": ConcentratedFilter.for_cost,
        "renyi": RenyiFilter.for_cost,
    }
    return kinds[budget.filter](budget.limit).part(share)


def times(price: tuple[int, ...], count: int) -> tuple[int, ...]:
    """The sum of ``count`` equal prices."""
    return tuple(count * part for part in price)


def largest_that(fits: Callable[[int], bool], most: int = 1_000_000) -> int:
    """The largest whole number up to ``most`` for which a monotone condition holds, or 0."""
    if fits(most):
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def require_fits(count: int, what: str, least: Cost, budget: BudgetConfig) -> None:
    """Refuse a budget that is too small for a single release.

    Raises:
        ConfigurationError: names the least that would be needed.
    """
    if not count:
        raise ConfigurationError(
            f"privacy.lifetime: expected a limit that covers {what} at least ({least}), got {budget.filter} with "
            f"{budget.limit}; raise it, or lower privacy.epsilon (or measurement.epsilon)"
        )


@dataclass(frozen=True, slots=True)
class BudgetFacts:
    """What a configuration's budget allows, before anything runs.

    Attributes:
        budget: as configured; None: the limit is the price of the plan.
        limit: limit of one unit for the whole deployment.
        unit: what the limit is for, in words.
        counted: what ``planned`` and ``fits`` count, in words, in the plural.
        planned: planned number.
        fits: number within the limit.
        released: what is released on a charge, in words.
        releases: number of such releases that a charge pays for in a partition; None: any number.
    """

    budget: BudgetConfig | None
    limit: Cost
    unit: str
    counted: str
    planned: int
    fits: int
    released: str
    releases: int | None

    @property
    def filter(self) -> FilterName:
        """The filter that composes prices."""
        return "basic" if self.budget is None else self.budget.filter

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        names = ("filter", "unit", "counted", "planned", "fits", "released", "releases")
        return {name: getattr(self, name) for name in names} | {
            "configured": self.budget is not None,
            "epsilon": epsilon_text(self.limit.epsilon_micro),
            "delta": delta_text(self.limit.delta_units),
            "lift_share": 0.0 if self.budget is None else self.budget.lift,
        }

    @property
    def brief(self) -> str:
        """The limit, and what it does not pay for, to stand in a line with others."""
        return f"{self.unit}: {bound(self.limit)}{f' ({self._fit})' if self.fits < self.planned else ''}"

    @property
    def _fit(self) -> str:
        stop = ", then releases stop" if self.fits < self.planned else ""
        return f"it pays for {self.fits} of {self.planned} planned {self.counted}{stop}"

    def as_text(self) -> str:
        """One line."""
        origin = "what the plan costs" if self.budget is None else f"{self.filter} composition"
        number = "any number of" if self.releases is None else f"at most {self.releases}"
        share = f" A share of {self.budget.lift:g} is the lift's." if self.budget and self.budget.lift else ""
        limit = f"{shown(self.limit)} ({origin}); {self._fit}"
        return f"Privacy budget for {self.unit}: {limit}; one charge is for {number} {self.released}.{share}"


def with_cap(promise: Guarantee, setting: str, life_of: Callable[[int], Prices]) -> Guarantee:
    """The same guarantee. If it promises little for a whole life, it also names the largest useful number of units.

    Args:
        promise: of the configuration.
        setting: path of the setting for the number of units of a person.
        life_of: both prices of a life with a number of units; they grow with it.
    """
    units = promise.lifetime.units
    if units == 1 or life_of(units).weak is None or life_of(1).weak is not None:
        return promise
    most = largest_that(lambda count: life_of(count).weak is None, units)
    return replace(promise, lifetime=replace(promise.lifetime, cap=Cap(setting, most)))


def exact_guarantee(
    relation: str,
    unit: str,
    units_in_life: int,
    zone: str,
    contents: tuple[Content, ...],
    deployment: Deployment = "hosted",
) -> Guarantee:
    """The guarantee of exact sums, in the same form as all others; see `Guarantee`.

    Raises:
        BadGuarantee: none of the ``contents`` leaves without noise.
    """
    nothing = Cost(0, DELTA_ONE)
    return Guarantee(
        mechanism="exact: no noise at all, for replays of public datasets",
        relation=relation,
        unit=unit,
        cost=nothing,
        replace_one=nothing,
        lifetime=Lifetime(units_in_life, 1, nothing, nothing),
        sensitivity=0,
        norm="nothing is hidden",
        zone=zone,
        deployment=deployment,
        truncation_units=0,
        not_protected=("anything",),
        private_as_stated=False,
        contents=contents,
    )
