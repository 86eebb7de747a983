"""The guarantee of a BGTplanner deployment for one user, with its proof.

*Budget.* The budget of a user over all rounds and noise epochs, and the guarantee of the releases.

Each round is charged with its release: the charge is what it adds to the price of the rounds before. If a budget covers
only some rounds, the next round ends without a release. An epoch that is requested after a suspected rollback may
release slots again that a lost branch of the journal has released. So the epoch before it is charged in full, and the
rounds up to the next release are charged once more (`hushstream.engine.noise.epoch_budget`).

*Proof that rounds may be charged one by one.* A round's release is rho_k-zCDP for a user against null, whatever was
released before (see *Sensitivity*). The last round depends on sums of these rhos, which the
configuration fixes, and on a fixed limit, but not on content. So missing rounds cost nothing: after round k the
transcript is (rho_0 + ... + rho_k)-zCDP. Whether a rollback is suspected, and so an epoch opened, may follow from
releases; there the filter composes: rhos add at any stopping time (Whitehouse, Ramdas, Rogers, Wu 2023).

*Sensitivity.* Sensitivity and price of each kind of sum, with the proofs for the three kinds of slots.

Neighbours differ in the content of one user's slots: any content, or null. Their existence is public. Everything is
whole numbers on the lattice of 2^-20, so the bounds below hold exactly and not up to rounding.

*A (items).* A slot with n items, weight c and residuals v moves counts by c at each of its items and residual sums by
v. The collector takes it only if n c^2 + sum v^2 <= (C 2^20)^2, in integers: Delta_A = C 2^20, for counts and sums
together.

*B (pairs).* A slot holds z with sum z^2 <= (C 2^20)^2 and moves cell (i, j), i > j, by z_i z_j. Since
(sum z^2)^2 = sum_i z_i^4 + 2 sum_(i>j) z_i^2 z_j^2,

    ||lower(z z^T)||_2^2 = ((sum z^2)^2 - sum z^4) / 2 <= (sum z^2)^2 / 2:   Delta_B = C^2 2^40 / sqrt(2).

The bound is approached by many equal z. Each cell is published once. The upper triangle would be a copy with the same
noise; with fresh noise it would double the price, and Delta_B would be C^2.

*C (factors).* A slot holds y with sum y^2 <= (C_c 2^20)^2 and p with sum p^2 <= 2^40, and moves cell (i, k) by
y_i p_k / 2^20 rounded toward zero. Rounding toward zero lengthens no entry, so the Frobenius norm is at most
||y|| ||p|| / 2^20 <= C_c 2^20 = Delta_C. That is one bound for the whole matrix; a bound for each row would be
sqrt(n) times as large.

*Noise* discrete Gaussian of parameter Delta^2 / (2 rho) in each cell gives rho-zCDP (Canonne, Kamath, Steinke 2020,
Theorem 4). Rounds compose adaptively: what a user sends later depends on their own ratings and on earlier releases
alone, and given equal earlier releases the neighbours differ in that one slot again. So the transcript is
(rho_A + rho_B + rho_C)-zCDP for a user against null (Bun, Steinke 2016, Lemma 2.3). A last round that asks for kind A
again has Delta_A and pays rho_C. Nulls, refused slots and the padding take part in the public number of slots alone.
The test for factors, shrinkage, features and biases read releases: post-processing. A device that solves its own
offset and factors, and mixes its own mean with the model, publishes nothing (`hushstream.systems.bgt.edge.agent.fit`).

*One user's slots against other slots of theirs*: they reach each other through null, so sums move by at most 2 Delta
and the price is 4 rho. (For kind B alone, ||z z^T - w w^T||_F^2 = |z|^4 + |w|^4 - 2 (z w)^2 <= 2 C^4, half of which is
in the strict lower triangle at most: 2 rho_B would do. The 4 rho that is printed is on the safe side by 2 rho_B.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from hushstream.counting.calibration import truncation_units
from hushstream.engine.declare.topics import contents_on
from hushstream.engine.noise.budget import BudgetFacts, exact_guarantee
from hushstream.engine.noise.epoch_budget import epoch_facts, epoch_terms, over_epochs
from hushstream.engine.noise.spending import SpendingTerms
from hushstream.engine.system import Priced
from hushstream.privacy.amounts import DELTA_ONE, MICRO, Cost, count_text, delta_units, epsilon_micro
from hushstream.privacy.conversions import rho_to_epsilon_micro
from hushstream.privacy.filters import ConcentratedFilter
from hushstream.privacy.mechanisms.gaussian import gaussian_truncation
from hushstream.privacy.mechanisms.guarantee import ROLLBACK_OPEN
from hushstream.privacy.promises.promise import Content, Deployment, Form, Guarantee, Lifetime
from hushstream.systems.bgt.configuration import KINDS, UNIT, BgtConfig, Kind, ReleaseConfig
from hushstream.systems.bgt.records import ROUNDS, BgtError
from hushstream.systems.bgt.topics import TOPICS


def squared_clip(kind: Kind, release: ReleaseConfig) -> int:
    """Largest sum of squares of a slot of this kind, on the lattice; a slot with a larger one is refused."""
    clip = release.factor_clip if kind == "factors" else release.clip
    # Cut to a whole number, so the norm is never above the clip that the guarantee prints.
    return int((clip * UNIT) ** 2)


def squared_sensitivity(kind: Kind, release: ReleaseConfig) -> int:
    """Delta^2 of a slot against null, in the units of the released sums; see the module's proofs."""
    square = squared_clip(kind, release)
    return -(-square * square // 2) if kind == "pairs" else square


@lru_cache(maxsize=256)
def total_rho_micro(epsilon: float, delta: float) -> int:
    """The largest rho in millionths within (epsilon, delta), at half of delta."""
    return ConcentratedFilter.for_cost(Cost(epsilon_micro(epsilon), delta_units(delta))).rho_micro


def rho_micro(number: int, release: ReleaseConfig) -> int:
    """The price of a round's slot, in millionths of rho, rounded down so that all rounds fit.

    Raises:
        BgtError: there is no such round, or the releases have no noise.
    """
    if release.noise == "exact" or not 0 <= number < len(KINDS):
        raise BgtError(f"rho: expected a round with noise from 0 to {len(KINDS) - 1}, got {number}")
    return max(1, int(total_rho_micro(release.epsilon, release.delta) * release.shares[number]))


def variance_of(number: int, kind: Kind, config: BgtConfig) -> tuple[int, int]:
    """The parameter Delta^2 / (2 rho) of the noise on each sum of a round, as (numerator, denominator)."""
    return squared_sensitivity(kind, config.release) * MICRO, 2 * rho_micro(number, config.release)


def deviation_of(number: int, kind: Kind, config: BgtConfig) -> float:
    """Standard deviation of a round's noise, in units of ratings (of their products in kind B); 0 without noise."""
    if config.release.noise == "exact":
        return 0.0
    top, bottom = variance_of(number, kind, config)
    return float((top / bottom) ** 0.5 / UNIT ** (2 if kind == "pairs" else 1))


RELATION = "zero-out: neighbours differ in the content of one user's reports, ratings or null"
UNIT_OF_PROMISE = "all reports of one user, one of each kind"
ZONE = "shuffler"

_WORDS = ("no", "one", "two", "three")

_PUBLIC = (
    "that a user sent a report of each round, with ratings in it or null, and when",
    "how many reports there are, the configuration, and public features of items",
    "what holds for the population, and what follows from it for anyone",
    "reports, from whoever runs the collector or holds its key",
    ROLLBACK_OPEN,
    "a user's own predictions, which follow their own ratings: they and their device see them",
)
_HOSTED = (
    "ratings, from the operator, whose workers make the reports; and what the times of their work show of ratings, from"
    " whoever reads to the millisecond when reports reach the log"
)
_EDGE = "ratings, from whoever controls the device or the application's process"


def epoch_guarantee(config: BgtConfig, rounds: int = ROUNDS) -> Guarantee:
    """The guarantee of the first rounds together for one user; by default of all rounds."""
    deployment: Deployment = config.kind
    if config.release.noise == "exact":
        return exact_guarantee(RELATION, UNIT_OF_PROMISE, 1, ZONE, bgt_contents(config), deployment)
    cost, against = user_cost(config, 1, rounds), user_cost(config, 2, rounds)
    prices = ", ".join(f"{rho_micro(number, config.release) / 1e6:g}" for number in range(rounds))
    which = f"the {_WORDS[ROUNDS]} rounds" if rounds == ROUNDS else f"the first {_WORDS[rounds]} of {ROUNDS} rounds"
    clip, factor_clip = config.release.clip, config.release.factor_clip
    return Guarantee(
        mechanism=f"sums of reports of {count_text(config.release.pairs, 'pair')}, clipped in whole numbers to"
        f" {clip:g} (items, pairs) and {factor_clip:g} (factors), with discrete Gaussian noise; rho {prices} for"
        f" {which}",
        relation=RELATION,
        unit=UNIT_OF_PROMISE,
        cost=cost,
        replace_one=against,
        lifetime=Lifetime(1, 1, cost, against),
        sensitivity=math.ceil(clip * UNIT),
        norm="L2 distance of the sums of a round, in units of 2^-20 (of pairs: its square over sqrt 2, in 2^-40)",
        zone=ZONE,
        deployment=deployment,
        truncation_units=_truncation(config, cost.epsilon_micro, 1, rounds),
        not_protected=(*_PUBLIC, _HOSTED if deployment == "hosted" else _EDGE),
        rho_micro=_rho(config, rounds),
    ).with_contents(bgt_contents(config))


def user_cost(config: BgtConfig, times: int, rounds: int = ROUNDS) -> Cost:
    """The price of the first rounds for a user whose slots move sums ``times`` as far as one slot.

    ``times`` is 2 to compare one user's slots with other slots of the same user; the price is then 4 rho.
    """
    epsilon = rho_to_epsilon_micro(times**2 * _rho(config, rounds), _half(config))
    return Cost(epsilon, min(DELTA_ONE, _half(config) + _truncation(config, epsilon, times, rounds)))


def changed_cells(kind: Kind, config: BgtConfig) -> int:
    """The number of sums that one slot can change."""
    pairs = config.release.pairs
    most = min(pairs, config.top)
    return {"items": 2 * pairs, "pairs": most * (most - 1) // 2, "factors": pairs * config.release.factors}[kind]


def _rho(config: BgtConfig, rounds: int) -> int:
    return sum(rho_micro(number, config.release) for number in range(rounds))


def _half(config: BgtConfig) -> int:
    """The delta for the conversion of rho; the rest of the configured delta is for the noise tables."""
    return delta_units(config.release.delta) // 2


def _truncation(config: BgtConfig, epsilon_micro: int, times: int, rounds: int) -> int:
    """The noise tables' part of delta. The third round may be of either kind; the larger part counts."""
    variation = Fraction(0)
    for number, kind in enumerate(KINDS[:rounds]):
        possible: tuple[Kind, ...] = (kind, "items") if number + 1 == ROUNDS else (kind,)
        variation += max(
            changed_cells(one, config) * gaussian_truncation(*variance_of(number, one, config)) for one in possible
        )
    return truncation_units(times * variation, epsilon_micro)


TRUSTED = frozenset({"edge", "shuffler"})

_content = contents_on(TOPICS, TRUSTED)


def bgt_contents(config: BgtConfig) -> tuple[Content, ...]:
    """Every topic that holds content of a person, in the order in which data flows."""
    return tuple(_contents(config))


def _contents(config: BgtConfig) -> Iterator[Content]:
    if not config.devices:
        yield _content("ratings", "ratings, with the user's name", Form.CLEAR)
        yield _content("predictions", "predicted ratings of the user who asks", Form.CLEAR)
    yield _content("updates", "reports, without a name", Form.SEALED if config.devices else Form.CLEAR)
    form = Form.CLEAR if config.release.noise == "exact" else Form.NOISED
    yield _content("releases", "sums over all users of a round", form)
    yield _content("models", "biases and factors of items, made of releases alone", form)
    yield _content("rounds", "the next round, made of releases alone", form)
    if config.devices:
        yield _content("statements", "models and the next round, as devices take them", form)


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
    return Priced(lifetime_guarantee(config), (budget_facts(config),), {"ledger": spending_terms(config)})


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
