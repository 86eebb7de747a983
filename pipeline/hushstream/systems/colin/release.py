"""Running sums of features times reward, one block for each user, and the guarantee of their releases.

The relation matrix is applied later, to the released sums. So a reward moves only its own user's d numbers, by at most
the length of its features, for any matrix. (Algorithm 1 of the paper adds noise to the projected sum of d*N numbers
instead, whose sensitivity depends on the matrix.) For one reward, all users' blocks together cost the same as one block
(parallel composition).

*Budget.* The budget of a reward over all noise epochs, and the guarantee of the releases (`engine.noise.epoch_budget`).

An epoch draws new noise over the rewards before it, so epochs compose sequentially.

*Topics.* The topics of collaborative bandits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from hushstream.counting import (
    Neighbours,
)
from hushstream.engine.declare import topics
from hushstream.engine.declare.topics import contents_on
from hushstream.engine.noise.budget import BudgetConfig, BudgetFacts, exact_guarantee, with_cap
from hushstream.engine.noise.epoch_budget import epoch_facts, epoch_terms, over_epochs
from hushstream.engine.noise.spending import SpendingTerms
from hushstream.engine.system import Priced
from hushstream.privacy.mechanisms.guarantee import ITEMS_OPEN, OPEN_IN, ROLLBACK_OPEN
from hushstream.privacy.mechanisms.rewards import CONTEXTS_OPEN
from hushstream.privacy.promises.promise import Content, Form, Guarantee
from hushstream.privacy.promises.sentence import Prices
from hushstream.schemas.topics import SHORT_MS, PartitionRule, Topic
from hushstream.systems.colin.configuration import (
    GRID_BITS,
    CollaborativeConfig,
    ContinualConfig,
    FeatureConfig,
    local_reward_of,
    plan_of,
)

EDGE_ZONE, COUNTER_ZONE, SERVER_ZONE = "edge", "counter", "server"
"""The zones; the server's workers have no key."""

REWARDS = Topic(
    name="rewards",
    schemas=("Rewards", "Seal", "Tick", "Erasure"),
    zone=COUNTER_ZONE,
    partition_rule=PartitionRule.TRACK,
    count="counter",
    retention_ms=SHORT_MS,
    noised=False,
    names_users=True,
    deletions=True,
    ticks=True,
    private_lag=False,
)
"""Rows in clear, by the numbers of their users in the graph."""

COUNTED = (
    REWARDS,
    topics.journal("journal-counter", ("CounterJournal",), COUNTER_ZONE, PartitionRule.HOME, "counter"),
    topics.marks(COUNTER_ZONE, "counter"),
    topics.dead_letters(COUNTER_ZONE, "counter"),
)
"""Topics with a trusted counter."""

ITEMS = topics.items()
"""Topic of items by name."""

TOPICS = (
    topics.contexts(EDGE_ZONE, "learner"),
    topics.clicks(EDGE_ZONE, "learner"),
    topics.decisions(EDGE_ZONE, "learner"),
    *COUNTED[:2],
    topics.releases("releases", "Release", "Seal"),
    topics.models("CollaborativeModel"),
    ITEMS,
    topics.account("ledger", "LedgerEntry", "scopes"),
    topics.marks(EDGE_ZONE, "learner"),
    COUNTED[2],
    topics.dead_letters(EDGE_ZONE, "learner"),
    COUNTED[3],
    topics.dead_letters(SERVER_ZONE, "tracks"),
)
"""All topics that a deployment may have."""


def topics_of(counted: bool, named: bool) -> tuple[Topic, ...]:
    """The topics of a deployment, with or without a trusted counter, and with or without items by name."""
    left_out = (() if counted else COUNTED) + (() if named else (ITEMS,))
    return tuple(topic for topic in TOPICS if topic not in left_out)


NEIGHBOURS = Neighbours(
    relation="replace-one: neighbours differ in one reward of one user, any two values in [0, 1]",
    unit="one reward",
    any_content=True,
    step=f"units of 2^-{GRID_BITS} of a feature times a reward",
)
NOT_PROTECTED = (
    "contexts, features, arms shown, the relation graph, how many rewards a user gave, and when (all public)",
    ITEMS_OPEN,
    ROLLBACK_OPEN,
    OPEN_IN["hosted"],
)
"""The learners of a collaborative deployment are workers of its operator, whoever adds the noise."""
_LOST_LEARNERS = (
    "no operator accepts the loss of a learner's journal (`--accept-loss`): the next journal sends its rewards again in"
    " other batches, and the counter counts them again; after k losses a reward may have k + 1 times its cost"
)


@lru_cache(maxsize=64)
def counter_epoch_guarantee(release: ContinualConfig, features: FeatureConfig, nodes: int) -> Guarantee:
    """The guarantee of a counter's releases in one epoch, for one reward and for all rewards of one user."""
    plan = plan_of(release, features)
    zone = "counter" if release.noise_at == "server" else "edge"
    promise = plan.guarantee(NEIGHBOURS, release.rewards_per_user, "hosted", zone)
    # Before the graph is prepared, the number of users is not known.
    users = "" if nodes == 1 else f"{nodes} users, "
    return replace(
        promise,
        mechanism=f"{users}every reward in one user's counter, each: {promise.mechanism}",
        not_protected=(*NOT_PROTECTED, *promise.not_protected),
        conditions=(*promise.conditions, *((_LOST_LEARNERS,) if release.noise_at == "server" else ())),
    )


@lru_cache(maxsize=64)
def epoch_guarantee(release: ContinualConfig, features: FeatureConfig, nodes: int) -> Guarantee:
    """The guarantee of the releases in one noise epoch, for one reward and for all rewards of one user."""
    return _mechanism_guarantee(release, features, nodes).with_contents(collaborative_contents(release))


def _mechanism_guarantee(release: ContinualConfig, features: FeatureConfig, nodes: int) -> Guarantee:
    if release.mechanism == "exact":
        contents, neighbours = collaborative_contents(release), (NEIGHBOURS.relation, NEIGHBOURS.unit)
        exact = exact_guarantee(*neighbours, release.rewards_per_user, "counter", contents)
        return replace(exact, any_content=True)
    if release.mechanism == "noisy-reward":
        return _noisy_reward_guarantee(release)
    return counter_epoch_guarantee(release, features, nodes)


def _noisy_reward_guarantee(release: ContinualConfig) -> Guarantee:
    zone, conditions = ("counter", (_LOST_LEARNERS,)) if release.noise_at == "server" else ("edge", ())
    promise = local_reward_of(release).guarantee(release.rewards_per_user, deployment="hosted", zone=zone)
    # The first of `NOT_PROTECTED` says what the mechanism says of contexts, and more.
    others = (fact for fact in promise.not_protected if fact != CONTEXTS_OPEN)
    return replace(promise, not_protected=(*NOT_PROTECTED, *others), conditions=conditions)


TRUSTED = frozenset({"edge", "counter"})

_content = contents_on(TOPICS, TRUSTED)


def collaborative_contents(release: ContinualConfig) -> tuple[Content, ...]:
    """Every topic that holds content of a person, in the order in which data flows."""
    return (*_edge(), *_released(release))


def _edge() -> Iterator[Content]:
    yield _content("contexts", "features of the arms on offer, with the user's name", Form.PUBLIC)
    yield _content("clicks", "what a user was shown and how it was rewarded, with the user's name", Form.CLEAR)
    yield _content("decisions", "the arm decided for each event id", Form.PUBLIC)


def _released(release: ContinualConfig) -> Iterator[Content]:
    if release.noise_at == "server":
        yield _content("rewards", "each reward, with the user's number and the features shown", Form.CLEAR)
    form = Form.CLEAR if release.mechanism == "exact" else Form.NOISED
    yield _content("releases", "each user's sums of feature times reward, by the user's number", form)
    yield _content("releases", "which features each user was shown, by the user's number", Form.PUBLIC)
    yield _content("models", "each user's parameters, made of releases alone", form)


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
    """The guarantee and the costs of the releases over a graph with a number of users.

    Raises:
        ConfigurationError: not even one epoch fits the budget.
    """
    what = (config.release, config.features, nodes, config.budget)
    promise = release_guarantee(*what)
    if config.learner.clean_share < 1:
        promise = _with_dark_visits(promise)
    return Priced(promise, (budget_facts(*what),), {"ledger": spending_terms(*what)})


def _with_dark_visits(promise: Guarantee) -> Guarantee:
    """The guarantee where the items of dark visits follow from the user's own exact rewards."""
    decided = _content("decisions", "the arm decided for each event id, at dark visits from exact rewards", Form.CLEAR)
    contents = tuple(decided if one.topic == decided.topic else one for one in promise.contents)
    public = tuple(
        one.replace("arms shown,", "arms shown at clean visits,").replace("arm was shown,", "arm a clean visit showed,")
        for one in promise.not_protected
    )
    dark = (
        "what a user is shown at dark visits follows from their own exact rewards: it stays with them and the edge "
        "zone, and whether, when and with which context they come again does not follow from it"
    )
    return replace(promise, contents=contents, not_protected=public, conditions=(*promise.conditions, dark))


def budget_facts(
    release: ContinualConfig, features: FeatureConfig, nodes: int, budget: BudgetConfig | None = None
) -> BudgetFacts:
    """The number of epochs within the budget.

    Raises:
        ConfigurationError: the budget does not cover one.
    """
    return epoch_facts(spending_terms(release, features, nodes, budget), release.epochs, budget, "steps")
