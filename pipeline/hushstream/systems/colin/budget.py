"""What a reward may pay over all epochs of noise, and what the releases so promise it.

An epoch prices all its releases together. Where inputs changed under a counter's journal, the next epoch draws new
noise over the rewards before it, so epochs compose sequentially, under the filter of the budget.

Under zCDP or Renyi accounting a Gaussian counter is priced by its rho, and the tables' error beside it: let its noise
in epoch i be off by t_i in total variation, so that the whole transcript is off by T = sum t_i from one drawn from
the exact laws, which is (epsilon, delta)-DP by its curve. Then it is (epsilon, delta + (1 + e^epsilon) T)-DP. Each
epoch so puts (1 + e^epsilon) t_i beside its rho, with the epsilon of the *budget*, which the sum never exceeds. A
pure mechanism is priced by its (epsilon, delta), which the filters convert themselves.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from hushstream.engine.budget import BudgetConfig, BudgetFacts, SpendingTerms, filter_of, require_fits, times
from hushstream.privacy.amounts import DELTA_ONE, Cost, epsilon_value
from hushstream.privacy.bounds import LARGEST_EXPONENT, exp_above, exp_below
from hushstream.privacy.ledger import BasicFilter, Debit
from hushstream.privacy.promise import Guarantee, Lifetime, Renewals
from hushstream.systems.colin.configuration import ContinualConfig, FeatureConfig
from hushstream.systems.colin.release import epoch_guarantee


@lru_cache(maxsize=64)
def spending_terms(
    release: ContinualConfig, features: FeatureConfig, nodes: int, budget: BudgetConfig | None = None
) -> SpendingTerms:
    """What an epoch costs, and out of which limit: the planned epochs' prices, within the budget where there is one.

    Raises:
        ConfigurationError: not even one epoch fits.
    """
    one = epoch_guarantee(release, features, nodes)
    price = Debit("", release.mechanism, one.cost, one.relation, one.unit, _curve(one, budget))
    if budget is None:
        planned = BasicFilter(Cost(release.epochs * one.cost.epsilon_micro, release.epochs * one.cost.delta_units))
        return SpendingTerms("epoch", price, None, price, planned)
    limit = filter_of(budget)
    limit = limit.within(times(limit.price(price), release.epochs))
    terms = SpendingTerms("epoch", price, None, price, limit, composition=budget.filter)
    require_fits(terms.fits, "one epoch of noise", one.cost, budget)
    return terms


@lru_cache(maxsize=64)
def release_guarantee(
    release: ContinualConfig, features: FeatureConfig, nodes: int, budget: BudgetConfig | None = None
) -> Guarantee:
    """What all releases promise for one reward, over all epochs that may be, and for all rewards of one user.

    The lifetime of a user is that of one epoch as often as there may be epochs (basic composition).

    Raises:
        ConfigurationError: not even one epoch fits the budget.
    """
    one = epoch_guarantee(release, features, nodes)
    terms = spending_terms(release, features, nodes, budget)
    most = terms.fits
    if most == 1 or release.mechanism == "exact":
        return one
    limit, life = terms.limit, one.lifetime
    cost = limit.cost(times(limit.price(terms.life), most))
    together = Cost(cost.epsilon_micro, min(DELTA_ONE, cost.delta_units))
    residue = most * (terms.life.curve[1] if terms.life.curve else one.residue_units)
    many = Cost(most * life.cost.epsilon_micro, min(DELTA_ONE, most * life.cost.delta_units))
    return replace(
        one,
        cost=together,
        replace_one=together,
        lifetime=Lifetime(life.slots, life.devices, many),
        residue_units=min(together.delta_units, residue),
        renewals=Renewals(most, one.cost),
    )


def budget_facts(
    release: ContinualConfig, features: FeatureConfig, nodes: int, budget: BudgetConfig | None = None
) -> BudgetFacts:
    """How many epochs the budget has room for.

    Raises:
        ConfigurationError: not even one.
    """
    terms = spending_terms(release, features, nodes, budget)
    return BudgetFacts(
        budget=budget,
        limit=terms.ceiling if budget is None else budget.limit,
        unit=f"{terms.price.unit} over all epochs of noise",
        counted="epochs of noise",
        planned=release.epochs,
        fits=terms.fits,
        released="steps",
        releases=terms.releases,
    )


def _curve(one: Guarantee, budget: BudgetConfig | None) -> tuple[int, ...]:
    """(rho, delta beside it) of an epoch where its rho is known and the budget's epsilon weighs the tables' error."""
    if one.rho_micro is None or budget is None:
        return ()
    most, own = epsilon_value(budget.limit.epsilon_micro), epsilon_value(one.cost.epsilon_micro)
    if most > LARGEST_EXPONENT or own > LARGEST_EXPONENT:
        return (one.rho_micro, DELTA_ONE)
    # The residue is (1 + e^own) t, rounded up.
    beside = one.residue_units * (1 + exp_above(most)) / (1 + exp_below(own))
    return (one.rho_micro, min(DELTA_ONE, math.ceil(beside)))
