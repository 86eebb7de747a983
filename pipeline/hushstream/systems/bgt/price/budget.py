"""The budget of a user over all rounds and noise epochs, and the guarantee of the releases.

Each round is charged with its release: the charge is what it adds to the price of the rounds before. If a budget covers
only some rounds, the next round ends without a release. An epoch that is requested after a suspected rollback may
release slots again that a lost branch of the journal has released. So the epoch before it is charged in full, and the
rounds up to the next release are charged once more (`hushstream.engine.noise.epoch_budget`).

*Proof that rounds may be charged one by one.* A round's release is rho_k-zCDP for a user against null, whatever was
released before (`hushstream.systems.bgt.price.sensitivity`). The last round depends on sums of these rhos, which the
configuration fixes, and on a fixed limit, but not on content. So missing rounds cost nothing: after round k the
transcript is (rho_0 + ... + rho_k)-zCDP. Whether a rollback is suspected, and so an epoch opened, may follow from
releases; there the filter composes: rhos add at any stopping time (Whitehouse, Ramdas, Rogers, Wu 2023).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from hushstream.engine.noise.budget import BudgetFacts
from hushstream.engine.noise.epoch_budget import epoch_facts, epoch_terms, over_epochs
from hushstream.engine.noise.spending import SpendingTerms
from hushstream.engine.system import Priced
from hushstream.privacy.promises.promise import Guarantee, Promises
from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.price.guarantee import epoch_guarantee
from hushstream.systems.bgt.rounds import ROUNDS

MECHANISM = "three-slots"


@lru_cache(maxsize=64)
def spending_terms(config: BgtConfig) -> SpendingTerms:
    """The charge of each round, and the limit; see `epoch_terms`, also for errors."""
    one, epochs = epoch_guarantee(config), config.release.epochs
    if config.release.noise == "exact":
        return epoch_terms(one, "exact", epochs, config.budget, ROUNDS)
    steps = [epoch_guarantee(config, rounds=rounds) for rounds in range(1, ROUNDS + 1)]
    return epoch_terms(one, MECHANISM, epochs, config.budget, ROUNDS, steps)


@lru_cache(maxsize=64)
def lifetime_guarantee(config: BgtConfig) -> Guarantee:
    """The guarantee of all releases for one user, over all possible rounds and epochs.

    Raises:
        ConfigurationError: the budget does not cover the first round.
    """
    one, terms = epoch_guarantee(config), spending_terms(config)
    if config.release.noise == "exact":
        return one
    return over_epochs(one, terms) if terms.fits else epoch_guarantee(config, rounds=terms.begun)


def priced(config: BgtConfig) -> Priced:
    """The promises of the releases, and their prices.

    Raises:
        ConfigurationError: see `lifetime_guarantee`.
    """
    return Priced(Promises(lifetime_guarantee(config)), (budget_facts(config),), {"ledger": spending_terms(config)})


def budget_facts(config: BgtConfig) -> BudgetFacts:
    """The number of rounds within the budget.

    Raises:
        ConfigurationError: the budget does not cover one round.
    """
    terms, epochs = spending_terms(config), config.release.epochs
    facts = epoch_facts(terms, epochs, config.budget, "rounds")
    if not terms.steps:
        return facts
    fits = ROUNDS * terms.fits + terms.begun
    return replace(
        facts, counted="rounds", planned=ROUNDS * epochs, fits=fits, released="release of its sums", releases=1
    )
