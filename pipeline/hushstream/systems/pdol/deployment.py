"""A PDOL deployment: what every role of it works from.

Source: Li, Li, Wang, Sun: Distributed Private Online Learning for Social Big Data Computing (2015), in a form that is
sound: `hushstream.systems.pdol.algorithm.node` has the proof.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hushstream.engine.noise.budget import BudgetFacts, SpendingTerms, ledger_fields
from hushstream.privacy.amounts import delta_to_bytes
from hushstream.privacy.keys import Key
from hushstream.privacy.ledger import Debit
from hushstream.privacy.promises.promise import Guarantee, Promises
from hushstream.systems.pdol.algorithm.counters import Counters, counter_address, plan_of
from hushstream.systems.pdol.algorithm.graphs import mixing_of
from hushstream.systems.pdol.algorithm.node import NodeRelease
from hushstream.systems.pdol.budget import budget_facts, lifetime_guarantee, spending_terms
from hushstream.systems.pdol.configuration import PdolConfig, pdol_digest

TRACK = "shared"
"""The one model track."""


@dataclass(frozen=True, slots=True, eq=False)
class PdolSystem:
    """A configuration, as the roles of its deployment work from it.

    Attributes:
        config: as given.
        digest: of the configuration.
        public_dataset: see `System.public_dataset`.
    """

    config: PdolConfig
    digest: bytes
    public_dataset: bool = False

    @classmethod
    def of(cls, config: PdolConfig, public_dataset: bool = False) -> PdolSystem:
        """Refuse a configuration without a counter, a graph, or room for one epoch.

        Raises:
            ConfigurationError: its counters would need more than a release may hold, or the budget is spent.
            BadGraph: there is no such graph of so many nodes.
        """
        system = cls(config, pdol_digest(config, public_dataset), public_dataset)
        system.guarantee()
        if config.gossip is not None:
            mixing_of(config.gossip, config.nodes)
        return system

    @property
    def gossips(self) -> bool:
        """Whether neighbours exchange parameters (the form of the paper)."""
        return self.config.gossip is not None

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers of partitions: a home for each counter, or for each node where there are none."""
        homes = self.config.nodes if self.gossips else self.config.domains
        return {"learner": homes, "scopes": homes, "tracks": 1}

    def home_of(self, node: int) -> int:
        """The home partition of a node."""
        return node if self.gossips else self.config.domain_of(node)

    def guarantee(self) -> Guarantee:
        """What the configured releases promise, to whom, over a lifetime."""
        return lifetime_guarantee(self.config)

    def promises(self) -> Promises:
        return Promises(self.guarantee())

    @property
    def spending_terms(self) -> SpendingTerms:
        """What an epoch of noise costs, and out of which limit."""
        return spending_terms(self.config)

    @property
    def ledgers(self) -> Mapping[str, SpendingTerms]:
        """What the releases cost that are entered on each ledger topic, and out of which limit."""
        return {"ledger": self.spending_terms}

    @property
    def budgets(self) -> tuple[BudgetFacts, ...]:
        """What may be spent, and how much of what is planned fits."""
        return (budget_facts(self.config),)

    def counters(self, key: Key, nonce: bytes, epoch: int, domain: int) -> Counters:
        """The counters of a domain under the noise of one journal and epoch."""
        plan = plan_of(self.config.sharing, self.config.records.dimension)
        address = counter_address(self.config, self.digest, nonce, epoch, domain, 0, domain)
        return Counters(plan, key, address, self.config.sharing.counter == "exact")

    def release_fields(
        self, release: NodeRelease, release_id: bytes, epoch: int, reproducible: bool
    ) -> dict[str, object]:
        """The fields of a GradientSum."""
        price = self.guarantee().price
        return {
            "release_id": release_id,
            "config_digest": self.digest,
            "mechanism": self.config.sharing.counter,
            "domain": release.domain,
            "epoch": epoch,
            "generation": release.generation,
            "leaf": release.leaves,
            "slots": release.slots,
            "last": release.last,
            "sums": release.values.astype("<i8").tobytes(),
            "epsilon_micro": price.epsilon_micro,
            "delta_units": delta_to_bytes(price.delta_units),
            "private_as_stated": self.as_stated(reproducible),
        }

    def ledger_entry(self, release_id: bytes, debit: Debit, reproducible: bool) -> dict[str, object]:
        """The ledger's copy of the debit of an epoch, made with its first release."""
        return ledger_fields(self.config.deployment, self.digest, release_id, debit, self.as_stated(reproducible))

    def as_stated(self, reproducible: bool) -> bool:
        """Whether releases are as private as is stated: under a seeded key anyone can draw the noise again (rule 9)."""
        return self.guarantee().private_as_stated and not reproducible
