"""The budget of a deployment: what a unit may pay in its life, and what each release charges.

A release is charged to two scopes together. Its *own* scope is one charge: an epoch of noise on a counter
(``epoch/{partition}/{epoch}``), one window (``window/{partition}/{n}``), or all of a lift (``lift/{partition}``). The
name ends with ``/renewal/{n}`` after a redraw, and then with ``/{nonce}`` if that was in a requested epoch
(`hushstream.engine.noise.epochs`). An own scope holds one price, which the configuration fixes, and the releases that
this price pays for. The *deployment* scope of the partition (``deployment/{partition}``) bounds what all charges
together cost the same unit.

Some charges add up (sequential composition), others do not (parallel composition):

* A trusted counter of rewards: an epoch that begins because inputs changed adds new noise to all rewards before it.
  Such epochs compose sequentially, and each is charged to the deployment scope. An epoch that a key rotation begins
  contains new rewards alone, so it composes in parallel with the one before. There is one counter, so one partition.
* A counter for each user, in the learners: one epoch for each partition. A user's contexts and clicks are in the
  partition of their hash. So partitions hold different users, and each partition has the whole limit (parallel
  composition; McSherry 2009).
* Windows of slots: a slot is in one window of one shuffler partition, so windows and partitions compose in parallel.
  The deployment scope is charged once, for the joint price of all slots of one user. It is charged again for every
  epoch that was requested after a suspected rollback, because slots that a lost branch released may be released again.
  Here partitions share users. The allowance, which a user's edge keeps, bounds the slots of that user over all
  partitions, and the budget covers that allowance.
* A lift beside slots is about the same users, so both compose sequentially. Each has its own writer, which cannot see
  what the other has spent, so the limit is divided between them beforehand (``lift``). A user is in one learner
  partition. (Two interactive mechanisms with fixed limits also compose when they run at the same time: Vadhan, Zhang
  2023; for Renyi and zCDP also Lyu 2022.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple

from hushstream.engine.values import REFUSE_UNKNOWN, ConfigurationError, number, price, require
from hushstream.privacy.amounts import (
    DELTA_ONE,
    MICRO,
    Cost,
    delta_text,
    delta_to_bytes,
    epsilon_text,
    exact,
)
from hushstream.privacy.filters import ConcentratedFilter, RenyiFilter
from hushstream.privacy.ledger import BasicFilter, ChargeFilter, Debit, Filter, Ledger, LimitFilter

FilterName = Literal["basic", "zcdp", "renyi"]
FILTER_NAMES: tuple[FilterName, ...] = ("basic", "zcdp", "renyi")

_LARGEST_EPSILON = 1e6
_REDRAW = "/renewal/"


@dataclass(frozen=True, slots=True)
class BudgetConfig:
    """What a unit may pay in its life: a reward, or all slots (and the lift) of one user.

    Attributes:
        epsilon: limit of all prices together, with delta.
        delta: see epsilon.
        filter: how prices compose: basic adds epsilons and deltas, zcdp adds rhos, renyi adds divergences at one order
            that is fixed beforehand.
        lift: share of the limit that the lift of a hold-out or in shadow mode may spend.
    """

    __pydantic_config__ = REFUSE_UNKNOWN

    epsilon: float
    delta: float
    filter: FilterName = "basic"
    lift: float = 0.0

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        epsilon = price("privacy.lifetime.epsilon", self.epsilon, _LARGEST_EPSILON)
        object.__setattr__(self, "epsilon", epsilon)
        delta = number("privacy.lifetime.delta", self.delta, "a probability in (0, 1)", lambda x: 0 < x < 1)
        object.__setattr__(self, "delta", delta)
        require(self.filter in FILTER_NAMES, "privacy.lifetime.filter", " or ".join(FILTER_NAMES), self.filter)
        share = number("privacy.lifetime.holdout", self.lift, "a share from 0 to below 1", lambda x: 0 <= x < 1)
        object.__setattr__(self, "lift", share)
        if self.filter != "basic":
            require(self.limit.delta_units >= 2, "privacy.lifetime.delta", "at least 2e-24 for zcdp or renyi", delta)

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


class ChargeKey(NamedTuple):
    """The key of a charge, by which releases belong to it. Keys of one partition only grow.

    Attributes:
        epoch: number of the noise epoch; it never falls.
        window: number of the window, if every window is a charge; it never falls.
        redraw: number of times so far that new noise was drawn over units that were released, or may have been; these
            units pay their price again each time. An epoch that a key rotation begins is no redraw, because it contains
            new units alone.
        nonce: nonce of the last requested epoch, hexadecimal; empty if there was none.
    """

    epoch: int
    window: int = 0
    redraw: int = 0
    nonce: str = ""


@dataclass(frozen=True, slots=True)
class SpendingTerms:
    """Prices and limit of the releases of one machine, fixed by the configuration.

    Attributes:
        own: kind of the own scopes: ``epoch``, ``window`` or ``lift``.
        price: price of one charge in its own scope; the scope is filled in.
        releases: number of releases that one charge pays for; None: any number.
        steps: cumulative prices of the releases of an epoch, if each release is charged by itself; the last one is
            ``price``. Empty if the first release pays for all.
        life: price of a redraw in the deployment scope (the first release is one); the scope is filled in.
        deployment: kind of the deployment scope: ``deployment``, or ``deployment-lift``.
        limit: of the deployment scope.
        composition: the limit's filter.

    A step is charged the difference to the previous cumulative price, so a scope never holds more than one price for
    each redraw. A redraw also charges the rest of the price before it, because a lost branch may have released
    everything.
    """

    own: Literal["epoch", "window", "lift"]
    price: Debit
    releases: int | None
    life: Debit
    limit: Filter
    deployment: Literal["deployment", "deployment-lift"] = "deployment"
    composition: FilterName = "basic"
    steps: tuple[Debit, ...] = ()

    def price_up_to(self, window: int) -> Debit:
        """Price of a charge in its own scope up to and including one release, whose step is ``window``."""
        return self.steps[min(window, len(self.steps) - 1)] if self.steps else self.price

    def life_up_to(self, redraws: int, window: int) -> tuple[int, ...]:
        """What the deployment scope has paid after some full redraws, and another one up to and including a step."""
        last = self.price_up_to(window) if self.steps else self.life
        whole, part = self.limit.price(self.life), self.limit.price(last)
        return tuple(redraws * one + begun for one, begun in zip(whole, part, strict=True))

    def own_scope(self, partition: int, charge_key: ChargeKey) -> str:
        """The own scope of a charge."""
        names = {
            "lift": f"lift/{partition}",
            "window": f"window/{partition}/{charge_key.window}",
            "epoch": f"epoch/{partition}/{charge_key.epoch}",
        }
        nonce = f"/{charge_key.nonce}" if charge_key.nonce else ""
        return names[self.own] + (f"{_REDRAW}{charge_key.redraw}{nonce}" if charge_key.redraw else "")

    def deployment_scope(self, partition: int) -> str:
        """The deployment scope of a home partition."""
        return f"{self.deployment}/{partition}"

    def ledger(self, partition: int) -> Ledger:
        """An empty ledger of a home partition."""
        return Ledger(
            {self.deployment_scope(partition): self.limit}, {self.own: ChargeFilter(self.price.cost, self.releases)}
        )

    @property
    def fits(self) -> int:
        """Number of redraws within the limit; the first release is one."""
        return largest_that(lambda redraws: self.limit.admits(times(self.limit.price(self.life), redraws)))

    @property
    def begun(self) -> int:
        """Number of steps of one more redraw within the limit, after those that `fits` counts."""
        return sum(self.limit.admits(self.life_up_to(self.fits, step)) for step in range(len(self.steps)))

    @property
    def most(self) -> tuple[int, ...]:
        """The largest sum of the deployment scope: all redraws, and one that is not complete."""
        if self.begun:
            return self.life_up_to(self.fits, self.begun - 1)
        return times(self.limit.price(self.life), self.fits)

    @property
    def ceiling(self) -> Cost:
        """The joint price of `most`."""
        return self.limit.cost(self.most)


class OwnScope(NamedTuple):
    """The parts of the name of a charge's own scope.

    Attributes:
        partition: the home partition.
        order: number of the epoch or window; 0 for a lift.
        redraw: see `ChargeKey.redraw`.
        nonce: see `ChargeKey.nonce`.
    """

    partition: int
    order: int
    redraw: int
    nonce: str

    @classmethod
    def of(cls, scope: str, kind: str) -> OwnScope:
        """Read what `SpendingTerms.own_scope` wrote.

        Raises:
            ValueError: not the name of such a scope.
        """
        name, _, redraw = scope.partition(_REDRAW)
        found, *numbers = name.split("/")
        if found != kind or len(numbers) != (1 if kind == "lift" else 2):
            raise ValueError(f"expected a scope of kind {kind}, got {scope!r}")
        count, _, nonce = redraw.partition("/")
        order = int(numbers[1]) if len(numbers) > 1 else 0
        return cls(int(numbers[0]), order, int(count or 0), bytes.fromhex(nonce).hex())


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
            f"{budget.limit}; raise it, or lower privacy.epsilon (or holdout.epsilon)"
        )


def debit_fields(debit: Debit) -> dict[str, Any]:
    """A debit in the form of journal and ledger."""
    return {
        "scope": debit.scope,
        "mechanism": debit.mechanism,
        "epsilon_micro": debit.cost.epsilon_micro,
        "delta_units": delta_to_bytes(debit.cost.delta_units),
        "relation": debit.relation,
        "unit": debit.unit,
    }


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
        return {
            "configured": self.budget is not None,
            "filter": self.filter,
            "epsilon": epsilon_text(self.limit.epsilon_micro),
            "delta": delta_text(self.limit.delta_units),
            "unit": self.unit,
            "counted": self.counted,
            "planned": self.planned,
            "fits": self.fits,
            "released": self.released,
            "releases": self.releases,
            "lift_share": 0.0 if self.budget is None else self.budget.lift,
        }

    def as_text(self) -> str:
        """One line."""
        origin = "what is planned" if self.budget is None else f"{self.filter} composition"
        number = "any number of" if self.releases is None else f"at most {self.releases}"
        stop = ", releases stop there" if self.fits < self.planned else ""
        fit = f"{self.counted}: {self.planned} planned, {self.fits} fit{stop}"
        share = f" A share of {self.budget.lift:g} is the lift's." if self.budget and self.budget.lift else ""
        return f"Budget of {self.unit}: {self.limit} ({origin}); {fit}; each pays for {number} {self.released}.{share}"
