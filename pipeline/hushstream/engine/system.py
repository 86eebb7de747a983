"""The core of a deployment: configuration, promises and prices, which its machines use. Every system has one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from hushstream.engine.configuration import PartitionConfig, PrivacyConfig
from hushstream.engine.noise.budget import BudgetFacts
from hushstream.engine.noise.spending import SpendingTerms, debit_fields
from hushstream.privacy.amounts import delta_to_bytes
from hushstream.privacy.ledger import Debit
from hushstream.privacy.mechanisms.noise import NoiseAddress, Parameter
from hushstream.privacy.promises.promise import Guarantee, Promises


class DeploymentValues(Protocol):
    """What the configurations of all systems have in common."""

    @property
    def deployment(self) -> str: ...
    @property
    def system(self) -> str: ...
    @property
    def privacy(self) -> PrivacyConfig: ...


class DecidingValues(DeploymentValues, Protocol):
    """What the configurations of all deciding systems have in common."""

    @property
    def arms(self) -> int: ...
    @property
    def partitions(self) -> PartitionConfig: ...


NO_NONCE = bytes(32)
"""Value in place of the journal's nonce before the journal is known; nothing is drawn under it."""

ConfigT_co = TypeVar("ConfigT_co", bound=DeploymentValues, covariant=True)


class Priced(NamedTuple):
    """Promises and costs of the releases of a configuration.

    Attributes:
        promises: what the configured releases promise, to whom, over a lifetime.
        budgets: the budgets, and how much of the plan is within them; one for each kind of release.
        ledgers: prices and limits of the releases on each ledger topic.
    """

    promises: Promises
    budgets: tuple[BudgetFacts, ...]
    ledgers: Mapping[str, SpendingTerms]


@dataclass(frozen=True, eq=False)
class Core(ABC, Generic[ConfigT_co]):
    """What the machines of a deployment use. Each system derives its own class.

    Attributes:
        config: the configuration, as given.
        digest: digest of the configuration and the prepared artefacts (16 bytes).
        priced: promises and costs of the releases.
        public_dataset: see `hushstream.engine.declare.declaration.System`.
    """

    config: ConfigT_co
    digest: bytes
    priced: Priced
    public_dataset: bool = field(default=False, kw_only=True)

    @property
    @abstractmethod
    def counts(self) -> Mapping[str, int]:
        """Numbers of partitions, by what is counted."""

    @property
    def promises(self) -> Promises:
        """What the configured releases promise, to whom, over a lifetime."""
        return self.priced.promises

    @property
    def budgets(self) -> tuple[BudgetFacts, ...]:
        """The budgets, and how much of the plan is within them."""
        return self.priced.budgets

    @property
    def ledgers(self) -> Mapping[str, SpendingTerms]:
        """Prices and limits of the releases on each ledger topic."""
        return self.priced.ledgers

    @property
    def spending_terms(self) -> SpendingTerms:
        """The terms of the first ledger, which is the only one in most systems."""
        return next(iter(self.priced.ledgers.values()))

    def guarantee(self) -> Guarantee:
        """The guarantee of the releases, without those of a hold-out."""
        return self.priced.promises.releases

    @cached_property
    def private_as_stated(self) -> bool:
        """Whether the releases are as private as the guarantee says, if the key is not made from a seed."""
        return self.guarantee().private_as_stated

    @cached_property
    def price_fields(self) -> Mapping[str, Any]:
        """The fields of a release or a model with its price."""
        price = self.guarantee().price
        return {"epsilon_micro": price.epsilon_micro, "delta_units": delta_to_bytes(price.delta_units)}

    def as_stated(self, reproducible: bool) -> bool:
        """Whether releases are as private as stated; under a seeded key anybody can draw the noise again (rule 9)."""
        return self.private_as_stated and not reproducible

    @cached_property
    def stated(self) -> Mapping[bool, Mapping[str, Any]]:
        """The fields of a release or a model with its price, by whether it is as private as stated."""
        return {as_stated: {**self.price_fields, "private_as_stated": as_stated} for as_stated in (False, True)}

    def ledger_entry(self, entry_id: bytes, debit: Debit, as_stated: bool) -> dict[str, Any]:
        """The ledger's copy of a debit.

        It is sent with the release that it pays for, whether private as stated or not.
        """
        return {
            "deployment": self.config.deployment,
            "entry_id": entry_id,
            "debit": debit_fields(debit),
            "config_digest": self.digest,
            "private_as_stated": as_stated,
        }

    def noise_address(
        self,
        purpose: str,
        mechanism: str,
        parameters: Mapping[str, Parameter],
        genesis_nonce: bytes,
        epoch: int,
        partition: int,
        window: int | None = None,
        content: bytes = b"",
    ) -> NoiseAddress:
        """The address of the noise of one journal in one epoch, or of one window there; see `NoiseAddress`."""
        return NoiseAddress(
            purpose=purpose,
            deployment=self.config.deployment,
            genesis_nonce=genesis_nonce,
            system=self.config.system,
            mechanism=mechanism,
            parameters=parameters,
            config_digest=self.digest,
            epoch=epoch,
            partition=partition,
            window=window,
            content=content,
        )
