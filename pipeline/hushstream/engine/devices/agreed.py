"""What devices agree to in any system: keys that they trust, what is promised, and which models they take."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from hushstream.engine.devices.envelope import ModelBody, Statement
from hushstream.engine.devices.errors import BadModel, OlderModel, WeakerAgreement
from hushstream.engine.devices.recipients import Recipient, Recipients
from hushstream.engine.devices.signing import SigningKey, SigningKeys

FORMAT = 1

StatementT = TypeVar("StatementT", bound=Statement)


class Price(NamedTuple):
    """What a user's whole life costs them, as the agreement states it; see `Agreement.promise`.

    Attributes:
        epsilon_micro, delta_units: whether they took part.
        exchange_epsilon_micro, exchange_delta_units: which of two things they did.
        lifetime_slots: slots in their life.
    """

    epsilon_micro: int
    delta_units: int
    exchange_epsilon_micro: int
    exchange_delta_units: int
    lifetime_slots: int

    def require_no_weaker_than(self, other: Price) -> None:
        """Refuse a promise of which any figure is larger than before.

        Raises:
            WeakerAgreement: one is.
        """
        for name, mine, theirs in zip(self._fields, self, other, strict=True):
            if mine > theirs:
                raise WeakerAgreement(f"agreement: expected {name} of at most {theirs}, as was agreed, got {mine}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed(ABC, Generic[StatementT]):
    """What every system's agreement has.

    Attributes:
        deployment: its name.
        configuration: 16 bytes.
        sealing, signing: the first keys, as chains of one.
        promise: the price of a user's life.
        text: the promise in words.
        delay_ms: up to how long a slot waits beside what it waits for in any case.
    """

    deployment: str
    configuration: bytes
    sealing: Recipients
    signing: SigningKeys
    promise: Price
    text: tuple[str, ...]
    delay_ms: int

    def require_keys(self, model: ModelBody, signing: SigningKeys, sealing: Recipients) -> None:
        """Refuse keys that do not follow from those that a device knows.

        Args:
            model: as it came; its chains are vouched for within.
            signing, sealing: the longest chains that the device has seen; at first the agreement's.

        Raises:
            BadModel: one that was known is another, or gone.
        """
        for found, known in ((model.signing.keys, signing.keys), (model.sealing.keys, sealing.keys)):
            if tuple(found[: len(known)]) != tuple(known):
                raise BadModel("model: expected keys that follow from those that are known, got others")

    @abstractmethod
    def stated(self, model: ModelBody, now_ms: int, seen: StatementT | None) -> StatementT:
        """What a model states, if a device may take it; its content is checked by whoever goes on with it.

        Raises:
            BadModel: see `require_stated`; or it is not of what this system agreed to.
        """

    def require_stated(
        self, model: ModelBody, statement: StatementT, now_ms: int, seen: StatementT | None
    ) -> StatementT:
        """What a model states, if a device may take it; what is of one system alone is for that to check.

        Args:
            model: whose keys were checked.
            statement: as read.
            now_ms: the device's clock.
            seen: the statement of the newest version that the device has seen.

        Raises:
            OlderModel: it is older than ``seen``, or has expired.
            BadModel: it is not signed, or not what was agreed to.
        """
        model.signing.verify(statement.version, model.signing_key, model.signature, model.statement)
        if (statement.deployment, statement.configuration) != (self.deployment, self.configuration.hex()):
            raise BadModel("model: expected one of the deployment and configuration that was agreed to, got another")
        price = (statement.epsilon_micro, whole_units(statement.delta_units))
        weaker = price[0] > self.promise.epsilon_micro or price[1] > self.promise.delta_units
        if weaker or not statement.private_as_stated:
            raise BadModel("model: expected one as private as was agreed, got a weaker one")
        if seen is not None and statement.version < seen.version:
            raise OlderModel(f"model: expected version {seen.version} or later, got {statement.version}")
        if seen is not None and statement.version == seen.version and statement != seen:
            raise BadModel(f"model: expected what was stated of version {seen.version} before, got another")
        if statement.expires_ms <= now_ms:
            raise OlderModel("model: expected one that has not expired, got one that has")
        return statement


def configuration_of(canonical: bytes, prepared: bytes) -> bytes:
    """The digest of settings in their canonical form and of what was prepared; as `config_digest` makes it."""
    said = len(canonical).to_bytes(8, "little") + canonical + prepared
    return hashlib.blake2b(said, digest_size=16, person=b"hush-config").digest()


def keys_of(values: Mapping[str, Any]) -> tuple[Recipients, SigningKeys]:
    """The first keys of an agreement, as chains of one."""
    public, vouch = (bytes.fromhex(values["sealing"][name]) for name in ("public_key", "vouch_key"))
    return Recipients((Recipient(public, vouch),)), SigningKeys((SigningKey(bytes.fromhex(values["signing_key"])),))


def price_of(promise: Mapping[str, Any], lifetime_slots: int) -> Price:
    """The price that an agreement states."""
    return Price(
        int(promise["epsilon_micro"]),
        whole_units(promise["delta_units"]),
        int(promise["exchange_epsilon_micro"]),
        whole_units(promise["exchange_delta_units"]),
        lifetime_slots,
    )


def whole_units(text: str) -> int:
    """A number of units as decimal digits; raises `BadModel` for anything else."""
    if not (isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= 40):
        raise BadModel("expected a whole number as decimal digits, got something else")
    return int(text)
