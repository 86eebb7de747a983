"""The budget of a reward over all noise epochs, and the guarantee of the releases (`engine.noise.epoch_budget`).

An epoch draws new noise over the rewards before it, so epochs compose sequentially.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from hushstream.engine.noise.budget import BudgetConfig, BudgetFacts
from hushstream.engine.noise.caps import with_cap
from hushstream.engine.noise.epoch_budget import epoch_facts, epoch_terms, over_epochs
from hushstream.engine.noise.spending import SpendingTerms
from hushstream.engine.system import Priced
from hushstream.privacy.promises.promise import Guarantee, Promises
from hushstream.privacy.promises.sentence import Prices
from hushstream.systems.colin.configuration import CollaborativeConfig, ContinualConfig, FeatureConfig
from hushstream.systems.colin.release import epoch_guarantee


@lru_cache(maxsize=64)
def spending_terms(
    release: ContinualConfig, features: FeatureConfig, nodes: int, budget: BudgetConfig | None = None
) -> SpendingTerms:
    """See `epoch_terms`; raises as that does."""
    return epoch_terms(epoch_guarantee(release, features, nodes), release.mechanism, release.epochs, budget)


@lru_cache(maxsize=64)
def release_guarantee(
    release: ContinualConfig, features: FeatureConfig, nodes: int, budget: BudgetConfig | None = None
) -> Guarantee:
    """The guarantee of all releases over all possible epochs, for one reward and for all rewards of one user.

    Raises:
        ConfigurationError: not even one epoch fits the budget.
    """
    if release.mechanism == "exact":
        return epoch_guarantee(release, features, nodes)
    most = spending_terms(release, features, nodes, budget)

    def life_of(rewards: int) -> Prices:
        fewer = replace(release, rewards_per_user=rewards, horizon=release.leaves)
        return over_epochs(epoch_guarantee(fewer, features, nodes), most).life_prices

    return with_cap(over_epochs(epoch_guarantee(release, features, nodes), most), "privacy.units_per_person", life_of)


def priced(config: CollaborativeConfig, nodes: int) -> Priced:
    """Promises and costs of the releases over a graph with a number of users.

    Raises:
        ConfigurationError: not even one epoch fits the budget.
    """
    what = (config.release, config.features, nodes, config.budget)
    return Priced(Promises(release_guarantee(*what)), (budget_facts(*what),), {"ledger": spending_terms(*what)})


def budget_facts(
    release: ContinualConfig, features: FeatureConfig, nodes: int, budget: BudgetConfig | None = None
) -> BudgetFacts:
    """The number of epochs within the budget.

    Raises:
        ConfigurationError: the budget does not cover one.
    """
    return epoch_facts(spending_terms(release, features, nodes, budget), release.epochs, budget, "steps")
