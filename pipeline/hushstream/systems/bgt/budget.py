"""What a user may pay over all epochs of noise, and what the releases so promise them (`engine.epoch_budget`).

One epoch's price is that of all rounds together, and is paid with its first release: what a user sends in a later round
is released because it was paid for then. It pays for as many releases as there are rounds, and no more. An epoch that
a doubt begins may release slots again that a lost branch of the journal released, so each user pays again.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from hushstream.engine.budget import BudgetFacts, SpendingTerms
from hushstream.engine.epoch_budget import epoch_facts, epoch_terms, over_epochs
from hushstream.privacy.promise import Guarantee
from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.guarantee import guarantee_of
from hushstream.systems.bgt.rounds import ROUNDS

MECHANISM = "three-slots"


@lru_cache(maxsize=64)
def spending_terms(config: BgtConfig) -> SpendingTerms:
    """See `epoch_terms`; raises as that does."""
    mechanism = "exact" if config.release.noise == "exact" else MECHANISM
    return replace(epoch_terms(guarantee_of(config), mechanism, config.release.epochs, config.budget), releases=ROUNDS)


@lru_cache(maxsize=64)
def promise_of(config: BgtConfig) -> Guarantee:
    """What all releases promise one user, over all epochs that may be.

    Raises:
        ConfigurationError: not even one epoch fits the budget.
    """
    one, terms = guarantee_of(config), spending_terms(config)
    return one if config.release.noise == "exact" else over_epochs(one, terms)


def budget_facts(config: BgtConfig) -> BudgetFacts:
    """How many epochs the budget has room for.

    Raises:
        ConfigurationError: not even one.
    """
    return epoch_facts(spending_terms(config), config.release.epochs, config.budget, "rounds")
