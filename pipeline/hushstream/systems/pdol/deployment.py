"""A PDOL deployment, which all its roles use.

Source: Li, Li, Wang, Sun: Distributed Private Online Learning for Social Big Data Computing (2015), in a form that is
sound: `hushstream.systems.pdol.algorithm.node` has the proof.
"""

from __future__ import annotations

from collections.abc import Mapping

from hushstream.engine.system import Core
from hushstream.privacy.keys import Key
from hushstream.systems.pdol.algorithm.counters import Counters, counter_address, plan_of
from hushstream.systems.pdol.algorithm.graphs import mixing_of
from hushstream.systems.pdol.budget import priced
from hushstream.systems.pdol.configuration import PdolConfig, pdol_digest

TRACK = "shared"
"""The one model track."""


class PdolSystem(Core[PdolConfig]):
    """A configuration with the values that all roles of the deployment use."""

    @classmethod
    def of(cls, config: PdolConfig, public_dataset: bool = False) -> PdolSystem:
        """Make a deployment. Refuse a configuration without a counter or a graph, or with a budget below one epoch.

        Raises:
            ConfigurationError: its counters do not fit into a release, or the budget does not cover one epoch.
            BadGraph: there is no such graph of so many nodes.
        """
        system = cls(config, pdol_digest(config, public_dataset), priced(config), public_dataset=public_dataset)
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

    def nodes_of(self, home: int) -> range:
        """The nodes of a home partition."""
        return range(home, home + 1) if self.gossips else self.config.nodes_of(home)

    def home_of(self, node: int) -> int:
        """The home partition of a node."""
        return node if self.gossips else self.config.domain_of(node)

    def counters(self, key: Key, nonce: bytes, epoch: int, domain: int) -> Counters:
        """The counters of a domain under the noise of one journal and epoch."""
        plan = plan_of(self.config.sharing, self.config.records.dimension)
        address = counter_address(self.config, self.digest, nonce, epoch, domain, 0, domain)
        return Counters(plan, key, address, self.config.sharing.counter == "exact")
