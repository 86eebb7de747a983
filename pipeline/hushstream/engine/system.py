"""The core of a deployment: configuration, promises and prices, which its machines use. Every system has one.

*Live.* Checks of a live deployment: which releases are refused, and which ones need the operator's word.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from hushstream.engine.configuration import PartitionConfig, PrivacyConfig
from hushstream.engine.noise.budget import BudgetFacts
from hushstream.engine.noise.spending import SpendingTerms, debit_fields
from hushstream.engine.values import ConfigurationError
from hushstream.privacy.amounts import delta_to_bytes
from hushstream.privacy.ledger import Debit
from hushstream.privacy.mechanisms.noise import NoiseAddress, Parameter
from hushstream.privacy.promises.promise import NOT_PRIVATE, Guarantee
from hushstream.privacy.promises.sentence import NOTHING, bounds, left_alone, noun


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
    """The guarantee and the costs of the releases of a configuration.

    Attributes:
        guarantee: what the configured releases promise, to whom, over a lifetime.
        budgets: the budgets, and how much of the plan is within them; one for each kind of release.
        ledgers: prices and limits of the releases on each ledger topic.
    """

    guarantee: Guarantee
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
        """What the configured releases promise, to whom, over a lifetime."""
        return self.priced.guarantee

    @cached_property
    def private_as_stated(self) -> bool:
        """Whether the releases are as private as the guarantee says, if the key is not made from a seed."""
        return self.guarantee().private_as_stated

    def derived_from(self, tainted: tuple[str, ...]) -> Self:
        """The same core if it is derived from inputs that are not private as stated: promises and digest say so."""
        if not tainted:
            return self
        digest = hashlib.blake2b(self.digest + "\n".join(tainted).encode(), digest_size=16, person=b"hush-tainted")
        priced = self.priced._replace(guarantee=self.guarantee().derived_from(tainted))
        return replace(self, digest=digest.digest(), priced=priced)

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


def require_private(guarantee: Guarantee, where: str) -> None:
    """Refuse a release that is not private as stated, and one with delta 1, which protects no unit.

    Args:
        guarantee: the deployment's.
        where: name of the configuration or deployment in errors.

    Raises:
        ConfigurationError: names the mechanism, and the topics with content without noise, or the price.
    """
    for promise in guarantee.each:
        _require_as_stated(promise, where)
        if promise.unit_prices.weak == NOTHING:
            raise ConfigurationError(
                f"{where}: release: expected one that guarantees a unit something, got {_name(promise)}: "
                f"{promise.unit} costs {promise.cost} ({promise.replace_one} for one content against another), which "
                f"guarantees nothing; lower {'measurement' if promise is guarantee.lift else 'privacy'}.epsilon"
            )


def require_named(config: DeploymentValues, tainted: Iterable[str], where: str) -> None:
    """Refuse inputs that are not private as stated, unless the configuration names each of them.

    Raises:
        ConfigurationError: names the inputs, and the word that accepts them.
    """
    unnamed = sorted(set(tainted) - set(config.privacy.tainted))
    if unnamed:
        raise ConfigurationError(
            f"{where}: privacy: expected inputs that are private as stated, got {', '.join(unnamed)}, which is marked "
            f"{NOT_PRIVATE}: all that is derived from it would be so, too. State it in the configuration: "
            f"privacy: {{tainted: [{', '.join(unnamed)}]}}"
        )


def require_person_promised(config: DeploymentValues, promise: Guarantee, where: str) -> None:
    """Refuse a deployment without a promise to a whole person, unless its configuration states this.

    A supposed number of units per person, such as pdap's ``units_per_person``, is no promise to a person, because
    nothing enforces it. A person with more units is promised less, and a promise to each person is the worst over all
    persons. To enforce the number, a learner would have to count each user's outcomes for life: in its state, and also
    after erasures and in new journals. Besides, a person has an account with each vendor, and learners of different
    vendors share no key on purpose, so nobody could add up these counts. A cap for each vendor would bound a person
    with v accounts by v times the cap, and only the person knows v. So the number gives the price of a supposed life,
    and every page that shows this price says so.

    Raises:
        ConfigurationError: names the price, and what the operator can do.
    """
    together = promise.together
    if config.privacy.person == "unprotected" or (together.weak != NOTHING and promise.lifetime.counted):
        return
    left = left_alone(promise.unit, promise.unit_prices)
    none = f"{where}: privacy: expected a guarantee for each person, got none"
    if not promise.lifetime.counted:
        raise ConfigurationError(
            f"{none}: nobody counts a person's {noun(promise.unit)}s ({promise.lifetime.units} together would cost "
            f"{together.which}), {left}. State this in the configuration: privacy: {{person: unprotected}}"
        )
    cap = promise.lifetime.cap
    first = "lower privacy.epsilon" if cap is None else f"set {cap.setting} to {cap.most} or less"
    raise ConfigurationError(
        f"{none}: {promise.units_in_life} together cost {together.which}, {left}. Either {first}, or say in the "
        f"configuration that it is so: privacy: {{person: unprotected}}"
    )


def person_warning(config: DeploymentValues, promise: Guarantee) -> tuple[str, ...]:
    """The warning that a person is guaranteed next to nothing; none where the configuration states it.

    Where they are guaranteed nothing, or nobody counts what they give, `require_person_promised` refuses it.
    """
    if config.privacy.person == "unprotected" or promise.warning is None:
        return ()
    paid = f"{promise.units_in_life} cost one person {bounds(promise.together)}"
    return (f"privacy: {paid}: {promise.warning}. State it if it is meant: privacy: {{person: unprotected}}",)


def _require_as_stated(promise: Guarantee, where: str) -> None:
    # What is derived from a tainted input is accepted if its configuration names the input (`require_named`).
    if not promise.unnoised and promise.claimed is None:
        return
    topics = ", ".join(promise.unnoised)
    why = f"content leaves un-noised on {topics}" if topics else f"what is claimed for it does not hold; {promise.cost}"
    raise ConfigurationError(
        f"{where}: release: expected one that is private as stated, got {_name(promise)}, which is {NOT_PRIVATE}: "
        f"{why}; that is for replays of public datasets"
    )


def _name(promise: Guarantee) -> str:
    return promise.mechanism.partition(":")[0]
