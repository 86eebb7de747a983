"""What a unit may pay over all epochs of noise of a continual counter, and what its releases so promise it.

An epoch prices all its releases together. Where inputs changed under a counter's journal, or a rollback could not be
ruled out, the next epoch draws new noise over what may have been released before it, so epochs compose sequentially,
under the filter of the budget.

Under zCDP or Renyi accounting a Gaussian counter is priced by its rho, and the tables' error beside it: let its noise
in epoch i be off by t_i in total variation, so that the whole transcript is off by T = sum t_i from one drawn from
the exact laws, which is (epsilon, delta)-DP by its curve. Then it is (epsilon, delta + (1 + e^epsilon) T)-DP. Each
epoch so puts (1 + e^epsilon) t_i beside its rho, with the epsilon of the *budget*, which the sum never exceeds. A
pure mechanism is priced by its (epsilon, delta), which the filters convert themselves.
"""

from __future__ import annotations

import math
from dataclasses import replace

from hushstream.engine.budget import BudgetConfig, BudgetFacts, SpendingTerms, filter_of, require_fits, times
from hushstream.privacy.amounts import DELTA_ONE, Cost, epsilon_value
from hushstream.privacy.bounds import LARGEST_EXPONENT, exp_above, exp_below
from hushstream.privacy.ledger import BasicFilter, Debit
from hushstream.privacy.promise import Guarantee, Lifetime, Redraws


def epoch_terms(one: Guarantee, mechanism: str, epochs: int, budget: BudgetConfig | None) -> SpendingTerms:
    """What an epoch costs, and out of which limit: the planned epochs' prices, within the budget where there is one.

    Args:
        one: of one epoch.
        mechanism: as debits name it.
        epochs: how many are planned.
        budget: as configured.

    Raises:
        ConfigurationError: not even one epoch fits.
    """
    price = Debit("", mechanism, one.cost, one.relation, one.unit, _curve(one, budget))
    if budget is None:
        planned = BasicFilter(Cost(epochs * one.cost.epsilon_micro, epochs * one.cost.delta_units))
        return SpendingTerms("epoch", price, None, price, planned)
    limit = filter_of(budget)
    limit = limit.within(times(limit.price(price), epochs))
    terms = SpendingTerms("epoch", price, None, price, limit, composition=budget.filter)
    require_fits(terms.fits, "one epoch of noise", one.cost, budget)
    return terms


def over_epochs(one: Guarantee, terms: SpendingTerms) -> Guarantee:
    """What all releases promise over all epochs that may be.

    The lifetime of a user, and one report against another where that costs more than one against none, are those of one
    epoch as often as there may be epochs (basic composition).
    """
    most = terms.fits
    if most == 1:
        return one
    limit, life = terms.limit, one.lifetime
    cost = limit.cost(times(limit.price(terms.life), most))
    together = Cost(cost.epsilon_micro, min(DELTA_ONE, cost.delta_units))
    residue = most * (terms.life.curve[1] if terms.life.curve else one.residue_units)
    exchanged = together if one.replace_one == one.cost else _often(one.replace_one, most)
    return replace(
        one,
        cost=together,
        replace_one=exchanged,
        lifetime=Lifetime(life.units, life.devices, _often(life.cost, most)),
        residue_units=min(together.delta_units, residue),
        redraws=Redraws(most, one.cost),
    )


def epoch_facts(terms: SpendingTerms, planned: int, budget: BudgetConfig | None, released: str) -> BudgetFacts:
    """How many epochs the budget has room for; ``released`` says in words what is released on a charge."""
    return BudgetFacts(
        budget=budget,
        limit=terms.ceiling if budget is None else budget.limit,
        unit=f"{terms.price.unit} over all epochs of noise",
        counted="epochs of noise",
        planned=planned,
        fits=terms.fits,
        released=released,
        releases=terms.releases,
    )


def _often(cost: Cost, times_paid: int) -> Cost:
    return Cost(times_paid * cost.epsilon_micro, min(DELTA_ONE, times_paid * cost.delta_units))


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
