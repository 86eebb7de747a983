"""The guarantee of a deployment's releases for one event's reward, for a person's rewards, and over noise epochs.

The proof is in `hushstream.systems.pdap.counter`: each reward is in one block ever, so one noise epoch costs
the epsilon of the largest level once. Counters of several homes hold different events, so together they cost no more
(parallel composition). An epoch that draws new noise over released rewards is charged again.

*Topics.* The topics of P-DAP. Each vendor has its own topics in the edge zone, and no other vendor can read them.

With `placement: home` a vendor also has the counter's topics of its own; with `serving` there is one trusted counter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from hushstream.counting import PureEpsilon
from hushstream.engine.declare import topics
from hushstream.engine.declare.topics import contents_on
from hushstream.engine.noise.budget import BudgetFacts, filter_of, require_fits
from hushstream.engine.noise.epoch_budget import over_epochs
from hushstream.engine.noise.spending import SpendingTerms
from hushstream.engine.system import Priced
from hushstream.privacy.amounts import count_text, epsilon_micro, epsilon_text
from hushstream.privacy.ledger import BasicFilter, Debit
from hushstream.privacy.mechanisms.guarantee import ITEMS_OPEN, OPEN_IN, ROLLBACK_OPEN
from hushstream.privacy.mechanisms.noise import truncation
from hushstream.privacy.promises.promise import Content, Form, Guarantee, Lifetime
from hushstream.schemas.topics import SHORT_MS, PartitionRule, Topic, of_party
from hushstream.systems.pdap.algorithm.blocks import MECHANISM, block_scales
from hushstream.systems.pdap.configuration import PdapConfig

EDGE_ZONE, COUNTER_ZONE, SERVER_ZONE = "edge", "counter", "server"
"""The zones; the server's workers have no key."""

OUTCOMES = topics.unnamed(
    "outcomes",
    ("Outcomes", "ArmChange", "Seal", "Tick"),
    COUNTER_ZONE,
    PartitionRule.TRACK,
    "counter",
    # An outcome that is sent twice could get into two blocks, and would cost its price twice.
    noised=True,
    ticks=True,
    private_lag=False,
)
"""Cell, arm and reward of each event, in clear, by an opaque name; for the one counter, or the home vendor's own."""

FORWARDS = topics.published("forwards", "Forwards", kept_ms=SHORT_MS, noised=False, client="reads", each=True)
"""Forwards that a vendor reads: which of its arms was shown, and in which cell; never the context."""

ITEMS = replace(topics.items(), each=True)
"""The topic of items by name; each vendor has its own, which no other one changes."""

TOPICS = (
    topics.contexts(EDGE_ZONE, "learner", each=True, declared=True),
    topics.clicks(EDGE_ZONE, "learner", each=True),
    topics.decisions(EDGE_ZONE, "learner", each=True),
    OUTCOMES,
    FORWARDS,
    topics.journal("journal-counter", ("BlockJournal",), COUNTER_ZONE, PartitionRule.HOME, "counter"),
    topics.releases("releases", "BlockRelease", "ArmChange", "Seal"),
    topics.models("TicketModel"),
    ITEMS,
    topics.account("ledger", "LedgerEntry", "scopes"),
    topics.marks(EDGE_ZONE, "learner", each=True),
    topics.marks(COUNTER_ZONE, "counter"),
    topics.dead_letters(EDGE_ZONE, "learner", each=True),
    topics.dead_letters(COUNTER_ZONE, "counter"),
    topics.dead_letters(SERVER_ZONE, "tracks"),
)
"""All topics that a deployment may have."""

_COUNTERS_OWN = ("outcomes", "journal-counter", "ledger", "marks-counter", "dead-letters-counter")


def declared(home: bool, named: bool) -> Iterable[Topic]:
    """The topics of a deployment: with one counter for each vendor or one for all, with or without named items."""
    for topic in TOPICS:
        if named or topic is not ITEMS:
            yield replace(topic, each=True) if home and topic.name in _COUNTERS_OWN else topic


RELATION = "replace-one: neighbours differ in the reward of one event, any two values that it may have"
UNIT = "one reward"
NOT_PROTECTED = (
    "which cell a context lies in, its home vendor, who was forwarded to whom, and when anything happened",
    "which arm was shown, that it was shown, and how many outcomes each cell and arm has had (all public)",
    ITEMS_OPEN,
    ROLLBACK_OPEN,
    "what holds for the population, and what follows from it for anyone",
    OPEN_IN["hosted"],
    "an arm's share of tickets in a cell: every vendor reads what the others' arms are believed to earn",
)
CONDITIONS = (
    "each reward is counted once, in the sum of one block (a cell and an arm)",
    "no arm is chosen by anyone who sees rewards: outcomes of such choices would carry one reward into many blocks",
    "no block's noise is ever used for other outcomes (digests in the journal ensure this)",
)


ON_TRIAL = (
    "rewards of a vendor's users, from whoever visits it while it is on trial: its dark visits follow from exact "
    "rewards of all its users, as without sharing",
    "the rate that a vendor declares: its own publication, without noise",
)
_DARK = (
    "what dark visits show stays in their vendor's edge zone: whether, when and with which context anybody comes to a "
    "clean visit does not follow from it"
)


_OF_CLEAN_VISITS = {
    "a context lies": "a context of a clean visit lies",
    "which arm was shown": "which arm was shown at clean visits",
    "no arm is chosen": "no arm of a clean visit is chosen",
}


def _said(sentences: tuple[str, ...], on_trial: bool) -> tuple[str, ...]:
    """Sentences on all visits; on trial of clean ones, as dark visits follow exact rewards and leave no vendor."""
    for said, of_clean in _OF_CLEAN_VISITS.items() if on_trial else ():
        sentences = tuple(one.replace(said, of_clean) for one in sentences)
    return sentences


@lru_cache(maxsize=64)
def epoch_guarantee(config: PdapConfig) -> Guarantee:
    """The guarantee of one noise epoch, for ever.

    Guarantee:
        Pure epsilon, the largest of any level; the proof is in `hushstream.systems.pdap.counter`. The law of
        one draw differs between neighbours, so delta is (1 + e^eps) times the truncation error of its table. c events
        of one person are c draws.
    """
    release = config.release
    budget, off = PureEpsilon(max(config.level_epsilons)), _truncation(config)
    cost, life = budget.cost(1, off), budget.many(release.events_per_person, 1, off)
    return Guarantee(
        mechanism=_mechanism(config),
        relation=RELATION,
        unit=UNIT,
        cost=cost,
        replace_one=cost,
        lifetime=Lifetime(release.events_per_person, 1, life, life, counted=False),
        sensitivity=release.reward_levels,
        norm="L1 distance of all block sums together, in reward levels",
        zone="counter",
        deployment="hosted",
        truncation_units=cost.delta_units,
        any_content=True,
        not_protected=(
            *_said(NOT_PROTECTED, config.on_trial),
            *(ON_TRIAL if config.on_trial else ()),
            _who_sees(config),
        ),
        conditions=(
            f"a person has at most {count_text(release.events_per_person, 'event')}: nobody counts them, "
            "and each further one costs as much as the first",
            *_said(CONDITIONS, config.on_trial),
            *((_DARK,) if config.on_trial else ()),
        ),
    ).with_contents(pdap_contents(config.on_trial))


@lru_cache(maxsize=64)
def spending_terms(config: PdapConfig) -> SpendingTerms:
    """Price of a noise epoch, and the limit.

    Raises:
        ConfigurationError: not even one epoch fits the budget.
    """
    one = epoch_guarantee(config)
    price = Debit("", MECHANISM, one.cost, one.relation, one.unit, ())
    if config.budget is None:
        return SpendingTerms("epoch", price, None, price, BasicFilter(one.cost))
    terms = SpendingTerms("epoch", price, None, price, filter_of(config.budget), composition=config.budget.filter)
    require_fits(terms.fits, "one epoch of noise", one.cost, config.budget)
    return terms


@lru_cache(maxsize=64)
def release_guarantee(config: PdapConfig) -> Guarantee:
    """The guarantee of all releases over all epochs within the budget, for one reward and for a person's rewards.

    Raises:
        ConfigurationError: not even one epoch fits.
    """

    return over_epochs(epoch_guarantee(config), spending_terms(config))


def priced(config: PdapConfig) -> Priced:
    """The guarantee and the costs of the releases.

    Raises:
        ConfigurationError: not even one epoch fits the budget.
    """
    ledgers = {counters_topic(config, "ledger", vendor.name): spending_terms(config) for vendor in config.vendors}
    return Priced(release_guarantee(config), (budget_facts(config),), ledgers)


def counters_topic(config: PdapConfig, name: str, vendor: str) -> str:
    """A topic of the counter that takes a vendor's outcomes."""
    return of_party(name, vendor if config.release.placement == "home" else "")


def budget_facts(config: PdapConfig) -> BudgetFacts:
    """The number of epochs within the budget.

    Raises:
        ConfigurationError: the budget does not cover one.
    """
    terms = spending_terms(config)
    return BudgetFacts(
        budget=config.budget,
        limit=terms.ceiling if config.budget is None else config.budget.limit,
        unit=f"{UNIT} over all epochs of noise",
        counted="epochs of noise",
        planned=1,
        fits=terms.fits,
        released="windows",
        releases=terms.releases,
    )


def _mechanism(config: PdapConfig) -> str:
    release = config.release
    epsilons = [epsilon_text(epsilon_micro(epsilon)) for epsilon in config.level_epsilons]
    same = len(set(epsilons)) == 1
    levels = f"epsilon {epsilons[0]}" if same else f"epsilon {', '.join(epsilons)} on levels 0 to {config.cells.levels}"
    *fewer, most = dict.fromkeys(config.least_counts)
    least = ", ".join([*map(str, fewer), count_text(most, "outcome")])
    return (
        f"disjoint blocks ({release.placement} counters): sums of rewards by cell and arm of at least {least},"
        f" each outcome in one, released once with discrete Laplace noise of scale {release.reward_levels}/epsilon,"
        f" {levels}"
    )


def _who_sees(config: PdapConfig) -> str:
    if config.release.placement == "home":
        return "the rewards of a vendor's users, from whoever runs that vendor's counter or holds its key"
    return "all rewards, from whoever runs the counter or holds its key"


def _truncation(config: PdapConfig) -> Fraction:
    return max(truncation(*scale) for scale in block_scales(config))


TRUSTED = frozenset({"edge", "counter"})

_content = contents_on(TOPICS, TRUSTED)


def pdap_contents(on_trial: bool) -> tuple[Content, ...]:
    """Every topic that holds content of a person, in the order in which data flows."""
    what = "the arm decided for each event id"
    decided = _content("decisions", what, Form.PUBLIC)
    if on_trial:
        decided = _content("decisions", f"{what}, at dark visits from exact rewards", Form.CLEAR)
    return (
        _content("contexts", "each context, with the user's name and home vendor", Form.PUBLIC),
        _content("clicks", "what a user was shown and how it was rewarded, with the user's name", Form.CLEAR),
        decided,
        _content("outcomes", "each reward, with cell and arm, by an opaque name of its event", Form.CLEAR),
        _content("forwards", "cell, home vendor and arm of contexts that got another vendor's arm", Form.PUBLIC),
        _content("releases", "sums of rewards of disjoint blocks of events, by cell and arm", Form.NOISED),
        _content("releases", "how many events each block has, and how many contexts came to each cell", Form.PUBLIC),
        _content("models", "tickets of each cell, made of releases alone", Form.NOISED),
    )
