"""The budget of a record over all noise epochs, and the guarantee of the releases (`engine.noise.epoch_budget`).

An epoch that a key rotation begins contains no earlier slot, because a slot is in one leaf of one counter: such epochs
compose in parallel. An epoch that is requested after a suspected rollback may contain slots again that a lost branch of
the journal has released: it composes sequentially, and each record pays again. An epoch after a release that its inputs
no longer reproduce is charged in the same way, although it contains no earlier slot.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from hushstream.engine.noise.budget import BudgetFacts
from hushstream.engine.noise.caps import with_cap
from hushstream.engine.noise.epoch_budget import epoch_facts, epoch_terms, over_epochs
from hushstream.engine.noise.spending import SpendingTerms
from hushstream.engine.system import Priced
from hushstream.privacy.promises.promise import Guarantee, Promises
from hushstream.privacy.promises.sentence import Prices
from hushstream.systems.pdol.configuration import PdolConfig
from hushstream.systems.pdol.guarantee import epoch_guarantee


def _noised(config: PdolConfig) -> bool:
    return config.gossip is None and config.sharing.counter != "exact"


def _mechanism(config: PdolConfig) -> str:
    return "gossip" if config.gossip is not None else config.sharing.counter


@lru_cache(maxsize=64)
def spending_terms(config: PdolConfig) -> SpendingTerms:
    """See `epoch_terms`; raises as that does."""
    return epoch_terms(epoch_guarantee(config), _mechanism(config), config.sharing.epochs, config.budget)


@lru_cache(maxsize=64)
def lifetime_guarantee(config: PdolConfig) -> Guarantee:
    """The guarantee of all releases over all possible epochs, for one record and for a person's records at one node.

    Raises:
        ConfigurationError: the budget does not cover one epoch; or there is no counter with these settings.
    """
    if not _noised(config):
        return epoch_guarantee(config)
    terms = spending_terms(config)

    def life_of(records: int) -> Prices:
        fewer = replace(config, records=replace(config.records, records_per_user=records))
        return over_epochs(epoch_guarantee(fewer), terms).life_prices

    return with_cap(over_epochs(epoch_guarantee(config), terms), "privacy.units_per_person", life_of)


def priced(config: PdolConfig) -> Priced:
    """Promises and costs of the releases.

    Raises:
        ConfigurationError: as `lifetime_guarantee`.
    """
    return Priced(Promises(lifetime_guarantee(config)), (budget_facts(config),), {"ledger": spending_terms(config)})


def budget_facts(config: PdolConfig) -> BudgetFacts:
    """The number of epochs within the budget.

    Raises:
        ConfigurationError: the budget does not cover one.
    """
    released = "exchanges of parameters" if config.gossip is not None else "noised sums"
    return epoch_facts(spending_terms(config), config.sharing.epochs, config.budget, released)
