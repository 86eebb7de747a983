"""The price of all noise epochs of a continual counter for one unit, and the guarantee of its releases.

An epoch has one price for all its releases. If a counter's inputs have changed, or a rollback is suspected, the next
epoch draws new noise over units that may have been released before. So epochs compose sequentially, under the filter of
the budget.

Under zCDP or Renyi accounting a Gaussian counter is priced by its rho, and the tables' error beside it: let its noise
in epoch i be off by t_i in total variation, so that the whole transcript is off by T = sum t_i from one drawn from
the exact laws, which is (epsilon, delta)-DP by its curve. Then it is (epsilon, delta + (1 + e^epsilon) T)-DP. So each
epoch has the delta (1 + e^epsilon) t_i beside its rho, with the epsilon of the *budget*, which the sum never exceeds.
A pure mechanism is priced by its (epsilon, delta), which the filters convert themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hushstream.engine.noise.budget import BudgetConfig, BudgetFacts, filter_of, require_fits, times
from hushstream.engine.noise.spending import SpendingTerms
from hushstream.privacy.amounts import DELTA_ONE, Cost, epsilon_value
from hushstream.privacy.bounds import LARGEST_EXPONENT, exp_above, exp_below
from hushstream.privacy.ledger import BasicFilter, Debit
from hushstream.privacy.promises.promise import Guarantee, Redraws


def epoch_terms(
    one: Guarantee,
    mechanism: str,
    epochs: int,
    budget: BudgetConfig | None,
    releases: int | None = None,
    steps: Sequence[Guarantee] = (),
) -> SpendingTerms:
    """Price of an epoch, and its limit: the prices of the planned epochs, or the budget if there is one.

    Args:
        one: guarantee of one epoch.
        mechanism: its name in debits.
        epochs: planned number.
        budget: as configured.
        releases: number of releases that an epoch's price pays for; None: any number.
        steps: cumulative guarantees of the releases, if each release is charged by itself; the last one is ``one``.

    Raises:
        ConfigurationError: not even one epoch, or one step of it, is within the budget.

    Guarantee:
        Steps compose as their rhos do, in an order and at prices that are fixed by the configuration; only where they
        stop may follow from what was released. Under zCDP and Renyi accounting the sums at any such stop are those of
        a filter. Under basic composition a step adds what it raises the (epsilon, delta) of its epoch by; an epoch that
        is followed by another was charged in full, as if it had ended, so each but the last has the price of a
        mechanism that was fixed when it began, and the last one stops at a step that the epochs before it fix.
    """
    price = _debit(one, mechanism, budget)
    charged = tuple(_step(step, price) for step in steps)
    if budget is None:
        planned = BasicFilter(Cost(epochs * one.cost.epsilon_micro, epochs * one.cost.delta_units))
        return SpendingTerms("epoch", price, releases, price, planned, steps=charged)
    limit = filter_of(budget)
    limit = limit.within(times(limit.price(price), epochs))
    terms = SpendingTerms("epoch", price, releases, price, limit, composition=budget.filter, steps=charged)
    least = (charged or (price,))[0].cost
    require_fits(terms.fits + terms.begun, "the first release" if steps else "one epoch of noise", least, budget)
    return terms


def over_epochs(one: Guarantee, terms: SpendingTerms) -> Guarantee:
    """The guarantee of all releases over all possible epochs, at least one.

    The lifetime price of a user, and the price of replacing one report by another, are those of one epoch times the
    number of epochs (basic composition).
    """
    most = terms.fits + bool(terms.begun)
    if most == 1:
        return one
    limit, life = terms.limit, one.lifetime
    cost = limit.cost(terms.most)
    together = Cost(cost.epsilon_micro, min(DELTA_ONE, cost.delta_units))
    residue = most * (terms.life.curve[1] if terms.life.curve else one.residue_units)
    exchanged = together if one.replace_one == one.cost else often(one.replace_one, most)
    return replace(
        one,
        cost=together,
        replace_one=exchanged,
        lifetime=replace(life, cost=often(life.cost, most), exchange=often(life.exchange, most)),
        residue_units=min(together.delta_units, residue),
        redraws=Redraws(most, one.cost),
    )


def epoch_facts(terms: SpendingTerms, planned: int, budget: BudgetConfig | None, released: str) -> BudgetFacts:
    """Number of epochs that the budget pays for; ``released`` says in words what is released on a charge."""
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


def _debit(one: Guarantee, mechanism: str, budget: BudgetConfig | None) -> Debit:
    return Debit("", mechanism, one.cost, one.relation, one.unit, _curve(one, budget))


def _step(upto: Guarantee, price: Debit) -> Debit:
    """The first step pays for the error of all tables, because the rounded error of a few could exceed that of all."""
    curve = (upto.rho_micro, *price.curve[1:]) if price.curve and upto.rho_micro is not None else ()
    return replace(price, cost=upto.cost, curve=curve)


def often(cost: Cost, times_paid: int) -> Cost:
    """Sum of a number of equal prices (basic composition)."""
    return Cost(times_paid * cost.epsilon_micro, min(DELTA_ONE, times_paid * cost.delta_units))


def _curve(one: Guarantee, budget: BudgetConfig | None) -> tuple[int, ...]:
    """(rho, additional delta) of an epoch whose rho is known; the budget's epsilon scales the tables' error."""
    if one.rho_micro is None or budget is None:
        return ()
    most, own = epsilon_value(budget.limit.epsilon_micro), epsilon_value(one.cost.epsilon_micro)
    if most > LARGEST_EXPONENT or own > LARGEST_EXPONENT:
        return (one.rho_micro, DELTA_ONE)
    # The residue is (1 + e^own) t, rounded up.
    beside = one.residue_units * (1 + exp_above(most)) / (1 + exp_below(own))
    return (one.rho_micro, min(DELTA_ONE, math.ceil(beside)))
