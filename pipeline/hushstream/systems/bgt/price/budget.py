"""What a user may pay over all rounds and epochs of noise, and what the releases so promise them.

Each round is charged for itself, with its release: what it adds to the price of the rounds before it. A budget that
covers some rounds only pays for these, and the next round ends without a release. An epoch that is requested after a
suspected rollback may release slots of all rounds again that a lost branch of the journal released. So the epoch before
it is charged in full, and the rounds up to the next release once more (`hushstream.engine.noise.epoch_budget`).

*Proof that rounds may be charged so.* A round's release is rho_k-zCDP for a user against null whatever was released
before (`hushstream.systems.bgt.price.sensitivity`). How far rounds go is decided by sums of these rhos, which are
fixed by the configuration, and by a limit that is fixed too: not by content. Rounds that never come are a function of
those that came, so they cost nothing: after round k the transcript is (rho_0 + ... + rho_k)-zCDP. Whether a
rollback is suspected, and so an epoch opened, may follow from releases; there the filter composes: rhos add at any
stopping time (Whitehouse, Ramdas, Rogers, Wu 2023).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from hushstream.engine.noise.budget import BudgetFacts, SpendingTerms
from hushstream.engine.noise.epoch_budget import epoch_facts, epoch_terms, over_epochs
from hushstream.engine.system import Priced
from hushstream.privacy.promises.promise import Guarantee, Promises
from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.price.guarantee import epoch_guarantee
from hushstream.systems.bgt.rounds import ROUNDS

MECHANISM = "three-slots"


@lru_cache(maxsize=64)
def spending_terms(config: BgtConfig) -> SpendingTerms:
    """What a round adds, and out of which limit; see `epoch_terms`, and what that raises."""
    one, epochs = epoch_guarantee(config), config.release.epochs
    if config.release.noise == "exact":
        return epoch_terms(one, "exact", epochs, config.budget, ROUNDS)
    steps = [epoch_guarantee(config, rounds=rounds) for rounds in range(1, ROUNDS + 1)]
    return epoch_terms(one, MECHANISM, epochs, config.budget, ROUNDS, steps)


@lru_cache(maxsize=64)
def lifetime_guarantee(config: BgtConfig) -> Guarantee:
    """What all releases promise one user, over all rounds and epochs that may be.

    Raises:
        ConfigurationError: not even the first round fits the budget.
    """
    one, terms = epoch_guarantee(config), spending_terms(config)
    if config.release.noise == "exact":
        return one
    return over_epochs(one, terms) if terms.fits else epoch_guarantee(config, rounds=terms.begun)


def priced(config: BgtConfig) -> Priced:
    """What the releases promise and cost.

    Raises:
        ConfigurationError: as `lifetime_guarantee`.
    """
    return Priced(Promises(lifetime_guarantee(config)), (budget_facts(config),), {"ledger": spending_terms(config)})


def budget_facts(config: BgtConfig) -> BudgetFacts:
    """How many rounds the budget pays for.

    Raises:
        ConfigurationError: not even one.
    """
    terms, epochs = spending_terms(config), config.release.epochs
    facts = epoch_facts(terms, epochs, config.budget, "rounds")
    if not terms.steps:
        return facts
    fits = ROUNDS * terms.fits + terms.begun
    return replace(
        facts, counted="rounds", planned=ROUNDS * epochs, fits=fits, released="release of its sums", releases=1
    )
