"""The guarantee of a PDOL deployment.

The proof is in `hushstream.systems.pdol.algorithm.counters`. One record against a null slot costs
rho, one record against another 4 rho, or 2.15 rho where moments are released (`algorithm.moments`), and r_i records of
a person at domain i cost sum_i r_i^2 rho together. (epsilon,
delta) follow from rho by `hushstream.privacy.conversions`.

*Budget.* The budget of a record over all noise epochs, and the guarantee of the releases (`engine.noise.epoch_budget`).

An epoch that a key rotation begins contains no earlier slot, because a slot is in one leaf of one counter: such epochs
compose in parallel. An epoch that is requested after a suspected rollback may contain slots again that a lost branch of
the journal has released: it composes sequentially, and each record pays again. An epoch after a release that its inputs
no longer reproduce is charged in the same way, although it contains no earlier slot.

*Deployment.* A PDOL deployment, which all its roles use.

Source: Li, Li, Wang, Sun: Distributed Private Online Learning for Social Big Data Computing (2015), in a form that is
sound: `hushstream.systems.pdol.algorithm.counters` has the proof.

*Topics.* The topics of PDOL.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from hushstream.counting import Neighbours
from hushstream.engine.declare import topics
from hushstream.engine.declare.topics import contents_on
from hushstream.engine.noise.budget import BudgetFacts, exact_guarantee, with_cap
from hushstream.engine.noise.epoch_budget import epoch_facts, epoch_terms, over_epochs
from hushstream.engine.noise.spending import SpendingTerms
from hushstream.engine.system import Core, Priced
from hushstream.privacy.amounts import Cost, count_text, delta_units
from hushstream.privacy.conversions import rho_to_epsilon_micro
from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.guarantee import ROLLBACK_OPEN
from hushstream.privacy.promises.promise import Content, Form, Guarantee
from hushstream.privacy.promises.sentence import Prices, bounds, strength
from hushstream.schemas.topics import PartitionRule
from hushstream.systems.pdol.algorithm.counters import Counters, counter_address, plan_of
from hushstream.systems.pdol.algorithm.moments import leaf_of
from hushstream.systems.pdol.algorithm.rows import PdolError
from hushstream.systems.pdol.configuration import PdolConfig, pdol_digest

EDGE_ZONE, SERVER_ZONE = "edge", "server"
"""The zones; the server's workers have no key."""

RECORDS = topics.requests(
    "records",
    ("Record", "RecordBatch", "Label", "LabelBatch", "Membership", "Seal", "Forget"),
    EDGE_ZONE,
    "learner",
    rule=PartitionRule.TRACK,
    ticks=False,
    # The number of records is public, but labels are on the same topic, and which records are labelled is private.
    private_lag=True,
)
"""Input of the nodes of a domain, in order: records in clear, and their labels."""

PREDICTIONS = topics.journal("predictions", ("Predictions",), EDGE_ZONE, PartitionRule.HOME, "learner", client="reads")

TOPICS = (
    RECORDS,
    PREDICTIONS,
    topics.releases("releases", "GradientSum", "Membership", "Seal"),
    topics.models("LinearModel"),
    topics.account("ledger", "LedgerEntry", "scopes"),
    topics.marks(EDGE_ZONE, "learner"),
    topics.dead_letters(EDGE_ZONE, "learner"),
    topics.dead_letters(SERVER_ZONE, "tracks"),
)


NEIGHBOURS = Neighbours(
    relation="zero-out: neighbours differ in the content of one slot at one node, a labelled record or null",
    unit="one record",
)
_PUBLIC = (
    "how many slots each domain has had, and when each came and was released",
    "the configuration, which node is in which domain, and when a node joins or leaves",
    ROLLBACK_OPEN,
)
_NODE_PREDICTIONS = (
    "records, from whoever sees what their own node predicts: predictions of the node follow its records, and this"
    " guarantee is for outsiders alone"
)
_OPEN = (
    "records of all nodes, from whoever runs the node workers or holds the edge zone's key: one zone, with one key; and"
    " what the times of releases on the log show of the workers' work, from whoever reads them to the millisecond"
)


def epoch_guarantee(config: PdolConfig) -> Guarantee:
    """The guarantee of all releases of all nodes together, for one record and for a person's records in one domain."""
    if config.sharing.counter == "exact":
        contents, neighbours = pdol_contents(config), (NEIGHBOURS.relation, NEIGHBOURS.unit)
        return exact_guarantee(*neighbours, config.records.records_per_user, "edge", contents)
    plan = plan_of(config.sharing, config.records.dimension)
    leaf = leaf_of(config.records.dimension)
    promise = plan.guarantee(replace(NEIGHBOURS, apart=leaf.apart), config.records.records_per_user, "hosted", "edge")
    return replace(
        promise,
        lifetime=replace(promise.lifetime, counted=_counts(config)),
        contents=pdol_contents(config),
        mechanism=f"{leaf.content}, summed in {count_text(config.domains, 'counter')},"
        f" {_sizes(config)} to a leaf, each: {promise.mechanism}",
        not_protected=(*promise.not_protected, *_PUBLIC, *_by_place(config)),
        conditions=(_of_persons(config), *promise.conditions),
    )


def person_prices(config: PdolConfig, records: Sequence[int]) -> Prices:
    """The costs of all releases about one person: rho times the squares of ``records``, replace-one `apart` as much.

    Counters of different domains draw independent noise, so rhos add, over domains, for either relation.

    Args:
        config: with noise.
        records: their records at each node where they have any; nodes of one domain count together.

    Raises:
        PdolError: sums without noise.
    """
    if config.sharing.counter == "exact":
        raise PdolError("person_prices: expected sums with noise, got exact ones")
    plan = plan_of(config.sharing, config.records.dimension)
    rho = plan.budget.rho_micro
    assert rho is not None
    squares = sum(count * count for count in records)

    def cost(times: Fraction, steps: int) -> Cost:
        micro = rho_to_epsilon_micro(math.ceil(times * squares * rho), delta_units(config.sharing.delta))
        # The noise's tables add to delta, by the number of draws that differ; this stays far below the stated delta.
        worst = plan.budget.many(max(1, steps * sum(records)), plan.changed_draws, plan.noise.truncation)
        return Cost(micro, worst.delta_units if micro else 0)

    return Prices(cost(leaf_of(config.records.dimension).apart, 2), cost(Fraction(1), 1))


def _of_persons(config: PdolConfig) -> str:
    """The condition on a person's records."""
    if _counts(config):
        return "a person has one user name at all nodes, by which their records are counted"
    each, domains = config.records.records_per_user, config.domains
    prices = person_prices(config, [each] * domains)
    return (
        f"a person has at most {count_text(each, 'record')} at nodes of one domain, and none at others: with as many in"
        f" each of {domains} domains they pay {bounds(prices)}{strength(prices.which)}, as rho"
        " grows with the sum over domains of the squares of their numbers"
    )


def _counts(config: PdolConfig) -> bool:
    """Whether a person's records are counted in one place: each domain's home counts those of all its nodes."""
    return config.domains == 1


def _sizes(config: PdolConfig) -> str:
    least, most = min(config.sharing.sizes), max(config.sharing.sizes)
    return count_text(most, "slot") if least == most else f"{least} to {most} slots"


def _by_place(config: PdolConfig) -> tuple[str, ...]:
    return (_OPEN, _NODE_PREDICTIONS) if config.prediction.place == "node" else (_OPEN,)


TRUSTED = frozenset({"edge"})

_content = contents_on(TOPICS, TRUSTED)


def pdol_contents(config: PdolConfig) -> tuple[Content, ...]:
    """Every topic that holds content of a person, in the order in which data flows."""
    return tuple(_contents(config))


def _contents(config: PdolConfig) -> Iterator[Content]:
    yield _content("records", "labelled records", Form.CLEAR)
    yield _content("predictions", "what is predicted for each record", Form.CLEAR)
    form = Form.CLEAR if config.sharing.counter == "exact" else Form.NOISED
    yield _content("releases", f"each domain's sum of {leaf_of(config.records.dimension).content}", form)
    yield _content("models", "the model of all, made of releases alone", form)


@lru_cache(maxsize=64)
def spending_terms(config: PdolConfig) -> SpendingTerms:
    """See `epoch_terms`; raises as that does."""
    return epoch_terms(epoch_guarantee(config), config.sharing.counter, config.sharing.epochs, config.budget)


@lru_cache(maxsize=64)
def lifetime_guarantee(config: PdolConfig) -> Guarantee:
    """The guarantee of all releases over all possible epochs, for one record and for a person's records in one domain.

    Raises:
        ConfigurationError: the budget does not cover one epoch; or there is no counter with these settings.
    """
    if config.sharing.counter == "exact":
        return epoch_guarantee(config)
    terms = spending_terms(config)

    def life_of(records: int) -> Prices:
        fewer = replace(config, records=replace(config.records, records_per_user=records))
        return over_epochs(epoch_guarantee(fewer), terms).life_prices

    return with_cap(over_epochs(epoch_guarantee(config), terms), "privacy.units_per_person", life_of)


def priced(config: PdolConfig) -> Priced:
    """The guarantee and the costs of the releases.

    Raises:
        ConfigurationError: as `lifetime_guarantee`.
    """
    return Priced(lifetime_guarantee(config), (budget_facts(config),), {"ledger": spending_terms(config)})


def budget_facts(config: PdolConfig) -> BudgetFacts:
    """The number of epochs within the budget.

    Raises:
        ConfigurationError: the budget does not cover one.
    """
    return epoch_facts(spending_terms(config), config.sharing.epochs, config.budget, "noised sums")


TRACK = "shared"
"""The one model track."""


class PdolSystem(Core[PdolConfig]):
    """A configuration with the values that all roles of the deployment use."""

    @classmethod
    def of(cls, config: PdolConfig, public_dataset: bool = False) -> PdolSystem:
        """Make a deployment. Refuse a configuration without a counter, or with a budget below one epoch.

        Raises:
            ConfigurationError: its counters do not fit into a release, or the budget does not cover one epoch.
        """
        return cls(config, pdol_digest(config, public_dataset), priced(config), public_dataset=public_dataset)

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers of partitions: a home for each counter."""
        homes = self.config.domains
        return {"learner": homes, "scopes": homes, "tracks": 1}

    def counters(self, key: Key, nonce: bytes, epoch: int, domain: int) -> Counters:
        """The counters of a domain under the noise of one journal and epoch."""
        plan = plan_of(self.config.sharing, self.config.records.dimension)
        address = counter_address(self.config, self.digest, nonce, epoch, domain, 0, domain)
        return Counters(plan, key, address, self.config.records.dimension, self.config.sharing.counter == "exact")
