"""What a record may pay over all epochs of noise, and what the releases so promise it (`engine.epoch_budget`).

A slot is in one leaf of one counter, so epochs that a key rotation begins lie side by side. One that is
requested after a suspected rollback may sum slots again that a lost branch of the journal released: it composes
sequentially, and each record pays again. A
release that its inputs no longer give is paid for in that way too, although no slot is summed again then.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from hushstream.engine.noise.budget import BudgetFacts, SpendingTerms
from hushstream.engine.noise.caps import with_cap
from hushstream.engine.noise.epoch_budget import epoch_facts, epoch_terms, over_epochs
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
    """What all releases promise one record, over all epochs that may be, and all records of one person at one node.

    Raises:
        ConfigurationError: not even one epoch fits the budget; or there is no counter of these settings.
    """
    if not _noised(config):
        return epoch_guarantee(config)
    terms = spending_terms(config)

    def life_of(records: int) -> Prices:
        fewer = replace(config, records=replace(config.records, records_per_user=records))
        return over_epochs(epoch_guarantee(fewer), terms).life_prices

    return with_cap(over_epochs(epoch_guarantee(config), terms), "privacy.units_per_person", life_of)


def priced(config: PdolConfig) -> Priced:
    """What the releases promise and cost.

    Raises:
        ConfigurationError: as `lifetime_guarantee`.
    """
    return Priced(Promises(lifetime_guarantee(config)), (budget_facts(config),), {"ledger": spending_terms(config)})


def budget_facts(config: PdolConfig) -> BudgetFacts:
    """How many epochs the budget pays for.

    Raises:
        ConfigurationError: not even one.
    """
    released = "exchanges of parameters" if config.gossip is not None else "noised sums"
    return epoch_facts(spending_terms(config), config.sharing.epochs, config.budget, released)
